"""Create, replace and delete inventories of providers, of all resource classes or of one."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import Connection

from moorage import errors
from moorage.messages import DeleteInventories, DeleteInventory, SetInventories, SetInventory
from moorage.model import Inventory
from placement_store.db import bulk, change_feed
from placement_store.db.names import FIRST_CUSTOM_ID, ResourceClassNames
from placement_store.db.store import writes
from placement_store.providers import rows as providers
from placement_store.providers.rows import InventoryRow
from placement_store.schema import inventories

LOG = logging.getLogger(__name__)

#: The largest allocation ratio: the largest of MySQL's single-precision numbers, as in Placement's API.
MAX_RATIO = 3.40282e38
#: The inventories that one provider is to have, by resource class id.
Wanted = Mapping[int, Inventory]

# --- Inventories of one provider --------------------------------------------------------------------------------------


@writes(SetInventories)
def set_inventories(connection: Connection, message: SetInventories, names: ResourceClassNames) -> None:
    """Replace all inventories of a provider; its generation is bumped, even if nothing changes.

    See :func:`_write` and :func:`numbered` for the errors.
    """
    wanted = numbered(connection, message.uuid, message.inventories, names)
    _write(connection, message.uuid, message.generation, lambda _: wanted, names)


@writes(SetInventory)
def set_inventory(connection: Connection, message: SetInventory, names: ResourceClassNames) -> None:
    """Create or replace the inventory of one class; the provider's generation is bumped, even if nothing changes.

    See :func:`_write` and :func:`numbered` for further errors.

    :raises InventoryNotFound: the inventory is expected to exist, and does not.
    :raises AlreadyExists: the inventory is expected not to exist, and does.
    """
    new = numbered(connection, message.uuid, {message.resource_class: message.inventory}, names)

    def with_the_new(present: Wanted) -> Wanted:
        is_there = bool(present.keys() & new)
        if message.expected == "present" and not is_there:
            raise _not_found(message.uuid, message.resource_class)
        if message.expected == "absent" and is_there:
            raise errors.AlreadyExists(kind="inventory", name=f"{message.resource_class} of provider {message.uuid}")
        return {**present, **new}

    _write(connection, message.uuid, message.generation, with_the_new, names)


@writes(DeleteInventory)
def delete_inventory(connection: Connection, message: DeleteInventory, names: ResourceClassNames) -> None:
    """Delete the inventory of one class; the provider's generation is bumped. See :func:`_write` for further errors.

    :raises ResourceClassNotFound: the resource class does not exist.
    :raises InventoryNotFound: the provider has none of that class.
    """
    gone = names.id_of(message.resource_class, connection)

    def without_it(present: Wanted) -> Wanted:
        if gone not in present:
            raise _not_found(message.uuid, message.resource_class)
        return {number: inventory for number, inventory in present.items() if number != gone}

    _write(connection, message.uuid, message.generation, without_it, names)


@writes(DeleteInventories)
def delete_inventories(connection: Connection, message: DeleteInventories, names: ResourceClassNames) -> None:
    """Delete all inventories of a provider; its generation is bumped, even if it had none. See :func:`_write`."""
    _write(connection, message.uuid, message.generation, lambda _: {}, names)


def _write(
    connection: Connection,
    uuid: str,
    generation: int | None,
    make: Callable[[Wanted], Wanted],
    names: ResourceClassNames,
) -> None:
    """Replace the inventories of a provider by those that ``make`` returns for its present ones.

    :raises ProviderNotFound: the provider does not exist.
    :raises ProviderGenerationConflict: it is at another generation than the one named.
    :raises InventoryInUse: an inventory with allocations would be deleted.
    """
    id_ = providers.lock_at(connection, uuid, generation)
    present = providers.inventories_of(connection, [id_]).get(id_, {})
    replace(connection, {id_: make({number: row.described for number, row in present.items()})}, names)
    providers.bump_generations(connection, [id_], by=1)
    change_feed.record(connection, provider_ids=[id_])


def _not_found(uuid: str, resource_class: str) -> errors.InventoryNotFound:
    return errors.InventoryNotFound(name=resource_class, provider_uuid=uuid)


# --- Any number of providers ----------------------------------------------------------------------------------------


def numbered(
    connection: Connection, uuid: str, described: Mapping[str, Inventory], names: ResourceClassNames
) -> dict[int, Inventory]:
    """Validate a provider's inventories, given by class name, and return them by resource class id.

    :raises InvalidInventory: ``reserved`` exceeds ``total``, or the allocation ratio is too large.
    :raises ResourceClassNotFound: a resource class does not exist.
    """
    for name, inventory in described.items():
        if (reason := fault_of(inventory)) is not None:
            raise errors.InvalidInventory(provider_uuid=uuid, resource_class=name, reason=reason)
    return {names.id_of(name, connection): inventory for name, inventory in described.items()}


def fault_of(inventory: Inventory) -> str | None:
    """Return why an inventory is invalid, or null if it is valid."""
    if inventory.reserved > inventory.total:
        return "more is reserved than there is"
    # With larger ratios the capacity of a provider, or of all providers of a host, may be no finite number. On MariaDB
    # and MySQL every statement that computes it fails, and no scheduler decides, even if other hosts are concerned.
    return None if inventory.allocation_ratio <= MAX_RATIO else "allocation_ratio is too large"


def differ(present: Mapping[int, InventoryRow], wanted: Wanted) -> bool:
    """Return whether a provider's inventories differ from the wanted ones, apart from their usage."""
    return {number: row.described for number, row in present.items()} != wanted


