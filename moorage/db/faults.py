"""Classify a database's exceptions by the driver's error code, never by its text."""

import sqlite3
from collections.abc import Mapping

from sqlalchemy import exc

_Codes = frozenset[tuple[str, int]]


def _mysql(*codes: int) -> _Codes:
    return frozenset(("mysql", code) for code in codes)


def _sqlite(*codes: int) -> _Codes:
    return frozenset(("sqlite", code) for code in codes)


_LOCK_WAIT = _mysql(1205)
#: Run the transaction again after: a deadlock; a lock wait; a row that has changed since the snapshot (MariaDB with
#: innodb_snapshot_isolation); a table that was rebuilt since then, for instance by OPTIMIZE TABLE.
_COLLISION = _LOCK_WAIT | _mysql(1213, 1020, 1412) | _sqlite(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
#: What to change when the server refuses to serve, by its code.
_REMEDIES: Mapping[int, str] = {
    1045: "check user and password",
    # The account has no password, or logs in through a socket.
    1698: "check the user, and how this account logs in",
    1130: "check the user, and from which machines it may log in",
    **dict.fromkeys((3118, 4151), "unlock this account"),
    **dict.fromkeys((1820, 1862), "give this account a new password: the old one has expired"),
    1044: "check the database name, and the privileges of this user on it",
    1049: "check the database name",
    # The database was dropped while the connection was open.
    1046: "check whether the database exists",
    # On a table, and on a column.
    **dict.fromkeys((1142, 1143), "grant this user the privilege that it lacks"),
    # For instance while the database is being restored.
    1146: "restore the database, or create its tables with `moorage db upgrade`",
    # A statement-based binary log does not allow writes at READ COMMITTED.
    1665: "set its binlog_format to MIXED or ROW",
}
#: What to change when an SQLite file cannot be used, by the primary code.
_FILE_REMEDIES: Mapping[int, str] = {
    sqlite3.SQLITE_NOTADB: "check the path of the file in the URL",
    sqlite3.SQLITE_CORRUPT: "restore the file from a backup",
}
_REFUSED = _mysql(*_REMEDIES) | _sqlite(*_FILE_REMEDIES)
#: It depends on the database and not on the connection to it.
_NO_TABLE = _mysql(1146)
#: A statement has taken too long: MariaDB's code, and MySQL's.
_TOO_LONG = _mysql(1969, 3024)
#: The server cannot be reached, or the connection to it is lost. Codes from 2000 are those of the client.
_UNREACHABLE = _mysql(0, 1158, 1159, 1160, 1161, 2002, 2003, 2006, 2012, 2013, 2014, 2026, 2027, 2055, 4031)
#: A repetition may succeed on another server, or later on the same one.
_AWAY = frozenset().union(
    _UNREACHABLE,
    # It accepts no more connections: too many, too many of this user, or this host is blocked.
    _mysql(1040, 1129, 1203, 1226),
    # It is shutting down, starting or offline; or the connection or the statement was killed.
    _mysql(1053, 1077, 1079, 1184, 1317, 1927, 3032, 3169),
    # It is read-only: read_only, read-only transactions by default, innodb_read_only.
    _mysql(1290, 1792, 1836),
    # It is not a member of its cluster, or the cluster has refused a COMMIT: Galera (1047, 1180), Group Replication.
    _mysql(1047, 1180, 3100, 3101),
    # Its disk is full, for a table, any file, or the binary log at a COMMIT; or its storage engine got an error from
    # the operating system.
    _mysql(1021, 1114, 1026, 3, 20, 1030),
    # It has no memory, file descriptors or threads left.
    _mysql(1037, 1041, 1135, 5, 23),
    # ProxySQL has found no server behind it.
    _mysql(9001),
    _sqlite(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY),
)


def _code(fault: BaseException) -> tuple[str, int] | None:
    if not isinstance(fault, exc.DBAPIError) or fault.orig is None:
        return None
    if isinstance(fault.orig, sqlite3.Error):
        # The low byte of an extended code is its primary code.
        return "sqlite", getattr(fault.orig, "sqlite_errorcode", 0) & 0xFF
    first = fault.orig.args[0] if fault.orig.args else None
    return ("mysql", first) if isinstance(first, int) else None


def is_collision(fault: BaseException) -> bool:
    """Return whether the transaction collided with another one, and may succeed when run again."""
    return _code(fault) in _COLLISION


def is_lock_wait(fault: BaseException) -> bool:
    """Return whether the wait for a row lock timed out."""
    return _code(fault) in _LOCK_WAIT


def is_too_long(fault: BaseException) -> bool:
    """Return whether the server ended a statement at its time limit."""
    return _code(fault) in _TOO_LONG


def is_away(fault: BaseException) -> bool:
    """Return whether the database could not be reached, the connection was lost, or the server cannot write now.

    If a COMMIT fails in this way, its outcome is unknown.
    """
    # Exclude refusals: SQLAlchemy marks their connections as lost too, because they are dropped (is_of_connection).
    if not isinstance(fault, exc.DBAPIError) or is_refused(fault):
        return False
    # The driver has no code for an answer that it cannot parse, for instance if a server dies while sending it.
    if fault.connection_invalidated or (isinstance(fault, exc.InternalError) and _code(fault) is None):
        return True
    # COMMIT and ROLLBACK have no statement here. A COMMIT that takes too long may still be carried out.
    return _code(fault) in _AWAY or (is_too_long(fault) and fault.statement is None)


def is_unreachable(fault: BaseException) -> bool:
    """Return whether the server does not respond, so that all pooled connections to it may be dead."""
    return _code(fault) in _UNREACHABLE


def is_refused(fault: BaseException) -> bool:
    """Return whether a retry would not help.

    The server refuses this user, this database, a table or all writes; or an SQLite file is no database, or is damaged.
    """
    return _code(fault) in _REFUSED


def is_of_connection(fault: BaseException) -> bool:
    """Return whether a new connection may succeed, to another server or after a change of this server.

    A connection keeps the privileges on its database and the format of the binary log from the time when it was made.
    """
    return is_away(fault) or _code(fault) in _REFUSED - _NO_TABLE


def remedy(fault: exc.DBAPIError) -> str:
    """Return what to change when the server refuses to serve."""
    kind, code = _code(fault) or ("", 0)
    return (_FILE_REMEDIES if kind == "sqlite" else _REMEDIES)[code]


def plain_reason(fault: exc.DBAPIError) -> str:
    """Return the driver's text of an exception without the statement and its parameters."""
    arguments = getattr(fault.orig, "args", ())
    return str(arguments[-1] if arguments else fault.orig)[:300]
