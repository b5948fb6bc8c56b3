"""The fake driver's guests, in a file that outlives the agent, as a hypervisor's own records would."""

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from moorage import errors
from moorage.model import Guest

_SCHEMA = """
CREATE TABLE IF NOT EXISTS guests (
    host TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    instance_uuid TEXT NOT NULL,
    claim_id TEXT NOT NULL,
    running INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (host, attempt_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS amounts (
    host TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    resource_class TEXT NOT NULL,
    amount INTEGER NOT NULL,
    PRIMARY KEY (host, attempt_id, resource_class)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS destroyed (
    host TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    PRIMARY KEY (host, attempt_id)
) WITHOUT ROWID;
"""

# Another process may look into the file while an agent writes; its transactions are short. Arbitrary, and ample.
_BUSY_SECONDS = 10.0


class GuestFile:
    """Guests by host and attempt, and the attempts that have been destroyed.

    A destroyed attempt is remembered without end: it is one short row, and forgetting it by the clock would let a
    message that was late enough start its guest again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the file, and make it if it is not there.

        :raises ConfigurationError: it cannot be opened.
        """
        with self._lock:
            if self._connection is not None:
                return
            try:
                # Autocommit: transactions are begun by hand.
                connection = sqlite3.connect(
                    self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
                )
                connection.execute("PRAGMA journal_mode=wal")
                connection.execute("PRAGMA synchronous=normal")
                connection.executescript(_SCHEMA)
            except sqlite3.Error as fault:
                raise errors.ConfigurationError(reason=f"the guests' file {self._path}: {fault}") from fault
            self._connection = connection

    def close(self) -> None:
        """Close the file; the guests stay in it."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def begin(self, guest: Guest, capacity: Mapping[str, float]) -> bool:
        """Set aside what ``guest`` holds of its host, in one transaction; tell whether it runs already.

        :raises BuildFailed: the attempt has been destroyed, has a guest of another claim, or does not fit.
        """
        with self._transaction() as connection:
            found = _one(connection, "SELECT claim_id, running FROM guests WHERE host = ? AND attempt_id = ?", guest)
            if found is not None:
                if found[0] != guest.claim_id:
                    raise _failed(guest, f"attempt {guest.attempt_id} has a guest of another claim")
                return bool(found[1])
            if _one(connection, "SELECT 1 FROM destroyed WHERE host = ? AND attempt_id = ?", guest):
                raise _failed(guest, f"attempt {guest.attempt_id} has been destroyed")
            _check_room(connection, guest, capacity)
            connection.execute(
                "INSERT INTO guests (host, attempt_id, instance_uuid, claim_id) VALUES (?, ?, ?, ?)",
                (guest.host, guest.attempt_id, guest.instance_uuid, guest.claim_id),
            )
            connection.executemany(
                "INSERT INTO amounts (host, attempt_id, resource_class, amount) VALUES (?, ?, ?, ?)",
                [(guest.host, guest.attempt_id, name, amount) for name, amount in guest.resources.items()],
            )
            return False

    def finish(self, guest: Guest) -> None:
        """Note that ``guest`` runs.

        :raises BuildFailed: it has been destroyed meanwhile.
        """
        with self._transaction() as connection:
            changed = connection.execute(
                "UPDATE guests SET running = 1 WHERE host = ? AND attempt_id = ?", (guest.host, guest.attempt_id)
            )
            if not changed.rowcount:
                raise _failed(guest, f"attempt {guest.attempt_id} was destroyed while its guest was being built")

    def destroy(self, host: str, attempt_id: str, claim_id: str) -> bool:
        """Forget an attempt's guest with all it holds, and remember the attempt; tell whether there was a guest.

        :raises InvalidState: the guest was started under another claim.
        """
        key = (host, attempt_id)
        with self._transaction() as connection:
            found = connection.execute("SELECT claim_id FROM guests WHERE host = ? AND attempt_id = ?", key).fetchone()
            if found is not None and found[0] != claim_id:
                raise errors.InvalidState(
                    reason=f"the guest of attempt {attempt_id} on host {host} has claim {found[0]}, not {claim_id}"
                )
            connection.execute("DELETE FROM amounts WHERE host = ? AND attempt_id = ?", key)
            connection.execute("DELETE FROM guests WHERE host = ? AND attempt_id = ?", key)
            connection.execute("INSERT OR IGNORE INTO destroyed (host, attempt_id) VALUES (?, ?)", key)
            return found is not None

    def guests(self, host: str | None = None) -> list[Guest]:
        """Return the guests on ``host``, or on all hosts, whether or not they run yet."""
        with self._transaction("DEFERRED") as connection:
            rows = connection.execute(
                "SELECT host, attempt_id, instance_uuid, claim_id FROM guests "
                "WHERE ? IS NULL OR host = ? ORDER BY host, attempt_id",
                (host, host),
            ).fetchall()
            amounts: dict[tuple[str, str], dict[str, int]] = {}
            for its_host, attempt_id, name, amount in connection.execute(
                "SELECT host, attempt_id, resource_class, amount FROM amounts WHERE ? IS NULL OR host = ?", (host, host)
            ):
                amounts.setdefault((its_host, attempt_id), {})[name] = amount
        return [
            Guest(
                host=its_host,
                attempt_id=attempt_id,
                instance_uuid=instance_uuid,
                claim_id=claim_id,
                resources=amounts.get((its_host, attempt_id), {}),
            )
            for its_host, attempt_id, instance_uuid, claim_id in rows
        ]

    def unfinished(self, host: str) -> list[str]:
        """Return the attempts on ``host`` whose guests do not run."""
        with self._transaction("DEFERRED") as connection:
            rows = connection.execute(
                "SELECT attempt_id FROM guests WHERE host = ? AND NOT running", (host,)
            ).fetchall()
        return [attempt_id for (attempt_id,) in rows]

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        # IMMEDIATE for writers, so that no reader becomes one; those who only look keep nobody from writing.
        with self._lock:
            if self._connection is None:
                raise errors.InvalidState(reason=f"the guests' file {self._path} is closed")
            self._connection.execute(f"BEGIN {kind}")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


def _one(connection: sqlite3.Connection, query: str, guest: Guest) -> tuple[object, ...] | None:
    found: tuple[object, ...] | None = connection.execute(query, (guest.host, guest.attempt_id)).fetchone()
    return found


def _check_room(connection: sqlite3.Connection, guest: Guest, capacity: Mapping[str, float]) -> None:
    """Count what all guests of the host hold; a host does not know of claims, so an over-commit shows here."""
    used: dict[str, int] = dict(
        connection.execute(
            "SELECT resource_class, SUM(amount) FROM amounts WHERE host = ? GROUP BY resource_class", (guest.host,)
        ).fetchall()
    )
    for name, amount in guest.resources.items():
        free = capacity.get(name, 0) - used.get(name, 0)
        if amount > free:
            raise _failed(guest, f"the host is full: {amount} {name} asked, {free:g} free")


def _failed(guest: Guest, reason: str) -> errors.BuildFailed:
    return errors.BuildFailed(instance_uuid=guest.instance_uuid, host=guest.host, reason=reason)
