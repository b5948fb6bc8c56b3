"""Move instructions: what they make of a tree and of all who hold something of it. Pure: nothing is read or written."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from moorage import errors
from moorage.messages import PlanReshape, ReshapeByInstructions
from moorage.model import Dealt, Inventory, ReshapePlan
from placement_store.reshapes import moved_inventories
from placement_store.reshapes.described_children import ExtendedTree, NewChild, extend_tree
from placement_store.reshapes.distribution import Bin, DistributionProblem, Held, Item, Pair
from placement_store.reshapes.distribution_search import distribute
from placement_store.reshapes.moved_inventories import MovedAmounts
from placement_store.reshapes.reshape_tree import Reference, ReshapeTree

Instructed = ReshapeByInstructions | PlanReshape


@dataclass(frozen=True, slots=True)
class InstructedChanges:
    """What is to be done."""

    new: Sequence[NewChild]
    #: The inventories that change; null for one that goes.
    inventories: Mapping[Pair, Inventory | None]
    dealt: Sequence[Dealt]

    def as_plan(self) -> ReshapePlan:
        """Return it in the words of a message."""
        inventories: dict[str, dict[str, Inventory]] = {uuid: {} for uuid, _ in self.inventories}
        for (uuid, name), inventory in self.inventories.items():
            if inventory is not None:
                inventories[uuid][name] = inventory
        created = {child.uuid: child.described.name for child in self.new}
        return ReshapePlan(created=created, inventories=inventories, dealt=tuple(self.dealt))


def references(message: Instructed) -> list[Reference]:
    """Return how a request names providers."""
    found: list[Reference] = []
    for position, instruction in enumerate(message.instructions):
        path = f"$.instructions[{position}]"
        found.append(Reference(f"{path}.from_resource_provider", instruction.from_resource_provider))
        found.append(Reference(f"{path}.to_resource_provider", instruction.to_resource_provider))
    for position, child in enumerate(message.providers):
        path = f"$.providers[{position}]"
        found.append(Reference(f"{path}.parent", child.parent))
        found.append(Reference(f"{path}.name", child.name))
        if child.uuid is not None:
            found.append(Reference(f"{path}.uuid", child.uuid))
    for position, word in enumerate(message.dealt):
        path = f"$.dealt[{position}]"
        found.append(Reference(f"{path}.from_resource_provider", word.from_resource_provider))
        found.append(Reference(f"{path}.to_resource_provider", word.to_resource_provider))
    return found


def classes(message: Instructed) -> list[str]:
    """Return the resource classes that a request moves."""
    return sorted({name for instruction in message.instructions for name in instruction.moved_resources})


def moves(tree: ReshapeTree, message: Instructed, new_uuid: Callable[[str], str]) -> InstructedChanges:
    """Return what a request makes of a tree.

    :param new_uuid: makes up the uuid of a new provider of which only the name is given.
    :raises ProviderNotFound: a provider is neither there nor described.
    :raises InvalidRequest: naming the path of what cannot be meant.
    :raises InvalidInventory: an inventory would be impossible, or more is to be moved than there is.
    :raises ImpossibleDeal: what somebody holds fits nowhere.
    :raises SearchBoundReached: whether there is a deal was not found out.
    """
    relatives = extend_tree(tree, message.providers, new_uuid)
    movements = moved_inventories.movements(relatives, message.instructions)
    inventories = moved_inventories.after(relatives, movements)
    places = _places(tree, movements)
    held = Counter(tree.held)
    units = [*_callers_units(relatives, message.dealt, places, held), *_units(held, places)]
    rooms = _rooms(tree, inventories, units)
    asked = DistributionProblem(units=units, rooms=rooms, held=tree.held, names=relatives.names, isolated=tree.isolated)
    found = distribute(asked, max_steps=message.search_steps)
    return InstructedChanges(relatives.new, inventories, _dealt(units, found))


# --- What is dealt ----------------------------------------------------------------------------------------------------


def _places(tree: ReshapeTree, movements: MovedAmounts) -> dict[Pair, tuple[str, ...]]:
    """Return where what is held of each inventory that shrinks may be afterwards: there, if something of it stays."""
    return {
        source: (*[source[0]] * (tree.inventories[source].total > movements.leaving[source]), *targets)
        for source, targets in movements.targets.items()
    }


def _callers_units(
    relatives: ExtendedTree, words: Sequence[Dealt], places: Mapping[Pair, tuple[str, ...]], held: Counter[Held]
) -> Iterator[Item]:
    """Yield what the caller has dealt, each with one place alone, and take it from what is ``held``."""
    for position, word in enumerate(words):
        path = f"$.dealt[{position}]"
        source = relatives.uuid_of(word.from_resource_provider)
        target = relatives.uuid_of(word.to_resource_provider)
        for name, amount in word.resources.items():
            if target not in places.get((source, name), ()):
                reason = f"no {name} is moved from {word.from_resource_provider} to {word.to_resource_provider}"
                raise errors.InvalidRequest(path=f"{path}.to_resource_provider", reason=reason)
            present = held[word.consumer_uuid, source, name]
            if amount > present:
                reason = f"consumer {word.consumer_uuid} has {present} of it there to be dealt"
                raise errors.InvalidRequest(path=f"{path}.resources[{name!r}]", reason=reason)
            held[word.consumer_uuid, source, name] -= amount
        yield Item(word.consumer_uuid, source, word.resources, (target,))


def _units(held: Mapping[Held, int], places: Mapping[Pair, tuple[str, ...]]) -> list[Item]:
    """Return what is held of what moves: classes that have the same places go together, consumer by consumer."""
    together: dict[tuple[str, str, tuple[str, ...]], dict[str, int]] = {}
    for (consumer, source, name), amount in sorted(held.items()):
        if amount and (source, name) in places:
            together.setdefault((consumer, source, places[source, name]), {})[name] = amount
    return [Item(consumer, source, amounts, where) for (consumer, source, where), amounts in together.items()]


def _rooms(tree: ReshapeTree, inventories: Mapping[Pair, Inventory | None], units: Sequence[Item]) -> dict[Pair, Bin]:
    used = Counter({pair: row.used for pair, row in tree.inventories.items()})
    for unit in units:
        used.subtract({(unit.source, name): amount for name, amount in unit.amounts.items()})
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


def _dealt(units: Sequence[Item], places: Sequence[str]) -> list[Dealt]:
    """Return what goes elsewhere, of each consumer and way together."""
    found: dict[tuple[str, str, str], Counter[str]] = {}
    for unit, place in zip(units, places, strict=True):
        if place != unit.source:
            found.setdefault((unit.consumer, unit.source, place), Counter()).update(unit.amounts)
    return [
        Dealt(
            consumer_uuid=consumer, from_resource_provider=source, to_resource_provider=place, resources=dict(amounts)
        )
        for (consumer, source, place), amounts in sorted(found.items())
    ]
