"""A cheap look at the records of a server, which shows whether it is worth asking the conductors for all of it."""

import time
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, select, union_all

from conductor.schema import cell_instances, cell_operations, conductor_instances, conductor_operations
from moorage.db.database import Database

#: Seconds after which the conductors are asked in any case.
SELDOM = 1.0


@dataclass
class RecordPeek:
    """Reads the records of one server: those of its cell and of the super conductor, which are in one database."""

    database: Database
    uuid: str
    _asked_at: float = float("-inf")

    def may_be(self, state: str, pending: Collection[str] | None = None) -> bool:
        """Return whether a server may be in a state, with no other operations under way; now and then, return True."""
        now = time.monotonic()
        is_worth_while = now > self._asked_at + SELDOM or self.database.read(
            lambda connection: self._is_in(connection, state) and self._is_quiet(connection, pending)
        )
        if is_worth_while:
            self._asked_at = now
        return is_worth_while

    def _is_in(self, connection: Connection, state: str) -> bool:
        tables = (cell_instances.c, conductor_instances.c)
        states = union_all(*(select(table.state).where(table.uuid == self.uuid) for table in tables))
        return state in connection.scalars(states).all()

    def _is_quiet(self, connection: Connection, pending: Collection[str] | None) -> bool:
        if pending is None:
            return True
        tables = (cell_operations.c, conductor_operations.c)
        kinds = union_all(
            *(select(table.kind).where(table.subject == self.uuid, table.state == "pending") for table in tables)
        )
        return set(connection.scalars(kinds).all()) <= {*pending, "clean"}
