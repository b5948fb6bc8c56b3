"""Read and lock the rows of existing resource providers, and bump their generations."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from moorage import errors
from moorage.db.columns import clock
from moorage.db.script import Script, StatementOutcome, scripted
from moorage.model import Inventory
from placement_store.db import bulk
from placement_store.db.retries import StaleRead
from placement_store.schema import inventories, resource_providers


class InventoryRow(NamedTuple):
    """Hold one inventory's row."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float
    used: int

    @property
    def capacity(self) -> float:
        """Return the amount that may be allocated in total."""
        return (self.total - self.reserved) * self.allocation_ratio

    @property
    def described(self) -> Inventory:
        """Return the inventory as reported, without its usage."""
        fields = self._asdict()
        del fields["used"]
        return Inventory(**fields)


@dataclass(frozen=True, slots=True)
class ProviderRow:
    """Hold one provider's row with its inventories by resource class id."""

    id: int
    uuid: str
    root_id: int
    parent_id: int | None
    generation: int
    seq: int
    inventories: Mapping[int, InventoryRow]


class ProviderKey(NamedTuple):
    """Hold the ids of a provider and its root, read by a write before it locks the provider."""

    id: int
    root_id: int


# --- Reading --------------------------------------------------------------------------------------------------------

_INVENTORY_COLUMNS = [
    inventories.c.resource_provider_id,
    inventories.c.resource_class_id,
    *(inventories.c[name] for name in InventoryRow._fields),
]
_INVENTORIES = select(*_INVENTORY_COLUMNS)
_INVENTORIES_BY_PROVIDER = bulk.Lookup(_INVENTORIES, inventories.c.resource_provider_id)
_KEYS = bulk.Lookup(
    select(resource_providers.c.uuid, resource_providers.c.id, resource_providers.c.root_provider_id),
    resource_providers.c.uuid,
)


def rows(connection: Connection, ids: Collection[int] | None) -> list[ProviderRow]:
    """Return the providers of these ids, or all; an id that does not exist is omitted."""
    # The providers are read first, then their inventories. So inventories may be newer than `seq`; they are read again
    # when the newer `seq` is seen. In the reverse order, a follower might keep old inventories for ever.
    table = resource_providers.c
    query = select(table.id, table.uuid, table.root_provider_id, table.parent_provider_id, table.generation, table.seq)
    found: Iterable[Any] = (
        connection.execute(query).all()
        if ids is None
        else list(bulk.select_in(connection, query, table.id, sorted(ids)))
    )
    held = inventories_of(connection, ids)
    return [ProviderRow(*row, inventories=held.get(row.id, {})) for row in found]  # type: ignore[misc]


def inventories_of(connection: Connection, ids: Collection[int] | None) -> dict[int, dict[int, InventoryRow]]:
    """Return inventories by provider id and resource class id, of these providers or of all."""
    found: dict[int, dict[int, InventoryRow]] = {}
    rows: Iterable[Any] = (
        connection.execute(_INVENTORIES).all()
        if ids is None
        else _INVENTORIES_BY_PROVIDER.rows(connection, sorted(ids))
    )
    for provider_id, class_id, *amounts in rows:
        found.setdefault(provider_id, {})[class_id] = InventoryRow._make(amounts)
    return found


def keys_of(connection: Connection, uuids: Iterable[str]) -> dict[str, ProviderKey]:
    """Return the keys of the providers of these uuids.

    :raises ProviderNotFound: one of them does not exist.
    """
    wanted = set(uuids)
    found = keys_found(connection, wanted)
    require(wanted, found)
    return found


def require(uuids: Iterable[str], found: Collection[str]) -> None:
    """Verify that the providers of these uuids are among those found.

    :raises ProviderNotFound: one of them is not.
    """
    for uuid in sorted(set(uuids).difference(found)):
        raise errors.ProviderNotFound(name=uuid)


def keys_found(connection: Connection, uuids: Iterable[str]) -> dict[str, ProviderKey]:
    """Return the keys of the providers of these uuids; a uuid that does not exist is omitted."""
    return {uuid: ProviderKey(id_, root_id) for uuid, id_, root_id in _KEYS.rows(connection, sorted(set(uuids)))}


def tree_ids(connection: Connection, root_ids: Collection[int]) -> list[int]:
    """Return the ids of all providers of the trees of these roots, sorted."""
    table = resource_providers.c
    return sorted(id_ for _, id_ in bulk.pairs(table.root_provider_id, table.id).rows(connection, sorted(root_ids)))


