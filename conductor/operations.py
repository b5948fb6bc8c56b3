"""Operations as records: the next step is written down with all that it needs, and only then done."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Table, and_, or_, select

from conductor.steps import (
    DONE,
    FAILED,
    LEASE_SECONDS,
    PENDING,
    Again,
    Backoff,
    Ended,
    NewOperation,
    Next,
    Operation,
    Outcome,
    Record,
    Superseded,
    Wait,
)
from moorage import ids
from moorage.columns import now
from moorage.database import Database

#: Seconds after which this conductor takes an operation of its own that it has not in hand: its order or its last step
#: was committed and the connection lost before that was known. Longer than from a commit to the worker's queue.
_OWN_GRACE_SECONDS = 1.0


class Operations:
    """The operations of one schema, as one conductor sees them.

    :param name: the conductor's. It takes operations under an owner of its own in each of its lives, so that two
        conductors which were given one name do not take each other's work.
    :param scope: columns that narrow the table down, with their values: the cell.
    """

    def __init__(self, database: Database, table: Table, name: str, scope: Mapping[str, str], backoff: Backoff) -> None:
        self._database = database
        self._table = table
        self._lives = f"{name}/"
        self._owner = self._lives + ids.fresh()
        self._scope = dict(scope)
        self.backoff = backoff

    def begin(self, connection: Connection, new: Sequence[NewOperation], request_id: str) -> list[Operation]:
        """Write down new operations with their first step, and take them.

        :param request_id: the request that it all began with.
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
            state=PENDING,
            due_at=now(),
            lease_owner=self._owner,
            lease_until=now() + LEASE_SECONDS,
            lease_number=1,
            created_at=now(),
            updated_at=now(),
        )
        columns = ("uuid", "kind", "subject", "step", "payload")
        connection.execute(statement, [{name: getattr(each, name) for name in columns} for each in begun])
        return begun

    def advance(self, operation: Operation, record: Record) -> Operation | None:
        """Record what came of a step; return the operation with its next step, or nothing where there is none to do.

        :raises Superseded: somebody else has moved or ended it, or has the lease; nothing was recorded.
        """

        def work(connection: Connection) -> Operation | None:
            return self._apply(connection, operation, record(connection), operation.lease_number)

        return self._database.write(work)

    def redirect(self, connection: Connection, operation: Operation, outcome: Outcome) -> Operation | None:
        """Move an operation that :meth:`pending` has locked, because of a message; whoever was at it is superseded."""
        return self._apply(connection, operation, outcome, operation.lease_number + 1)

    def pending(self, connection: Connection, subject: str, kind: str) -> Operation | None:
        """Lock and return the operation of this kind that is under way for ``subject``."""
        table = self._table
        row = connection.execute(
            select(table)
            .where(*self._mine(), table.c.subject == subject, table.c.kind == kind, table.c.state == PENDING)
            .with_for_update()
        ).one_or_none()
        return None if row is None else _operation(row, row.lease_number)

    def take(self, uuid: str) -> Operation | None:
        """Take an operation that is due, unless another conductor has it; return it with the step to be done."""
        table = self._table

        def work(connection: Connection) -> Operation | None:
            row = connection.execute(
                select(table).where(*self._mine(), table.c.uuid == uuid, self._free()).with_for_update()
            ).one_or_none()
            if row is None:
                return None
            connection.execute(
                table.update()
                .where(*self._mine(), table.c.uuid == uuid, table.c.lease_number == row.lease_number)
                .values(
                    lease_owner=self._owner,
                    lease_until=now() + LEASE_SECONDS,
                    lease_number=row.lease_number + 1,
                    updated_at=now(),
                )
            )
            return _operation(row, row.lease_number + 1, resumed=True)

        return self._database.write(work)

    def due(self, held: Collection[str], limit: int) -> list[str]:
        """Return the uuids of operations that this conductor may take now, the longest due first."""
        table = self._table
        found = self._database.read(
            lambda connection: connection.scalars(
                select(table.c.uuid)
                .where(*self._mine(), self._free(), table.c.due_at <= now())
                .order_by(table.c.due_at)
                .limit(limit + len(held))
            ).all()
        )
        return [uuid for uuid in found if uuid not in held][:limit]

    def adopt(self) -> None:
        """Free what a conductor of this name has left when it died: nobody need wait for those leases to run out.

        One that lives and was given the same name loses nothing but its leases.
        """
        self._free_all(self._table.c.lease_owner.startswith(self._lives, autoescape=True))

    def let_go(self) -> None:
        """Give back all that this conductor has taken: another one need not wait for the leases to run out."""
        self._free_all(self._table.c.lease_owner == self._owner)

    def _free_all(self, owned: ColumnElement[bool]) -> None:
        table = self._table
        self._database.write(
            lambda connection: connection.execute(
                table.update()
                .where(*self._mine(), table.c.state == PENDING, owned)
                .values(lease_owner=None, lease_until=None)
            )
        )

    def _mine(self) -> list[ColumnElement[bool]]:
        return [self._table.c[name] == value for name, value in self._scope.items()]

    def _free(self) -> ColumnElement[bool]:
        lease = self._table.c
        left = and_(lease.lease_owner == self._owner, lease.updated_at < now() - _OWN_GRACE_SECONDS)
        return and_(lease.state == PENDING, or_(lease.lease_owner.is_(None), left, lease.lease_until < now()))

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
                table.c.state == PENDING,
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
        return following if isinstance(outcome, Next | Again) else None

    def _following(self, operation: Operation, outcome: Outcome, lease_number: int) -> Operation:
        step, step_number, payload, tries, delay = operation.step, operation.step_number, operation.payload, 0, 0.0
        match outcome:
            case Next() | Wait():
                step, step_number, payload = outcome.step, step_number + 1, msgspec.json.encode(outcome.payload)
                delay = outcome.delay if isinstance(outcome, Next) else 0.0
            case Again():
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
            resumed=operation.resumed and isinstance(outcome, Again),
            delay=delay,
        )

    def _values(self, outcome: Outcome, following: Operation) -> dict[str, Any]:
        reason = getattr(outcome, "reason", None)
        values = {"reason": None if reason is None else reason.encode(), "state": PENDING}
        match outcome:
            case Next() | Again():
                return values | {
                    "due_at": now() + following.delay,
                    "lease_owner": self._owner,
                    "lease_until": now() + following.delay + LEASE_SECONDS,
                }
            case Ended():
                values["state"] = DONE if reason is None else FAILED
        return values | {"due_at": None, "lease_owner": None, "lease_until": None}


def _operation(row: Row[Any], lease_number: int, *, resumed: bool = False) -> Operation:
    return Operation(
        uuid=row.uuid,
        kind=row.kind,
        subject=row.subject,
        request_id=row.request_id,
        step=row.step,
        step_number=row.step_number,
        payload=row.payload,
        tries=row.tries,
        lease_number=lease_number,
        resumed=resumed,
    )
