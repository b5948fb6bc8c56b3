"""The fake driver's file of guests, which outlives the agent, as a hypervisor's own records do."""

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import tenacity

from compute.driver import GuestOrder
from compute.fake import guest_schema
from moorage import errors
from moorage.model import Guest

#: The orders to an existing guest.
Action = Literal["stop", "start", "rebuild"]

# Seconds to wait for another process that reads the file. Arbitrary: much longer than a transaction.
_BUSY_SECONDS = 10.0


# If two processes change the mode of one file at the same time, SQLite does not wait for the busy time-out.
@tenacity.retry(
    retry=tenacity.retry_if_exception_message(message="database is locked"),
    stop=tenacity.stop_after_delay(_BUSY_SECONDS),
    wait=tenacity.wait_fixed(0.02),
    reraise=True,
)
def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode=wal")


class GuestFile:
    """Guests by host and attempt, their orders, and the destroyed attempts.

    A destroyed attempt is kept without end: it is one short row, and if it were deleted after some time, a later
    message could start its guest again. Its orders are deleted with the guest.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the file, and create it if it does not exist; one of an older version is upgraded.

        :raises ConfigurationError: it cannot be opened.
        """
        with self._lock:
            if self._connection is not None:
                return
            connection: sqlite3.Connection | None = None
            try:
                # Autocommit: transactions are begun by hand.
                connection = sqlite3.connect(
                    self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
                )
                _use_write_ahead_log(connection)
                connection.execute("PRAGMA synchronous=normal")
                guest_schema.upgrade(connection)
            except sqlite3.Error as fault:
                if connection is not None:
                    connection.close()
                place = f"the guests' file {self._path.absolute()} ([fake_driver] state_file)"
                raise errors.ConfigurationError(reason=f"{place}: {fault}") from fault
            self._connection = connection

    def close(self) -> None:
        """Close the file; the guests stay in it."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def begin(self, guest: Guest, capacity: Mapping[str, float]) -> bool:
        """Allocate the amounts of ``guest`` on its host, in one transaction; return whether it was made already.

        :raises BuildFailed: the attempt has been destroyed, has a guest of another claim, or does not fit.
        """
        with self._transaction() as connection:
            key = (guest.host, guest.attempt_id)
            if (found := _claim_and_running(connection, *key)) is not None:
                if found[0] != guest.claim_id:
                    raise _failed(guest, f"attempt {guest.attempt_id} has a guest of another claim")
                return found[1]
            if connection.execute("SELECT 1 FROM destroyed WHERE host = ? AND attempt_id = ?", key).fetchone():
                raise _failed(guest, f"attempt {guest.attempt_id} has been destroyed")
            _check_room(connection, guest, capacity)
            connection.execute(
                "INSERT INTO guests (host, attempt_id, instance_uuid, claim_id) VALUES (?, ?, ?, ?)",
                (*key, guest.instance_uuid, guest.claim_id),
            )
            connection.executemany(
                "INSERT INTO amounts (host, attempt_id, resource_class, amount) VALUES (?, ?, ?, ?)",
                [(*key, name, amount) for name, amount in guest.resources.items()],
            )
            return False

    def finish(self, guest: Guest) -> None:
        """Record that ``guest`` has been made, and runs.

        :raises BuildFailed: it has been destroyed meanwhile.
        """
        with self._transaction() as connection:
            changed = connection.execute(
                "UPDATE guests SET running = 1 WHERE host = ? AND attempt_id = ?", (guest.host, guest.attempt_id)
            )
            if not changed.rowcount:
                raise _failed(guest, f"attempt {guest.attempt_id} was destroyed while its guest was being built")

    def destroy(self, host: str, attempt_id: str, claim_id: str) -> None:
        """Delete an attempt's guest, if there is one, and record the attempt as destroyed.

        :raises InvalidState: the guest was started under another claim.
        """
        key = (host, attempt_id)
        with self._transaction() as connection:
            found = _claim_and_running(connection, host, attempt_id)
            if found is not None and found[0] != claim_id:
                raise errors.InvalidState(reason=_other_claim(host, attempt_id, found[0], claim_id))
            connection.execute("DELETE FROM amounts WHERE host = ? AND attempt_id = ?", key)
            connection.execute("DELETE FROM orders WHERE host = ? AND attempt_id = ?", key)
            connection.execute("DELETE FROM guests WHERE host = ? AND attempt_id = ?", key)
            connection.execute("INSERT OR IGNORE INTO destroyed (host, attempt_id) VALUES (?, ?)", key)

    def begin_order(self, host: str, order: GuestOrder, action: Action) -> bool:
        """Record the start of an order, in one transaction; return whether it was carried out already.

        A guest to be rebuilt does not run from now on.

        :raises InvalidState: the attempt has no guest that was ever made, a guest of another claim, or a later order.
        :raises RequestIdReused: another action was ordered under this id.
        """
        key = (host, order.attempt_id)
        with self._transaction() as connection:
            _require_made(connection, host, order)
            found = connection.execute(
                "SELECT action, done, number = (SELECT MAX(number) FROM orders WHERE host = ? AND attempt_id = ?) "
                "FROM orders WHERE host = ? AND attempt_id = ? AND order_id = ?",
                (*key, *key, order.order_id),
            ).fetchone()
            if found is None:
                _require_latest(connection, host, order, action)
                connection.execute(
                    "INSERT INTO orders (host, attempt_id, order_id, action, number) SELECT ?, ?, ?, ?, "
                    "COALESCE(MAX(number), 0) + 1 FROM orders WHERE host = ? AND attempt_id = ?",
                    (*key, order.order_id, action, *key),
                )
            else:
                its_action, done, is_latest = found
                if its_action != action:
                    raise errors.RequestIdReused(request_id=order.order_id)
                if not is_latest:
                    raise _overtaken(host, order, action)
                if done:
                    return True
            if action == "rebuild":
                connection.execute("UPDATE guests SET stopped = 1 WHERE host = ? AND attempt_id = ?", key)
            return False

    def finish_order(self, host: str, order: GuestOrder, action: Action) -> bool:
        """Record that an order was carried out; return whether the guest still existed."""
        key = (host, order.attempt_id)
        with self._transaction() as connection:
            changed = connection.execute(
                "UPDATE orders SET done = 1 WHERE host = ? AND attempt_id = ? AND order_id = ?", (*key, order.order_id)
            )
            if not changed.rowcount:
                return False
            connection.execute(
                "UPDATE guests SET stopped = ? WHERE host = ? AND attempt_id = ?", (action == "stop", *key)
            )
            if action == "rebuild":
                connection.execute(
                    "UPDATE guests SET rebuilt_as = ? WHERE host = ? AND attempt_id = ?", (order.order_id, *key)
                )
            return True

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
        """Return the attempts on ``host`` whose guests were never completed."""
        return [row[0] for row in self._rows("SELECT attempt_id FROM guests WHERE host = ? AND NOT running", host)]

    def stopped(self, host: str) -> list[str]:
        """Return the attempts on ``host`` whose guests were completed, and do not run now."""
        return [row[0] for row in self._rows("SELECT attempt_id FROM guests WHERE host = ? AND stopped", host)]

    def rebuilt(self, host: str) -> dict[str, str]:
        """Return the attempts on ``host`` whose guests were rebuilt, each with its last rebuild order."""
        return dict(self._rows("SELECT attempt_id, rebuilt_as FROM guests WHERE host = ? AND rebuilt_as NOTNULL", host))

    def _rows(self, query: str, host: str) -> list[Any]:
        with self._transaction("DEFERRED") as connection:
            return connection.execute(query, (host,)).fetchall()

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        # Writers begin IMMEDIATE, so that no transaction changes from reading to writing; readers do not block writers.
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


def _claim_and_running(connection: sqlite3.Connection, host: str, attempt_id: str) -> tuple[str, bool] | None:
    """Return the claim of an attempt's guest, and whether it was made; None if there is no guest."""
    query = "SELECT claim_id, running FROM guests WHERE host = ? AND attempt_id = ?"
    found = connection.execute(query, (host, attempt_id)).fetchone()
    return None if found is None else (found[0], bool(found[1]))


