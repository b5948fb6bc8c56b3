"""The host view of one decision: a snapshot plus the claims that it has planned so far, or that it assumes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Self

from moorage.model import AllocationRequest, Resources
from moorage.plugin import BoolArray, FloatArray, IntArray
from scheduler.view.column import frozen
from scheduler.view.snapshot import ChangedHosts, Snapshot


@dataclass(frozen=True, eq=False)
class PlannedView(Snapshot):
    """A snapshot with the planned claims of one decision. For one thread."""

    #: The writable arrays behind the usage of each class, by slot.
    planned_use: Mapping[str, FloatArray]
    #: The writable arrays behind ``placed`` and ``io_op_counts``.
    planned_instances: tuple[IntArray, IntArray]
    planned_changes: list[ChangedHosts]

    @classmethod
    def of(cls, snapshot: Snapshot, resource_classes: Collection[str], expected_claims: int = 1) -> Self:
        """Return a copy of a snapshot in which these resource classes can be claimed."""
        known = {name: snapshot.classes[name] for name in resource_classes if name in snapshot.classes}
        used = {name: amounts.slots.used.copy() for name, amounts in known.items()}
        placed, io_op_counts = snapshot.placed.copy(), snapshot.io_op_counts.copy()
        # The view reads through read-only views of the arrays that `claim` writes.
        shown = {
            name: replace(amounts, slots=replace(amounts.slots, used=frozen(used[name].view())))
            for name, amounts in known.items()
        }
        same = {field.name: getattr(snapshot, field.name) for field in fields(Snapshot)}
        changed = {
            "classes": {**snapshot.classes, **shown},
            "placed": frozen(placed.view()),
            "io_op_counts": frozen(io_op_counts.view()),
            "planned_changes": [*snapshot.planned_changes],
            "expected_claims": expected_claims,
        }
        return cls(**same | changed, planned_use=used, planned_instances=(placed, io_op_counts))

    def fits(self, resource_class: str, amount: int) -> BoolArray:
        """Return a mask of the hosts that fit ``amount``, computed anew: a planned claim changes it."""
        amounts = self.classes.get(resource_class)
        return amounts.fits(amount) if amounts else self._none()

    def claim(self, row: int, request: AllocationRequest) -> None:
        """Add an allocation request to the usage of a host's providers, and an instance and a member to the host."""
        tree = self.trees[row]
        taken: Resources | None = None
        for provider in tree.serving if tree else ():
            if provider.uuid in request.allocations:
                taken = request.allocations[provider.uuid].resources
                for name, amount in taken.items():
                    self.planned_use[name][provider.slots[name]] += amount
            if provider.shares and provider.uuid in request.allocations:
                self.planned_changes.append(ChangedHosts(self.index.by_uuid[provider.uuid], None))
        for instances in self.planned_instances:
            instances[row] += 1
        self.planned_changes.append(ChangedHosts((row,), taken if tree is not None and tree.is_flat else None))
        if self.members:
            self.members.add(row, forced_down=bool(self.forced_down[row]))

    def credit(self, provider_uuid: str, resources: Resources) -> None:
        """Count an amount of one provider as free for this decision, because the instance already holds it.

        The instance may claim this amount there even if the provider is over-full.
        """
        rows = self.index.by_uuid.get(provider_uuid, [])
        trees = (tree for row in rows if (tree := self.trees[row]))
        slots = next((one.slots for tree in trees for one in tree.serving if one.uuid == provider_uuid), {})
        for name, amount in resources.items():
            slot = slots.get(name)
            if slot is not None and name in self.planned_use:
                capacity = self.classes[name].slots.capacity[slot]
                self.planned_use[name][slot] = min(self.planned_use[name][slot], capacity) - amount


def without_instance(
    view: Snapshot, node_uuid: str, image_properties: Mapping[str, str], *, under_way: bool
) -> Snapshot:
    """Return a view for a request of an instance, which does not count on the compute node that it is placed on.

    :param image_properties: the properties of the instance's image.
    :param under_way: whether it is among the servers under way there.
    """
    row = view.names.by_compute_node.get(node_uuid)
    if row is None:
        return view
    # The view may not have the instance yet, and cells report only some properties.
    placed, io_op_counts = view.placed.copy(), view.io_op_counts
    placed[row] = max(placed[row] - 1, 0)
    if under_way:
        io_op_counts = io_op_counts.copy()
        io_op_counts[row] = max(io_op_counts[row] - 1, 0)
    view = replace(view, placed=frozen(placed), io_op_counts=frozen(io_op_counts))
    host, own = view.hosts[row], {f"{name}={value}" for name, value in image_properties.items()}
    counts = {pair: max(count - (pair in own), 0) for pair, count in host.image_properties.items()}
    if counts == host.image_properties:
        # The usual case: with the same hosts, their columns of attributes are kept as well.
        return view
    hosts = list(view.hosts)
    hosts[row] = replace(host, image_properties=counts)
    attributes = view.host_attributes.updated(hosts, [row])
    return replace(view, hosts=hosts, host_attributes=attributes)


def filled_up(view: Snapshot, amounts: Resources, there: IntArray) -> Snapshot:
    """Return a view with more servers on each host; they take these amounts on hosts with a single provider.

    :param there: the number of additional servers on each host.
    """
    classes = dict(view.classes)
    flat = view.flat * there
    for name, amount in amounts.items():
        if name in classes:
            classes[name] = classes[name].with_more_used(amount * flat)
    members = None if view.members is None else view.members.with_more(there)
    return replace(view, classes=classes, placed=view.placed + there, members=members)
