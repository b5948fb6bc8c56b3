"""Operations as records: a step is recorded with its payload before it is done.

Each transition is a compare-and-swap on the step number and the lease number.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
from sqlalchemy import BindParameter, Connection, Table, Update, bindparam, select, tuple_

from conductor.engine.leases import FREED, Leases, operation_of
from conductor.engine.rows import grouped
from conductor.engine.steps import (
    Backoff,
    CommitStep,
    Ended,
    Next,
    Operation,
    Outcome,
    Retry,
    SharedCommit,
    Superseded,
    Wait,
)
from moorage import context
from moorage.batches import BatchItem
from moorage.db.columns import now
from moorage.db.database import Database
from moorage.db.new_rows import NewRows
from moorage.db.shared_transactions import SharedTransactions
from moorage.model.states import OperationState


@dataclass(frozen=True, slots=True)
class PendingOperation:
    """A pending operation that was read without a lock."""

    uuid: str
    kind: str
    step: str
    #: The step has failed at least once, or waits for an operator.
    is_stuck: bool
    payload: bytes


class Operations(Leases):
    """The operations of one schema, with the leases of one conductor.

    :param scope: the columns that restrict the table to one cell, with their values; empty for the super conductor.
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
        times = {"due_at": 0.0, "created_at": 0.0, "updated_at": 0.0}
        self._rows, self._free_rows = NewRows(table, **times, lease_until=lease_seconds), NewRows(table, **times)
        self._change, self._ending = self._change_statement(), self._ending_statement()
        of_kinds = (table.c.subject == bindparam("subject"), table.c.kind.in_(bindparam("kinds", expanding=True)))
        self._pending = select(table).where(*self._in_progress, *of_kinds).with_for_update()
        self._outcomes: SharedTransactions[StepDone, Operation | None] = SharedTransactions(
            database.write, self._commit, "steps"
        )

    def begin(self, connection: Connection, new: list[Operation], *, taken: bool = True) -> list[Operation]:
        """Record new operations with their first step, and take their leases; return them.

        :param taken: false to take no leases: the next conductor that looks for due operations takes them.
        """
        columns = ("uuid", "kind", "subject", "request_id", "step", "step_number", "payload", "tries", "lease_number")
        (self._rows if taken else self._free_rows).insert(
            connection,
            [{name: getattr(each, name) for name in columns} for each in new],
            **self._scope,
            state="pending",
            lease_owner=self._owner if taken else None,
        )
        return new

    def commit(self, step: "StepDone") -> Operation | None:
        """Commit the outcome of a step; return the operation with its next step, or null if no step can be done now.

        Steps that end while the transaction of other steps is in progress share the next transaction.

        :raises Superseded: others have changed or ended the operation, or have its lease; nothing was recorded.
        """
        return self._outcomes.do(step)

    def commit_many(
        self, steps: Sequence[BatchItem["StepDone", Operation | None]]
    ) -> list[Callable[[], Operation | None] | None]:
        """Commit the outcomes of steps as :meth:`commit` does; see :meth:`.SharedTransactions.do_many`."""
        return self._outcomes.do_many(steps)

    def redirect(self, connection: Connection, operation: Operation, outcome: Outcome) -> Operation | None:
        """Change an operation that the caller has locked, because of a message; its owner is superseded."""
        [following] = self._apply(connection, [(operation, outcome)], raised=1)
        return following

    def retry_now(self, connection: Connection, subject: str, kind: str) -> list[Operation]:
        """Retry the current step of the pending operation of this kind at once; return it in a list, empty if none.

        The payload stays as recorded, so that the step sends the same requests.
        """
        pending = self.lock_one_pending(connection, subject, kind)
        if pending is None:
            return []
        again = self.redirect(connection, pending, Next(pending.step, msgspec.Raw(pending.payload)))
        return [] if again is None else [again]

    def lock_one_pending(self, connection: Connection, subject: str, *kinds: str) -> Operation | None:
        """Lock the pending operations of these kinds for ``subject``; return one of them, or null if there is none."""
        return next(iter(self.lock_pending(connection, subject, kinds)), None)

    def lock_pending(self, connection: Connection, subject: str, kinds: Sequence[str]) -> list[Operation]:
        """Lock and return the pending operations of these kinds for ``subject``."""
        rows = connection.execute(self._pending, {"subject": subject, "kinds": kinds})
        return [operation_of(row, row.lease_number) for row in rows]

    def read_pending(self, connection: Connection, subjects: Collection[str]) -> dict[str, list[PendingOperation]]:
        """Return the pending operations by subject, without locking them."""
        table = self._table
        columns = (table.c.uuid, table.c.subject, table.c.kind, table.c.step, table.c.reason, table.c.payload)
        query = select(*columns).where(*self._in_progress, table.c.subject.in_(subjects))
        return grouped(
            (row.subject, PendingOperation(row.uuid, row.kind, row.step, row.reason is not None, row.payload))
            for row in connection.execute(query)
        )

    def end_pending(self, connection: Connection, subjects: Collection[str], kind: str) -> None:
        """End the pending operations of this kind for these subjects, if there are any, because of messages.

        The caller has locked the records of the subjects. As in :meth:`redirect`, the current owners are superseded.
        """
        connection.execute(self._ending, {"subjects": sorted(subjects), "of_kind": kind})

    def _ending_statement(self) -> Update:
        # UPDATE operations SET state = 'done', step_number = step_number + 1, lease_number = lease_number + 1, …
        #  WHERE subject IN (…) AND kind = :kind AND state = 'pending'
        table = self._table
        return (
            table.update()
            .where(
                *self._in_progress,
                table.c.subject.in_(bindparam("subjects", expanding=True)),
                table.c.kind == bindparam("of_kind"),
            )
            .values(
                **FREED,
                state="done",
                reason=None,
                tries=0,
                due_at=now(),
                step_number=table.c.step_number + 1,
                lease_number=table.c.lease_number + 1,
                updated_at=now(),
            )
        )

    def age(self, connection: Connection, operation: Operation) -> float:
        """Return the age of an operation in seconds."""
        table = self._table
        begun = select(now() - table.c.created_at).where(*self._mine, table.c.uuid == operation.uuid)
        return connection.scalars(begun).one()

    def is_pending(self, connection: Connection, uuid: str) -> bool:
        """Return whether an operation is pending."""
        one = select(self._table.c.uuid).where(*self._in_progress, self._table.c.uuid == uuid)
        return connection.scalars(one).one_or_none() is not None

    def exists(self, connection: Connection, uuid: str) -> bool:
        """Return whether an operation exists, ended or not."""
        one = select(self._table.c.uuid).where(*self._mine, self._table.c.uuid == uuid)
        return connection.scalars(one).one_or_none() is not None

    def _commit(self, connection: Connection, steps: Sequence["StepDone"]) -> list[Operation | Exception | None]:
        """Commit the outcomes of all steps or of none, in the order of their subjects, whose records they lock."""
        in_order = sorted(steps, key=lambda done: done.operation.subject)
        outcomes = _recorded(connection, in_order)
        for done in in_order:
            done.note(outcomes[done.operation.uuid])
        following = self._apply(connection, [(done.operation, outcomes[done.operation.uuid]) for done in in_order])
        found = {done.operation.uuid: one for done, one in zip(in_order, following, strict=True)}
        return [found[done.operation.uuid] for done in steps]

    def _apply(
        self, connection: Connection, outcomes: Sequence[tuple[Operation, Outcome]], *, raised: int = 0
    ) -> list[Operation | None]:
        """Change operations by compare-and-swap; one statement changes all operations that change alike.

        :param raised: the number by which their lease numbers are raised.
        :return: each operation with its next step, or null if no step can be done now.
        :raises Superseded: another thread or conductor has changed or ended one of them, or has its lease.
        """
        following = [self._following(operation, outcome, raised) for operation, outcome in outcomes]
        alike = grouped(
            (self._change_to(operation, outcome, after), operation)
            for (operation, outcome), after in zip(outcomes, following, strict=True)
        )
        for change, operations in alike.items():
            in_order = sorted(operations, key=lambda operation: operation.uuid)
            as_known = [(each.uuid, each.step_number, each.lease_number) for each in in_order]
            named = {"uuids": [each.uuid for each in in_order], "as_known": as_known}
            moved = connection.execute(self._change, named | change._asdict())
            if moved.rowcount != len(operations):
                raise Superseded
        return [
            after if isinstance(outcome, Next | Retry) else None
            for (_operation, outcome), after in zip(outcomes, following, strict=True)
        ]

    def _following(self, operation: Operation, outcome: Outcome, raised: int) -> Operation:
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
            lease_number=operation.lease_number + raised,
            # A retry stays marked as resumed.
            resumed=operation.resumed and isinstance(outcome, Retry),
            delay=delay,
            taken_at=time.monotonic(),
            carried=carried,
        )

    # UPDATE operations SET step = :next, step_number = step_number + 1, payload = …, tries = 0, due_at = …, lease_… = …
    #  WHERE uuid IN (…) AND (uuid, step_number, lease_number) IN (…) AND state = 'pending'
    # If it changes as many rows as operations, no other conductor has changed them. If it changes fewer rows, the whole
    # transaction is rolled back. One statement serves any number of operations and every change: it is built once.
    def _change_statement(self) -> Update:
        table = self._table
        to_state: BindParameter[OperationState] = bindparam("to_state")
        return (
            table.update()
            .where(
                *self._in_progress,
                # The uuids alone too: MariaDB does not use an index for tuples.
                table.c.uuid.in_(bindparam("uuids", expanding=True)),
                tuple_(table.c.uuid, table.c.step_number, table.c.lease_number).in_(
                    bindparam("as_known", expanding=True)
                ),
            )
            .values(
                step=bindparam("to_step"),
                payload=bindparam("to_payload"),
                tries=bindparam("to_tries"),
                step_number=table.c.step_number + bindparam("stepped"),
                lease_number=table.c.lease_number + bindparam("raised"),
                reason=bindparam("to_reason"),
                state=to_state,
                # A sum with null is null: for a wait without end, and for a freed lease.
                due_at=now() + bindparam("due_in"),
                lease_owner=bindparam("owner"),
                lease_until=now() + bindparam("leased_for"),
                updated_at=now(),
            )
        )

    def _change_to(self, operation: Operation, outcome: Outcome, following: Operation) -> "_Change":
        reason: str | None = getattr(outcome, "reason", None)
        is_leased = isinstance(outcome, Next | Retry)
        state: OperationState = "pending"
        if isinstance(outcome, Ended):
            state = "done" if reason is None else "failed"
        return _Change(
            following.step,
            following.payload,
            following.tries,
            following.step_number - operation.step_number,
            following.lease_number - operation.lease_number,
            None if reason is None else reason.encode(),
            state,
            outcome.seconds if isinstance(outcome, Wait) else following.delay,
            self._owner if is_leased else None,
            self.lease_seconds if is_leased else None,
        )


