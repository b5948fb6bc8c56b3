"""SQLAlchemy engines for MySQL, MariaDB and SQLite: set-up of connections, and when they are dropped."""

from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy
from sqlalchemy import Engine, PoolProxiedConnection, event
from sqlalchemy.engine import URL, Compiled, ExceptionContext
from sqlalchemy.util import LRUCache, asbool

from moorage.db import faults, hosts

#: A part of a SET statement, in a comment that MariaDB alone reads. A list of 1,000 values or more would otherwise be
#: made a table and joined: then rows are locked in any order, and others with them (ADR 4).
_AS_LISTS = "/*M!100318 , SESSION in_predicate_conversion_threshold = 0 */"

#: The key in the ``info`` of a connection with which its next transaction begins: true if it is to write.
WRITING = "moorage_writing"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of a database's connections, in seconds but for ``pool_size``.

    :param pool_size: connections kept at most.
    :param pool_timeout: how long a thread waits for a free one.
    :param lock_wait: how long a statement waits for a row lock, or for a table whose definition is being changed.
    :param idle_transaction: after which MariaDB rolls back a transaction in which nothing happens; 0 for never.
    :param connect: how long a server may be silent while a connection is made, hand-shake and authentication included.
    :param statement_limit: how long a statement may take; MySQL limits only those that read. None for no limit, and
        none for the answer either.
    :param answer_margin: how much longer than a statement its answer may take; then the connection counts as lost.
    """

    pool_size: int = 16
    pool_timeout: float = 10.0
    lock_wait: float = 2.0
    idle_transaction: float = 30.0
    connect: float = 5.0
    statement_limit: float | None = 15.0
    answer_margin: float = 5.0

    @property
    def answer(self) -> float | None:
        """The seconds of silence after which a connection counts as lost."""
        return None if self.statement_limit is None else self.statement_limit + self.answer_margin


class _CompiledStatements(LRUCache[Any, Compiled]):
    """Holds the compiled statements of all engines of a process: of each statement one for each kind of server.

    SQLAlchemy would keep them for each engine, by its dialect object. Where the roles of a cloud share a process, and
    where databases are opened one after the other, a fifth of all time went into compiling the same statements anew.
    """

    __slots__ = ()

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the compiled statement of SQLAlchemy's key, which begins with the dialect."""
        return super().get(_of_its_kind(*key), default)

    def __setitem__(self, key: Any, value: Compiled) -> None:
        super().__setitem__(_of_its_kind(*key), value)


def _of_its_kind(dialect: Any, *statement: Any) -> tuple[Any, ...]:
    """Return a key in which dialects of one class are equal that have met the same kind of server.

    That is its version, whether it is MariaDB, and by its SQL mode how it quotes names.
    """
    server = (dialect.server_version_info, getattr(dialect, "is_mariadb", False))
    return type(dialect), *server, dialect.identifier_preparer.initial_quote, *statement


#: The statements that a connection of SQLite keeps prepared: one of the store has 200 in use, and Python keeps 128.
_PREPARED = 512

#: Four times as many as SQLAlchemy keeps for one engine.
_COMPILED = _CompiledStatements(2000)


def create(url: URL, limits: ConnectionLimits) -> Engine:
    """Return an engine; it connects at its first use."""
    engine = _sqlite(url, limits) if url.get_backend_name() == "sqlite" else _mysql(url, limits)
    engine.update_execution_options(compiled_cache=_COMPILED)
    return engine


