"""Count the rows that a function reads from tables of MariaDB."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from moorage.db.database import Database

T = TypeVar("T")


def rows_read(database: Database, work: Callable[[Connection], T], *, writing: bool = False) -> tuple[T, int]:
    """Run ``work`` in a transaction; return its result, and how many rows it has read.

    Rows of temporary tables count too, and a row that is read again counts again.
    """

    def counted(connection: Connection) -> tuple[T, int]:
        before = _read(connection)
        result = work(connection)
        return result, _read(connection) - before

    return (database.write if writing else database.read)(counted)


def rows_read_by(database: Database, function: Callable[[], T]) -> tuple[T, int]:
    """Call a function with transactions of its own; return its result, and how many rows it has read.

    All transactions of the database must be in this thread: then they have the same connection.
    """
    before = database.read(_read)
    result = function()
    return result, database.read(_read) - before


def _read(connection: Connection) -> int:
    found = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'").all()
    return sum(int(value) for _, value in found)
