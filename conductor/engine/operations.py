"""Operations as records: the next step is recorded with its payload, and only then done.

Each transition is a compare-and-swap on the step number and the lease number.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Table, select

from conductor.engine.leases import Leases, operation_of
from conductor.engine.steps import (
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
from moorage.db.columns import now
from moorage.db.database import Database
from moorage.model.states import OperationState


@dataclass(frozen=True, slots=True)
class PendingOperation:
    """A pending operation that was read without a lock."""

    uuid: str
    kind: str
    step: str
    #: Its step has failed at least once, or waits for an operator.
    is_stuck: bool
    payload: bytes


class Operations(Leases):
    """The operations of one schema, with the leases of one conductor.

    :param name: the name of the conductor.
    :param scope: the columns that restrict the table to one cell, with their values; empty for the super conductor.
    :param backoff: the wait before a step is retried.
    :param lease_seconds: the seconds after which a lease expires that is not renewed.
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
        """Record new operations with their first step, and take their leases.

        :param request_id: the id of the request that began it all, for the log.
        :param taken: false leaves them to the next conductor that looks for due operations.
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
                carried=each.carried,
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

    def advance(self, operation: Operation, commit: CommitStep) -> Operation | None:
        """Commit the outcome of a step; return the operation with its next step, or null if there is none to do now.

        :raises Superseded: another thread or conductor has changed or ended the operation, or has its lease; nothing
            was recorded.
        """

        def work(connection: Connection) -> Operation | None:
            return self._apply(connection, operation, commit(connection), operation.lease_number)

        return self._database.write(work)

    def redirect(self, connection: Connection, operation: Operation, outcome: Outcome) -> Operation | None:
        """Change an operation that :meth:`pending` has locked, upon a message; its present owner is superseded."""
        return self._apply(connection, operation, outcome, operation.lease_number + 1)

    def retry_now(self, connection: Connection, subject: str, kind: str) -> list[Operation]:
        """Retry the present step of the pending operation of this kind at once; return it in a list, empty if none.

        The payload stays as recorded, so that the step sends the same requests.
        """
        pending = self.pending(connection, subject, kind)
        if pending is None:
            return []
        again = self.redirect(connection, pending, Next(pending.step, msgspec.Raw(pending.payload)))
        return [] if again is None else [again]

    def pending(self, connection: Connection, subject: str, kind: str) -> Operation | None:
        """Lock and return the pending operation of this kind for ``subject``, or null."""
        table = self._table
        row = connection.execute(
            select(table)
            .where(*self._mine(), table.c.subject == subject, table.c.kind == kind, table.c.state == "pending")
            .with_for_update()
        ).one_or_none()
        return None if row is None else operation_of(row, row.lease_number)

    def all_pending(self, connection: Connection, subjects: Collection[str]) -> dict[str, list[PendingOperation]]:
        """Return the pending operations by subject, without locking them."""
        table = self._table
        columns = (table.c.uuid, table.c.subject, table.c.kind, table.c.step, table.c.reason, table.c.payload)
        query = select(*columns).where(*self._mine(), table.c.subject.in_(subjects), table.c.state == "pending")
        found: dict[str, list[PendingOperation]] = {}
        for row in connection.execute(query):
            pending = PendingOperation(row.uuid, row.kind, row.step, row.reason is not None, row.payload)
            found.setdefault(row.subject, []).append(pending)
        return found

    def end_pending(self, connection: Connection, subjects: Collection[str], kind: str) -> None:
        """End the pending operations of this kind for these subjects, if there are any, upon messages.

        The caller has locked the subjects' records. As with :meth:`redirect`, the present owners are superseded.
        """
        # UPDATE operations SET state = 'done', step_number = step_number + 1, lease_number = lease_number + 1, …
        #  WHERE subject IN (…) AND kind = :kind AND state = 'pending'
        table = self._table
        connection.execute(
            table.update()
            .where(
                *self._mine(),
                table.c.subject.in_(sorted(subjects)),
                table.c.kind == kind,
                table.c.state == "pending",
            )
            .values(
                **self._values(Ended(), 0.0),
                step_number=table.c.step_number + 1,
                lease_number=table.c.lease_number + 1,
                tries=0,
                updated_at=now(),
            )
        )

    def age(self, connection: Connection, operation: Operation) -> float:
        """Return the age of an operation in seconds."""
        table = self._table
        begun = select(now() - table.c.created_at).where(*self._mine(), table.c.uuid == operation.uuid)
        return connection.scalars(begun).one()

    def is_pending(self, connection: Connection, uuid: str) -> bool:
        """Return whether an operation is pending."""
        table = self._table
        one = select(table.c.uuid).where(*self._mine(), table.c.uuid == uuid, table.c.state == "pending")
        return connection.scalars(one).one_or_none() is not None

    def known(self, connection: Connection, uuid: str) -> bool:
        """Return whether an operation exists, ended or not."""
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
            .where(*self._still(operation))
            .values(
                **self._values(outcome, following.delay),
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
        carried: object = None
        match outcome:
            case Next() | Wait():
                step, step_number, payload = outcome.step, step_number + 1, msgspec.json.encode(outcome.payload)
                if isinstance(outcome, Next):
                    delay, carried = outcome.delay, outcome.carried
            case Retry():
                tries = operation.tries + 1
                delay = self.backoff.seconds(tries)
            case Ended():
                step_number += 1
        return replace(
            operation,
            step=step,
            step_number=step_number,
            payload=payload,
            tries=tries,
            lease_number=lease_number,
            # A retried step may have been done before if it was resumed before.
            resumed=operation.resumed and isinstance(outcome, Retry),
            delay=delay,
            taken_at=time.monotonic(),
            carried=carried,
        )

    def _values(self, outcome: Outcome, delay: float) -> dict[str, Any]:
        reason = getattr(outcome, "reason", None)
        state: OperationState = "pending"
        match outcome:
            case Next() | Retry():
                due_at: ColumnElement[float] | None = now() + delay
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
