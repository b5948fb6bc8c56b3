"""SQLAlchemy engines for MySQL, MariaDB and SQLite: how connections are set up, and when they are dropped."""

import time
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy
from sqlalchemy import Engine, PoolProxiedConnection, event
from sqlalchemy.engine import URL, Compiled, ExceptionContext
from sqlalchemy.util import LRUCache, asbool

from moorage.db import faults, hosts

#: A part of a SET statement, in a comment that only MariaDB executes. MariaDB would otherwise convert a list of 1,000
#: or more values to a joined table, and then lock rows in any order, and also other rows (ADR 4).
_AS_LISTS = "/*M!100318 , SESSION in_predicate_conversion_threshold = 0 */"

#: The key in the ``info`` of a connection; its value is True if the next transaction will write.
WRITING = "moorage_writing"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of a database's connections, all in seconds except ``pool_size``.

    :param pool_size: the most connections.
    :param pool_timeout: how long a thread waits for a free connection.
    :param lock_wait: how long a statement waits for a row lock, or for a table whose definition is being changed.
    :param idle_transaction: how long a transaction may be idle before MariaDB rolls it back; 0 for no limit.
    :param connect: how long a server may be silent while a connection is made, hand-shake and authentication included.
    :param statement_limit: how long a statement may take; MySQL limits only SELECT statements. None means no limit, for
        the answer as well.
    :param answer_margin: how much longer than the statement its answer may take before the connection counts as lost.
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
    """Holds the compiled statements of all engines of a process, each once for each kind of server.

    SQLAlchemy would keep them separately for each engine, by its dialect object. Processes with several roles, and
    processes that open many databases one after another, then spent a fifth of their time compiling the same statements
    again.
    """

    __slots__ = ()

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the compiled statement of SQLAlchemy's key, which begins with the dialect."""
        return super().get(_of_its_kind(*key), default)

    def __setitem__(self, key: Any, value: Compiled) -> None:
        super().__setitem__(_of_its_kind(*key), value)


def _of_its_kind(dialect: Any, *statement: Any) -> tuple[Any, ...]:
    """Return a key that is equal for dialects of the same class and the same kind of server.

    The kind is the server's version, whether it is MariaDB, and the quoting of names, which depends on its SQL mode.
    """
    server = (dialect.server_version_info, getattr(dialect, "is_mariadb", False))
    return type(dialect), *server, dialect.identifier_preparer.initial_quote, *statement


#: The number of prepared statements that an SQLite connection keeps. The store uses 200; Python's default is 128.
_PREPARED = 512

#: The cache of compiled statements, four times as large as SQLAlchemy's cache for one engine.
_COMPILED = _CompiledStatements(2000)


def create(url: URL, limits: ConnectionLimits) -> Engine:
    """Return an engine, which connects at its first use."""
    engine = _sqlite(url, limits) if url.get_backend_name() == "sqlite" else _mysql(url, limits)
    engine.update_execution_options(compiled_cache=_COMPILED)
    event.listen(engine, "connect", lambda _connection, record: _keep_despite_clock(engine.pool, record))
    return engine


def _keep_despite_clock(pool: Any, record: Any) -> None:
    """Have the pool keep a new connection although the machine's clock has been set back.

    The pool compares wall-clock times: it would replace each connection at every use until the clock again shows the
    time at which the pool has last dropped its connections.
    """
    if time.time() < pool._invalidate_time:  # noqa: SLF001
        # Older connections may be dead. They then fail at their next use, which is repeated.
        pool._invalidate_time = record.starttime  # noqa: SLF001


def _sqlite(url: URL, limits: ConnectionLimits) -> Engine:
    engine = sqlalchemy.create_engine(
        url,
        poolclass=sqlalchemy.QueuePool,
        pool_size=limits.pool_size,
        max_overflow=0,
        pool_timeout=limits.pool_timeout,
        # The last used connection has already prepared most of the next statements.
        pool_use_lifo=True,
        connect_args={
            "timeout": max(limits.lock_wait, 10.0),
            "check_same_thread": False,
            "cached_statements": _PREPARED,
        },
    )
    event.listen(engine, "connect", _prepare_sqlite)
    # Not an event listener: if an engine has one, each connection looks for listeners at every operation.
    dialect: Any = engine.dialect
    dialect.do_begin = _begin_sqlite
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Set up a connection: explicit transactions, the write-ahead log, and foreign keys."""
    connection.isolation_level = None
    for pragma in ("journal_mode=wal", "synchronous=normal", "foreign_keys=on"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: PoolProxiedConnection) -> None:
    # Take the write lock now: a transaction that reads first could not get it later beside another writer.
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
        # Every transaction has ended before its connection returns to the pool. The pool's ROLLBACK would be one more
        # round trip; a claim would have nine with it.
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
    """Return whether a URL switches TLS off, as a boolean for the driver, which would read any text as true.

    :raises ValueError: the value in the URL is not a boolean.
    """
    return {name: asbool(said) for name, said in url.query.items() if name == "ssl_disabled"}


def _drop_useless_connections(context: ExceptionContext) -> None:
    """Drop a connection, and all older ones of the pool, after an error that a new connection may not have.

    SQLAlchemy itself does so when a connection is lost. But a server that has become read-only, or has left its
    cluster, continues to answer. If servers share an address, only a new connection reaches the server that has taken
    over.
    """
    fault = context.sqlalchemy_exception
    if fault is not None and faults.is_of_connection(fault):
        context.is_disconnect = True
        if context.connection is None and context.engine is not None and faults.is_unreachable(fault):
            # No connection was made, so SQLAlchemy drops none. The pooled connections may be dead too, and to try them
            # takes longer.
            context.engine.pool._invalidate(cast(Any, None))  # noqa: SLF001  # marks all older connections


def _whole(seconds: float) -> int:
    """Return a time in whole seconds, at least one, as MySQL requires it."""
    return max(1, round(seconds))


def _idle_limits(seconds: float) -> str:
    """Return the rest of a SET statement that limits idle transactions, in a comment that only MariaDB executes.

    A process that is suspended within a transaction keeps its row locks as long as its connection exists. Neither the
    broker's heartbeats nor Moorage's leases release them. The second variable is for a transaction that has locked rows
    but has not changed any yet; MariaDB does not count it as a writing transaction.
    """
    if not seconds:
        return ""
    limits = ("idle_write_transaction_timeout", "idle_transaction_timeout")
    return f"/*M!100300 {''.join(f', SESSION {name} = {_whole(seconds)}' for name in limits)} */"


def _statement_limits(seconds: float | None) -> str:
    """Return the rest of a SET statement that limits statements: one comment for MariaDB, and one only for MySQL."""
    if seconds is None:
        return ""
    # MariaDB does not execute comments for MySQL 5.7 and newer.
    return (
        f" /*M!100108 , SESSION max_statement_time = {seconds:g} */"
        f" /*!80000 , SESSION max_execution_time = {round(seconds * 1000)} */"
    )
