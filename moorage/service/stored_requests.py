"""Stored requests: an answer is stored in the transaction of its write, so that a repeated request gets it again.

The module also defines how long they are retained.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, cast

import msgspec
from oslo_config import cfg
from sqlalchemy import Column, Connection, Double, Index, MetaData, Table, and_, bindparam, exc, select

from moorage import context, errors, ids
from moorage.config.conductor import LONGEST_BACKOFF, TRIES_WHILE_AWAY
from moorage.db.columns import digest_type, document_type, name_type, now, request_id_type
from moorage.db.database import Database
from moorage.db.faults import is_lock_wait
from moorage.db.new_rows import NewRows
from moorage.db.script import Script, scripted
from moorage.messages.wire import Mutation
from moorage.service.pruning import delete_expired
from moorage.service.refusals import NOT_A_REFUSAL, RefusedBefore, RefusedSendings

R = TypeVar("R")

#: The number of rows of requests without an id that are deleted together, in the transaction of another such request.
_FORGOTTEN_WITH_ANOTHER = 100

#: How often a duplicate of a request is tried if the first one was rolled back, before it fails with
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
        # Null only within the transaction that carries out the request.
        Column("result", document_type()),
        Column("created_at", Double, nullable=False),
        Column("acknowledged_at", Double),
        Index(f"ix_{name}_created_at", "created_at"),
        # Pruning mostly searches for acknowledged rows.
        Index(f"ix_{name}_acknowledged_at", "acknowledged_at"),
    )


class Retention(NamedTuple):
    """Retention times in seconds, in ascending order: never shorter than a repeated message needs."""

    #: For an acknowledged answer, since its acknowledgement.
    acknowledged: float
    #: For an answer without acknowledgement, since it was stored.
    unacknowledged: float
    #: For the tombstone of a consumer that was deleted for good.
    tombstones: float

    @classmethod
    def of(cls, conf: cfg.ConfigOpts) -> "Retention":
        """Return the retention times of a configuration, raised if repeated messages need longer ones."""
        settings = conf.placement
        # A message is repeated max_unanswered_retries times, or more often while the store is away, each time after a
        # wait. It may stay in the queue for the time of one more call, and the conductor that takes the operation over
        # after the lease has expired sends it once more.
        repeats = max(conf.conductor.max_unanswered_retries, TRIES_WHILE_AWAY)
        between = conf.rpc.call_timeout + LONGEST_BACKOFF * conf.conductor.retry_backoff
        latest = repeats * between + 2 * conf.rpc.call_timeout
        acknowledged = max(settings.request_retention, latest + conf.conductor.lease_seconds)
        unacknowledged = max(settings.unacknowledged_retention, acknowledged)
        return cls(acknowledged, unacknowledged, max(settings.tombstone_retention, unacknowledged))


class StoredAnswer(NamedTuple, Generic[R]):
    """The answer to a request; ``replayed`` is True if it was read from the stored request."""

    result: R
    replayed: bool


class DuplicateRequest(Exception):
    """The row of a request already exists."""


class StoredRequests:
    """The stored requests of one schema; every method that uses the database may raise ``StoreUnavailable``."""

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._table = table
        self._answered: deque[str] = deque()
        # Build the statements once: every write uses them, and SQLAlchemy needs longer to build one than to run it.
        self._insertion = table.insert().values(created_at=now())
        self._rows = NewRows(table, created_at=0.0)
        self._refusals = RefusedSendings(table)
        is_request = table.c.request_id == bindparam("request")
        self._query = select(table.c.digest, table.c.result).where(is_request)
        self._deletion = table.delete().where(is_request)
        self._answering = table.update().where(is_request).values(result=bindparam("answer"))

    def once(self, message: Mutation[R], work: Callable[[Connection], R], answer: R | None = None) -> StoredAnswer[R]:
        """Run ``work`` and store its result, or return the stored result of the same request.

        The transaction first inserts the request's row, so that a duplicate waits until the first request has ended. An
        error leaves no row: the request may be repeated.

        :param answer: the result, if it is known beforehand; then the row is written only once.
        :raises RequestIdReused: the id was used for a request with other content.
        :raises RequestInProgress: the same request is still running elsewhere.
        """

        def transaction(connection: Connection) -> R:
            self._insert_row(connection, message, answer)
            result = work(connection)
            if answer is None:
                values = {"request": message.request_id, "answer": msgspec.json.encode(result)}
                connection.execute(self._answering, values)
            return result

        return self.once_by(message, lambda: self._database.write(transaction))

    def once_or_refused(self, message: Mutation[R], work: Callable[[Connection], R]) -> StoredAnswer[R]:
        """Carry out a request as :meth:`once` does; if ``work`` refuses it, refuse copies of this sending as well.

        :raises MoorageError: ``work`` has raised it, now or for another copy of this sending.
        """

        def check_and_work(connection: Connection) -> R:
            # Check after the insertion of the request's row, which waits for a transaction that refuses a copy.
            self._refusals.check(connection, message)
            return work(connection)

        try:
            return self.once(message, check_and_work)
        except RefusedBefore as before:
            raise before.refusal from None
        except errors.MoorageError as refusal:
            return self.store_refusal(message, refusal)

    def store_refusal(self, message: Mutation[R], refusal: errors.MoorageError) -> StoredAnswer[R]:
        """Store the refusal of a request and raise it, or return the answer if a copy has been carried out meanwhile.

        :raises MoorageError: the refusal. It is not stored if the request may still be carried out.
        """
        sending = context.current().sending
        if isinstance(refusal, NOT_A_REFUSAL):
            raise refusal
        if sending is None:  # a former release has sent the request, or it did not come over the bus
            answered = self._database.read(lambda connection: self.find(connection, message))
            if answered is None:
                raise refusal
            return answered

        def transaction(connection: Connection) -> None:
            # The row of the request makes copies wait until the refusal is committed; then it is deleted again.
            self._insert_row(connection, message)
            self._refusals.store(connection, message, sending, refusal)
            connection.execute(self._deletion, {"request": message.request_id})

        def carry_out() -> NoReturn:
            self._database.write(transaction)
            raise refusal

        return self.once_by(message, carry_out)

    def _insert_row(self, connection: Connection, message: Mutation[R], answer: R | None = None) -> None:
        """Insert the row of a request, so that a duplicate waits; the errors are those of :meth:`once_together`."""
        with _waiting_for(message):
            self._insert(connection, self._row(message, answer))

    def once_by(self, message: Mutation[R], carry_out: Callable[[], R]) -> StoredAnswer[R]:
        """Carry out a request and return its result, or return the stored result of the same request.

        :param carry_out: a transaction that begins by inserting the request's row. It raises ``DuplicateRequest`` if
            the row already exists; all other errors are those of :meth:`once`.
        """
        for _ in range(_SUCCESSIONS):
            try:
                return StoredAnswer(carry_out(), replayed=False)
            except DuplicateRequest:
                # The same request was committed earlier, or another sending of it just now. If the row no longer
                # exists, the other one was rolled back, and this one is tried again.
                if stored := self._database.read(lambda connection: self.find(connection, message)):
                    return stored
        raise errors.RequestInProgress(request_id=message.request_id)

    def once_together(self, answers: Sequence[tuple[Mutation[R], R]], work: Callable[[Script], object]) -> None:
        """Run the common work of several requests whose answers are known beforehand, and store the answers.

        All of it is one transaction.

        :param work: adds its statements to a script that begins with the insertion of the requests' rows.

        :raises DuplicateRequest: one of the requests already has an answer.
        :raises RequestInProgress: one of the requests is still running elsewhere.
        """

        def transaction(connection: Connection) -> None:
            with scripted(connection) as script:
                self.insert_rows(script, answers)
                work(script)

        self._database.write(transaction)

    def insert_rows(self, connection: Connection | Script, answers: Sequence[tuple[Mutation[R], R]]) -> None:
        """Insert the rows of requests with their answers, first in a transaction; errors as :meth:`once_together`."""
        # Always insert in the same order, to avoid deadlocks: each insertion waits for the end of a duplicate.
        in_order = sorted(answers, key=lambda each: each[0].request_id)

        def fail(fault: exc.DBAPIError) -> None:
            if isinstance(fault, exc.IntegrityError):
                raise DuplicateRequest from fault
            with _waiting_for(in_order[0][0]):
                raise fault

        with scripted(connection) as script:
            self._rows.add_to(script, [self._row(message, answer) for message, answer in in_order], fail)

    def once_without_id(self, method: str, work: Callable[[Connection], R]) -> R:
        """Run ``work`` in one transaction, exactly once, even if the answer to its COMMIT is lost.

        It is for requests without an id from the sender. While such a request is carried out, it has an id here, by
        which a retry detects that the previous try was committed.

        :param method: the name under which the row is stored.
        """
        request_id, done = ids.fresh(), list[R]()
        answered = self._take_answered()

        def transaction(connection: Connection) -> R:
            # If this process ends before it deletes the row, the row is pruned like any acknowledged row.
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
            # The committed try is the last one that reached its COMMIT.
            result = done[0]
        except Exception:
            self._answered.extend(answered)
            raise
        self._answered.append(request_id)
        return result

    def _take_answered(self) -> list[str]:
        """Return the ids of finished requests of :meth:`once_without_id` to delete; none until there are enough."""
        if len(self._answered) < _FORGOTTEN_WITH_ANOTHER:
            return []
        taken: list[str] = []
        with contextlib.suppress(IndexError):  # other threads take ids as well
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
        """Return the ids, among the given ones, of requests with a stored answer."""
        query = select(self._table.c.request_id).where(self._table.c.request_id.in_(sorted(request_ids)))
        return self._database.read(lambda connection: set(connection.scalars(query)))

    def acknowledge(self, request_ids: Collection[str]) -> None:
        """Record that the senders of these requests have recorded the answers. Idempotent."""
        # UPDATE requests SET acknowledged_at = :now WHERE request_id IN (...) AND acknowledged_at IS NULL
        table = self._table
        statement = (
            table.update()
            .where(table.c.request_id.in_(sorted(request_ids)), table.c.acknowledged_at.is_(None))
            .values(acknowledged_at=now())
        )
        self._database.write(lambda connection: connection.execute(statement))

    def prune(self, *, acknowledged: float, unacknowledged: float) -> int:
        """Delete old answers, and return their number.

        The age in seconds counts from the acknowledgement of an answer, or if there is none, from its storing. Each
        transaction deletes a bounded number. Several processes may prune at once.
        """
        table = self._table.c
        old = [
            table.acknowledged_at < now() - acknowledged,
            # If an answer is acknowledged later, its retention begins then.
            and_(table.created_at < now() - unacknowledged, table.acknowledged_at.is_(None)),
        ]
        return sum(delete_expired(self._database, table.request_id, condition) for condition in old)

    def _row(self, message: Mutation[R], answer: R | None) -> dict[str, object]:
        result = {} if answer is None else {"result": msgspec.json.encode(answer)}
        return {"request_id": message.request_id, "method": message.method, "digest": message.digest(), **result}

    def _insert(self, connection: Connection, row: Mapping[str, object], **more: now) -> None:
        try:
            connection.execute(self._insertion.values(**more) if more else self._insertion, row)
        except exc.IntegrityError as fault:
            raise DuplicateRequest from fault


@contextlib.contextmanager
def _waiting_for(message: Mutation[Any]) -> Iterator[None]:
    """Translate the error of a wait for a duplicate request that does not end in time.

    :raises RequestInProgress: the duplicate is still running.
    """
    try:
        yield
    except exc.OperationalError as fault:
        if is_lock_wait(fault):
            raise errors.RequestInProgress(request_id=message.request_id) from fault
        raise
