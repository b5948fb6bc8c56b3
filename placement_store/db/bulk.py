"""Read rows by many values, and insert many rows, in few statements."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import Column, Connection, Delete, Insert, Select, Table, Update, bindparam, select

from moorage.db.columns import now
from moorage.db.new_rows import NewRows
from moorage.db.script import Script

T = TypeVar("T")

#: The number of values in one statement: SQLite takes at most 32,766 parameters, and parsing should be fast everywhere.
CHUNK = 5_000


def chunks(values: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    """Yield ``values`` in chunks, by default as large as one statement can take as parameters."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


class Lookup:
    """Query for rows whose column has one of some values; compiled once and run any number of times.

    Building a statement takes longer than a database needs to find a few rows.
    """

    def __init__(self, query: Select[Any], column: Any) -> None:
        self._statement = query.where(column.in_(bindparam("looked_up", expanding=True)))

    def rows(self, connection: Connection, values: Sequence[Any], **more: Any) -> Iterator[Any]:
        """Yield the rows whose column has one of ``values``; ``more`` are the query's own parameters."""
        for chunk in chunks(values):
            yield from connection.execute(self._statement, {"looked_up": chunk, **more}).all()


def select_in(connection: Connection, query: Select[Any], column: Any, values: Sequence[Any]) -> Iterator[Any]:
    """Yield the rows of ``query`` whose ``column`` has one of ``values``."""
    return Lookup(query, column).rows(connection, values)


def change_in(connection: Connection, statement: Update | Delete, column: Any, values: Sequence[Any]) -> int:
    """Update or delete the rows whose ``column`` has one of ``values``; return their number."""
    return sum(connection.execute(statement.where(column.in_(chunk))).rowcount for chunk in chunks(values))


@lru_cache
def pairs(key: Column[Any], value: Column[Any]) -> Lookup:
    """Return the query for pairs of two columns, by the first of them."""
    return Lookup(select(key, value), key)


def page(query: Select[Any], column: Any, after: Any, limit: int | None) -> Select[Any]:
    """Return the query for one page of rows, in the order of a column, or for all rows, in any order."""
    if after is not None:
        query = query.where(column > after)
    return query if limit is None else query.order_by(column).limit(limit)


def insert(
    connection: Connection | Script, table: Table, rows: Sequence[Mapping[str, Any]], stamps: Sequence[str] = ()
) -> int | None:
    """Insert ``rows``, with the database's clock in the columns ``stamps``; return the id if it is only one row.

    In a script, the insert is one of its statements, and no id is returned.

    See :class:`~moorage.db.new_rows.NewRows` for the values of several rows.
    """
    if isinstance(connection, Script):
        _new_rows(table, tuple(stamps)).add_to(connection, rows)
        return None
    if len(rows) == 1:
        number: int | None = connection.execute(_insert(table, tuple(stamps)), dict(rows[0])).lastrowid
        return number
    _new_rows(table, tuple(stamps)).insert(connection, rows)
    return None


@lru_cache
def _new_rows(table: Table, stamps: tuple[str, ...]) -> NewRows:
    return NewRows(table, **dict.fromkeys(stamps, 0.0))


@lru_cache
def _insert(table: Table, stamps: tuple[str, ...]) -> Insert:
    return table.insert().values(dict.fromkeys(stamps, now())) if stamps else table.insert()
