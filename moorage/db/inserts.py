"""Insert many rows by one statement with one set of parameters.

SQLAlchemy prepares the parameters of each row by itself, which takes three times as long as the driver needs for a row;
and PyMySQL sends many rows as one statement only if all their values are parameters, none of them the clock.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, Table
from sqlalchemy.sql.schema import ScalarElementColumnDefault

from moorage.db.columns import now

#: SQLite takes at most 32,766 parameters, and parsing should be fast everywhere.
_MOST_PARAMETERS = 30_000
#: The most bytes of one statement's documents. Arbitrary: a small part of what MySQL and MariaDB take.
_MOST_BYTES = 2**20


def insert_many(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], stamps: Sequence[str] = ()
) -> None:
    """Insert rows that name the same columns, with the database's clock in the columns ``stamps``, whatever rows have there.

    No type of SQLAlchemy converts a value: they are numbers, texts, bytes and nulls as the driver takes them.
    """
    if not rows:
        return
    given = [name for name in rows[0] if name not in stamps]
    missing = {name: value for name, value in _defaults(table).items() if name not in rows[0] and name not in stamps}
    columns = (*given, *missing)
    for part in _parts(rows, _MOST_PARAMETERS // len(columns)):
        statement = _statement(connection.dialect, table, columns, tuple(stamps), len(part))
        values = [value for row in part for value in (*[row[name] for name in given], *missing.values())]
        connection.exec_driver_sql(statement, tuple(values))


def _parts(rows: Sequence[Mapping[str, Any]], most: int) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yield the rows in parts that fit into one statement."""
    part: list[Mapping[str, Any]] = []
    size = 0
    for row in rows:
        length = sum(len(value) for value in row.values() if isinstance(value, bytes))
        if part and (len(part) == most or size + length > _MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += length
    yield part


@lru_cache
def _defaults(table: Table) -> Mapping[str, Any]:
    """Return the values of the columns that have a default of SQLAlchemy's, by name."""
    return {
        column.name: column.default.arg for column in table.c if isinstance(column.default, ScalarElementColumnDefault)
    }


@lru_cache(maxsize=2000)
def _statement(dialect: Dialect, table: Table, columns: tuple[str, ...], stamps: tuple[str, ...], rows: int) -> str:
    """Return the statement that inserts so many rows.

    INSERT INTO table (a, b, created_at) VALUES (%s, %s, clock), (%s, %s, clock), ...
    """
    quoted = dialect.identifier_preparer
    names = ", ".join(quoted.format_column(table.c[name]) for name in (*columns, *stamps))
    mark = "?" if dialect.paramstyle == "qmark" else "%s"
    clock = str(now().compile(dialect=dialect))
    values = f"({', '.join([mark] * len(columns) + [clock] * len(stamps))})"
    head = f"INSERT INTO {quoted.format_table(table)} ({names}) VALUES "  # noqa: S608 - of names in the schema alone
    return head + ", ".join([values] * rows)
