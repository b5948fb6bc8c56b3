"""Test which old attempts and migrations of instances that exist the conductors purge, on SQLite and on MariaDB."""

from typing import Any

import pytest
from sqlalchemy import Connection, Table, event, select
from support.conductor.record_builders import CELL_UUID, RECORDS, advance, begin, built, selected

from conductor.cell.records.attempts import attempt_row
from conductor.cell.records.migrations import MigrationRecords
from conductor.engine.operations import Operations
from conductor.engine.steps import CLEAN, MOVE, UNSHELVE, Backoff, Ended
from conductor.retention import CellEndedRecords, SuperEndedRecords
from conductor.schema import (
    cell_attempts,
    cell_instances,
    cell_migrations,
    cell_operations,
    conductor_migrations,
    conductor_operations,
)
from moorage import ids
from moorage.db.columns import now
from moorage.db.database import Database
from moorage.messages import PrepareMoveInCell

KEPT = 1000.0
SCOPE = {"cell_uuid": CELL_UUID}
#: The number of newest records that are kept.
NEWEST = 100
MOVES = NEWEST + 30


class History:
    """An instance with many failed moves, the attempt of each with the number of the move; numbers begin with 2."""

    def __init__(self, database: Database, moves: int = MOVES) -> None:
        self._database = database
        self.uuid, self.current = built(database)
        self.attempts = {number: ids.fresh() for number in range(2, moves + 2)}
        self.migrations = {number: ids.fresh() for number in self.attempts}
        database.write(self._fill)
        self.change(cell_attempts, self.current, state="active")
        for table in (cell_attempts, cell_migrations, conductor_migrations):
            old = table.update().values(updated_at=table.c.updated_at - KEPT - 1)
            database.write(lambda connection, old=old: connection.execute(old))  # type: ignore[misc]

    def _fill(self, connection: Connection) -> None:
        times = {"created_at": now(), "updated_at": now()}
        ended = {**SCOPE, **times, "state": "failed", "guest_gone": True}
        made = [
            attempt_row(self.uuid, selected(CELL_UUID), attempt_id, number, ids.fresh())
            for number, attempt_id in self.attempts.items()
        ]
        connection.execute(cell_attempts.insert().values(**ended), made)
        of_instance = {"instance_uuid": self.uuid, "request_id": "r", "kind": "cold-migration", "state": "failed"}
        source = {"instance_state": "active", "source_number": 1, "source_host": "a", "is_aborted": False}
        in_cell = [{"uuid": uuid, "created_at": float(number)} for number, uuid in self.migrations.items()]
        connection.execute(cell_migrations.insert().values(**SCOPE, **of_instance, **source, updated_at=now()), in_cell)
        in_order = [{"uuid": uuid} for uuid in self.migrations.values()]
        connection.execute(conductor_migrations.insert().values(**SCOPE, **of_instance, **times), in_order)

    def change(self, table: Table, uuid: str, **values: Any) -> None:
        """Change columns of one row."""
        this = (table.c.attempt_id if table is cell_attempts else table.c.uuid) == uuid
        self._database.write(lambda connection: connection.execute(table.update().where(this).values(**values)))

    def left(self, table: Table) -> set[str]:
        """Return the keys of the rows of the instance."""
        key = table.c.attempt_id if table is cell_attempts else table.c.uuid
        query = select(key).where(table.c.instance_uuid == self.uuid)
        return set(self._database.read(lambda connection: connection.scalars(query).all()))


@pytest.fixture
def operations(database: Database) -> Operations:
    """A cell's operations."""
    return Operations(database, cell_operations, "me", SCOPE, Backoff())


def ended(database: Database, operations: Operations, subject: str, kind: str = MOVE) -> None:
    """End an operation long ago."""
    operation = begin(database, operations, subject, kind)
    advance(operations, operation, lambda _connection: Ended())
    for table in (cell_operations, conductor_operations):
        old = table.update().values(due_at=table.c.due_at - KEPT - 1).where(table.c.state != "pending")
        database.write(lambda connection, old=old: connection.execute(old))  # type: ignore[misc]


def prune(database: Database, at_once: int = 1000) -> None:
    CellEndedRecords(database, cell_operations, SCOPE, KEPT, at_once).prune()


