"""Resource providers as rows and as values: reading, creating and deleting them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, bindparam, exc, select

from moorage import errors
from moorage.columns import now
from moorage.model import Inventory, ResourceProvider
from placement_store import bulk, feed
from placement_store.names import ResourceClassNames
from placement_store.races import Moved
from placement_store.schema import (
    allocations,
    inventories,
    provider_aggregates,
    provider_traits,
    resource_providers,
)


class InventoryRow(NamedTuple):
    """An inventory as the store has it."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float
    used: int

    @property
    def capacity(self) -> float:
        """How much may be allocated in all."""
        return (self.total - self.reserved) * self.allocation_ratio


@dataclass(frozen=True, slots=True)
class ProviderRow:
    """A provider as the store has it, with its inventories by the number of their resource class."""

    id: int
    uuid: str
    root_id: int
    generation: int
    seq: int
    inventories: Mapping[int, InventoryRow]


class ProviderKey(NamedTuple):
    """What a write must know of a provider before it locks it."""

    id: int
    root_id: int


# --- Reading --------------------------------------------------------------------------------------------------------

_INVENTORY_COLUMNS = [
    inventories.c.resource_provider_id,
    inventories.c.resource_class_id,
    *(inventories.c[name] for name in InventoryRow._fields),
]
_ALL_KEYS = select(resource_providers.c.uuid, resource_providers.c.id, resource_providers.c.root_provider_id)
_KEYS = _ALL_KEYS.where(resource_providers.c.uuid.in_(bindparam("uuids", expanding=True)))


def rows(connection: Connection, ids: Collection[int] | None) -> list[ProviderRow]:
    """Return the providers of these ids, or all; an id that is not there is left out."""
    # First the providers, then what they have: inventories may then be newer than `seq` says, and are read once more
    # when the newer `seq` is seen. The other way round they might stay old for ever.
    found = list(_select_by_id(connection, select(resource_providers), resource_providers.c.id, ids))
    held = inventories_of(connection, ids)
    return [
        ProviderRow(row.id, row.uuid, row.root_provider_id, row.generation, row.seq, held.get(row.id, {}))
        for row in found
    ]


def pairs(connection: Connection) -> dict[int, int]:
    """Return the ``seq`` of every provider by id, as one statement sees them."""
    query = select(resource_providers.c.id, resource_providers.c.seq)
    return {row.id: row.seq for row in connection.execute(query)}


def inventories_of(connection: Connection, ids: Collection[int] | None) -> dict[int, dict[int, InventoryRow]]:
    """Return inventories by provider id and resource class id, of these providers or of all."""
    found: dict[int, dict[int, InventoryRow]] = {}
    query = select(*_INVENTORY_COLUMNS)
    for provider_id, class_id, *amounts in _select_by_id(connection, query, inventories.c.resource_provider_id, ids):
        found.setdefault(provider_id, {})[class_id] = InventoryRow(*amounts)
    return found


def keys_of(connection: Connection, uuids: Iterable[str]) -> dict[str, ProviderKey]:
    """Return the providers of these uuids.

    :raises ProviderNotFound: one of them is not there.
    """
    wanted = sorted(set(uuids))
    found = {
        uuid: ProviderKey(id_, root_id)
        for chunk in bulk.chunks(wanted)
        for uuid, id_, root_id in connection.execute(_KEYS, {"uuids": chunk})
    }
    for uuid in wanted:
        if uuid not in found:
            raise provider_not_found(uuid)
    return found


def _select_by_id(
    connection: Connection, query: Select[Any], column: Any, ids: Collection[int] | None
) -> Iterable[Any]:
    if ids is None:
        return connection.execute(query).all()
    return bulk.select_in(connection, query, column, sorted(ids))


def uuids_of(connection: Connection, ids: Collection[int]) -> dict[int, str]:
    """Return the uuids of the providers of these ids; an id that is not there is left out."""
    query = select(resource_providers.c.id, resource_providers.c.uuid)
    return {row.id: row.uuid for row in _select_by_id(connection, query, resource_providers.c.id, ids)}


def get(connection: Connection, uuid: str, names: ResourceClassNames) -> ResourceProvider:
    """Return one provider with its inventories and what is used of them.

    :raises ProviderNotFound: there is none of that uuid.
    """
    found = _values(connection, select(resource_providers).where(resource_providers.c.uuid == uuid), names)
    if not found:
        raise provider_not_found(uuid)
    return found[0]


def list_providers(connection: Connection, name: str | None, names: ResourceClassNames) -> list[ResourceProvider]:
    """Return all providers by name, or the one of that name."""
    query = select(resource_providers).order_by(resource_providers.c.name)
    return _values(connection, query if name is None else query.where(resource_providers.c.name == name), names)


