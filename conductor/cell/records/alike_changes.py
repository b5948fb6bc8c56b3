"""Make the same change to several rows of a cell's table, with statements that are built once."""

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

from sqlalchemy import Column, Connection, Table, Update, bindparam

from moorage.db.columns import now


class AlikeChanges:
    """Makes the same change to several rows of a table.

    :param key: the column that names a row within its cell.
    """

    def __init__(self, table: Table, key: Column[str]) -> None:
        self._table = table
        self._key = key
        # One statement for each set of columns: it takes SQLAlchemy longer to build a statement than to run it.
        self._statement = cache(self._built)

    def execute(self, connection: Connection, cell_uuid: str, keys: Collection[str], values: Mapping[str, Any]) -> None:
        """Set columns of the rows with these keys, in their order."""
        named = {f"to_{name}": value for name, value in values.items()}
        statement = self._statement(tuple(values))
        connection.execute(statement, {"cell": cell_uuid, "keys": sorted(keys), **named})

    def _built(self, columns: tuple[str, ...]) -> Update:
        values: dict[str, Any] = {name: bindparam(f"to_{name}") for name in columns}
        return (
            self._table.update()
            .where(self._table.c.cell_uuid == bindparam("cell"), self._key.in_(bindparam("keys", expanding=True)))
            .values(**values, updated_at=now())
        )
