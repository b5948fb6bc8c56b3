"""Operations as records: the next step is written down with all that it needs, and only then done."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, select

from conductor.engine.leases import Leases, found
from conductor.engine.steps import (
    ATTACH,
    DETACH,
    HEAL,
    Backoff,
    CommitStep,
    Ended,
    NewOperation,
    Next,
    Operation,
    Outcome,
    Retry,
    Superseded,
    Wait,
)
from moorage import errors
from moorage.db.columns import now
from moorage.db.database import Database
from moorage.model.states import OperationState


@dataclass(frozen=True, slots=True)
class PendingOperation:
    """An operation that is under way, as it was read without a lock."""

    uuid: str
    kind: str
    step: str
    #: Its step has been tried in vain, or waits for somebody to look at it.
    is_stuck: bool
    payload: bytes


class Operations(Leases):
    """The operations of one schema, as one conductor sees them.

    :param name: the conductor's.
    :param scope: columns that narrow the table down, with their values: the cell.
    :param backoff: how long to wait before a step is tried again.
    :param lease_seconds: after so many without a sign of life another conductor goes on with what this one has.
    """

    def __init__(
        self,
        database: Database,
        table: Table,
        name: str,
        scope: Mapping[str, str],
        backoff: Backoff,
        lease_seconds: float = 60.0,
    ) -> None:
        super().__init__(database, table, name, scope, lease_seconds)
        self.backoff = backoff

    def begin(
        self, connection: Connection, new: Sequence[NewOperation], request_id: str, *, taken: bool = True
    ) -> list[Operation]:
        """Write down new operations with their first step, and take them.

        :param request_id: the request that it all began with.
        :param taken: false leaves them to whoever looks next for what is due.
        """
        if not new:
            return []
        begun = [
            Operation(
                uuid=each.uuid,
                kind=each.kind,
                subject=each.subject,
                request_id=request_id,
                step=each.step,
                step_number=1,
                payload=msgspec.json.encode(each.payload),
                tries=0,
                lease_number=1,
            )
            for each in new
        ]
        statement = self._table.insert().values(
            **self._scope,
            request_id=request_id,
            step_number=1,
            tries=0,
            state="pending",
            due_at=now(),
            **self._lease(taken),
            lease_number=1,
            created_at=now(),
            updated_at=now(),
        )
        columns = ("uuid", "kind", "subject", "step", "payload")
        connection.execute(statement, [{name: getattr(each, name) for name in columns} for each in begun])
        return begun

    def advance(self, operation: Operation, record: CommitStep) -> Operation | None:
        """Record what came of a step; return the operation with its next step, or nothing where there is none to do.

        :raises Superseded: somebody else has moved or ended it, or has the lease; nothing was recorded.
        """

        def work(connection: Connection) -> Operation | None:
            return self._apply(connection, operation, record(connection), operation.lease_number)

        return self._database.write(work)

    def redirect(self, connection: Connection, operation: Operation, outcome: Outcome) -> Operation | None:
        """Move an operation that :meth:`pending` has locked, because of a message; whoever was at it is superseded."""
        return self._apply(connection, operation, outcome, operation.lease_number + 1)

    def at_once(self, connection: Connection, subject: str, kind: str) -> list[Operation]:
        """Have the operation of this kind that is under way do its present step again now; return it, if there is one.

        It is done with the payload that is on record, so as the same request.
        """
        pending = self.pending(connection, subject, kind)
        if pending is None:
            return []
        again = self.redirect(connection, pending, Next(pending.step, msgspec.Raw(pending.payload)))
        return [] if again is None else [again]

    def pending(self, connection: Connection, subject: str, kind: str) -> Operation | None:
        """Lock and return the operation of this kind that is under way for ``subject``."""
        table = self._table
        row = connection.execute(
            select(table)
            .where(*self._mine(), table.c.subject == subject, table.c.kind == kind, table.c.state == "pending")
            .with_for_update()
        ).one_or_none()
        return None if row is None else found(row, row.lease_number)

    def all_pending(self, connection: Connection, subjects: Collection[str]) -> dict[str, list[PendingOperation]]:
        """Return what is under way for these subjects, without locking it."""
        table = self._table
        columns = (table.c.uuid, table.c.subject, table.c.kind, table.c.step, table.c.reason, table.c.payload)
        query = select(*columns).where(*self._mine(), table.c.subject.in_(subjects), table.c.state == "pending")
        found: dict[str, list[PendingOperation]] = {}
        for row in connection.execute(query):
            pending = PendingOperation(row.uuid, row.kind, row.step, row.reason is not None, row.payload)
            found.setdefault(row.subject, []).append(pending)
        return found

    def age(self, connection: Connection, operation: Operation) -> float:
        """Return how many seconds ago an operation was begun."""
        table = self._table
        begun = select(now() - table.c.created_at).where(*self._mine(), table.c.uuid == operation.uuid)
        return connection.scalars(begun).one()

    def is_pending(self, connection: Connection, uuid: str) -> bool:
        """Return whether an operation is under way."""
        table = self._table
        one = select(table.c.uuid).where(*self._mine(), table.c.uuid == uuid, table.c.state == "pending")
        return connection.scalars(one).one_or_none() is not None

    def known(self, connection: Connection, uuid: str) -> bool:
        """Return whether there is such an operation, ended or not."""
        table = self._table
        one = select(table.c.uuid).where(*self._mine(), table.c.uuid == uuid)
        return connection.scalars(one).one_or_none() is not None

    # UPDATE operations SET step = :next, step_number = :n + 1, payload = …, tries = 0, due_at = …, lease_… = …
    #  WHERE uuid = :uuid AND state = 'pending' AND step_number = :n AND lease_number = :lease
    # One row: this conductor was the only one to move it. None: everything of this transaction is rolled back.
    def _apply(
        self, connection: Connection, operation: Operation, outcome: Outcome, lease_number: int
    ) -> Operation | None:
        table, following = self._table, self._following(operation, outcome, lease_number)
        moved = connection.execute(
            table.update()
            .where(
                *self._mine(),
                table.c.uuid == operation.uuid,
                table.c.state == "pending",
                table.c.step_number == operation.step_number,
                table.c.lease_number == operation.lease_number,
            )
            .values(
                **self._values(outcome, following),
                step=following.step,
                step_number=following.step_number,
                payload=following.payload,
                tries=following.tries,
                lease_number=lease_number,
                updated_at=now(),
            )
        )
        if moved.rowcount != 1:
            raise Superseded
        return following if isinstance(outcome, Next | Retry) else None

    def _following(self, operation: Operation, outcome: Outcome, lease_number: int) -> Operation:
        step, step_number, payload, tries, delay = operation.step, operation.step_number, operation.payload, 0, 0.0
        match outcome:
            case Next() | Wait():
                step, step_number, payload = outcome.step, step_number + 1, msgspec.json.encode(outcome.payload)
                delay = outcome.delay if isinstance(outcome, Next) else 0.0
            case Retry():
                tries = operation.tries + 1
                delay = self.backoff.seconds(tries)
            case Ended():
                step_number += 1
        return Operation(
            uuid=operation.uuid,
            kind=operation.kind,
            subject=operation.subject,
            request_id=operation.request_id,
            step=step,
            step_number=step_number,
            payload=payload,
            tries=tries,
            lease_number=lease_number,
            # A step that is tried again stays what it was.
            resumed=operation.resumed and isinstance(outcome, Retry),
            delay=delay,
        )

    def _values(self, outcome: Outcome, following: Operation) -> dict[str, Any]:
        reason = getattr(outcome, "reason", None)
        state: OperationState = "pending"
        match outcome:
            case Next() | Retry():
                due_at: ColumnElement[float] | None = now() + following.delay
            case Wait():
                due_at = None if outcome.seconds is None else now() + outcome.seconds
            case Ended():
                due_at, state = now(), "done" if reason is None else "failed"
        return {
            "reason": None if reason is None else reason.encode(),
            "state": state,
            "due_at": due_at,
            **self._lease(isinstance(outcome, Next | Retry)),
        }


def require_settled(connection: Connection, operations: Operations, uuid: str) -> None:
    """Refuse whatever changes what an instance asks for or where it is, while that is being changed.

    :raises InvalidState: a resource group is being attached to the instance, or detached from it, or what the store
        has of the instance is being healed.
    """
    for kind in (ATTACH, DETACH, HEAL):
        if (pending := operations.pending(connection, uuid, kind)) is not None:
            raise errors.InvalidState(reason=f"operation {pending.uuid}, {kind} of instance {uuid}, is under way")
