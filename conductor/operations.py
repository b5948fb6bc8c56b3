"""Operations as records: the next step is written down with all that it needs, and only then done.

A step is a function of its operation. It may be done again by anyone, and names the same ids each time: they follow
from the operation's uuid (:func:`moorage.ids.derived`). What it found out is recorded together with the step that
comes next, in one transaction that counts only if nobody else has moved the operation meanwhile.
"""

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Table, and_, or_, select

from moorage import ids
from moorage.columns import now
from moorage.database import Database
from moorage.model import Value

T = TypeVar("T")

BUILD = "build"
DELETE = "delete"

PENDING = "pending"
DONE = "done"
FAILED = "failed"

#: Seconds after which another conductor may take an operation whose owner has recorded nothing. Arbitrary: longer than
#: a step waits for one answer, short enough that nobody waits long for the work of a conductor that has died.
LEASE_SECONDS = 120.0


class Superseded(Exception):
    """Somebody else has moved the operation; whatever this one has found out no longer counts."""


class Nothing(Value, frozen=True):
    """The payload of a step that needs only its operation."""


@dataclass(frozen=True)
class Backoff:
    """How long to wait before a step is tried again: ``first`` seconds, then three times as long, up to ``longest``."""

    first: float = 1.0
    longest: float = 30.0

    def seconds(self, tries: int) -> float:
        """Return the wait after so many tries in vain, with a quarter of it at random, so that many do not march."""
        wait = min(self.first * 3.0 ** min(tries - 1, 20), self.longest)
        return wait * random.uniform(0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation in the hands of this conductor, about to do a step."""

    uuid: str
    kind: str
    subject: str
    request_id: str
    step: str
    step_number: int
    payload: bytes
    tries: int
    lease_number: int
    #: Found in the records rather than begun or moved just now: the step may have been done before, in part or whole.
    resumed: bool = False
    #: Seconds to wait before the step is done.
    delay: float = 0.0
    taken_at: float = field(default_factory=time.monotonic)

    def read(self, kind: type[T]) -> T:
        """Return what was written down for this step."""
        return msgspec.json.decode(self.payload, type=kind)

    def derived(self, *words: object) -> str:
        """Return the id that this operation uses for ``words``: the same whoever asks, and whenever."""
        return ids.derived(self.uuid, *words)

    @property
    def lease_is_old(self) -> bool:
        """Whether it must be taken again before the step is done, because others may soon take it or have done so."""
        return time.monotonic() - self.taken_at > LEASE_SECONDS / 3


# --- What may come of a step ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Next:
    """Go on with another step, after ``delay`` seconds."""

    step: str
    payload: Value
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on with another step when a message says so."""

    step: str
    payload: Value


@dataclass(frozen=True, slots=True)
class Again:
    """Do the same step again later, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing is left to do; with a reason, what was asked for could not be had."""

    reason: str | None = None


Outcome = Next | Wait | Again | Ended
#: What a step hands back: called in the transaction that records the outcome, it writes what the step has found out.
Record = Callable[[Connection], Outcome]
Step = Callable[[Operation], Record]


# --- The records ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewOperation:
    """An operation to be begun."""

    uuid: str
    kind: str
    subject: str
    step: str
    payload: Value


class Operations:
    """The operations of one schema, as one conductor sees them.

    :param owner: the name under which this conductor takes operations.
    :param scope: columns that narrow the table down, with their values: the cell.
    """

    def __init__(
        self, database: Database, table: Table, owner: str, scope: Mapping[str, str], backoff: Backoff
    ) -> None:
        self._database = database
        self._table = table
        self._owner = owner
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

    def let_go(self) -> None:
        """Give back all that this conductor has taken: another one need not wait for the leases to run out."""
        table = self._table
        self._database.write(
            lambda connection: connection.execute(
                table.update()
                .where(*self._mine(), table.c.state == PENDING, table.c.lease_owner == self._owner)
                .values(lease_owner=None, lease_until=None)
            )
        )

    def _mine(self) -> list[ColumnElement[bool]]:
        return [self._table.c[name] == value for name, value in self._scope.items()]

    def _free(self) -> ColumnElement[bool]:
        lease = self._table.c
        return and_(
            lease.state == PENDING,
            or_(lease.lease_owner.is_(None), lease.lease_owner == self._owner, lease.lease_until < now()),
        )

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
