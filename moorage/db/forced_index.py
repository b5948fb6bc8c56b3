"""Force a plan where the optimizer of MySQL or MariaDB chooses a worse one, or may do so with old statistics."""

from typing import Any

from sqlalchemy import ColumnElement, Select, Table


def by_index(query: Select[Any], table: Table, index: str) -> Select[Any]:
    """Return a query that reads a table by an index. SQLite chooses by itself.

    :raises ValueError: the table has no such index.
    """
    if index not in {each.name for each in table.indexes}:
        raise ValueError(f"{table.name} has no index {index}")
    hint = f"FORCE INDEX ({index})"
    return query.with_hint(table, hint, "mysql").with_hint(table, hint, "mariadb")


def has_row(correlated: Select[Any]) -> ColumnElement[bool]:
    """Return the condition that a correlated query has a row, looked up for each row of the enclosing query.

    As EXISTS, MariaDB may carry it out once for all rows of the inner table, even if the enclosing query is limited to
    a few rows of its own.
    """
    return correlated.limit(1).scalar_subquery().is_not(None)