def _require_made(connection: sqlite3.Connection, host: str, order: GuestOrder) -> None:
    found = _claim_and_running(connection, host, order.attempt_id)
    if found is None:
        raise errors.InvalidState(reason=f"attempt {order.attempt_id} has no guest on host {host}")
    claim_id, made = found
    if claim_id != order.claim_id:
        raise errors.InvalidState(reason=_other_claim(host, order.attempt_id, claim_id, order.claim_id))
    if not made:
        raise errors.InvalidState(reason=f"the guest of attempt {order.attempt_id} on host {host} was never started")


def _require_latest(connection: sqlite3.Connection, host: str, order: GuestOrder, action: Action) -> None:
    """Record the number of a new order; refuse one whose number is below a recorded one."""
    if order.number is None:
        return
    changed = connection.execute(
        "UPDATE guests SET greatest_order = ? WHERE host = ? AND attempt_id = ? AND greatest_order <= ?",
        (order.number, host, order.attempt_id, order.number),
    )
    if not changed.rowcount:
        raise _overtaken(host, order, action)


def _overtaken(host: str, order: GuestOrder, action: Action) -> errors.InvalidState:
    return errors.InvalidState(
        reason=f"the order to {action} the guest of attempt {order.attempt_id} on host {host} came before others"
    )


def _other_claim(host: str, attempt_id: str, found: str, named: str) -> str:
    return f"the guest of attempt {attempt_id} on host {host} has claim {found}, not {named}"


def _check_room(connection: sqlite3.Connection, guest: Guest, capacity: Mapping[str, float]) -> None:
    """Check that a guest fits on its host. The host does not know claims, so this check detects an over-commit."""
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
