"""Insert many rows by one statement with one set of parameters; the database's clock sets their times.

SQLAlchemy prepares the parameters row by row, which takes three times as long as the driver needs for a row. PyMySQL
sends many rows as one statement only if all values are parameters, so that none of them can be the clock.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, Table, exc
from sqlalchemy.sql.schema import ScalarElementColumnDefault

from moorage.batches import in_parts
from moorage.db.columns import clock
from moorage.db.script import Script

#: SQLite accepts at most 32,766 parameters, and parsing must be fast everywhere.
_MOST_PARAMETERS = 30_000
#: The most bytes of one statement's documents. Arbitrary: a small part of what MySQL and MariaDB accept.
_MOST_BYTES = 2**20


class NewRows:
    """Inserts rows into a table; the database's clock sets the columns of times.

    :param after: for each of these columns, the seconds to add to the time of the statement.
    """

    def __init__(self, table: Table, **after: float) -> None:
        self._table = table
        self._after = tuple(after.items())
        self._defaults = {
            column.name: column.default.arg
            for column in table.c
            if isinstance(column.default, ScalarElementColumnDefault) and column.name not in after
        }

    def insert(self, connection: Connection, rows: Sequence[Mapping[str, Any]], **same: Any) -> None:
        """Insert rows that name the same columns; their values in columns of times are ignored.

        No type of SQLAlchemy converts the values: they must be numbers, texts, bytes or None, as the driver requires.

        :param same: the columns that are the same in all rows.
        """
        for text, parameters in self._statements(connection.dialect, rows, same):
            connection.exec_driver_sql(text, parameters)

    def add_to(
        self,
        script: Script,
        rows: Sequence[Mapping[str, Any]],
        fault: Callable[[exc.DBAPIError], None] | None = None,
        **same: Any,
    ) -> None:
        """Add to a script the statement that :meth:`insert` would carry out."""
        for text, parameters in self._statements(script.dialect, rows, same):
            script.add(text, parameters, fault=fault)

    def _statements(
        self, dialect: Dialect, rows: Sequence[Mapping[str, Any]], same: Mapping[str, Any]
    ) -> Iterator[tuple[str, tuple[Any, ...]]]:
        if not rows:
            return
        times = dict(self._after)
        given = [name for name in rows[0] if name not in times]
        constant = {name: value for name, value in {**self._defaults, **same}.items() if name not in rows[0]}
        columns = (*given, *constant)
        for part in in_parts(rows, _bytes_of_documents, _MOST_BYTES, _MOST_PARAMETERS // len(columns)):
            values = [value for row in part for value in (*[row[name] for name in given], *constant.values())]
            yield _statement(dialect, self._table, columns, self._after, len(part)), tuple(values)


def _bytes_of_documents(row: Mapping[str, Any]) -> int:
    return sum(len(value) for value in row.values() if isinstance(value, bytes))


@lru_cache(maxsize=2000)
def _statement(
    dialect: Dialect, table: Table, columns: tuple[str, ...], after: tuple[tuple[str, float], ...], rows: int
) -> str:
    """Return the statement that inserts a number of rows.

    INSERT INTO table (a, created_at, due_at) VALUES (%s, clock, clock + 60.0), (%s, clock, clock + 60.0), ...
    """
    quoted = dialect.identifier_preparer
    names = ", ".join(quoted.format_column(table.c[name]) for name in (*columns, *dict(after)))
    mark = "?" if dialect.paramstyle == "qmark" else "%s"
    time = clock(dialect)
    times = [f"{time} + {seconds!r}" if seconds else time for _, seconds in after]
    values = f"({', '.join([mark] * len(columns) + times)})"
    head = f"INSERT INTO {quoted.format_table(table)} ({names}) VALUES "  # noqa: S608 - only names of the schema
    return head + ",".join([values] * rows)
