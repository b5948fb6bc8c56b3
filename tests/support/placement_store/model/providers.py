"""Providers and their data: trees, inventories, traits, aggregates."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET

from moorage import errors
from moorage.messages import (
    CreateResourceProvider,
    DeleteInventories,
    DeleteInventory,
    DeleteResourceProvider,
    Done,
    SetAggregates,
    SetInventories,
    SetInventory,
    SetTraits,
    UpdateResourceProvider,
)
from moorage.model import Inventory, ResourceProvider
from support.placement_store.model.basis import Model, Provider, apply
from support.placement_store.model.faults import refuse

# --- Trees ----------------------------------------------------------------------------------------------------------


@apply.register
def create(message: CreateResourceProvider, model: Model, _found: Any) -> ResourceProvider:
    """Create a provider at generation 0."""
    faults = taken(model, {message.uuid, message.name}) + model.missing([message.parent_provider_uuid])
    if message.parent_provider_uuid == message.uuid:
        faults.append(errors.InvalidRequest(path="$.parent_provider_uuid", reason="it is the provider itself"))
    refuse(faults)
    model.providers[message.uuid] = Provider(message.uuid, message.name, message.parent_provider_uuid)
    return model.shown(message.uuid)


@apply.register
def update(message: UpdateResourceProvider, model: Model, _found: Any) -> ResourceProvider:
    """Give a provider another name or another parent; no generation is bumped."""
    parent = message.parent_provider_uuid
    refuse(model.missing([message.uuid, None if parent is UNSET else parent]))
    provider = model.providers[message.uuid]
    parent = provider.parent if parent is UNSET else parent
    faults: list[errors.MoorageError] = []
    if message.name not in (None, provider.name):
        faults += taken(model, {str(message.name)})
    if parent is not None and model.is_below(parent, message.uuid):
        faults.append(errors.InvalidRequest(path="$.parent_provider_uuid", reason="a loop"))
    elif parent != provider.parent:
        faults += _claimed(model, message.uuid, message.uuid if parent is None else model.root_of(parent))
    refuse(faults)
    provider.name, provider.parent = message.name or provider.name, parent
    return model.shown(message.uuid)


def _claimed(model: Model, uuid: str, new_root: str) -> list[errors.MoorageError]:
    """Return an error if a provider would change trees under a claim on it, or that holds something of the moved part.

    The claim of a migration counts for its instance as well.
    """
    roots = {model.root_of(uuid), new_root}
    below = {other for other in model.providers if model.is_below(other, uuid)}
    moving = {one.migration_of for one in model.holders.values() if one.claim_id and one.root in roots}
    rests = is_host(model, uuid) or any(
        (holder.root in roots or one in moving) and any(pair[0] in below for pair in holder.held)
        for one, holder in model.holders.items()
    )
    return [errors.ProviderInUse(provider_uuid=uuid)] * (len(roots) == 2 and rests)


@apply.register
def delete(message: DeleteResourceProvider, model: Model, _found: Any) -> Done:
    """Delete a provider without children and claims of which nothing is held."""
    refuse(model.missing([message.uuid]))
    faults: list[errors.MoorageError] = []
    if is_in_use(model, message.uuid):
        faults.append(errors.ProviderInUse(provider_uuid=message.uuid))
    if model.children(message.uuid):
        faults.append(errors.ProviderHasChildren(provider_uuid=message.uuid))
    refuse(faults)
    del model.providers[message.uuid]
    return Done()


def is_in_use(model: Model, uuid: str) -> bool:
    """Return whether something of a provider is held, or a claim names it as its host."""
    return is_host(model, uuid) or any(provider == uuid for provider, _ in model.used())


def is_host(model: Model, uuid: str) -> bool:
    """Return whether a claim names a provider as its host."""
    return any(holder.root == uuid for holder in model.holders.values())


def taken(model: Model, words: set[str]) -> list[errors.MoorageError]:
    """Return an error for each uuid or name among ``words`` that a provider already has."""
    return [
        errors.AlreadyExists(kind="resource provider", name=word)
        for provider in model.providers.values()
        for word in {provider.uuid, provider.name} & words
    ]


# --- Inventories, traits, aggregates --------------------------------------------------------------------------------


@apply.register
def set_inventories(message: SetInventories, model: Model, _found: Any) -> ResourceProvider:
    """Replace all inventories."""
    return _replace(model, message.uuid, message.generation, message.inventories)


@apply.register
def set_inventory(message: SetInventory, model: Model, _found: Any) -> ResourceProvider:
    """Create or replace the inventory of one class."""
    name = message.resource_class
    _require(model, message.uuid, {name: message.inventory})
    present = model.providers[message.uuid].inventories
    faults: list[errors.MoorageError] = []
    if message.expected == "present" and name not in present:
        faults.append(errors.InventoryNotFound(name=name, provider_uuid=message.uuid))
    if message.expected == "absent" and name in present:
        faults.append(errors.AlreadyExists(kind="inventory", name=f"{name} of provider {message.uuid}"))
    return _replace(model, message.uuid, message.generation, {**present, name: message.inventory}, faults)


@apply.register
def delete_inventory(message: DeleteInventory, model: Model, _found: Any) -> ResourceProvider:
    """Delete the inventory of one class."""
    name = message.resource_class
    if missing := model.missing([message.uuid]):
        refuse([*missing, *model.unknown([name])])
    present = model.providers[message.uuid].inventories
    faults: list[errors.MoorageError] = [*model.unknown([name])]
    if name not in present:
        faults.append(errors.InventoryNotFound(name=name, provider_uuid=message.uuid))
    left = {other: inventory for other, inventory in present.items() if other != name}
    return _replace(model, message.uuid, message.generation, left, faults)


@apply.register
def delete_inventories(message: DeleteInventories, model: Model, _found: Any) -> ResourceProvider:
    """Delete all inventories."""
    return _replace(model, message.uuid, message.generation, {})


def _replace(
    model: Model,
    uuid: str,
    generation: int | None,
    wanted: Mapping[str, Inventory],
    faults: Iterable[errors.MoorageError] = (),
) -> ResourceProvider:
    _require(model, uuid, wanted)
    provider = model.providers[uuid]
    faults = [*faults, *model.stale_generations({uuid: [generation]}), *model.unknown(wanted)]
    refuse([*faults, *invalid(uuid, wanted), *in_use(model, uuid, wanted)])
    provider.inventories = dict(wanted)
    provider.generation += 1
    return model.shown(uuid)


def _require(model: Model, uuid: str, wanted: Mapping[str, Inventory]) -> None:
    """Refuse if the provider does not exist; errors in the inventories themselves may be returned instead."""
    if missing := model.missing([uuid]):
        refuse([*missing, *model.unknown(wanted), *invalid(uuid, wanted)])


def invalid(uuid: str, inventories: Mapping[str, Inventory]) -> list[errors.MoorageError]:
    """Return an error for each inventory that contradicts itself."""
    return [
        errors.InvalidInventory(provider_uuid=uuid, resource_class=name, reason="more is reserved than there is")
        for name, inventory in inventories.items()
        if inventory.reserved > inventory.total
    ]


def in_use(model: Model, uuid: str, wanted: Mapping[str, Inventory]) -> list[errors.MoorageError]:
    """Return an error for each inventory that would be deleted although something of it is held."""
    used = model.used()
    return [
        errors.InventoryInUse(provider_uuid=uuid, resource_class=name)
        for name in model.providers[uuid].inventories.keys() - wanted.keys()
        if used[uuid, name]
    ]


@apply.register
def set_traits(message: SetTraits, model: Model, _found: Any) -> ResourceProvider:
    """Replace all traits; the generation is bumped if anything changes."""
    refuse(model.missing([message.uuid]))
    provider = model.providers[message.uuid]
    refuse([*model.stale_generations({message.uuid: [message.generation]}), *model.traitless(message.traits)])
    provider.generation += provider.traits != frozenset(message.traits)
    provider.traits = frozenset(message.traits)
    return model.shown(message.uuid)


@apply.register
def set_aggregates(message: SetAggregates, model: Model, _found: Any) -> ResourceProvider:
    """Replace all aggregates; the generation is bumped in any case."""
    refuse(model.missing([message.uuid]))
    refuse(model.stale_generations({message.uuid: [message.generation]}))
    provider = model.providers[message.uuid]
    provider.aggregates = frozenset(message.aggregates)
    provider.generation += 1
    return model.shown(message.uuid)
