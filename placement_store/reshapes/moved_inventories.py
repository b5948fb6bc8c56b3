"""Compute the inventories after move instructions: the amounts that leave, stay and arrive."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from moorage import errors
from moorage.model import Inventory, InventoryFields, MoveInstruction
from placement_store.providers import inventories
from placement_store.reshapes.described_children import ExtendedTree
from placement_store.reshapes.distribution import InventoryKey

_MOST = 2**31 - 1


@dataclass(slots=True)
class MovedAmounts:
    """The amounts that leave and arrive, by inventory: a pair of a provider's uuid and a resource class."""

    leaving: Counter[InventoryKey] = field(default_factory=Counter)
    arriving: Counter[InventoryKey] = field(default_factory=Counter)
    #: The targets of each inventory that loses an amount, in the order of the instructions.
    targets: dict[InventoryKey, list[str]] = field(default_factory=dict)
    #: By target, the source of the first instruction.
    origins: dict[InventoryKey, InventoryKey] = field(default_factory=dict)


def sum_instructions(extended: ExtendedTree, instructions: Sequence[MoveInstruction]) -> MovedAmounts:
    """Sum the instructions by inventory.

    :raises ProviderNotFound: a provider neither exists nor is described.
    :raises InvalidRequest: source and target are the same, or an inventory is described that gets no amount.
    :raises InvalidInventory: more is to be moved than the inventory has.
    """
    found = MovedAmounts()
    for position, instruction in enumerate(instructions):
        source = extended.uuid_of(instruction.from_resource_provider)
        target = extended.uuid_of(instruction.to_resource_provider)
        if source == target:
            path = f"$.instructions[{position}].to_resource_provider"
            raise errors.InvalidRequest(path=path, reason="source and target are the same")
        for name, amount in instruction.moved_resources.items():
            found.leaving[source, name] += amount
            found.arriving[target, name] += amount
            targets = found.targets.setdefault((source, name), [])
            if target not in targets:
                targets.append(target)
            found.origins.setdefault((target, name), (source, name))
    for pair, amount in found.leaving.items():
        row = extended.tree.inventories.get(pair)
        total = 0 if row is None else row.total
        if amount > total:
            raise _invalid(pair, f"{amount} are to be moved and there are {total}")
    for uuid, name in extended.fields:
        if (uuid, name) not in found.arriving:
            raise errors.InvalidRequest(
                path="$.providers", reason=f"{name} of {extended.names[uuid]} is described, and none of it moves there"
            )
    return found


def inventories_after(extended: ExtendedTree, found: MovedAmounts) -> dict[InventoryKey, Inventory | None]:
    """Return the inventories that change, as they will be; null for one that will be empty.

    What is reserved and cannot stay in the source goes to existing providers, as far as the request does not set what
    is reserved there: it cannot describe a root, and an agent describes only new providers.

    :raises InvalidInventory: an inventory would be impossible, or less would be reserved in total than now.
    """
    changed: dict[InventoryKey, Inventory | None] = {}
    for pair in dict.fromkeys([*found.leaving, *found.arriving]):
        row = extended.tree.inventories.get(pair)
        total = (0 if row is None else row.total) - found.leaving[pair] + found.arriving[pair]
        if not total:
            changed[pair] = None
        elif pair in found.arriving:
            changed[pair] = _arrived(extended, found, pair, total)
        elif row is not None:
            # The reserved amount stays in the source, up to its new total.
            changed[pair] = msgspec.structs.replace(row.described, total=total, reserved=min(row.reserved, total))
    _move_reservations(extended, found, changed)
    for pair, inventory in changed.items():
        if inventory is not None:
            _refuse_impossible(pair, inventory)
    _refuse_lost_reservations(extended, changed)
    return changed


def _arrived(extended: ExtendedTree, found: MovedAmounts, pair: InventoryKey, total: int) -> Inventory:
    """Return an inventory that gains an amount; its fields come from the request, else itself, else its source."""
    fields = extended.fields.get(pair, InventoryFields())
    present = extended.tree.inventories.get(pair)
    origin = present or extended.tree.inventories[found.origins[pair]]
    # It may lose more than it gains: then not all that is reserved can stay.
    reserved = 0 if present is None else min(present.reserved, total)
    known = msgspec.structs.replace(origin.described, reserved=reserved)
    rules = _rules(known, total, arrives=present is None)
    given = {name: value for name, value in msgspec.structs.asdict(fields).items() if value is not None}
    wanted: dict[str, Any] = {**rules, **given, "total": total}
    if fields.max_unit is not None:
        wanted["max_unit"] = min(fields.max_unit, total)
    return msgspec.structs.replace(known, **wanted)


def _rules(known: Inventory, total: int, *, arrives: bool) -> dict[str, int]:
    """Return the unit rules of an inventory with this total, derived from those of its source or of itself.

    A max_unit that was equal to the total stays equal to it. In a new place the rules are lowered to the total, so that
    a part that is smaller than the source can be allocated as a whole.
    """
    largest = total if known.max_unit == known.total else known.max_unit
    if not arrives:
        return {"max_unit": largest}
    return {
        "min_unit": min(known.min_unit, total),
        "max_unit": min(largest, total),
        "step_size": min(known.step_size, total),
    }


def _refuse_impossible(pair: InventoryKey, inventory: Inventory) -> None:
    if inventory.total > _MOST:
        raise _invalid(pair, f"a total of {inventory.total} is more than {_MOST}")
    if (reason := inventories.fault_of(inventory)) is not None:
        raise _invalid(pair, reason)
    if max(inventory.min_unit, inventory.step_size) > inventory.max_unit:
        raise _invalid(pair, "no amount keeps its min_unit, max_unit and step_size")


def _move_reservations(
    extended: ExtendedTree, found: MovedAmounts, changed: dict[InventoryKey, Inventory | None]
) -> None:
    lost = {name: sum(amounts.values()) for name, amounts in _lost_reservations(extended, changed).items()}
    for pair in found.arriving:
        inventory, fields = changed[pair], extended.fields.get(pair)
        if inventory is None or pair[0] not in extended.tree.providers or (fields and fields.reserved is not None):
            continue
        more = max(0, min(lost[pair[1]], inventory.total - inventory.reserved))
        changed[pair] = msgspec.structs.replace(inventory, reserved=inventory.reserved + more)
        lost[pair[1]] -= more


def _refuse_lost_reservations(extended: ExtendedTree, changed: Mapping[InventoryKey, Inventory | None]) -> None:
    """Refuse a reshape after which less of a class is reserved than before: the reservations are still needed."""
    for name, amounts in _lost_reservations(extended, changed).items():
        if (amount := sum(amounts.values())) > 0:
            first = next(uuid for uuid, of_it in amounts.items() if of_it > 0)
            raise _invalid((first, name), f"{amount} of it are reserved: set `reserved` for a target")


def _lost_reservations(
    extended: ExtendedTree, changed: Mapping[InventoryKey, Inventory | None]
) -> dict[str, dict[str, int]]:
    """Return by how much less is reserved, by class and provider; negative where more is reserved."""
    lost: dict[str, dict[str, int]] = {}
    for (uuid, name), inventory in changed.items():
        row = extended.tree.inventories.get((uuid, name))
        reserved = inventory.reserved if inventory else 0
        lost.setdefault(name, {})[uuid] = (row.reserved if row else 0) - reserved
    return lost


def _invalid(pair: InventoryKey, reason: str) -> errors.InvalidInventory:
    return errors.InvalidInventory(provider_uuid=pair[0], resource_class=pair[1], reason=reason)