class StepDone(NamedTuple):
    """A step that is done, and whose outcome must be committed in the context of its thread."""

    operation: Operation
    commit: CommitStep
    context: context.Context
    #: Called with the outcome, before it is known whether it can be recorded.
    note: Callable[[Outcome], None]


def _recorded(connection: Connection, steps: Sequence[StepDone]) -> dict[str, Outcome]:
    """Write the results of steps, and return the outcome of each operation by its uuid."""
    outcomes: dict[str, Outcome] = {}
    shared: dict[Callable[..., Sequence[Outcome]], list[tuple[str, object]]] = {}
    for done in steps:
        if isinstance(done.commit, SharedCommit):
            shared.setdefault(done.commit.record, []).append((done.operation.uuid, done.commit.result))
    for record, results in shared.items():
        found = record(connection, [result for _uuid, result in results])
        outcomes |= {uuid: outcome for (uuid, _result), outcome in zip(results, found, strict=True)}
    for done in steps:
        if not isinstance(done.commit, SharedCommit):
            with context.adopted(done.context):
                outcomes[done.operation.uuid] = done.commit(connection)
    return outcomes


class _Change(NamedTuple):
    """The parameters of the statement that changes operations, but for those that name the operations."""

    to_step: str
    to_payload: bytes
    to_tries: int
    #: The numbers by which the step number and the lease number are raised.
    stepped: int
    raised: int
    to_reason: bytes | None
    to_state: OperationState
    #: In seconds; null for a wait without end.
    due_in: float | None
    #: Null for a lease that is freed.
    owner: str | None
    leased_for: float | None
