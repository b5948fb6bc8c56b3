"""SQLite in a simulation: each statement is a switching point, the clock is virtual, and crashes roll back."""

import re
import sqlite3
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, cast

from harness.simulation.machine import patches
from harness.simulation.machine.feed_numbers import FeedNumbers
from harness.simulation.machine.kernel import KERNEL

#: The Julian day of the beginning of 1970.
_JULIAN_EPOCH = 2440587.5
#: The probability that a statement takes time, and the mean of that time in seconds.
_SLOW, _SECONDS = 0.1, 0.002

_WRITE = re.compile(r"(?:INSERT INTO|INSERT OR IGNORE INTO|UPDATE|DELETE FROM) (\w+)")

#: Called with the process whose transaction was committed, the file of its database, and the tables written.
Committed = Callable[[str, str, Collection[str]], None]


class StoreFaults:
    """Holds which processes cannot reach the store or lose the answer to a COMMIT, and the observer of commits."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Remove all faults."""
        self.cut_off: set[str] = set()
        #: The number of commits until one whose outcome the process does not learn, by process.
        self.lost_commits: dict[str, int] = {}
        self.committed: Committed | None = None
        self.feed_numbers = FeedNumbers()
        self.connections: list[SimulatedConnection] = []
        #: The folder in which the databases were made, and the folder with their copies, which is used instead.
        self.moved: tuple[str, str] | None = None


FAULTS = StoreFaults()


class Cursor(sqlite3.Cursor):
    """A cursor whose statements are switching points."""

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        """Execute a statement, now or after other tasks have run."""
        _statement(self, sql)
        if sql.startswith("PRAGMA") and "=" in sql:
            cast(SimulatedConnection, self.connection).settings.append(sql)
        super().execute(sql, parameters)
        if (since := FAULTS.feed_numbers.renumber(self, sql)) is not None:
            cast(SimulatedConnection, self.connection).numbered = since
        return self

    def executemany(self, sql: str, parameters: Any, /) -> Any:
        """Execute a statement several times, now or after other tasks have run."""
        _statement(self, sql)
        return super().executemany(sql, parameters)


class SimulatedConnection(sqlite3.Connection):
    """A connection of a simulated process."""

    def __init__(self, database: Any, *args: Any, **named: Any) -> None:
        self.process = KERNEL.current.process
        self.file = str(database)
        # SQLite itself must not wait, because it would block the only thread of the machine.
        self._arguments = (args, {**named, "timeout": 0.0})
        #: The settings of this connection, to be applied again.
        self.settings: list[str] = []
        self._functions: list[tuple[Any, dict[str, Any]]] = []
        #: The tables that were written since the last commit.
        self.written: set[str] = set()
        #: When the number of this transaction in the change feed was assigned, if that was before others committed.
        self.numbered: float | None = None
        super().__init__(place(self.file), *args, **self._arguments[1])
        self.changed = 0
        # As in SQLite, the value is the same for all rows of a statement.
        self.create_function("julianday", -1, _julian_day, deterministic=True)
        FAULTS.connections.append(self)

    def let_go(self) -> None:
        """Close the file until :meth:`take_up`."""
        self._level = self.isolation_level
        super().close()

    def take_up(self) -> None:
        """Open the file again, or the copy in its place."""
        # Calling __init__ a second time would lose the attributes of the connection.
        own = dict(vars(self))
        args, named = self._arguments
        super().__init__(place(self.file), *args, **named)
        vars(self).update(own)
        self.changed = 0
        self.isolation_level = self._level
        for args, named in self._functions:
            super().create_function(*args, **named)
        for setting in self.settings:
            sqlite3.Cursor(self).execute(setting)

    def create_function(self, *args: Any, **named: Any) -> None:
        """Create a function for SQL."""
        self._functions.append((args, named))
        super().create_function(*args, **named)

    def close(self) -> None:
        """Close the file for good."""
        if self in FAULTS.connections:
            FAULTS.connections.remove(self)
        super().close()

    def cursor(self, factory: Any = Cursor) -> Any:
        """Return a cursor."""
        return super().cursor(factory)

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        """Execute a statement as :class:`Cursor` does; the method of ``sqlite3`` would not use that class."""
        return self.cursor().execute(sql, parameters)

    def commit(self) -> None:
        """Commit, and notify the observer."""
        if not self.in_transaction:
            return
        _point(self, "COMMIT")
        so_far = self.total_changes
        super().commit()
        if self.numbered is not None:
            FAULTS.feed_numbers.committed(self.numbered)
            self.numbered = None
        if so_far != self.changed:
            self.changed = so_far
            if FAULTS.committed is not None:
                with KERNEL.atomic():
                    FAULTS.committed(self.process, self.file, self.written)
            self.written.clear()
            if self._loses_answer():
                raise _away("the answer to COMMIT is lost")
        _point(self, "committed")

    def rollback(self) -> None:
        """Roll back."""
        self.numbered = None
        super().rollback()

    def _loses_answer(self) -> bool:
        left = FAULTS.lost_commits.get(self.process, 0)
        if left == 1:
            del FAULTS.lost_commits[self.process]
        elif left:
            FAULTS.lost_commits[self.process] = left - 1
        return left == 1