def replace(connection: Connection, wanted: Mapping[int, Wanted], names: ResourceClassNames) -> None:
    """Replace the inventories of providers by these, by provider id; the providers' rows must be locked.

    The usage of an inventory that stays is untouched and may exceed the new capacity: while it does, allocations of it
    may stay or shrink, but not grow. The caller bumps generations and writes the feed.

    :raises InventoryInUse: an inventory with allocations would be deleted.
    :raises ResourceClassNotFound: a resource class has been deleted.
    """
    found = providers.inventories_of(connection, wanted)
    new: list[dict[str, Any]] = []
    for id_, described in sorted(wanted.items()):
        present = found.get(id_, {})
        for number in sorted(present.keys() - described.keys()):
            _remove(connection, id_, number, names)
        for number, inventory in sorted(described.items()):
            if number not in present:
                new.append({"resource_provider_id": id_, "resource_class_id": number, **asdict(inventory), "used": 0})
            elif present[number].described != inventory:
                connection.execute(_this(inventories.update(), id_, number).values(asdict(inventory)))
                if (used := present[number].used) > inventory.capacity:
                    uuid, name = providers.uuids_of(connection, [id_])[id_], names.name_of(number, connection)
                    LOG.warning("%s of provider %s is over-full: %s used of %s", name, uuid, used, inventory.capacity)
    # Custom classes of the new inventories are locked against deletion.
    custom = {row["resource_class_id"] for row in new if row["resource_class_id"] >= FIRST_CUSTOM_ID}
    names.require(connection, [names.name_of(number, connection) for number in custom], lock=True)
    bulk.insert(connection, inventories, new)


def _remove(connection: Connection, id_: int, number: int, names: ResourceClassNames) -> None:
    statement = _this(inventories.delete(), id_, number).where(inventories.c.used == 0)
    if connection.execute(statement).rowcount != 1:
        uuid = providers.uuids_of(connection, [id_])[id_]
        raise errors.InventoryInUse(provider_uuid=uuid, resource_class=names.name_of(number, connection))


def _this(statement: Any, id_: int, number: int) -> Any:
    return statement.where(inventories.c.resource_provider_id == id_, inventories.c.resource_class_id == number)
