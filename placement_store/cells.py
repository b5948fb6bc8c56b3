"""The cells of the cloud: what each is called and where its bus and its records are."""

from typing import Any

from sqlalchemy import Connection, Row, exc, select

from moorage import errors
from moorage.database import Database
from moorage.model import Cell
from placement_store import bulk
from placement_store.schema import cells


def create(
    database: Database,
    *,
    name: str,
    uuid: str,
    transport_url: str | None = None,
    database_connection: str | None = None,
) -> Cell:
    """Write down a new cell; a URL of null means: the same as the reader's own main one.

    :raises AlreadyExists: the name or the uuid is taken.
    :raises StoreUnavailable: the database cannot be reached.
    """
    row = {
        "uuid": uuid,
        "name": name,
        "transport_url": _encoded(transport_url),
        "database_connection": _encoded(database_connection),
    }

    def write(connection: Connection) -> None:
        # The answer of a commit that was lost on its way is this same row.
        present = connection.execute(select(cells).where(cells.c.uuid == uuid)).one_or_none()
        if present is not None and all(getattr(present, column) == value for column, value in row.items()):
            return
        try:
            bulk.insert(connection, cells, [row], stamps=["created_at"])
        except exc.IntegrityError as fault:
            raise errors.AlreadyExists(kind="cell", name=name) from fault

    database.write(write)
    return Cell(uuid=uuid, name=name, transport_url=transport_url, database_connection=database_connection)


def list_cells(database: Database) -> list[Cell]:
    """Return all cells by name.

    :raises StoreUnavailable: the database cannot be reached.
    """
    return database.read(
        lambda connection: [_cell(row) for row in connection.execute(select(cells).order_by(cells.c.name))]
    )


def by_uuid(connection: Connection, uuid: str) -> Cell:
    """Return one cell.

    :raises CellNotFound: there is none of that uuid.
    """
    row = connection.execute(select(cells).where(cells.c.uuid == uuid)).one_or_none()
    if row is None:
        raise errors.CellNotFound(kind="cell", name=uuid)
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
