"""Read and write the cells of the cloud: their names, and the URLs of their message buses and databases.

:raises StoreUnavailable: from each function that is given a database: it cannot be reached.
"""

from collections.abc import Collection
from typing import Any

from msgspec import structs
from sqlalchemy import Column, Connection, Row, exc, func, or_, select

from moorage import errors
from moorage.db.columns import CLOCK_SET_BACK
from moorage.db.database import Database
from moorage.messages import ListCells, ListHostsDeclaredDown, LocateCell
from moorage.model import Cell
from placement_store.db import bulk
from placement_store.db.store import Store, handles, reads
from placement_store.schema import allocations, cells, hosts, resource_providers

#: The most consumers that are counted for an error. Arbitrary: a cell may have a million.
_COUNTED = 1000

_ROOTS = resource_providers.alias("roots")


def create(
    database: Database,
    *,
    name: str,
    uuid: str,
    transport_url: str | None = None,
    database_connection: str | None = None,
) -> Cell:
    """Create a cell. Where a URL is null, each service uses the main URL of its own configuration.

    :raises AlreadyExists: the name or the uuid is taken.
    """
    row = {
        "uuid": uuid,
        "name": name,
        "transport_url": _encoded(transport_url),
        "database_connection": _encoded(database_connection),
    }

    def write(connection: Connection) -> None:
        # If the response to an earlier COMMIT was lost, this same row exists already.
        present = connection.execute(select(cells).where(cells.c.uuid == uuid)).one_or_none()
        if present is not None:
            if all(getattr(present, column) == value for column, value in row.items()):
                return
            raise errors.AlreadyExists(kind="cell", name=uuid)
        try:
            bulk.insert(connection, cells, [row], stamps=["created_at"])
        except exc.IntegrityError as fault:
            raise errors.AlreadyExists(kind="cell", name=name) from fault

    database.write(write)
    return Cell(uuid=uuid, name=name, transport_url=transport_url, database_connection=database_connection)


def change(database: Database, uuid: str, /, **columns: str | None) -> Cell:
    """Change a cell's ``name``, ``transport_url`` or ``database_connection``; other columns stay unchanged.

    :raises CellNotFound: the cell does not exist.
    :raises AlreadyExists: the new name is taken.
    """
    values = {column: value if column == "name" else _encoded(value) for column, value in columns.items()}

    def write(connection: Connection) -> Cell:
        by_uuid(connection, uuid)
        try:
            connection.execute(cells.update().where(cells.c.uuid == uuid).values(**values))
        except exc.IntegrityError as fault:
            raise errors.AlreadyExists(kind="cell", name=str(columns["name"])) from fault
        return by_uuid(connection, uuid)

    return database.write(write)


def delete(database: Database, name: str, *, dry_run: bool = False) -> Cell:
    """Delete a cell's row; its message bus and its database stay unchanged.

    :param dry_run: only verify that the cell could be deleted.
    :raises CellNotFound: the cell does not exist.
    :raises InvalidState: it has hosts.
    """
    cell = database.read(lambda connection: by_name(connection, name))

    def write(connection: Connection) -> int:
        # A report that adds a host locks the row too, see `keep`: either the host is counted, or its cell not found.
        connection.execute(select(cells.c.id).where(cells.c.uuid == cell.uuid).with_for_update())
        known = connection.scalar(select(func.count()).select_from(hosts).where(hosts.c.cell_uuid == cell.uuid)) or 0
        if not known and not dry_run:
            # An earlier COMMIT whose response was lost may have deleted it already.
            connection.execute(cells.delete().where(cells.c.uuid == cell.uuid))
        return known

    if known := database.write(write):
        # Heartbeats of the cell wait for that lock: count the consumers without it.
        holding = database.read(lambda connection: _consumers(connection, cell.uuid))
        many = "at least " if holding == _COUNTED else ""
        raise errors.InvalidState(reason=f"cell {name} has {known} hosts, and {many}{holding} consumers are on them")
    return cell


