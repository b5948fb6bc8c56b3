"""Reshapes of whole trees: all named inventories and allocations at once."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from moorage import errors
from moorage.messages import Done, Reshape
from support.placement_store.model.basis import Model, apply
from support.placement_store.model.consumers import Change, asked_for, differing, exceeded
from support.placement_store.model.consumers import write as write_consumers
from support.placement_store.model.faults import refuse
from support.placement_store.model.providers import invalid


@apply.register
def reshape(message: Reshape, model: Model, _found: Any) -> Done:
    """Give providers all the inventories, and consumers all the allocations, that the message names."""
    changes, named, relied_on, faults = asked_for(model, message.allocations)
    faults += model.missing(message.inventories)
    refuse(model.missing(message.inventories) and faults)
    faults += model.stale_generations({uuid: [one.generation] for uuid, one in message.inventories.items()})
    for uuid, one in message.inventories.items():
        faults += [*invalid(uuid, one.inventories), *model.unknown(one.inventories)]
    interim = model.copy()
    for uuid, one in message.inventories.items():
        interim.providers[uuid].inventories |= one.inventories
    faults += [*exceeded(interim, changes), *_left_without(interim, changes, message)]
    others = named - message.inventories.keys()
    others |= {pair[0] for uuid, change in changes.items() for pair in differing(model, uuid, change)}
    write_consumers(interim, changes, relied_on=relied_on, faults=faults, bumps_generations=False)
    model.holders = interim.holders
    for uuid in {*message.inventories, *others}:
        model.providers[uuid].generation += 1
    for uuid, one in message.inventories.items():
        model.providers[uuid].inventories = dict(one.inventories)
    return Done()


def _left_without(interim: Model, changes: Mapping[str, Change], message: Reshape) -> list[errors.MoorageError]:
    """Return an error for each deleted inventory of which something is still held afterwards."""
    held = Counter(interim.used())
    for uuid, change in changes.items():
        held.subtract(interim.holders[uuid].held if uuid in interim.holders else {})
        held.update(change.after)
    return [
        errors.InventoryInUse(provider_uuid=uuid, resource_class=name)
        for uuid, one in message.inventories.items()
        for name in interim.providers[uuid].inventories.keys() - one.inventories.keys()
        if held[uuid, name]
    ]
