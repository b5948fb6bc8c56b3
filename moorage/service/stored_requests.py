"""Stored requests: an answer is stored in the transaction of its write, so that a repeated request gets it again.

Here too: how long they are retained.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, cast

import msgspec
from oslo_config import cfg
from sqlalchemy import Column, ColumnElement, Connection, Double, Index, MetaData, Table, and_, bindparam, exc, select

from moorage import context, errors, ids
from moorage.db.columns import digest_type, document_type, name_type, now, request_id_type
from moorage.db.database import Database
from moorage.db.faults import is_lock_wait
from moorage.db.new_rows import NewRows
from moorage.db.script import Script
from moorage.messages.wire import Mutation
from moorage.service.refusals import UNDECIDED, RefusedBefore, RefusedSendings

R = TypeVar("R")

#: The most stored answers that one transaction deletes.
_FORGOTTEN_AT_ONCE = 1000

#: The number of rows of requests without an id that are deleted together, with the write of another one.
_FORGOTTEN_WITH_ANOTHER = 100

#: How often a duplicate takes the place of a first request that was rolled back, before it fails with
#: ``RequestInProgress``.
_SUCCESSIONS = 5


def request_table(name: str, metadata: MetaData) -> Table:
    """Return the table of stored requests of one schema."""
    return Table(
        name,
        metadata,
        Column("request_id", request_id_type(), primary_key=True),
        Column("method", name_type(), nullable=False),
        Column("digest", digest_type(), nullable=False),
        # Null only inside the transaction that is working on it.
        Column("result", document_type()),
        Column("created_at", Double, nullable=False),
        Column("acknowledged_at", Double),
        Index(f"ix_{name}_created_at", "created_at"),
        # Where most are acknowledged, pruning looks for those.
        Index(f"ix_{name}_acknowledged_at", "acknowledged_at"),
    )


class Retention(NamedTuple):
    """Retention times in seconds, in ascending order: never shorter than a repeated message needs."""

    #: Of an answer, since it was acknowledged.
    acknowledged: float
    #: Of an answer that is not acknowledged, since it was stored.
    unacknowledged: float
    #: Of a tombstone of a consumer that was deleted for good.
    tombstones: float

    @classmethod
    def of(cls, conf: cfg.ConfigOpts) -> "Retention":
        """Return the retention times of a configuration, each raised to what a repeated message needs."""
        settings = conf.placement
        # A message is repeated so many times, may stay in the queue for the time of one more call, and is sent once
        # again by the conductor that takes the operation over when the lease has expired.
        repeats = conf.rpc.call_timeout * (conf.conductor.max_unanswered_retries + 2)
        acknowledged = max(settings.request_retention, repeats + conf.conductor.lease_seconds)
        unacknowledged = max(settings.unacknowledged_retention, acknowledged)
        return cls(acknowledged, unacknowledged, max(settings.tombstone_retention, unacknowledged))


class StoredAnswer(NamedTuple, Generic[R]):
    """The answer to a request, and whether it was read from the stored request instead of carried out now."""

    result: R
    replayed: bool


class DuplicateRequest(Exception):
    """The row of a request exists already."""


class StoredRequests:
    """The stored requests of one schema."""

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._table = table
        self._answered: deque[str] = deque()
        # Built once: it takes SQLAlchemy longer to build a statement than to run it, and every write has these.
        self._insertion = table.insert().values(created_at=now())
        self._rows = NewRows(table, created_at=0.0)
        self._refusals = RefusedSendings(table)
        self._query = select(table.c.digest, table.c.result).where(table.c.request_id == bindparam("request"))
        self._deletion = table.delete().where(table.c.request_id == bindparam("request"))
        self._answering = (
            table.update().where(table.c.request_id == bindparam("request")).values(result=bindparam("answer"))
        )

    def once(self, message: Mutation[R], work: Callable[[Connection], R], answer: R | None = None) -> StoredAnswer[R]:
        """Run ``work`` and store its result, or return the stored result of the same request.

        The request's row is inserted first in the transaction, so that a duplicate waits until the first one has ended.
        An error leaves no row: the request may be repeated.

        :param answer: the result, where it is known beforehand: then the row is written once.
        :raises RequestIdReused: the id was used for a request with other content.
        :raises RequestInProgress: the same request is still running elsewhere.
        """

        def transaction(connection: Connection) -> R:
            self.begin(connection, message, answer)
            result = work(connection)
            if answer is None:
                self._store(connection, message, result)
            return result

        return self.carried_out_once(message, lambda: self._database.write(transaction))

    def once_or_refused(
        self, message: Mutation[R], work: Callable[[Connection], R], answer: R | None = None
    ) -> StoredAnswer[R]:
        """Carry out a request as :meth:`once` does; if ``work`` refuses it, copies of this sending are refused alike.

        :raises MoorageError: ``work`` has raised it, now or when another copy of this sending arrived.
        """

        def unless_refused(connection: Connection) -> R:
            # After the row of the request, where a transaction that refuses a copy is waited for.
            self._refusals.check(connection, message)
            return work(connection)

        try:
            return self.once(message, unless_refused, answer)
        except RefusedBefore as before:
            raise before.refusal from None
        except errors.MoorageError as refusal:
            return self.refused(message, refusal)

    def refused(self, message: Mutation[R], refusal: errors.MoorageError) -> StoredAnswer[R]:
        """Store the refusal of a request and raise it, or return the answer if a copy has been carried out meanwhile.

        :raises MoorageError: the refusal; without having stored it, if the request may still be carried out.
        """
        sending = context.current().sending
        if isinstance(refusal, UNDECIDED):
            raise refusal
        if sending is None:  # a former release has sent it, or it did not come over the bus
            answered = self._database.read(lambda connection: self.find(connection, message))
            if answered is None:
                raise refusal
            return answered

        def transaction(connection: Connection) -> None:
            # The row of the request, which is deleted again, keeps copies waiting until the refusal is committed.
            self.begin(connection, message)
            self._refusals.store(connection, message, sending, refusal)
            connection.execute(self._deletion, {"request": message.request_id})

        def carry_out() -> NoReturn:
            self._database.write(transaction)
            raise refusal

        return self.carried_out_once(message, carry_out)

    def begin(self, connection: Connection, message: Mutation[R], answer: R | None = None) -> None:
        """Insert the row of a request, as the first statement of a transaction; a duplicate waits for its end.

        :raises DuplicateRequest: the request has been answered already.
        :raises RequestInProgress: it is still running elsewhere.
        """
        with _waiting_for(message):
            self._insert(connection, self._row(message, answer))

    def carried_out_once(self, message: Mutation[R], carry_out: Callable[[], R]) -> StoredAnswer[R]:
        """Carry out a request and return its result, or return the stored result of the same request.

        :param carry_out: a transaction that begins with the request's row. It raises ``DuplicateRequest`` if the row
            exists already.
        :raises RequestIdReused: the id was used for a request with other content.
        :raises RequestInProgress: the same request is still running elsewhere.
        """
        for _ in range(_SUCCESSIONS):
            try:
                return StoredAnswer(carry_out(), replayed=False)
            except DuplicateRequest:
                # The same request was committed before, or by another sending just now; if its row is gone again, that
                # one was rolled back, and this one takes its place.
                if stored := self._database.read(lambda connection: self.find(connection, message)):
                    return stored
        raise errors.RequestInProgress(request_id=message.request_id)

    def once_together(self, answers: Sequence[tuple[Mutation[R], R]], work: Callable[[Script], object]) -> None:
        """Run the common work of several requests whose answers are known beforehand, and store these: all or nothing.

        :param work: adds its statements to a script that begins with the requests' rows.

        :raises DuplicateRequest: one of the requests has been answered already.
        :raises RequestInProgress: one of them is still running elsewhere.
        """

        def transaction(connection: Connection) -> None:
            script = Script(connection)
            self._begin(script, answers)
            work(script)
            script.run()

        self._database.write(transaction)

    def insert(self, connection: Connection, answers: Sequence[tuple[Mutation[R], R]]) -> None:
        """Insert the rows of requests with their answers, as the first statement of the transaction that writes them.

        :raises DuplicateRequest: one of the requests has been answered already.
        :raises RequestInProgress: one of them is still running elsewhere.
        """
        script = Script(connection)
        self._begin(script, answers)
        script.run()

    def _begin(self, script: Script, answers: Sequence[tuple[Mutation[R], R]]) -> None:
        # In one order everywhere: each insert waits for a duplicate.
        in_order = sorted(answers, key=lambda each: each[0].request_id)

        def fail(fault: exc.DBAPIError) -> None:
            if isinstance(fault, exc.IntegrityError):
                raise DuplicateRequest from fault
            with _waiting_for(in_order[0][0]):
                raise fault

        self._rows.add_to(script, [self._row(message, answer) for message, answer in in_order], fail)

    def once_unnamed(self, method: str, work: Callable[[Connection], R]) -> R:
        """Run ``work`` in one transaction, once, also where the answer to its COMMIT is lost.

        For a request without an id of its sender. It has an id here while it is carried out, by which a retry finds
        that the last try was committed.

        :param method: the name under which the row is stored.
        """
        request_id, done = ids.fresh(), list[R]()
        answered = self._take_answered()

        def transaction(connection: Connection) -> R:
            # If this process ends before it deletes the row, the row is pruned as an acknowledged one.
            row = {"request_id": request_id, "method": method, "digest": b"", "result": b"null"}
            self._insert(connection, row, acknowledged_at=now())
            if answered:
                connection.execute(self._table.delete().where(self._table.c.request_id.in_(answered)))
            result = work(connection)
            done[:] = [result]
            return result

        try:
            result = self._database.write(transaction)
        except DuplicateRequest:
            # The last try that came to its COMMIT is the one that is stored.
            result = done[0]
        except Exception:
            self._answered.extend(answered)
            raise
        self._answered.append(request_id)
        return result

    def _take_answered(self) -> list[str]:
        """Return the ids of finished requests of :meth:`once_unnamed` whose rows can be deleted, once they are many."""
        if len(self._answered) < _FORGOTTEN_WITH_ANOTHER:
            return []
        taken: list[str] = []
        with contextlib.suppress(IndexError):  # other threads take some as well
            while len(taken) < _FORGOTTEN_WITH_ANOTHER:
                taken.append(self._answered.popleft())
        return sorted(taken)

    def find(self, connection: Connection, message: Mutation[R]) -> StoredAnswer[R] | None:
        """Return the stored answer of a request, or None.

        :raises RequestIdReused: the id was used for a request with other content.
        """
        row = connection.execute(self._query, {"request": message.request_id}).one_or_none()
        if row is None:
            return None
        if row.digest != message.digest():
            raise errors.RequestIdReused(request_id=message.request_id)
        return StoredAnswer(cast(R, msgspec.json.decode(row.result, type=message.reply_type())), replayed=True)

    def answered(self, request_ids: Collection[str]) -> set[str]:
        """Return those of these requests that have a stored answer.

        :raises StoreUnavailable: the database cannot be reached.
        """
        query = select(self._table.c.request_id).where(self._table.c.request_id.in_(sorted(request_ids)))
        return self._database.read(lambda connection: set(connection.scalars(query)))

    def acknowledge(self, request_ids: Collection[str]) -> None:
        """Note that the senders of these requests have recorded the answers. Idempotent.

        :raises StoreUnavailable: the database cannot be reached.
        """
        # UPDATE requests SET acknowledged_at = :now WHERE request_id IN (...) AND acknowledged_at IS NULL
        table = self._table
        statement = (
            table.update()
            .where(table.c.request_id.in_(sorted(request_ids)), table.c.acknowledged_at.is_(None))
            .values(acknowledged_at=now())
        )
        self._database.write(lambda connection: connection.execute(statement))

    def prune(self, *, acknowledged: float, unacknowledged: float) -> int:
        """Delete answers by the seconds since they were acknowledged, or else stored; return their number.

        Each transaction deletes a bounded number. Several processes may prune at once.

        :raises StoreUnavailable: the database cannot be reached.
        """
        table = self._table.c
        old = [
            table.acknowledged_at < now() - acknowledged,
            # One that is acknowledged later than this is retained from then on.
            and_(table.created_at < now() - unacknowledged, table.acknowledged_at.is_(None)),
        ]
        return sum(self._forget(condition) for condition in old)

    def _forget(self, condition: ColumnElement[bool]) -> int:
        def transaction(connection: Connection) -> int:
            # By their ids, which were read without a lock: deleting by time would lock the index that the requests
            # made at this moment are entered in.
            query = select(self._table.c.request_id).where(condition).limit(_FORGOTTEN_AT_ONCE)
            found = sorted(connection.scalars(query))
            connection.execute(self._table.delete().where(self._table.c.request_id.in_(found), condition))
            return len(found)

        forgotten = 0
        while part := self._database.write(transaction):
            forgotten += part
        return forgotten

    def _row(self, message: Mutation[R], answer: R | None) -> dict[str, object]:
        result = {} if answer is None else {"result": msgspec.json.encode(answer)}
        return {"request_id": message.request_id, "method": message.method, "digest": message.digest(), **result}

    def _insert(self, connection: Connection, row: Mapping[str, object], **more: now) -> None:
        try:
            connection.execute(self._insertion.values(**more) if more else self._insertion, row)
        except exc.IntegrityError as fault:
            raise DuplicateRequest from fault

    def _store(self, connection: Connection, message: Mutation[R], result: R) -> None:
        values = {"request": message.request_id, "answer": msgspec.json.encode(result)}
        connection.execute(self._answering, values)


@contextlib.contextmanager
def _waiting_for(message: Mutation[Any]) -> Iterator[None]:
    """Raise an error of ours where a duplicate of a request does not end in time.

    :raises RequestInProgress: it is still running.
    """
    try:
        yield
    except exc.OperationalError as fault:
        if is_lock_wait(fault):
            raise errors.RequestInProgress(request_id=message.request_id) from fault
        raise
