"""One database as a service uses it: short transactions, each repeated a bounded number of times when others collide.

A unit of work is a function of a connection. It must be safe to run again, also after its own success: it either
begins with its request's row (:mod:`moorage.requests`) or changes rows by a predicate that holds once. That is what
lets a connection that is lost during COMMIT be answered by simply running the work again.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import sqlalchemy
import tenacity
from oslo_config import cfg
from sqlalchemy import Connection, Engine, event, exc
from sqlalchemy.engine import URL, make_url

from moorage import context, database_faults, errors, failpoints, wire
from moorage.options import main_database

LOG = logging.getLogger(__name__)

T = TypeVar("T")

#: Row locks that one write waits for in vain, each for `lock_wait` seconds. Those whom it waits for are then no passing
#: collision, and a thread that waits on is one that answers nobody else. Arbitrary.
_LOCK_WAITS = 5


class _WriterLock:
    """Lets one writer of this process at a time reach an SQLite file; SQLite itself would have them poll."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


#: Shared by all that open the same file in this process, which in the harness is every service.
_WRITER_LOCKS: "WeakValueDictionary[str, _WriterLock]" = WeakValueDictionary()
_WRITER_LOCKS_GUARD = threading.Lock()


class Database:
    """A database by its URL, named in errors by the schema that it holds.

    :param url: an SQLAlchemy URL of MySQL or MariaDB (``mysql+pymysql://``) or of SQLite (``sqlite:///path``).
    :raises ConfigurationError: it is none.
    :param schema: ``main``, ``conductor`` or ``cell NAME``.
    :param pool_size: connections kept at most; a thread that finds none free waits ``pool_timeout`` seconds.
    :param lock_wait: seconds to wait for a row lock.
    :param tries: how often a transaction is begun before its collisions become :class:`~moorage.errors.Overloaded`;
        a few times only where it is a row lock that does not come free.
    :param idle_transaction: seconds after which MariaDB rolls back a transaction in which nothing happens, and closes
        its connection; 0 for never. MySQL has no such limit.
    """

    def __init__(
        self,
        url: str,
        schema: str,
        *,
        pool_size: int = 16,
        pool_timeout: float = 10.0,
        lock_wait: float = 2.0,
        tries: int = 20,
        idle_transaction: float = 30.0,
    ) -> None:
        wire.prepare()
        self.schema = schema
        self.url: URL = _parsed(url, schema)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.tries = tries
        self._writer: _WriterLock | None = self._writer_lock() if self.is_sqlite else None
        self.engine = self._create_engine(pool_size, pool_timeout, lock_wait, idle_transaction)

    @classmethod
    def configured(
        cls, conf: cfg.ConfigOpts, url: str | None = None, schema: str = "main", *, pool_size: int | None = None
    ) -> "Database":
        """Return a database that is used as group ``database`` of a configuration says.

        :param url: where it is; by default, where the main schema is.
        :param pool_size: instead of the one that is configured.
        :raises ConfigurationError: no URL is given, and none is configured.
        """
        options = conf.database
        return cls(
            main_database(conf) if url is None else url,
            schema,
            pool_size=options.pool_size if pool_size is None else pool_size,
            pool_timeout=options.pool_timeout,
            lock_wait=options.lock_wait_timeout,
            tries=options.max_transaction_tries,
            idle_transaction=options.idle_transaction_timeout,
        )

    def close(self) -> None:
        """Close all pooled connections."""
        self.engine.dispose()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction that writes nothing, each statement of which sees what is committed by then.

        :raises StoreUnavailable: the database cannot be reached.
        """
        return self._repeated(lambda: self._transaction(work, writing=False))

    def read_one_moment(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction that writes nothing, all statements of which see the same moment.

        For what is put together of several tables. On MySQL it costs one round trip more than ``read``.

        :raises StoreUnavailable: the database cannot be reached.
        """

        def of_one_moment(connection: Connection) -> T:
            # Of this one transaction, which begins with the first statement that reads; SQLite does so anyway.
            if not self.is_sqlite:
                connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            return work(connection)

        return self.read(of_one_moment)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one transaction, from its first statement again when another one collides with it.

        :raises StoreUnavailable: the database cannot be reached; after a lost COMMIT, whether it was written is
            unknown to the caller, who repeats the request with its id.
        :raises Overloaded: collisions went on, a row lock did not come free, or no connection did.
        """
        return self._repeated(lambda: self._transaction(work, writing=True))

    def _transaction(self, work: Callable[[Connection], T], *, writing: bool) -> T:
        with self._sqlite_writer(writing), self.engine.connect() as connection:
            context.check_deadline("before its transaction was begun")  # a connection may have been waited for
            if writing:
                connection = connection.execution_options(moorage_writing=True)
            with connection.begin():
                result = work(connection)
                if writing:
                    failpoints.reached("commit")
                    context.check_deadline("before COMMIT")
            if writing:
                failpoints.reached("committed")
            return result

    @contextmanager
    def _sqlite_writer(self, writing: bool) -> Iterator[None]:
        if self._writer is None or not writing:
            yield
            return
        with self._writer.lock:
            yield

    def _repeated(self, transaction: Callable[[], T]) -> T:
        """Run the rings: collisions are repeated with milliseconds of back-off, a lost connection twice at most."""
        collisions = tenacity.Retrying(
            retry=tenacity.retry_if_exception(database_faults.is_collision),
            stop=tenacity.stop_any(tenacity.stop_after_attempt(self.tries), _LockWaits(), _Late()),
            wait=tenacity.wait_random_exponential(multiplier=0.002, max=0.25),
            reraise=True,
        )
        # A pooled connection may be one that died with the server's last life: the first repeat gets a fresh one.
        losses = tenacity.Retrying(
            retry=tenacity.retry_if_exception(database_faults.is_away),
            stop=tenacity.stop_any(tenacity.stop_after_attempt(3), _Late()),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=0.5),
            reraise=True,
        )
        try:
            return losses(lambda: collisions(transaction))
        except exc.TimeoutError as fault:
            raise errors.Overloaded(reason=f"no connection to the database of {self.schema} came free") from fault
        except exc.DBAPIError as fault:
            if database_faults.is_away(fault):
                LOG.warning("The database of %s cannot be reached: %s", self.schema, fault.orig)
                raise errors.StoreUnavailable(schema=self.schema, reason=database_faults.plain_reason(fault)) from fault
            if database_faults.is_refused(fault):
                reason = f"{database_faults.plain_reason(fault)} ({self.url.render_as_string(hide_password=True)})"
                raise errors.StoreRefused(schema=self.schema, reason=reason) from fault
            if database_faults.is_collision(fault):
                raise errors.Overloaded(
                    reason=f"what was to be written to the database of {self.schema} went on colliding with others"
                ) from fault
            raise

    def _writer_lock(self) -> _WriterLock:
        path = self.url.database or ":memory:"
        with _WRITER_LOCKS_GUARD:
            lock = _WRITER_LOCKS.get(path)
            if lock is None:
                lock = _WRITER_LOCKS[path] = _WriterLock()
            return lock

    def _create_engine(self, pool_size: int, pool_timeout: float, lock_wait: float, idle_transaction: float) -> Engine:
        if self.is_sqlite:
            engine = sqlalchemy.create_engine(
                self.url,
                poolclass=sqlalchemy.QueuePool,
                pool_size=pool_size,
                max_overflow=0,
                pool_timeout=pool_timeout,
                connect_args={"timeout": max(lock_wait, 10.0), "check_same_thread": False},
            )
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        engine = sqlalchemy.create_engine(
            self.url,
            isolation_level="READ COMMITTED",
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=pool_timeout,
            pool_recycle=3600,
            # Every transaction has been ended by the time its connection returns: a ROLLBACK more would be one round
            # trip of nine on the path of a claim.
            pool_reset_on_return=None,
            connect_args={
                "connect_timeout": 5,
                "init_command": f"SET SESSION innodb_lock_wait_timeout = {_whole(lock_wait)}, "
                f"SESSION sql_mode = 'TRADITIONAL' {_AS_LISTS} {_idle_limits(idle_transaction)}",
            },
        )
        if engine.dialect.driver == "pymysql":
            from moorage import mysql_connection  # here, because with SQLite nobody needs the driver

            event.listen(engine, "do_connect", mysql_connection.connect)
        return engine


def _parsed(url: str, schema: str) -> URL:
    """Return a URL of a dialect that is installed; the error does not show it, because it holds a password.

    :raises ConfigurationError: it is none.
    """
    try:
        parsed = make_url(url)
        parsed.get_dialect().import_dbapi()
    except (exc.ArgumentError, ImportError) as fault:
        raise errors.ConfigurationError(
            reason=f"the URL of the {schema} database cannot be understood, or its driver is not installed: it has to "
            "look like mysql+pymysql://user:password@host/name?charset=utf8mb4"
        ) from fault
    return parsed


class _Late(tenacity.stop.stop_base):
    """Ends the tries for a caller whose time is over."""

    def __call__(self, _state: tenacity.RetryCallState) -> bool:
        return context.is_late()


class _LockWaits(tenacity.stop.stop_base):
    """Ends the tries of one write once it has waited for row locks in vain so many times."""

    def __init__(self) -> None:
        self._waits = 0

    def __call__(self, state: tenacity.RetryCallState) -> bool:
        fault = state.outcome.exception() if state.outcome else None
        self._waits += fault is not None and database_faults.is_lock_wait(fault)
        return self._waits >= _LOCK_WAITS


#: A part of a SET statement, in a comment that MariaDB alone reads. A list of 1,000 values or more would otherwise be
#: made a table and joined: then rows are locked in any order, and others with them (ADR 91).
_AS_LISTS = "/*M!100318 , SESSION in_predicate_conversion_threshold = 0 */"


def _whole(seconds: float) -> int:
    """Return what MySQL, which counts in whole seconds, takes for a time that is not zero."""
    return max(1, round(seconds))


def _idle_limits(seconds: float) -> str:
    """Return the rest of a SET statement that limits idle transactions, in a comment that MariaDB alone reads.

    A process that is stopped within a transaction keeps its row locks for as long as its connection stands, and the
    broker's heartbeats or our leases cannot take those away. The second variable is for a transaction that has locked
    rows and not changed any yet, which MariaDB does not count as a writing one.
    """
    if not seconds:
        return ""
    limits = ("idle_write_transaction_timeout", "idle_transaction_timeout")
    return f"/*M!100300 {''.join(f', SESSION {name} = {_whole(seconds)}' for name in limits)} */"


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Leave transactions to us, let readers and one writer work side by side, and check foreign keys."""
    connection.isolation_level = None
    for pragma in ("journal_mode=wal", "synchronous=normal", "foreign_keys=on"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later could not be upgraded beside another writer: take the lock now.
    writing = connection.get_execution_options().get("moorage_writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
