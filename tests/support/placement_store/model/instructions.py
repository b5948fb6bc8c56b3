"""Reshapes by move instructions; every distribution of the consumers' allocations that fits is right."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import asdict, replace

from moorage import errors, ids
from moorage.messages import ReshapeByInstructions
from moorage.model import ChildProvider, Inventory, InventoryFields, Reallocation, ReshapePlan
from support.placement_store.model.basis import Held, Model, Pair, Provider, apply
from support.placement_store.model.faults import Refused, refuse
from support.placement_store.model.providers import taken


@dataclass
class Flows:
    """The amounts that move between inventories."""

    leaving: Counter[Pair] = field(default_factory=Counter)
    arriving: Counter[Pair] = field(default_factory=Counter)
    #: The targets of each leaving amount, in the order of the instructions.
    targets: dict[Pair, tuple[str, ...]] = field(default_factory=dict)
    #: The source of the first arriving amount of each inventory.
    origins: dict[Pair, Pair] = field(default_factory=dict)


@dataclass(frozen=True)
class Unit:
    """Allocations of one consumer on a provider that move together, undivided, to one of these providers."""

    consumer: str
    source: str
    amounts: Mapping[str, int]
    places: tuple[str, ...]


@apply.register
def reshape_by_instructions(message: ReshapeByInstructions, model: Model, found: Any) -> ReshapePlan:
    """Move inventories between the providers of one tree, with all that is allocated of them."""
    message = _by_uuid(model, message)
    children = {_identity(model, message, child): child for child in message.providers}
    created = {uuid: child for uuid, child in children.items() if uuid not in model.providers}
    refuse(_misnamed(model, message, children))
    flows = _flows(message)
    changed = _changed(model, children, flows)
    refuse(_impossible(model, flows, changed))
    after = model.copy()
    for uuid, child in created.items():
        traits, aggregates = frozenset(child.traits), frozenset(child.aggregates)
        after.providers[uuid] = Provider(uuid, child.name, child.parent, traits=traits, aggregates=aggregates)
    for (uuid, name), inventory in changed.items():
        after.providers[uuid].inventories.pop(name, None)
        after.providers[uuid].inventories |= {} if inventory is None else {name: inventory}
    units = _units(model, flows)
    # The store finds a distribution exactly if there is one; it may choose any.
    places = _as_planned(units, found) if isinstance(found, ReshapePlan) else None
    if places is None or not _fits(model, after, units, places):
        places = next(_ways(model, after, units), None)
    faults = model.traitless(name for child in created.values() for name in child.traits)
    if places is None:
        raise Refused([*faults, errors.ImpossibleDeal(consumer_uuid="", provider_uuid="", reason="")])
    refuse(faults)
    for uuid, held in _held(model, units, places).items():
        after.holders[uuid].generation += held != model.holders[uuid].held
        after.holders[uuid].held = held
    for uuid in {uuid for uuid, _ in changed}:
        after.providers[uuid].generation += 1
    model.providers, model.holders = after.providers, after.holders
    return ReshapePlan(
        created={uuid: child.name for uuid, child in created.items()},
        inventories={
            uuid: {name: one for (u, name), one in changed.items() if u == uuid and one} for uuid, _ in changed
        },
        dealt=_reallocations(units, places),
    )


# --- Named providers ------------------------------------------------------------------------------------------------


def _identity(model: Model, message: ReshapeByInstructions, child: ChildProvider) -> str:
    by_name = {provider.name: provider.uuid for provider in model.providers.values()}
    return child.uuid or by_name.get(child.name) or ids.derived(message.request_id, child.name)


def _by_uuid(model: Model, message: ReshapeByInstructions) -> ReshapeByInstructions:
    """Return a message that names providers only by their uuids."""
    uuids = {provider.name: provider.uuid for provider in model.providers.values()}
    uuids |= {child.name: _identity(model, message, child) for child in message.providers}

    def found(word: str) -> str:
        return word if word in model.providers else uuids.get(word, word)

    return replace(
        message,
        instructions=tuple(
            replace(
                one,
                from_resource_provider=found(one.from_resource_provider),
                to_resource_provider=found(one.to_resource_provider),
            )
            for one in message.instructions
        ),
        providers=tuple(replace(child, parent=found(child.parent)) for child in message.providers),
    )


def _misnamed(
    model: Model, message: ReshapeByInstructions, children: Mapping[str, ChildProvider]
) -> list[errors.MoorageError]:
    """Return the errors in the named providers: missing, of another tree, or described differently."""
    ends = {uuid for one in message.instructions for uuid in (one.from_resource_provider, one.to_resource_provider)}
    names = {provider.name: provider.uuid for provider in model.providers.values()}
    named = {*ends, *children, *(child.parent for child in children.values())}
    named |= {names[child.name] for child in children.values() if child.name in names}
    # The tree is found by its existing providers; if none of the named ones exists, all are missing.
    faults = model.missing(named - children.keys() if named & model.providers.keys() else named)
    faults += model.unknown({name for one in message.instructions for name in one.moved_resources})
    wrong = len({model.root_of(uuid) for uuid in named & model.providers.keys()}) > 1
    wrong |= any(one.from_resource_provider == one.to_resource_provider for one in message.instructions)
    wrong |= len({child.name for child in message.providers}) < len(message.providers)
    for uuid, child in children.items():
        present = model.providers.get(uuid)
        wrong |= present is not None and (present.name, present.parent) != (child.name, child.parent)
        wrong |= present is None and child.name in names
    # A provider that is created after the tree was read is found when the children are created.
    words = {word for uuid, child in children.items() for word in (uuid, child.name)}
    invalid: list[errors.MoorageError] = [errors.InvalidRequest(path="$", reason="not one tree, or not as described")]
    return faults + (invalid + taken(model, words)) * wrong


# --- Inventories ----------------------------------------------------------------------------------------------------


def _flows(message: ReshapeByInstructions) -> Flows:
    flows = Flows()
    for one in message.instructions:
        for name, amount in one.moved_resources.items():
            source, target = (one.from_resource_provider, name), (one.to_resource_provider, name)
            flows.leaving[source] += amount
            flows.arriving[target] += amount
            flows.targets[source] = tuple(dict.fromkeys([*flows.targets.get(source, ()), target[0]]))
            flows.origins.setdefault(target, source)
    return flows


def _changed(model: Model, children: Mapping[str, ChildProvider], flows: Flows) -> dict[Pair, Inventory | None]:
    """Return the inventories that change, with their new values; null if nothing is left."""
    changed: dict[Pair, Inventory | None] = {}
    for pair in [*flows.leaving, *flows.arriving]:
        present = model.inventory(pair)
        total = (present.total if present else 0) - flows.leaving[pair] + flows.arriving[pair]
        if total <= 0:
            changed[pair] = None
        elif pair in flows.arriving:
            fields = children[pair[0]].inventories.get(pair[1]) if pair[0] in children else None
            changed[pair] = _arrived(model, flows.origins[pair], present, total, fields or InventoryFields())
        elif present is not None:
            changed[pair] = replace(present, total=total, reserved=min(present.reserved, total))
    # What is reserved and lost goes to existing providers whose reserved amount is not given.
    for uuid, name in flows.arriving:
        now, child = changed[uuid, name], children.get(uuid)
        fields = child.inventories.get(name) if child else None
        if now is not None and uuid in model.providers and (fields is None or fields.reserved is None):
            lost = -_more_reserved(model, changed)[name]
            more = max(0, min(lost, now.total - now.reserved))
            changed[uuid, name] = replace(now, reserved=now.reserved + more)
    return changed


def _more_reserved(model: Model, changed: Mapping[Pair, Inventory | None]) -> Counter[str]:
    """Return how much more of each class is reserved; negative if less is."""
    more: Counter[str] = Counter()
    for pair, one in changed.items():
        was = model.inventory(pair)
        more[pair[1]] += (one.reserved if one else 0) - (was.reserved if was else 0)
    return more


def _arrived(
    model: Model, origin: Pair, present: Inventory | None, total: int, fields: InventoryFields
) -> Inventory | None:
    given = {name: value for name, value in asdict(fields).items() if value is not None}
    if fields.max_unit is not None:
        given["max_unit"] = min(fields.max_unit, total)
    if present is not None:
        grown = {"max_unit": total} if present.max_unit == present.total else {}
        return replace(present, **{"reserved": min(present.reserved, total), **grown, **given, "total": total})
    was = model.inventory(origin)
    if was is None:
        return None
    capped = {name: min(getattr(was, name), total) for name in ("min_unit", "max_unit", "step_size")}
    return replace(was, **{"reserved": 0, **capped, **given, "total": total})


def _impossible(model: Model, flows: Flows, changed: Mapping[Pair, Inventory | None]) -> list[errors.MoorageError]:
    """Return an error if more moves than there is, an inventory contradicts itself, or less would be reserved."""
    wrong = False
    for pair, one in changed.items():
        was = model.inventory(pair)
        wrong |= flows.leaving[pair] > (was.total if was else 0)
        wrong |= one is not None and (one.reserved > one.total or max(one.min_unit, one.step_size) > one.max_unit)
    wrong |= any(amount < 0 for amount in _more_reserved(model, changed).values())
    return [errors.InvalidInventory(provider_uuid="", resource_class="", reason="")] * wrong


# --- Distributions --------------------------------------------------------------------------------------------------


def _units(model: Model, flows: Flows) -> list[Unit]:
    together: dict[tuple[str, str, tuple[str, ...]], dict[str, int]] = {}
    for consumer, holder in model.holders.items():
        for (source, name), amount in holder.held.items():
            if (source, name) in flows.targets:
                stays = (source,) * (flows.leaving[source, name] < _total(model, (source, name)))
                places = stays + flows.targets[source, name]
                together.setdefault((consumer, source, places), {})[name] = amount
    return [Unit(consumer, source, amounts, places) for (consumer, source, places), amounts in together.items()]


def _total(model: Model, pair: Pair) -> int:
    inventory = model.inventory(pair)
    return inventory.total if inventory else 0


def _as_planned(units: Sequence[Unit], plan: ReshapePlan) -> list[str]:
    """Return the target of each unit in a plan."""
    planned = {(one.consumer_uuid, one.from_resource_provider, one.to_resource_provider): one for one in plan.dealt}

    def goes(unit: Unit, place: str) -> bool:
        one = planned.get((unit.consumer, unit.source, place))
        return one is not None and unit.amounts.items() <= one.resources.items()

    return [next((place for place in unit.places if goes(unit, place)), unit.source) for unit in units]


def _ways(model: Model, after: Model, units: Sequence[Unit]) -> Iterator[list[str]]:
    """Yield every distribution that fits, by trying all that do not overfill a target."""
    used = model.used()
    for unit in units:
        used.subtract({(unit.source, name): amount for name, amount in unit.amounts.items()})

    def distribute(places: list[str]) -> Iterator[list[str]]:
        if len(places) == len(units):
            yield from [places] if _fits(model, after, units, places) else []
            return
        unit = units[len(places)]
        for place in unit.places:
            more = {(place, name): amount for name, amount in unit.amounts.items()}
            if all(used[pair] + amount <= _capacity(after, pair) for pair, amount in more.items()):
                used.update(more)
                yield from distribute([*places, place])
                used.subtract(more)

    return distribute([])


def _fits(model: Model, after: Model, units: Sequence[Unit], places: Sequence[str]) -> bool:
    """Return whether a distribution fits: every unit into its target, and each changed amount into its unit rules."""
    held = _held(model, units, places)
    used = Counter[Pair]()
    for one in held.values():
        used.update(one)
    laid = {(place, name) for unit, place in zip(units, places, strict=True) for name in unit.amounts}
    if any(place not in unit.places for unit, place in zip(units, places, strict=True)):
        return False
    return all(used[pair] <= _capacity(after, pair) for pair in laid) and all(
        _keeps_rules(after.inventory(pair), amount)
        for uuid, one in held.items()
        for pair, amount in one.items() - model.holders[uuid].held.items()
    )


def _keeps_rules(inventory: Inventory | None, amount: int) -> bool:
    if inventory is None:
        return False
    return inventory.min_unit <= amount <= inventory.max_unit and amount % inventory.step_size == 0


def _capacity(model: Model, pair: Pair) -> float:
    inventory = model.inventory(pair)
    return inventory.capacity if inventory else -1.0


def _held(model: Model, units: Sequence[Unit], places: Sequence[str]) -> dict[str, Held]:
    """Return the allocations of each consumer after a distribution."""
    held = {uuid: Counter(holder.held) for uuid, holder in model.holders.items()}
    for unit, place in zip(units, places, strict=True):
        held[unit.consumer].subtract({(unit.source, name): amount for name, amount in unit.amounts.items()})
        held[unit.consumer].update({(place, name): amount for name, amount in unit.amounts.items()})
    return {uuid: {pair: amount for pair, amount in one.items() if amount} for uuid, one in held.items()}


def _reallocations(units: Sequence[Unit], places: Sequence[str]) -> tuple[Reallocation, ...]:
    found: dict[tuple[str, str, str], Counter[str]] = {}
    for unit, place in zip(units, places, strict=True):
        if place != unit.source:
            found.setdefault((unit.consumer, unit.source, place), Counter()).update(unit.amounts)
    return tuple(
        Reallocation(
            consumer_uuid=consumer, from_resource_provider=source, to_resource_provider=place, resources=dict(part)
        )
        for (consumer, source, place), part in sorted(found.items())
    )
