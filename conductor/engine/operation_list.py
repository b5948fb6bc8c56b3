"""Read operations for operators: the next step, the owner of the lease, the age."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Row, Table, or_, select

from moorage.db.columns import now
from moorage.model.inspection import OperationSummary

#: The most operations in an answer without a limit; of more, the newest. Arbitrary: they fit into one message.
_MOST = 5000


class OperationStates:
    """Reads of the operations of one schema; each method is a part of the transaction that it is given.

    :param scope: columns that narrow the table down, with their values: the cell.
    """

    def __init__(self, table: Table, scope: Mapping[str, str]) -> None:
        self._table = table
        self._scope = dict(scope)
        # Once: SQLAlchemy makes new types for the differences, and examines each at length.
        self._columns = (
            table,
            (table.c.lease_until - now()).label("lease_left"),
            (now() - table.c.created_at).label("age"),
            (now() - table.c.updated_at).label("idle"),
        )

    def read(
        self,
        connection: Connection,
        *,
        ended: bool = True,
        subjects: Collection[str] | None = None,
        uuids: Collection[str] | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[OperationSummary]:
        """Return operations, the oldest first.

        :param ended: include those that have ended.
        :param subjects: restrict the list to operations with one of these subjects or of ``uuids``.
        :param limit: return a page of at most so many, in the order of their uuids, after the uuid ``after``.
        """
        table = self._table
        statement = select(*self._columns).where(*(table.c[name] == value for name, value in self._scope.items()))
        if not ended:
            statement = statement.where(table.c.state == "pending")
        if subjects is not None or uuids is not None:
            statement = statement.where(or_(table.c.subject.in_(subjects or ()), table.c.uuid.in_(uuids or ())))
        if after is not None:
            statement = statement.where(table.c.uuid > after)
        if limit is not None:
            part = connection.execute(statement.order_by(table.c.uuid).limit(limit))
            return [self._state(row) for row in part]
        newest = connection.execute(statement.order_by(table.c.created_at.desc(), table.c.uuid).limit(_MOST)).all()
        return [self._state(row) for row in reversed(newest)]

    def _state(self, row: Row[Any]) -> OperationSummary:
        return OperationSummary(
            uuid=row.uuid,
            kind=row.kind,
            subject=row.subject,
            request_id=row.request_id,
            step=row.step,
            step_number=row.step_number,
            state=row.state,
            tries=row.tries,
            reason=None if row.reason is None else row.reason.decode(),
            cell_uuid=self._scope.get("cell_uuid"),
            # The name without the suffix of the process.
            lease_owner=None if row.lease_owner is None else row.lease_owner.partition("/")[0],
            lease_left=row.lease_left,
            age=row.age,
            idle=row.idle,
        )
