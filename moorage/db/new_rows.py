"""Insert rows that were made at the time of their transaction, by statements that are built once."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table

from moorage.db.columns import now


class NewRows:
    """Inserts rows into a table whose columns of times are set to the time of the transaction.

    :param after: for each of these columns, the seconds after that time.
    """

    def __init__(self, table: Table, **after: float) -> None:
        self._after = after
        # Both built once, for it takes SQLAlchemy longer to build a statement than to run it.
        self._at_given_time = table.insert()
        self._at_time_of_statement = table.insert().values(
            {name: now() + seconds if seconds else now() for name, seconds in after.items()}
        )

    def insert(
        self, connection: Connection, rows: Sequence[Mapping[str, Any]], at: now | float, **same: object
    ) -> None:
        """Insert rows.

        :param at: the time of the transaction, see :func:`~moorage.db.columns.moment`.
        :param same: the columns that are the same in all rows.
        """
        if isinstance(at, now):
            connection.execute(self._at_time_of_statement, [{**row, **same} for row in rows])
        else:
            times = {name: at + seconds for name, seconds in self._after.items()}
            connection.execute(self._at_given_time, [{**row, **same, **times} for row in rows])
