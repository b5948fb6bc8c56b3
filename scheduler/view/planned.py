"""The hosts as one decision sees them: at one moment, and with what it is about to claim of them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Self

from moorage.model import AllocationRequest, Resources
from moorage.plugin import BoolArray, FloatArray, IntArray
from scheduler.view.provider_trees import CachedProvider
from scheduler.view.snapshot import Snapshot, frozen


@dataclass(frozen=True, eq=False)
class PlannedView(Snapshot):
    """All hosts at one moment, and what one decision is about to claim of them. For one thread."""

    planned_use: Mapping[str, FloatArray]
    #: Of each host, the instances placed on it, and those that something is done to.
    planned_instances: tuple[IntArray, IntArray]

    @classmethod
    def of(cls, snapshot: Snapshot, resource_classes: Collection[str]) -> Self:
        """Return a view of one's own in which these classes may be claimed."""
        known = {name: snapshot.classes[name] for name in resource_classes if name in snapshot.classes}
        used = {name: amounts.slots.used.copy() for name, amounts in known.items()}
        placed, under_way = snapshot.placed.copy(), snapshot.under_way.copy()
        shown = {
            name: replace(amounts, slots=replace(amounts.slots, used=frozen(used[name].view())))
            for name, amounts in known.items()
        }
        same = {field.name: getattr(snapshot, field.name) for field in fields(Snapshot)}
        changed = {
            "classes": {**snapshot.classes, **shown},
            "placed": frozen(placed.view()),
            "under_way": frozen(under_way.view()),
        }
        return cls(**same | changed, planned_use=used, planned_instances=(placed, under_way))

    def fits(self, resource_class: str, amount: int) -> BoolArray:
        """Which hosts may allocate ``amount`` to one more consumer, with what is planned by now."""
        amounts = self.classes.get(resource_class)
        return amounts.fits(amount) if amounts else self._none()

    def claim(self, row: int, request: AllocationRequest) -> None:
        """Count what serves a host's part of a request as used, and one instance and member more on that host."""
        tree = self.trees[row]
        for member in tree.serving if tree else ():
            if member.uuid in request.allocations:
                for name, amount in request.allocations[member.uuid].resources.items():
                    self.planned_use[name][member.slots[name]] += amount
        for instances in self.planned_instances:
            instances[row] += 1
        if self.members:
            self.members.add(row, forced_down=bool(self.forced_down[row]))

    def credit(self, provider_uuid: str, resources: Resources) -> None:
        """Count so much of one provider as free for this decision: who asks holds it already.

        As much as that may be claimed there even if the provider is over-full.
        """
        member = self._serving(provider_uuid)
        if member is None:
            return
        for name, amount in resources.items():
            slot = member.slots.get(name)
            if slot is not None and name in self.planned_use:
                capacity = self.classes[name].slots.capacity[slot]
                self.planned_use[name][slot] = min(self.planned_use[name][slot], capacity) - amount

    def _serving(self, provider_uuid: str) -> CachedProvider | None:
        """Return a provider, if it serves any host."""
        for row in self.index.by_uuid.get(provider_uuid, []):
            tree = self.trees[row]
            for member in tree.serving if tree else ():
                if member.uuid == provider_uuid:
                    return member
        return None