@pytest.mark.parametrize("kind", [MOVE, UNSHELVE])
def test_the_newest_attempts_and_migrations_of_an_instance_that_exists_are_kept(
    database: Database, operations: Operations, kind: str
) -> None:
    moved, other = History(database), History(database)
    ended(database, operations, moved.uuid, kind)

    prune(database)

    newest = range(MOVES + 2 - NEWEST, MOVES + 2)
    assert moved.left(cell_attempts) == {moved.current, *(moved.attempts[number] for number in newest)}
    assert moved.left(cell_migrations) == {moved.migrations[number] for number in newest}
    assert len(other.left(cell_attempts)) == MOVES + 1, "no operation of it has reached its age"
    assert len(other.left(cell_migrations)) == MOVES
    number = database.read(lambda connection: RECORDS.next_number(connection, moved.uuid))
    assert number == MOVES + 2


def test_an_old_attempt_that_may_be_needed_is_kept(database: Database, operations: Operations) -> None:
    moved = History(database)
    with_guest, young, cleaned, current, oldest = (moved.attempts[number] for number in (3, 4, 5, 6, 7))
    moved.change(cell_attempts, with_guest, guest_gone=False)
    moved.change(cell_attempts, young, updated_at=now())
    begin(database, operations, cleaned, CLEAN)
    # A shelved instance has a current attempt that has ended.
    moved.change(cell_instances, moved.uuid, attempt_number=6)
    ended(database, operations, moved.uuid)

    prune(database)

    assert {with_guest, young, cleaned, current} <= moved.left(cell_attempts)
    assert oldest not in moved.left(cell_attempts)


def test_the_attempts_of_a_move_that_has_not_ended_are_kept(database: Database, operations: Operations) -> None:
    moved = History(database)
    open_one = moved.migrations[2]
    moved.change(cell_instances, moved.uuid, migration_uuid=open_one)
    ended(database, operations, moved.uuid)

    prune(database)

    assert len(moved.left(cell_attempts)) == MOVES + 1
    assert open_one in moved.left(cell_migrations)
    assert moved.migrations[3] not in moved.left(cell_migrations)


def test_a_guest_that_is_reported_as_left_at_that_moment_keeps_its_attempt(
    database: Database, operations: Operations
) -> None:
    moved = History(database)
    ended(database, operations, moved.uuid)
    reported: list[str] = []

    def report(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT cell_attempts.attempt_id") and not reported:
            reported.append(moved.attempts[2])
            cursor.connection.cursor().execute(
                f"UPDATE cell_attempts SET guest_gone = 0 WHERE attempt_id = '{moved.attempts[2]}'"
            )

    event.listen(database.engine, "after_cursor_execute", report)
    try:
        prune(database)
    finally:
        event.remove(database.engine, "after_cursor_execute", report)

    assert reported
    assert moved.attempts[2] in moved.left(cell_attempts)
    assert moved.attempts[3] not in moved.left(cell_attempts)


def test_a_transaction_deletes_a_bounded_number_of_old_attempts(database: Database, operations: Operations) -> None:
    moved = History(database)
    deleted: list[int] = []

    def note(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE FROM cell_attempts"):
            deleted.append(cursor.rowcount)

    event.listen(database.engine, "after_cursor_execute", note)
    try:
        for _ in range(3):
            ended(database, operations, moved.uuid)
            prune(database, at_once=20)
    finally:
        event.remove(database.engine, "after_cursor_execute", note)

    assert max(deleted) == 20
    assert len(moved.left(cell_attempts)) == NEWEST + 1


def test_a_move_that_finds_no_host_again_and_again_leaves_a_bounded_number_of_migrations(database: Database) -> None:
    moved, other = History(database), History(database)
    claimed = moved.migrations[2]
    moved.change(cell_migrations, claimed, first_number=2)
    records = MigrationRecords(RECORDS)
    order = PrepareMoveInCell(
        request_id="r", instance_uuid=moved.uuid, migration_uuid=ids.fresh(), kind="cold-migration"
    )

    def prepare(connection: Connection) -> None:
        instance = RECORDS.lock_known(connection, moved.uuid)
        records.add(connection, order, instance, RECORDS.current(connection, instance), "r")

    database.write(prepare)

    newest = range(MOVES + 2 - NEWEST, MOVES + 2)
    kept = {order.migration_uuid, claimed, *(moved.migrations[number] for number in newest)}
    assert moved.left(cell_migrations) == kept
    assert len(other.left(cell_migrations)) == MOVES


def test_the_super_conductor_keeps_the_newest_migrations_and_those_that_have_not_ended(database: Database) -> None:
    operations = Operations(database, conductor_operations, "me", {}, Backoff())
    moved = History(database)
    moved.change(conductor_migrations, moved.migrations[2], state="moving")
    ended(database, operations, moved.uuid)

    SuperEndedRecords(database, conductor_operations, {}, KEPT).prune()

    newest = range(MOVES + 2 - NEWEST, MOVES + 2)
    assert moved.left(conductor_migrations) == {moved.migrations[number] for number in (2, *newest)}