def _sqlite(url: URL, limits: ConnectionLimits) -> Engine:
    engine = sqlalchemy.create_engine(
        url,
        poolclass=sqlalchemy.QueuePool,
        pool_size=limits.pool_size,
        max_overflow=0,
        pool_timeout=limits.pool_timeout,
        # The connection that was used last has prepared most of the statements that are run next.
        pool_use_lifo=True,
        connect_args={
            "timeout": max(limits.lock_wait, 10.0),
            "check_same_thread": False,
            "cached_statements": _PREPARED,
        },
    )
    event.listen(engine, "connect", _prepare_sqlite)
    # Not a listener: an engine with any has each of its connections look for listeners at every turn.
    dialect: Any = engine.dialect
    dialect.do_begin = _begin_sqlite
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Set up a connection: explicit transactions, the write-ahead log, and foreign keys."""
    connection.isolation_level = None
    for pragma in ("journal_mode=wal", "synchronous=normal", "foreign_keys=on"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: PoolProxiedConnection) -> None:
    # A transaction that reads first and writes later could not be upgraded beside another writer: take the lock now.
    writing = connection.info.pop(WRITING, False)
    cast(Any, connection.dbapi_connection).execute("BEGIN IMMEDIATE" if writing else "BEGIN")


def _mysql(url: URL, limits: ConnectionLimits) -> Engine:
    engine = sqlalchemy.create_engine(
        hosts.without_hosts(url),
        isolation_level="READ COMMITTED",
        pool_size=limits.pool_size,
        max_overflow=0,
        pool_timeout=limits.pool_timeout,
        pool_recycle=3600,
        # Every transaction has been ended by the time its connection returns: a ROLLBACK more would be one round
        # trip of nine on the path of a claim.
        pool_reset_on_return=None,
        connect_args={
            "connect_timeout": limits.connect,
            "read_timeout": limits.answer,
            "write_timeout": limits.answer,
            "init_command": f"SET SESSION innodb_lock_wait_timeout = {_whole(limits.lock_wait)}, "
            f"SESSION lock_wait_timeout = {_whole(limits.lock_wait)}, "
            f"SESSION sql_mode = 'TRADITIONAL' {_AS_LISTS} {_idle_limits(limits.idle_transaction)}"
            f"{_statement_limits(limits.statement_limit)}",
            **tls_switch(url),
        },
    )
    event.listen(engine, "handle_error", _drop_useless_connections)
    if engine.dialect.driver == "pymysql":
        from moorage.db.cluster_connections import ClusterConnector  # here, because SQLite does not need the driver

        connector = ClusterConnector(hosts.hosts_of(url))
        event.listen(engine, "do_connect", connector.connect)
        event.listen(engine, "checkout", connector.check_out)
    return engine


def tls_switch(url: URL) -> dict[str, bool]:
    """Return whether a URL switches TLS off, as the driver takes it: of a text it would take any for true.

    :raises ValueError: the URL says neither yes nor no.
    """
    return {name: asbool(said) for name, said in url.query.items() if name == "ssl_disabled"}


def _drop_useless_connections(context: ExceptionContext) -> None:
    """Drop the connection, and all older ones of the pool, after a fault that a new one may not have.

    SQLAlchemy does so by itself when a connection is lost. A server that has become read-only, or that has left its
    cluster, goes on answering: behind one address, only a new connection reaches the one that has taken over.
    """
    fault = context.sqlalchemy_exception
    if fault is not None and faults.is_of_connection(fault):
        context.is_disconnect = True
        if context.connection is None and context.engine is not None and faults.is_unreachable(fault):
            # No connection was made, so SQLAlchemy drops none. Those of the pool may be as dead, and cost more to try.
            context.engine.pool._invalidate(cast(Any, None))  # noqa: SLF001  # marks all that were made before now


def _whole(seconds: float) -> int:
    """Return a time in whole seconds, at least one, as MySQL takes it."""
    return max(1, round(seconds))


def _idle_limits(seconds: float) -> str:
    """Return the rest of a SET statement that limits idle transactions, in a comment that MariaDB alone reads.

    A process that is stopped within a transaction keeps its row locks for as long as its connection stands; neither the
    broker's heartbeats nor our leases release them. The second variable is for a transaction that has locked rows and
    not changed any yet, which MariaDB does not count as a writing one.
    """
    if not seconds:
        return ""
    limits = ("idle_write_transaction_timeout", "idle_transaction_timeout")
    return f"/*M!100300 {''.join(f', SESSION {name} = {_whole(seconds)}' for name in limits)} */"


def _statement_limits(seconds: float | None) -> str:
    """Return the rest of a SET statement that limits statements: one comment for MariaDB, and one for MySQL alone."""
    if seconds is None:
        return ""
    # MariaDB does not read comments of MySQL 5.7 and newer.
    return (
        f" /*M!100108 , SESSION max_statement_time = {seconds:g} */"
        f" /*!80000 , SESSION max_execution_time = {round(seconds * 1000)} */"
    )
