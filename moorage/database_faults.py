"""What a fault of a database means, by the driver's own code and never by its text."""

import sqlite3

from sqlalchemy import exc

#: Deadlock, lock wait, and a row changed since the snapshot (MariaDB with innodb_snapshot_isolation): begin again.
_MYSQL_COLLISIONS = frozenset({1213, 1205, 1020})
#: Not reachable, gone away, lost, shutting down, killed, too many connections, read-only while failing over.
_MYSQL_AWAY = frozenset({0, 1040, 1053, 1129, 1290, 1927, 2002, 2003, 2006, 2013, 2014, 2055})
_MYSQL_LOCK_WAIT = 1205
#: Wrong user or password, no rights on the database, no such database, a user who may log in by a socket alone.
_MYSQL_REFUSED = frozenset({1044, 1045, 1049, 1698})

_SQLITE_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_SQLITE_AWAY = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY}


def _code(fault: BaseException) -> tuple[str, int] | None:
    """Return the driver's own code of a fault: never its text."""
    if not isinstance(fault, exc.DBAPIError) or fault.orig is None:
        return None
    if isinstance(fault.orig, sqlite3.Error):
        # The extended code of a primary one has it in its low byte.
        return "sqlite", getattr(fault.orig, "sqlite_errorcode", 0) & 0xFF
    first = fault.orig.args[0] if fault.orig.args else None
    return ("mysql", first) if isinstance(first, int) else None


def is_collision(fault: BaseException) -> bool:
    """Tell whether another transaction was in the way, so that the same one may succeed from its beginning."""
    match _code(fault):
        case ("mysql", code):
            return code in _MYSQL_COLLISIONS
        case ("sqlite", code):
            return code in _SQLITE_BUSY
    return False


def is_lock_wait(fault: BaseException) -> bool:
    """Tell whether a row lock was waited for in vain."""
    return _code(fault) == ("mysql", _MYSQL_LOCK_WAIT)


def is_away(fault: BaseException) -> bool:
    """Tell whether the database could not be reached, or the connection to it was lost."""
    if isinstance(fault, exc.DBAPIError) and fault.connection_invalidated:
        return True
    match _code(fault):
        case ("mysql", code):
            return code in _MYSQL_AWAY
        case ("sqlite", code):
            return code in _SQLITE_AWAY
    return False


def is_refused(fault: BaseException) -> bool:
    """Tell whether the server does not let this user into this database, as it will not the next time either."""
    match _code(fault):
        case ("mysql", code):
            return code in _MYSQL_REFUSED
    return False


def plain_reason(fault: exc.DBAPIError) -> str:
    """Return the driver's words without the statement and its parameters."""
    arguments = getattr(fault.orig, "args", ())
    return str(arguments[-1] if arguments else fault.orig)[:300]
