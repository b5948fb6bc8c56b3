"""Force an index where the optimizer of MySQL or MariaDB chooses a worse plan, or may do so with old statistics."""

from typing import Any

from sqlalchemy import Select, Table


def by_index(query: Select[Any], table: Table, index: str) -> Select[Any]:
    """Return a query that reads a table by an index. SQLite chooses by itself.

    :raises ValueError: the table has no such index.
    """
    if index not in {each.name for each in table.indexes}:
        raise ValueError(f"{table.name} has no index {index}")
    hint = f"FORCE INDEX ({index})"
    return query.with_hint(table, hint, "mysql").with_hint(table, hint, "mariadb")
