"""Inventories: what providers have, replaced by hand or made what their hosts report."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from moorage import errors
from moorage.columns import now
from moorage.messages import SetInventories
from moorage.model import Inventory, ProviderReport
from placement_store import bulk, feed, providers
from placement_store.names import ResourceClassNames
from placement_store.providers import InventoryRow
from placement_store.races import Moved
from placement_store.schema import inventories, resource_providers

LOG = logging.getLogger(__name__)

#: What is wanted of one provider, by the number of the resource class.
Wanted = Mapping[int, Inventory]


def set_inventories(connection: Connection, message: SetInventories, names: ResourceClassNames) -> None:
    """Replace all inventories of a provider; its generation moves, even if nothing changes.

    :raises ProviderNotFound: there is no such provider.
    :raises ProviderGenerationConflict: it is at another generation.
    :raises ResourceClassNotFound: a resource class does not exist.
    :raises InvalidInventory: more is reserved than there is, or the capacity is beyond all numbers.
    :raises InventoryInUse: a class is to go of which something is allocated.
    """
    key = providers.keys_of(connection, [message.uuid])[message.uuid]
    wanted = _wanted(connection, message.uuid, message.inventories, names)
    providers.move_rows(connection, [key.id], generation=1)
    query = select(resource_providers.c.generation).where(resource_providers.c.id == key.id)
    generation: int = connection.scalars(query).one()
    if generation - 1 != message.generation:
        raise errors.ProviderGenerationConflict(
            provider_uuid=message.uuid, named=message.generation, found=generation - 1
        )
    _replace(connection, {key.id: wanted}, {key.id: message.uuid}, names)
    feed.record(connection, provider_ids=[key.id])


def report(connection: Connection, reports: Sequence[ProviderReport], names: ResourceClassNames) -> None:
    """Make root providers what their hosts say they are; those that already are, are not touched.

    :raises InvalidRequest: a provider is reported twice.
    :raises AlreadyExists: a name belongs to another provider.
    :raises InvalidInventory: naming the provider; so does each of the following.
    :raises InventoryInUse: a class is no longer reported of which something is allocated.
    :raises ResourceClassNotFound: a resource class does not exist.
    :raises Moved: another report of the same providers was faster; a new transaction may succeed.
    """
    _refuse_doubles(reports)
    wanted = {new.uuid: _wanted(connection, new.uuid, new.inventories, names) for new in reports}
    known = _known(connection, list(wanted))
    new_ids = _create(connection, {new.uuid: new.name for new in reports if new.uuid not in known})
    ids = {**{uuid: row.id for uuid, row in known.items()}, **new_ids}
    renamed = {new.uuid: new.name for new in reports if new.uuid in known and known[new.uuid].name != new.name}
    differing = _differing(connection, {ids[uuid]: inventories_ for uuid, inventories_ in wanted.items()})
    if renamed:
        # All locks in one go, in their order.
        providers.move_rows(connection, {*differing, *(ids[uuid] for uuid in renamed)}, generation=0)
        _rename(connection, {ids[uuid]: name for uuid, name in renamed.items()})
    providers.move_rows(connection, differing, generation=1)
    _replace(connection, differing, {id_: uuid for uuid, id_ in ids.items()}, names)
    feed.record(connection, provider_ids={*new_ids.values(), *differing, *(ids[uuid] for uuid in renamed)})


# --- What is wanted -------------------------------------------------------------------------------------------------


def _wanted(connection: Connection, uuid: str, described: Mapping[str, Inventory], names: ResourceClassNames) -> Wanted:
    for name, inventory in described.items():
        if inventory.reserved > inventory.total:
            raise errors.InvalidInventory(
                provider_uuid=uuid, resource_class=name, reason="more is reserved than there is"
            )
        if not math.isfinite(inventory.capacity):
            raise errors.InvalidInventory(
                provider_uuid=uuid, resource_class=name, reason="allocation_ratio is too large"
            )
    return {names.id_of(name, connection): inventory for name, inventory in described.items()}


def _refuse_doubles(reports: Sequence[ProviderReport]) -> None:
    seen: set[tuple[str, str]] = set()
    for position, new in enumerate(reports):
        for field in ("uuid", "name"):
            if (field, getattr(new, field)) in seen:
                raise errors.InvalidRequest(path=f"$.providers[{position}].{field}", reason="reported twice")
            seen.add((field, getattr(new, field)))


@dataclass(frozen=True, slots=True)
class _Known:
    id: int
    name: str


def _known(connection: Connection, uuids: Sequence[str]) -> dict[str, _Known]:
    table = resource_providers
    query = select(table.c.uuid, table.c.id, table.c.name)
    return {row.uuid: _Known(row.id, row.name) for row in bulk.select_in(connection, query, table.c.uuid, uuids)}


def _differing(connection: Connection, wanted: Mapping[int, Wanted]) -> dict[int, Wanted]:
    found = providers.inventories_of(connection, list(wanted))
    return {
        id_: described
        for id_, described in wanted.items()
        if {number: _fields(inventory) for number, inventory in described.items()}
        != {number: _fields(row) for number, row in found.get(id_, {}).items()}
    }


def _fields(inventory: Inventory | InventoryRow) -> dict[str, Any]:
    return {name: getattr(inventory, name) for name in _FIELDS}


_FIELDS = [name for name in InventoryRow._fields if name != "used"]


# --- Writing --------------------------------------------------------------------------------------------------------


def _create(connection: Connection, names_by_uuid: Mapping[str, str]) -> dict[str, int]:
    """Create the providers that were not there a moment ago; whoever else reports them may have been faster since."""
    try:
        return providers.create(connection, names_by_uuid)
    except errors.AlreadyExists as fault:
        if _known(connection, list(names_by_uuid)):
            raise Moved from fault
        raise


def _rename(connection: Connection, names: Mapping[int, str]) -> None:
    table = resource_providers
    query = select(table.c.id, table.c.name)
    for row in bulk.select_in(connection, query, table.c.name, list(names.values())):
        raise errors.AlreadyExists(kind="resource provider", name=row.name)
    for id_, name in sorted(names.items()):
        connection.execute(table.update().where(table.c.id == id_).values(name=name, updated_at=now()))


def _replace(
    connection: Connection, wanted: Mapping[int, Wanted], uuids: Mapping[int, str], names: ResourceClassNames
) -> None:
    """Make the inventories of these providers, whose rows are locked, what is wanted of them."""
    found = providers.inventories_of(connection, list(wanted))
    new: list[dict[str, Any]] = []
    for id_, described in sorted(wanted.items()):
        present = found.get(id_, {})
        for number in sorted(present.keys() - described.keys()):
            _remove(connection, id_, number, uuids[id_], names)
        for number, inventory in sorted(described.items()):
            key = {"resource_provider_id": id_, "resource_class_id": number}
            if number not in present:
                new.append({**key, **_fields(inventory), "used": 0})
            elif _fields(present[number]) != _fields(inventory):
                connection.execute(_this(inventories.update(), id_, number).values(_fields(inventory)))
                _warn_if_over_full(uuids[id_], names.name_of(number, connection), inventory, present[number].used)
    bulk.insert(connection, inventories, new)


def _remove(connection: Connection, id_: int, number: int, uuid: str, names: ResourceClassNames) -> None:
    statement = _this(inventories.delete(), id_, number).where(inventories.c.used == 0)
    if connection.execute(statement).rowcount != 1:
        raise errors.InventoryInUse(provider_uuid=uuid, resource_class=names.name_of(number, connection))


def _this(statement: Any, id_: int, number: int) -> Any:
    return statement.where(inventories.c.resource_provider_id == id_, inventories.c.resource_class_id == number)


def _warn_if_over_full(uuid: str, name: str, inventory: Inventory, used: int) -> None:
    if used > inventory.capacity:
        LOG.warning("%s of provider %s is over-full: %s used of %s", name, uuid, used, inventory.capacity)