def roots_of(connection: Connection, ids: Collection[int]) -> dict[int, int]:
    """Return the ids of the roots of the providers of these ids; an id that does not exist is omitted."""
    table = resource_providers.c
    return dict(bulk.pairs(table.id, table.root_provider_id).rows(connection, sorted(ids)))


def uuids_of(connection: Connection, ids: Collection[int]) -> dict[int, str]:
    """Return the uuids of the providers of these ids; an id that does not exist is omitted."""
    return dict(bulk.pairs(resource_providers.c.id, resource_providers.c.uuid).rows(connection, sorted(ids)))


# --- Writing --------------------------------------------------------------------------------------------------------


class LockedRow(NamedTuple):
    """Hold a provider's row that no other transaction can change before this one ends."""

    uuid: str
    name: str
    generation: int
    root_id: int
    parent_id: int | None


def lock(connection: Connection, ids: Collection[int]) -> dict[int, LockedRow]:
    """Lock providers in the order of their ids, before any change; return their rows by id.

    :raises StaleRead: one of them has been deleted.
    """
    # SELECT ... FROM resource_providers WHERE id IN (...) ORDER BY id FOR UPDATE
    table = resource_providers.c
    query = select(table.id, table.uuid, table.name, table.generation, table.root_provider_id, table.parent_provider_id)
    query = query.order_by(table.id).with_for_update()
    found = {row.id: LockedRow(*row[1:]) for row in bulk.select_in(connection, query, table.id, sorted(ids))}
    if len(found) != len(set(ids)):
        raise StaleRead
    return found


def bump_generations(
    connection: Connection | Script,
    ids: Collection[int],
    *,
    by: int,
    roots: Mapping[int, int] | None = None,
    unless: Collection[int] = (),
) -> None:
    """Lock providers in the order of their ids and raise their ``seq`` by one and their ``generation`` by ``by``.

    Every change of an inventory or an allocation begins with this: the lock on a provider's row protects all its data.

    :param by: 1; or 0 for a change that does not count for ``generation``.
    :param roots: the ids of the roots that some of the providers were read with, by provider id.
    :param unless: those of the providers of which only the ``seq`` is raised.
    :raises StaleRead: one of them has been deleted, or has another root by now.
    """
    by_each = f"CASE WHEN id IN ({_listed(sorted(unless))}) THEN 0 ELSE {by:d} END" if unless else f"{by:d}"
    # UPDATE resource_providers SET generation = generation + :by, seq = seq + 1, updated_at = :now
    #  WHERE id IN (...) [AND (id NOT IN (...) OR (id, root_provider_id) IN ((...), ...))]
    with scripted(connection) as script:
        for chunk in bulk.chunks(sorted(ids)):
            found = [id_ for id_ in chunk if id_ in roots] if roots else []
            text = (
                f"UPDATE resource_providers SET generation = generation + {by_each}, seq = seq + 1,"  # noqa: S608
                f" updated_at = {clock(script.dialect)} WHERE id IN ({_listed(chunk)})"
            )
            if roots and found:
                pairs = ", ".join(f"({id_:d}, {roots[id_]:d})" for id_ in found)
                # SQLite compares a pair only with rows.
                places = f"VALUES {pairs}" if script.dialect.name == "sqlite" else pairs
                text += f" AND (id NOT IN ({_listed(found)}) OR (id, root_provider_id) IN ({places}))"
            script.add(text, then=partial(_require_all, len(chunk)))


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))


def _require_all(count: int, outcome: StatementOutcome) -> None:
    if outcome.rowcount != count:
        raise StaleRead


def lock_at(connection: Connection, uuid: str, generation: int | None) -> int:
    """Lock the provider of a uuid and compare its generation, if one is named; return its id.

    :raises ProviderNotFound: there is none.
    :raises ProviderGenerationConflict: it is at another generation.
    :raises StaleRead: it has been deleted concurrently.
    """
    id_ = keys_of(connection, [uuid])[uuid].id
    compare_generation(lock(connection, [id_])[id_], generation)
    return id_


def compare_generation(row: LockedRow, named: int | None) -> None:
    """Compare a provider's generation, if one is named.

    :raises ProviderGenerationConflict: it is at another generation.
    """
    if named is not None and row.generation != named:
        raise errors.ProviderGenerationConflict(provider_uuid=row.uuid, named=named, found=row.generation)
