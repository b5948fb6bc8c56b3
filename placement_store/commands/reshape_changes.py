"""List the changes of a planned reshape, for an operator to read before it is carried out."""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import asdict

from moorage.model import Inventory, ReshapePlan
from placement_store.commands.reshape_fleet import EntryOutcome


class PlannedChange(NamedTuple):
    """One change; fields that do not apply are null. Providers are given by name.

    ``before`` and ``after`` are, for an inventory, its fields; for a move, its source and target.
    """

    #: One of ``create`` (a provider), ``inventory`` and ``move`` (an allocation); else the state of the entry.
    change: str
    provider: str | None = None
    resource_class: str | None = None
    amount: int | None = None
    before: str | None = None
    after: str | None = None
    consumer: str | None = None


def changes(outcome: EntryOutcome, plan: ReshapePlan) -> Iterator[PlannedChange]:
    """Yield the providers to create, the inventories that change, and the allocations that move."""
    names = {known.uuid: known.name for known in outcome.before.values() if known is not None} | plan.created
    parents = {child.name: child.parent for child in outcome.entry.reshape.providers}
    for name in plan.created.values():
        yield PlannedChange("create", name, after=f"child of {parents[name]}")
    yield from sorted(_inventories(outcome, plan, names))
    for part in plan.dealt:
        source, target = names[part.from_resource_provider], names[part.to_resource_provider]
        for class_name, amount in part.resources.items():
            yield PlannedChange("move", None, class_name, amount, source, target, part.consumer_uuid)


def _inventories(outcome: EntryOutcome, plan: ReshapePlan, names: dict[str, str]) -> Iterator[PlannedChange]:
    """Yield a change for each inventory that is a source or a target of a move."""
    before = {known.uuid: known.inventories for known in outcome.before.values() if known is not None}
    uuids = {name: uuid for uuid, name in plan.created.items()}
    uuids |= {named: known.uuid for named, known in outcome.before.items() if known is not None}
    touched = {
        (uuids.get(named, named), class_name)
        for move in outcome.entry.reshape.instructions
        for named in (move.from_resource_provider, move.to_resource_provider)
        for class_name in move.moved_resources
    }
    for uuid, class_name in touched:
        was, will_be = (described.get(uuid, {}).get(class_name) for described in (before, plan.inventories))
        yield PlannedChange("inventory", names[uuid], class_name, before=_described(was), after=_described(will_be))


def _described(inventory: Inventory | None) -> str | None:
    """Return the total of an inventory, and the fields that differ from their default."""
    if inventory is None:
        return None
    usual = asdict(Inventory(total=inventory.total))
    unusual = [f"{name}={value}" for name, value in asdict(inventory).items() if value != usual[name]]
    return ", ".join([str(inventory.total), *unusual])
