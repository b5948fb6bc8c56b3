"""A database with short transactions, each repeated a bounded number of times after collisions.

A unit of work is a function of a connection. It must be idempotent, even after it has succeeded: it either begins with
its request's row (:mod:`moorage.service.stored_requests`) or changes rows under a predicate that is true only once. So
a transaction can be run again if its connection was lost during COMMIT.
"""

import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import tenacity
from oslo_config import cfg
from sqlalchemy import Connection, exc
from sqlalchemy.engine import URL

from moorage import context, errors, failpoints, metrics
from moorage.addresses import mask_url
from moorage.config.options import main_database
from moorage.db import engine, faults, hosts
from moorage.db.engine import ConnectionLimits
from moorage.messages import wire

LOG = logging.getLogger(__name__)

T = TypeVar("T")

#: The lock wait time-outs of one write, each of `lock_wait` seconds, before it fails. A lock that is held for that long
#: is not a short collision, and the waiting thread can do no other work. Arbitrary.
_LOCK_WAITS = 5

_WITH_SEVERAL_HOSTS = "mysql+pymysql"

#: Seconds that a thread waits for a lock, as many as for a connection of a pool. A thread that waits for a silent
#: database may hold its lock for longer. Arbitrary.
LOCK_PATIENCE = 10.0