def connect(database: Any, *args: Any, **named: Any) -> SimulatedConnection:
    """Open a database file for the calling process, in place of ``sqlite3.connect``."""
    with KERNEL.atomic():
        return SimulatedConnection(database, *args, **named)


def install() -> None:
    """Replace ``sqlite3.connect``."""
    module: Any = sqlite3
    module.connect = module.dbapi2.connect = connect


def drop_connections(process: str) -> None:
    """Roll back and close the open connections of a crashed process."""
    for connection in [one for one in FAULTS.connections if one.process == process]:
        connection.close()


def is_in_transaction() -> bool:
    """Return whether any connection has an open transaction."""
    return any(connection.in_transaction for connection in FAULTS.connections)


def let_go() -> None:
    """Close all files so that they can be copied, outside transactions; no task runs until :func:`take_up`."""
    KERNEL.is_atomic += 1
    for connection in FAULTS.connections:
        connection.let_go()


def take_up(folder: str, copy: str) -> None:
    """Open the closed files again, each in the copy of its folder."""
    FAULTS.moved = folder, copy
    for connection in FAULTS.connections:
        connection.take_up()
    KERNEL.is_atomic -= 1


def place(file: str | None) -> str:
    """Return the current path of a file."""
    file = str(file)
    if FAULTS.moved is not None and file.startswith(FAULTS.moved[0]):
        return FAULTS.moved[1] + file.removeprefix(FAULTS.moved[0])
    return file


def _julian_day(*_now: object) -> float:
    # SQLite calls this for each row that a statement examines.
    return patches.wall_clock(patches.STORE) / 86400 + _JULIAN_EPOCH


def _statement(cursor: sqlite3.Cursor, sql: str) -> None:
    connection: Any = cursor.connection
    if (table := _written_table(sql)) is not None:
        connection.written.add(table)
    _point(connection, sql)


@cache
def _written_table(sql: str) -> str | None:
    return found[1] if (found := _WRITE.match(sql)) else None


def _point(connection: SimulatedConnection, sql: str) -> None:
    """Let other tasks run, and perhaps some time pass; fail if the store cannot be reached."""
    if KERNEL.is_atomic:
        return
    KERNEL.note(sql)
    chance = KERNEL.chance.random()
    KERNEL.sleep(KERNEL.chance.expovariate(1 / _SECONDS) if chance < _SLOW else 0.0)
    if connection.process in FAULTS.cut_off and not connection.file.endswith(".guests"):
        raise _away("the store cannot be reached")


def _away(reason: str) -> sqlite3.OperationalError:
    fault = sqlite3.OperationalError(reason)
    fault.sqlite_errorcode = sqlite3.SQLITE_IOERR
    fault.sqlite_errorname = "SQLITE_IOERR"
    return fault