def _values(connection: Connection, query: Select[Any], names: ResourceClassNames) -> list[ResourceProvider]:
    found = connection.execute(query).all()
    held = inventories_of(connection, [row.id for row in found])
    kin = {row.root_provider_id for row in found} | {row.parent_provider_id for row in found if row.parent_provider_id}
    uuids = uuids_of(connection, kin)
    return [
        ResourceProvider(
            uuid=row.uuid,
            name=row.name,
            generation=row.generation,
            root_provider_uuid=uuids[row.root_provider_id],
            parent_provider_uuid=uuids.get(row.parent_provider_id),
            inventories={
                names.name_of(class_id, connection): Inventory(**_described(inventory))
                for class_id, inventory in sorted(held.get(row.id, {}).items())
            },
            used={
                names.name_of(class_id, connection): inventory.used
                for class_id, inventory in sorted(held.get(row.id, {}).items())
            },
        )
        for row in found
    ]


def _described(inventory: InventoryRow) -> dict[str, Any]:
    fields = inventory._asdict()
    del fields["used"]
    return fields


# --- Writing --------------------------------------------------------------------------------------------------------


def create(connection: Connection, names_by_uuid: Mapping[str, str]) -> dict[str, int]:
    """Create root providers without inventory at generation 0; return their ids by uuid.

    :raises AlreadyExists: one of the uuids or names is taken.
    """
    query = select(resource_providers.c.id, resource_providers.c.uuid, resource_providers.c.name)
    taken = [
        *bulk.select_in(connection, query, resource_providers.c.uuid, list(names_by_uuid)),
        *bulk.select_in(connection, query, resource_providers.c.name, list(names_by_uuid.values())),
    ]
    for row in taken:
        name = row.uuid if row.uuid in names_by_uuid else row.name
        raise errors.AlreadyExists(kind="resource provider", name=name)
    try:
        bulk.insert(
            connection,
            resource_providers,
            [{"uuid": uuid, "name": name, "generation": 0, "seq": 0} for uuid, name in names_by_uuid.items()],
            stamps=["created_at", "updated_at"],
        )
    except exc.IntegrityError as fault:
        # Somebody has just created one of them: begin again and say which.
        raise Moved from fault
    created = {
        row.uuid: row.id for row in bulk.select_in(connection, query, resource_providers.c.uuid, list(names_by_uuid))
    }
    for chunk in bulk.chunks(sorted(created.values())):
        connection.execute(
            resource_providers.update()
            .where(resource_providers.c.id.in_(chunk))
            .values(root_provider_id=resource_providers.c.id)
        )
    return created


def move_rows(connection: Connection, ids: Collection[int], *, generation: int) -> None:
    """Lock providers in the order of their ids and raise ``seq`` by one and ``generation`` by ``generation``.

    Whoever changes an inventory or an allocation does this first: a provider's row is the lock on all that it has.

    :raises Moved: one of them has been deleted.
    """
    # UPDATE resource_providers SET generation = generation + :generation, seq = seq + 1, updated_at = :now
    #  WHERE id IN (...)
    for chunk in bulk.chunks(sorted(ids)):
        moved = connection.execute(_MOVE, {"ids": chunk, "moved_by": generation}).rowcount
        if moved != len(chunk):
            raise Moved


_MOVE = (
    resource_providers.update()
    .where(resource_providers.c.id.in_(bindparam("ids", expanding=True)))
    .values(
        generation=resource_providers.c.generation + bindparam("moved_by"),
        seq=resource_providers.c.seq + 1,
        updated_at=now(),
    )
)


def delete(connection: Connection, uuid: str) -> None:
    """Delete a provider that nobody holds anything of, with its inventories.

    :raises ProviderNotFound: there is none of that uuid.
    :raises ProviderInUse: somebody holds something of it, or it has children.
    """
    key = keys_of(connection, [uuid])[uuid]
    move_rows(connection, [key.id], generation=1)
    held = select(allocations.c.id).where(allocations.c.resource_provider_id == key.id)
    children = select(resource_providers.c.id).where(resource_providers.c.parent_provider_id == key.id)
    if connection.execute(held.limit(1)).first() or connection.execute(children.limit(1)).first():
        raise errors.ProviderInUse(provider_uuid=uuid)
    for table in (inventories, provider_traits, provider_aggregates):
        connection.execute(table.delete().where(table.c.resource_provider_id == key.id))
    # InnoDB lets no row go that refers to itself, as a root does.
    this = resource_providers.c.id == key.id
    connection.execute(resource_providers.update().where(this).values(root_provider_id=None, parent_provider_id=None))
    connection.execute(resource_providers.delete().where(this))
    feed.record(connection, provider_ids=[key.id])


def provider_not_found(uuid: str) -> errors.ProviderNotFound:
    """Return the error that says so."""
    return errors.ProviderNotFound(kind="resource provider", name=uuid)
