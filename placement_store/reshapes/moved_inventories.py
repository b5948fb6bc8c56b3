"""What becomes of the inventories that move instructions move: of what leaves, of what stays, of what arrives."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from moorage import errors
from moorage.model import Inventory, InventoryFields, MoveInstruction
from placement_store.reshapes.described_children import ExtendedTree
from placement_store.reshapes.distribution import Pair

_MOST = 2**31 - 1


@dataclass(slots=True)
class MovedAmounts:
    """How much of each inventory goes where. Pairs are of a provider's uuid and a resource class."""

    leaving: Counter[Pair] = field(default_factory=Counter)
    arriving: Counter[Pair] = field(default_factory=Counter)
    #: Where what leaves an inventory goes, in the order of the instructions.
    targets: dict[Pair, list[str]] = field(default_factory=dict)
    #: The inventory that the first instruction brings something from.
    origins: dict[Pair, Pair] = field(default_factory=dict)


def movements(family: ExtendedTree, instructions: Sequence[MoveInstruction]) -> MovedAmounts:
    """Return what the instructions come to.

    :raises ProviderNotFound: a provider is neither there nor described.
    :raises InvalidRequest: something is to move to where it is, or is described where nothing arrives.
    :raises InvalidInventory: more is to be moved than there is.
    """
    found = MovedAmounts()
    for position, instruction in enumerate(instructions):
        source = family.uuid_of(instruction.from_resource_provider)
        target = family.uuid_of(instruction.to_resource_provider)
        if source == target:
            path = f"$.instructions[{position}].to_resource_provider"
            raise errors.InvalidRequest(path=path, reason="it is where this is moved from")
        for name, amount in instruction.moved_resources.items():
            _move(found, (source, name), (target, name), amount)
    _refuse_too_much(family, found)
    _refuse_idle_descriptions(family, found)
    return found


def _move(found: MovedAmounts, source: Pair, target: Pair, amount: int) -> None:
    found.leaving[source] += amount
    found.arriving[target] += amount
    if target[0] not in found.targets.setdefault(source, []):
        found.targets[source].append(target[0])
    found.origins.setdefault(target, source)


def _refuse_too_much(family: ExtendedTree, found: MovedAmounts) -> None:
    for source, amount in found.leaving.items():
        row = family.tree.inventories.get(source)
        total = 0 if row is None else row.total
        if amount > total:
            raise _invalid(source, f"{amount} are to be moved and there are {total}")


def _refuse_idle_descriptions(family: ExtendedTree, found: MovedAmounts) -> None:
    for uuid, name in family.fields:
        if (uuid, name) not in found.arriving:
            raise errors.InvalidRequest(
                path="$.providers", reason=f"{name} of {family.names[uuid]} is described, and none of it moves there"
            )


def after(family: ExtendedTree, found: MovedAmounts) -> dict[Pair, Inventory | None]:
    """Return the inventories that change, as they will be; null for one of which nothing is left.

    :raises InvalidInventory: what would be is impossible, or less would be reserved in all than now.
    """
    changed: dict[Pair, Inventory | None] = {}
    for pair in dict.fromkeys([*found.leaving, *found.arriving]):
        row = family.tree.inventories.get(pair)
        total = (0 if row is None else row.total) - found.leaving[pair] + found.arriving[pair]
        if not total:
            changed[pair] = None
        elif pair in found.arriving:
            changed[pair] = _arrived(family, found, pair, total)
        elif row is not None:
            # As little of what is reserved goes along as must.
            changed[pair] = msgspec.structs.replace(row.described, total=total, reserved=min(row.reserved, total))
    for pair, inventory in changed.items():
        if inventory is not None:
            _refuse_impossible(pair, inventory)
    _refuse_lost_reservations(family, changed)
    return changed


def _arrived(family: ExtendedTree, found: MovedAmounts, pair: Pair, total: int) -> Inventory:
    """Return an inventory that something arrives at: as the request describes it, else as it is, else as it was."""
    fields = family.fields.get(pair, InventoryFields())
    present = family.tree.inventories.get(pair)
    origin = present or family.tree.inventories[found.origins[pair]]
    known = msgspec.structs.replace(origin.described, reserved=0 if present is None else present.reserved)
    rules = _rules(known, total, arrives=present is None)
    given = {name: value for name, value in msgspec.structs.asdict(fields).items() if value is not None}
    wanted: dict[str, Any] = {**rules, **given, "total": total}
    if fields.max_unit is not None:
        wanted["max_unit"] = min(fields.max_unit, total)
    return msgspec.structs.replace(known, **wanted)


def _rules(known: Inventory, total: int, *, arrives: bool) -> dict[str, int]:
    """Return the unit rules of so much, from those of what it comes from or is added to.

    Where the largest amount was all there was, it is all there is. In a new place, the rules let all be allocated of a
    part that is smaller than the whole that they were made for.
    """
    largest = total if known.max_unit == known.total else known.max_unit
    if not arrives:
        return {"max_unit": largest}
    return {
        "min_unit": min(known.min_unit, total),
        "max_unit": min(largest, total),
        "step_size": min(known.step_size, total),
    }


def _refuse_impossible(pair: Pair, inventory: Inventory) -> None:
    if inventory.total > _MOST:
        raise _invalid(pair, f"a total of {inventory.total} is more than {_MOST}")
    if inventory.reserved > inventory.total:
        raise _invalid(pair, "more is reserved than there is")
    if max(inventory.min_unit, inventory.step_size) > inventory.max_unit:
        raise _invalid(pair, "no amount keeps its min_unit, max_unit and step_size")


def _refuse_lost_reservations(family: ExtendedTree, changed: Mapping[Pair, Inventory | None]) -> None:
    """See to it that as much of each class is reserved afterwards as before: whoever reserved it still counts on it."""
    lost: Counter[str] = Counter()
    first: dict[str, Pair] = {}
    for pair, inventory in changed.items():
        row = family.tree.inventories.get(pair)
        lost[pair[1]] += (row.reserved if row else 0) - (inventory.reserved if inventory else 0)
        if row and row.reserved > (inventory.reserved if inventory else 0):
            first.setdefault(pair[1], pair)
    for name, amount in lost.items():
        if amount > 0:
            raise _invalid(
                first[name], f"{amount} of it are reserved, and must be where it is moved: say `reserved` there"
            )


def _invalid(pair: Pair, reason: str) -> errors.InvalidInventory:
    return errors.InvalidInventory(provider_uuid=pair[0], resource_class=pair[1], reason=reason)