class BoundedLock:
    """A lock that is held during a database query; the wait for it is bounded, at most to the caller's deadline.

    :param fault: called with the seconds of an unsuccessful wait; returns the error to raise.
    """

    def __init__(self, fault: Callable[[float], errors.MoorageError], patience: float = LOCK_PATIENCE) -> None:
        self._lock = threading.Lock()
        self._fault = fault
        self._patience = patience

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock.

        :raises MoorageError: the error that ``fault`` returns, because the lock was not released in time.
        """
        left = context.seconds_left()
        seconds = self._patience if left is None else max(0.0, min(self._patience, left))
        if not self._lock.acquire(timeout=seconds):
            raise self._fault(seconds)
        try:
            yield
        finally:
            self._lock.release()


#: For each SQLite file, the lock that admits one writer of this process at a time, because SQLite itself waits by
#: polling. All databases of this process with the same file share it; in the harness, all services are in one process.
_WRITER_LOCKS: "WeakValueDictionary[str, BoundedLock]" = WeakValueDictionary()
_WRITER_LOCKS_GUARD = threading.Lock()


class Database:
    """A database of one URL, named in errors by its schema; each method may raise ``StoreUnavailable``.

    :param url: an SQLAlchemy URL of MySQL or MariaDB (``mysql+pymysql://``) or of SQLite (``sqlite:///path``).
    :raises ConfigurationError: the URL is not valid.
    :param schema: ``main``, ``conductor`` or ``cell NAME``.
    :param tries: how often a transaction is run before its collisions become :class:`~moorage.errors.Overloaded`; after
        lock wait time-outs it is run less often.
    :param limits: the fields of :class:`~moorage.db.engine.ConnectionLimits`.
    """

    def __init__(self, url: str, schema: str, *, tries: int = 20, **limits: Any) -> None:
        wire.prepare()
        self.schema = schema
        self.url: URL = _parsed(url, schema)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.tries = tries
        self._writer: BoundedLock | None = self._writer_lock() if self.is_sqlite else None
        self._limits = ConnectionLimits(**limits)
        try:
            self.engine = engine.create(self.url, self._limits)
        except (exc.ArgumentError, ValueError) as fault:  # the parameters of an SQLite file are converted only here
            raise _not_understood(schema) from fault
        #: The schema without a cell's name, for the labels of metrics.
        self._kind = schema.partition(" ")[0]
        self._in_use = metrics.DATABASE_CONNECTIONS.labels(self._kind)
        self._is_counted = True
        metrics.DATABASE_POOL.labels(self._kind).inc(self._limits.pool_size)

    @classmethod
    def configured(
        cls, conf: cfg.ConfigOpts, url: str | None = None, schema: str = "main", *, pool_size: int | None = None
    ) -> "Database":
        """Return a database with the options of group ``database``.

        :param url: its URL; by default that of the main schema.
        :param pool_size: used instead of the configured one.
        :raises ConfigurationError: no URL is given, and none is configured.
        """
        options = conf.database
        return cls(
            main_database(conf) if url is None else url,
            schema,
            tries=options.max_transaction_tries,
            pool_size=options.pool_size if pool_size is None else pool_size,
            pool_timeout=options.pool_timeout,
            lock_wait=options.lock_wait_timeout,
            idle_transaction=options.idle_transaction_timeout,
            statement_limit=options.statement_timeout,
        )

    @property
    def lacks_file(self) -> bool:
        """Tell whether it is an SQLite file that does not exist; a connection would create it."""
        path = self.url.database or ":memory:"
        if not self.is_sqlite or path == ":memory:" or path.startswith("file:"):
            return False
        try:
            return not Path(path).exists()
        except OSError:
            return False  # it cannot be looked for, and a connection gets an error

    def close(self) -> None:
        """Close all pooled connections."""
        self.engine.dispose()
        if self._is_counted:
            self._is_counted = False
            metrics.DATABASE_POOL.labels(self._kind).dec(self._limits.pool_size)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a read-only transaction at isolation level READ COMMITTED."""
        return self._repeated(lambda: self._transaction(work, writing=False))

    def read_one_moment(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a read-only transaction whose statements all read the same snapshot.

        Use it for results that combine several tables. On MySQL it costs one round trip more than ``read``.
        """

        def of_one_moment(connection: Connection) -> T:
            # This applies to one transaction, whose first SELECT takes the snapshot. SQLite always works this way.
            if not self.is_sqlite:
                connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            return work(connection)

        return self.read(of_one_moment)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in a transaction; after a collision with another one, run it again from the start.

        :raises StoreUnavailable: the database cannot be reached. If the connection was lost during COMMIT, the outcome
            is unknown, and the caller repeats the request with its id.
        :raises Overloaded: collisions continued, a row lock or a connection was not released in time, or a statement
            took too long.
        """
        return self._repeated(lambda: self._transaction(work, writing=True))

    def _transaction(self, work: Callable[[Connection], T], *, writing: bool) -> T:
        turn = self._writer.held() if self._writer is not None and writing else nullcontext()
        with turn, self.engine.connect() as connection, self._in_use.track_inprogress():
            context.check_deadline("before its transaction was begun")  # the wait for a connection may have been long
            connection.info[engine.WRITING] = writing
            with connection.begin():
                result = work(connection)
                if writing:
                    failpoints.reached("commit")
                    # Check at the last moment: a caller that has timed out may have made another decision by now.
                    context.check_deadline("before COMMIT")
            if writing:
                failpoints.reached("committed")
            return result

    def _repeated(self, transaction: Callable[[], T]) -> T:
        """Run a transaction; retry it after collisions, and after at most two lost connections."""
        with self.faults_translated():
            try:
                return transaction()
            except exc.DBAPIError as fault:
                return self._retried(fault, transaction)

    def _retried(self, first: exc.DBAPIError, transaction: Callable[[], T]) -> T:
        """Retry a transaction whose first try has failed; that try counts.

        The objects for the retries are made only now, because they are expensive.
        """
        failed = [first]
        why = "collision" if faults.is_collision(first) else "connection lost"

        def again() -> T:
            if failed:
                raise failed.pop()
            metrics.DATABASE_RETRIES.labels(self._kind, why).inc()
            return transaction()

        lock_waits = 0

        def is_last_collision(state: tenacity.RetryCallState) -> bool:
            nonlocal lock_waits
            fault = state.outcome.exception() if state.outcome else None
            lock_waits += fault is not None and faults.is_lock_wait(fault)
            return state.attempt_number >= self.tries or lock_waits >= _LOCK_WAITS or context.is_late()

        def is_last_loss(state: tenacity.RetryCallState) -> bool:
            # Stop after the second failure already if the tries have taken as long as a connection's time-out.
            is_slow = state.attempt_number >= 2 and time.monotonic() - state.start_time >= self._limits.connect
            return is_slow or state.attempt_number >= 3 or context.is_late()

        collisions = tenacity.Retrying(
            retry=tenacity.retry_if_exception(faults.is_collision),
            stop=is_last_collision,
            wait=tenacity.wait_random_exponential(multiplier=0.002, max=0.25),
            reraise=True,
        )
        # A pooled connection may be older than the server's restart: the first retry opens a new one.
        losses = tenacity.Retrying(
            retry=tenacity.retry_if_exception(faults.is_away),
            stop=is_last_loss,
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=0.5),
            reraise=True,
        )
        return losses(lambda: collisions(again))

    @contextmanager
    def faults_translated(self) -> Iterator[None]:
        """Translate exceptions of the database into Moorage's errors; for code that uses the engine directly."""
        try:
            yield
        except exc.TimeoutError as fault:
            self._count(errors.Overloaded)
            raise errors.Overloaded(reason=f"no connection to the database of {self.schema} came free") from fault
        except exc.DBAPIError as fault:
            meaning = self._meaning(fault)
            if meaning is None:
                raise
            self._count(type(meaning))
            raise meaning from fault

    def _count(self, meaning: type[errors.MoorageError]) -> None:
        metrics.DATABASE_FAILURES.labels(self._kind, meaning.code).inc()

    def _meaning(self, fault: exc.DBAPIError) -> errors.MoorageError | None:
        """Return Moorage's error for an exception of the database, or None."""
        if faults.is_away(fault):
            LOG.warning("The database of %s cannot be reached: %s", self.schema, fault.orig)
            # SQLite does not name its file; other servers name their address.
            place = f"{self.url.database}: " if self.is_sqlite else ""
            return errors.StoreUnavailable(schema=self.schema, reason=place + faults.plain_reason(fault))
        if faults.is_refused(fault):
            reason = f"{faults.plain_reason(fault)} ({mask_url(self.url.render_as_string(hide_password=True))})"
            return errors.StoreRefused(schema=self.schema, reason=reason, remedy=faults.remedy(fault))
        if faults.is_too_long(fault):
            LOG.warning("A statement took too long for the database of %s: %s", self.schema, fault.statement)
            return errors.Overloaded(reason=f"a statement took too long for the database of {self.schema}")
        if faults.is_collision(fault):
            return errors.Overloaded(
                reason=f"the transaction on the database of {self.schema} collided with others again and again"
            )
        return None

    def _writer_lock(self) -> BoundedLock:
        path = self.url.database or ":memory:"

        def no_turn(seconds: float) -> errors.Overloaded:
            return errors.Overloaded(reason=f"another writer has kept the database {path} for {seconds:g} s")

        with _WRITER_LOCKS_GUARD:
            return _WRITER_LOCKS.setdefault(path, BoundedLock(no_turn))


def _parsed(url: str, schema: str) -> URL:
    """Parse a URL and load its dialect; the error does not contain the URL, because of its password.

    :raises ConfigurationError: the URL is not valid, or its driver is not installed.
    """
    try:
        parsed = hosts.parse(url)
        parsed.get_dialect().import_dbapi()
    except (exc.ArgumentError, ImportError, ValueError) as fault:
        raise _not_understood(schema) from fault
    if parsed.drivername == _WITH_SEVERAL_HOSTS:
        _require_known_parameters(parsed, schema)
    elif len(hosts.hosts_of(parsed)) > 1:
        raise errors.ConfigurationError(
            reason=f"the URL of the {schema} database has several hosts, which only {_WITH_SEVERAL_HOSTS}:// accepts"
        )
    if parsed.get_backend_name() != "sqlite":
        _require_name_and_charset(parsed, schema)
    return parsed


def _not_understood(schema: str) -> errors.ConfigurationError:
    return errors.ConfigurationError(
        reason=f"the URL of the {schema} database cannot be understood, or its driver is not installed: it has to "
        "look like mysql+pymysql://user:password@host/name?charset=utf8mb4, with commas between several hosts"
    )


#: SQLAlchemy passes these to PyMySQL in a way that makes it ignore the authority of ``ssl_ca`` and verify no host name.
_MISLEADING = frozenset(("ssl_verify_cert", "ssl_verify_identity"))


def _require_known_parameters(url: URL, schema: str) -> None:
    """Verify that PyMySQL accepts the parameters of a URL.

    :raises ConfigurationError: it does not accept a parameter or its value.
    """
    dialect: Any = url.get_dialect()()
    try:
        engine.tls_switch(url)
        if _MISLEADING & url.query.keys():
            raise ValueError("ssl_ca verifies certificate and name; ssl_check_hostname=false leaves out the name")
        _words, named = dialect.create_connect_args(hosts.without_hosts(url))
        inspect.signature(dialect.import_dbapi().connect).bind_partial(**named)
    except (TypeError, ValueError) as fault:
        names = ", ".join(sorted(url.query))
        raise errors.ConfigurationError(
            reason=f"the URL of the {schema} database has a parameter that the driver does not take ({names}): {fault}"
        ) from fault


def _require_name_and_charset(url: URL, schema: str) -> None:
    """Verify that the URL of a server names a database, and does not ask for another character set than utf8mb4.

    :raises ConfigurationError: it names no database, or another character set.
    """
    # PyMySQL can read the name from a file.
    if not url.database and "read_default_file" not in url.query:
        raise errors.ConfigurationError(
            reason=f"the URL of the {schema} database names no database: write its name after the host and a slash"
        )
    # In another one, some names cannot be sent, or cannot be compared with the columns.
    if (charset := url.query.get("charset", "utf8mb4")) != "utf8mb4":
        raise errors.ConfigurationError(
            reason=f"the URL of the {schema} database has charset={charset}: it has to be utf8mb4"
        )
