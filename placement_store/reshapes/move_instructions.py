"""Plan a reshape by move instructions: the changes of a tree and of its consumers. Nothing is read or written."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from moorage import errors
from moorage.messages import PlanReshape, ReshapeByInstructions
from moorage.model import Inventory, Reallocation, ReshapePlan
from placement_store.reshapes import moved_inventories
from placement_store.reshapes.described_children import ExtendedTree, NewChild, extend_tree
from placement_store.reshapes.distribution import AllocationKey, Bin, DistributionProblem, InventoryKey, Item
from placement_store.reshapes.distribution_search import distribute
from placement_store.reshapes.moved_inventories import MovedAmounts
from placement_store.reshapes.reshape_tree import Reference, ReshapeTree

Instructed = ReshapeByInstructions | PlanReshape


@dataclass(frozen=True, slots=True)
class InstructedChanges:
    """The changes that move instructions lead to."""

    new: Sequence[NewChild]
    #: The inventories that change; null for one that is deleted.
    inventories: Mapping[InventoryKey, Inventory | None]
    reallocations: Sequence[Reallocation]

    def as_plan(self) -> ReshapePlan:
        """Convert the changes to the message that answers the request."""
        inventories: dict[str, dict[str, Inventory]] = {uuid: {} for uuid, _ in self.inventories}
        for (uuid, name), inventory in self.inventories.items():
            if inventory is not None:
                inventories[uuid][name] = inventory
        created = {child.uuid: child.described.name for child in self.new}
        return ReshapePlan(created=created, inventories=inventories, dealt=tuple(self.reallocations))


#: The fields of a request that refer to providers.
_REFERENCES = {
    "instructions": ("from_resource_provider", "to_resource_provider"),
    "providers": ("parent", "name", "uuid"),
    "dealt": ("from_resource_provider", "to_resource_provider"),
}


def references(message: Instructed) -> list[Reference]:
    """Return every reference to a provider in a request, with its path."""
    return [
        Reference(f"$.{part}[{position}].{field}", text)
        for part, fields in _REFERENCES.items()
        for position, one in enumerate(getattr(message, part))
        for field in fields
        if (text := getattr(one, field)) is not None
    ]


def classes(message: Instructed) -> list[str]:
    """Return the resource classes that a request moves."""
    return sorted({name for instruction in message.instructions for name in instruction.moved_resources})


def plan_changes(tree: ReshapeTree, message: Instructed, new_uuid: Callable[[str], str]) -> InstructedChanges:
    """Plan the changes that a request makes to a tree.

    :param new_uuid: generates the uuid of a new provider for which only the name is given.
    :raises ProviderNotFound: a provider neither exists nor is described.
    :raises InvalidRequest: naming the path of the fault.
    :raises InvalidState: a total is not the one that the caller relies on.
    :raises InvalidInventory: an inventory would be impossible, or more is to be moved than its total.
    :raises ImpossibleDeal: a consumer's allocations fit nowhere.
    :raises SearchBoundReached: the search for a distribution reached its bound without a result.
    """
    extended = extend_tree(tree, message.providers, new_uuid)
    if isinstance(message, ReshapeByInstructions):
        _compare_totals(extended, message.totals or {})
    moved = moved_inventories.sum_instructions(extended, message.instructions)
    inventories = moved_inventories.inventories_after(extended, moved)
    places = _places(tree, moved)
    held = Counter(tree.held)
    # First the part that the caller has distributed: the search distributes only the rest.
    items = [*_callers_items(extended, message.dealt, places, held), *_items(held, places)]
    bins = _bins(tree, inventories, items)
    problem = DistributionProblem(
        items=items,
        bins=bins,
        held=tree.held,
        names=extended.names,
        isolated=tree.isolated,
        of_migrations=tree.of_migrations,
    )
    found = distribute(problem, max_steps=message.search_steps)
    return InstructedChanges(extended.new, inventories, _reallocations(items, found))


def _compare_totals(extended: ExtendedTree, totals: Mapping[str, Mapping[str, int]]) -> None:
    for reference, expected in totals.items():
        for name, total in expected.items():
            inventory = extended.tree.inventories.get((extended.uuid_of(reference), name))
            if (found := inventory.total if inventory else 0) != total:
                raise errors.InvalidState(reason=f"the total of {name} of {reference} is {found} by now, not {total}")


# --- Allocations to distribute ----------------------------------------------------------------------------------------


def _places(tree: ReshapeTree, moved: MovedAmounts) -> dict[InventoryKey, tuple[str, ...]]:
    """Return the places for the allocations of each inventory that shrinks: itself too, if some of it stays."""
    return {
        source: (*[source[0]] * (tree.inventories[source].total > moved.leaving[source]), *targets)
        for source, targets in moved.targets.items()
    }


def _callers_items(
    extended: ExtendedTree,
    sent: Sequence[Reallocation],
    places: Mapping[InventoryKey, tuple[str, ...]],
    held: Counter[AllocationKey],
) -> Iterator[Item]:
    """Yield the allocations that the caller has distributed, each with one place, and subtract them from ``held``."""
    for position, instructed in enumerate(sent):
        path = f"$.dealt[{position}]"
        source = extended.uuid_of(instructed.from_resource_provider)
        target = extended.uuid_of(instructed.to_resource_provider)
        for name, amount in instructed.resources.items():
            if target not in places.get((source, name), ()):
                reason = (
                    f"no {name} is moved from {instructed.from_resource_provider} to {instructed.to_resource_provider}"
                )
                raise errors.InvalidRequest(path=f"{path}.to_resource_provider", reason=reason)
            present = held[instructed.consumer_uuid, source, name]
            if amount > present:
                reason = f"consumer {instructed.consumer_uuid} has {present} of it there to be moved"
                raise errors.InvalidRequest(path=f"{path}.resources[{name!r}]", reason=reason)
            held[instructed.consumer_uuid, source, name] -= amount
        yield Item(instructed.consumer_uuid, source, instructed.resources, (target,))


def _items(held: Mapping[AllocationKey, int], places: Mapping[InventoryKey, tuple[str, ...]]) -> list[Item]:
    """Return the allocations of inventories that move as items: per consumer, classes with the same places together."""
    together: dict[tuple[str, str, tuple[str, ...]], dict[str, int]] = {}
    for (consumer, source, name), amount in sorted(held.items()):
        if amount and (source, name) in places:
            together.setdefault((consumer, source, places[source, name]), {})[name] = amount
    return [Item(consumer, source, amounts, where) for (consumer, source, where), amounts in together.items()]


def _bins(
    tree: ReshapeTree, inventories: Mapping[InventoryKey, Inventory | None], items: Sequence[Item]
) -> dict[InventoryKey, Bin]:
    used = Counter({pair: row.used for pair, row in tree.inventories.items()})
    for item in items:
        used.subtract({(item.source, name): amount for name, amount in item.amounts.items()})
    return {
        pair: Bin(
            capacity=inventory.capacity,
            used=used[pair],
            min_unit=inventory.min_unit,
            max_unit=inventory.max_unit,
            step_size=inventory.step_size,
        )
        for pair, inventory in inventories.items()
        if inventory is not None
    }


def _reallocations(items: Sequence[Item], places: Sequence[str]) -> list[Reallocation]:
    """Return the allocations that move, summed by consumer, source and target."""
    found: dict[tuple[str, str, str], Counter[str]] = {}
    for item, place in zip(items, places, strict=True):
        if place != item.source:
            found.setdefault((item.consumer, item.source, place), Counter()).update(item.amounts)
    return [
        Reallocation(
            consumer_uuid=consumer, from_resource_provider=source, to_resource_provider=place, resources=dict(amounts)
        )
        for (consumer, source, place), amounts in sorted(found.items())
    ]