def _consumers(connection: Connection, uuid: str) -> int:
    """Return the number of consumers with allocations in the trees of a cell's hosts, at most ``_COUNTED``."""
    # SELECT COUNT(*) FROM (SELECT DISTINCT consumer_id FROM allocations JOIN ... WHERE h.cell_uuid = ... LIMIT :n) some
    some = (
        select(allocations.c.consumer_id)
        .distinct()
        .select_from(allocations)
        .join(resource_providers, resource_providers.c.id == allocations.c.resource_provider_id)
        .join(_ROOTS, _ROOTS.c.id == resource_providers.c.root_provider_id)
        .join(hosts, hosts.c.compute_node_uuid == _ROOTS.c.uuid)
        .where(hosts.c.cell_uuid == uuid)
        .limit(_COUNTED)
        .subquery()
    )
    return connection.scalar(select(func.count()).select_from(some)) or 0


def list_cells(database: Database) -> list[Cell]:
    """Return all cells by name."""
    return database.read(
        lambda connection: [_cell(row) for row in connection.execute(select(cells).order_by(cells.c.name))]
    )


@handles(ListCells)
def _list_cells(store: Store, message: ListCells) -> list[Cell]:
    found = list_cells(store.database)
    return [structs.replace(cell, database_connection=None) for cell in found] if message.without_databases else found


@reads(LocateCell)
def _locate_cell(connection: Connection, message: LocateCell) -> Cell:
    cell = by_name(connection, message.name)
    return cell if message.with_database else structs.replace(cell, database_connection=None)


@reads(ListHostsDeclaredDown)
def list_hosts_declared_down(connection: Connection, message: ListHostsDeclaredDown) -> list[str]:
    """Return the named hosts of a cell whose nodes are all forced down or deleted.

    Callers do not wait for reports of these hosts. A deleted host that reports itself again counts as a new one. With
    ``or_disabled``, disabled nodes count like nodes that are forced down; with ``only_deleted``, neither count.
    """
    # SELECT DISTINCT service_host FROM hosts WHERE cell_uuid = :cell AND service_host IN (...) AND NOT forced_down
    query = select(hosts.c.service_host).where(
        hosts.c.cell_uuid == message.cell_uuid, hosts.c.service_host.in_(message.service_hosts)
    )
    if not message.only_deleted:
        query = query.where(hosts.c.forced_down.is_(False))
    if message.or_disabled and not message.only_deleted:
        query = query.where(hosts.c.disabled.is_(False))
    awaited = set(connection.scalars(query.distinct()))
    return [name for name in message.service_hosts if name not in awaited]


def by_uuid(connection: Connection, uuid: str) -> Cell:
    """Return one cell.

    :raises CellNotFound: no cell has that uuid.
    """
    return _one(connection, cells.c.uuid, uuid)


def keep(connection: Connection, uuids: Collection[str]) -> None:
    """Lock cells, so that they are not deleted before this transaction ends; others may lock them so too.

    :raises CellNotFound: one of them does not exist.
    """
    # SELECT id FROM cells WHERE uuid = :uuid LOCK IN SHARE MODE
    for uuid in sorted(uuids):
        query = select(cells.c.id).where(cells.c.uuid == uuid).with_for_update(read=True)
        if connection.execute(query).first() is None:
            raise errors.CellNotFound(name=uuid)


def takes_heartbeats(connection: Connection, uuid: str, at: float) -> bool:
    """Record the time of a cell's heartbeats; return false if a newer time is already recorded.

    :param at: when the cell read its hosts, by its database's clock; 0 from a cell conductor of an older release.
    """
    if not at:
        return True
    # UPDATE cells SET alive_at = :at WHERE uuid = ... AND (alive_at <= :at OR alive_at > :at + 60)
    newest = or_(cells.c.alive_at <= at, cells.c.alive_at > at + CLOCK_SET_BACK)
    return connection.execute(cells.update().where(cells.c.uuid == uuid, newest).values(alive_at=at)).rowcount > 0


def by_name(connection: Connection, name: str) -> Cell:
    """Return one cell.

    :raises CellNotFound: no cell has that name.
    """
    return _one(connection, cells.c.name, name)


def _one(connection: Connection, column: Column[str], value: str) -> Cell:
    row = connection.execute(select(cells).where(column == value)).one_or_none()
    if row is None:
        raise errors.CellNotFound(name=value)
    return _cell(row)


def _cell(row: Row[Any]) -> Cell:
    return Cell(
        uuid=row.uuid,
        name=row.name,
        transport_url=_decoded(row.transport_url),
        database_connection=_decoded(row.database_connection),
    )


def _encoded(url: str | None) -> bytes | None:
    return None if url is None else url.encode()


def _decoded(url: bytes | None) -> str | None:
    return None if url is None else url.decode()
