"""Idempotent steps of a migration: each inspects the schema first, and changes it only if necessary.

MySQL and MariaDB commit each DDL statement separately. An interrupted upgrade leaves a part of a revision, while the
recorded revision is still the one before it. The upgrade can simply be run again.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from moorage.db.schemas import compatibility_table


def columns(table: str) -> frozenset[str]:
    """Return the names of a table's columns; none if the table does not exist."""
    inspector = _inspector()
    if not inspector.has_table(table):
        return frozenset()
    return frozenset(column["name"] for column in inspector.get_columns(table))


def create_table(name: str, *elements: Any, **settings: Any) -> None:
    """Create a table of columns and constraints unless it exists."""
    if not _inspector().has_table(name):
        op.create_table(name, *elements, **settings)


def drop_table(name: str) -> None:
    """Drop a table if it exists."""
    if _inspector().has_table(name):
        op.drop_table(name)


def create_index(name: str, table: str, of_columns: Sequence[str], *, unique: bool = False) -> None:
    """Create an index unless the table has one of that name."""
    if name not in {index["name"] for index in _inspector().get_indexes(table)}:
        op.create_index(name, table, list(of_columns), unique=unique)


def drop_index(name: str, table: str) -> None:
    """Drop an index if the table has one of that name."""
    if name in {index["name"] for index in _inspector().get_indexes(table)}:
        op.drop_index(name, table)


def add_column(table: str, column: "sa.Column[Any]") -> None:
    """Add a column unless the table has one of that name."""
    if column.name not in columns(table):
        op.add_column(table, column)


def declare_oldest_code(schema: str, revision: str) -> None:
    """Record the oldest code that works on this schema, by the newest revision that the code contains.

    An expanding revision does not change the record. A contracting one raises it: from then on, older code refuses to
    start.
    """
    table = compatibility_table(schema)
    connection = op.get_bind()
    table.create(connection, checkfirst=True)
    # The table has one row. Replace it, because an interrupted upgrade may have written it before.
    connection.execute(table.delete())
    connection.execute(table.insert().values(oldest_code=revision))


def _inspector() -> sa.Inspector:
    # Make a new inspector each time, because an inspector caches its results.
    return sa.inspect(op.get_bind())
