"""Test which records of ended operations the conductors purge and which they keep, on SQLite and on MariaDB."""

from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, event, select
from support.conductor.record_builders import CELL_UUID, RECORDS, advance, begin, built

from conductor.cell.records import unknown_guests
from conductor.engine.operations import Operations
from conductor.engine.revoked_claims import RevokedClaims
from conductor.engine.steps import BUILD, CLEAN, DELETE, Backoff, Ended, NoPayload, Wait
from conductor.housekeeping import prune
from conductor.retention import CellDeletedInstances, CellEndedRecords, EndedRecords
from conductor.schema import (
    cell_attempts,
    cell_disowned,
    cell_guests,
    cell_hosts,
    cell_instances,
    cell_operations,
    cell_requests,
    conductor_operations,
)
from moorage import ids
from moorage.db.columns import now
from moorage.db.database import Database
from moorage.messages import ListStrangersInCell
from moorage.model import Guest
from moorage.service.pruning import AT_ONCE
from moorage.service.stored_requests import Retention, StoredRequests

KEPT = 1000.0
SCOPE = {"cell_uuid": CELL_UUID}


@pytest.fixture
def operations(database: Database) -> Operations:
    """A cell's operations."""
    return Operations(database, cell_operations, "me", SCOPE, Backoff())


def begun(database: Database, operations: Operations, kind: str, subject: str) -> str:
    """Begin an operation, and return its uuid."""
    operation = begin(database, operations, subject, kind)
    advance(operations, operation, lambda _connection: Wait("two", NoPayload()))
    return operation.uuid


def ended(database: Database, operations: Operations, kind: str, subject: str, reason: str | None = None) -> str:
    """Begin an operation and end it, and return its uuid."""
    operation = begin(database, operations, subject, kind)
    advance(operations, operation, lambda _connection: Ended(reason))
    return operation.uuid


def note_gone(database: Database, attempt_id: str) -> None:
    database.write(lambda connection: RECORDS.change_attempt(connection, attempt_id, guest_gone=True))


def grow_old(database: Database, seconds: float = KEPT + 1) -> None:
    """Make all operations older by some seconds."""
    for table in (cell_operations, conductor_operations):
        older = {name: table.c[name] - seconds for name in ("due_at", "updated_at", "created_at")}
        database.write(partial(Connection.execute, statement=table.update().values(**older)))


def left(database: Database) -> set[str]:
    """Return the uuids of the operations in the records of all cells."""
    return set(database.read(lambda connection: connection.scalars(select(cell_operations.c.uuid)).all()))


def attempts_left(database: Database) -> set[str]:
    return set(database.read(lambda connection: connection.scalars(select(cell_attempts.c.attempt_id)).all()))


def test_old_ended_operations_are_purged_and_operations_under_way_are_kept(
    database: Database, operations: Operations
) -> None:
    ended(database, operations, BUILD, ids.fresh())
    ended(database, operations, BUILD, ids.fresh(), "there is no such host")
    ended(database, operations, CLEAN, ids.fresh())
    waiting = begun(database, operations, BUILD, ids.fresh())
    grow_old(database)
    young = ended(database, operations, BUILD, ids.fresh())

    assert CellEndedRecords(database, cell_operations, SCOPE, KEPT).prune() == 3

    assert left(database) == {waiting, young}


def test_operations_that_an_older_version_has_ended_are_purged(database: Database, operations: Operations) -> None:
    ended(database, operations, BUILD, ids.fresh())
    database.write(lambda connection: connection.execute(cell_operations.update().values(due_at=None)))
    records = CellEndedRecords(database, cell_operations, SCOPE, KEPT)
    assert records.prune() == 0

    grow_old(database)

    assert records.prune() == 1


def test_the_attempts_of_a_deleted_instance_are_purged_with_the_operation_that_deleted_it(
    database: Database, operations: Operations
) -> None:
    (deleted, gone), (_, kept) = built(database), built(database)
    note_gone(database, gone)
    note_gone(database, kept)
    ended(database, operations, DELETE, deleted)
    grow_old(database)

    CellEndedRecords(database, cell_operations, SCOPE, KEPT).prune()

    assert attempts_left(database) == {kept}, "the other instance is not deleted"
    instances = database.read(lambda connection: connection.scalars(select(cell_instances.c.uuid)).all())
    assert deleted in instances, "a late order must not build it again"


def test_an_attempt_is_kept_until_its_host_has_reported_that_the_guest_is_gone(
    database: Database, operations: Operations
) -> None:
    deleted, attempt = built(database)
    order = ended(database, operations, DELETE, deleted)
    grow_old(database)
    records = CellEndedRecords(database, cell_operations, SCOPE, KEPT)

    assert records.prune() == 0
    assert attempts_left(database) == {attempt}
    assert left(database) == {order}

    note_gone(database, attempt)

    assert records.prune() == 1
    assert attempts_left(database) == set()


def test_more_operations_than_fit_in_one_transaction_are_purged(database: Database, operations: Operations) -> None:
    # An operation that is kept does not block the others.
    stuck = ended(database, operations, DELETE, built(database)[0])
    for _ in range(5):
        ended(database, operations, BUILD, ids.fresh())
    grow_old(database)

    assert CellEndedRecords(database, cell_operations, SCOPE, KEPT, at_once=2).prune() == 5

    assert left(database) == {stuck}


def test_a_cell_does_not_purge_operations_of_another_cell(database: Database, operations: Operations) -> None:
    ended(database, operations, BUILD, ids.fresh())
    grow_old(database)

    assert CellEndedRecords(database, cell_operations, {"cell_uuid": ids.fresh()}, KEPT).prune() == 0


def test_the_super_conductor_purges_its_own_operations(database: Database) -> None:
    operations = Operations(database, conductor_operations, "me", {}, Backoff())
    ended(database, operations, DELETE, ids.fresh())
    grow_old(database)

    assert EndedRecords(database, conductor_operations, {}, KEPT).prune() == 1


def test_revoked_claims_of_one_cell_are_forgotten_in_bounded_transactions(database: Database) -> None:
    revoked = {number: {"claim_id": ids.fresh(), "consumer_uuid": ids.fresh()} for number in range(2 * AT_ONCE + 5)}
    rows: list[dict[str, Any]] = [{**one, **SCOPE, "created_at": 1.0} for one in revoked.values()]
    other = {**revoked[0], "cell_uuid": ids.fresh(), "created_at": 1.0}
    database.write(lambda connection: connection.execute(cell_disowned.insert(), [*rows, other]))
    claims = RevokedClaims(cell_disowned, SCOPE)
    young = ids.fresh()
    database.write(lambda connection: claims.add(connection, young, ids.fresh()))
    deleted: list[int] = []

    def note(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE"):
            deleted.append(cursor.rowcount)

    event.listen(database.engine, "after_cursor_execute", note)
    try:
        prune(
            database,
            StoredRequests(database, cell_requests),
            claims,
            CellEndedRecords(database, cell_operations, SCOPE, KEPT),
            CellDeletedInstances(database, CELL_UUID, KEPT),
            Retention(KEPT, KEPT, KEPT),
        )
    finally:
        event.remove(database.engine, "after_cursor_execute", note)

    assert (max(deleted), sum(deleted)) == (AT_ONCE, len(rows))
    found = database.read(lambda connection: set(connection.scalars(select(cell_disowned.c.cell_uuid))))
    assert found == {CELL_UUID, other["cell_uuid"]}
    assert database.read(lambda connection: claims.among(connection, [young, rows[0]["claim_id"]])) == {young}


def test_unknown_guests_are_kept_until_their_host_has_been_silent_for_long(database: Database) -> None:
    # Far from the limit: a busy machine may take seconds between these records and the prune.
    later, sooner = KEPT - 100, KEPT + 1
    heard = {"living": (later, None), "withheld": (sooner, later), "silent": (sooner, sooner)}
    described = {"agent": "a", "description": b"{}", "description_number": 1, "acknowledged_number": 1}

    def record(connection: Connection) -> None:
        for host, (seen, withheld) in heard.items():
            times = {"last_seen": now() - seen, "withheld_at": None if withheld is None else now() - withheld}
            row = cell_hosts.insert().values(**SCOPE, service_host=host, nodename=host, **described, **times)
            connection.execute(row)
        for host in (*heard, "unknown"):
            guest = Guest(instance_uuid=ids.fresh(), host=host, attempt_id=ids.fresh(), claim_id=ids.fresh())
            unknown_guests.replace(connection, CELL_UUID, "a", [host], [guest])
        connection.execute(cell_guests.update().values(seen_at=cell_guests.c.seen_at - KEPT - 1))

    database.write(record)
    CellEndedRecords(database, cell_operations, {"cell_uuid": ids.fresh()}, KEPT).prune()
    listed = partial(unknown_guests.list_all, cell_uuid=CELL_UUID, message=ListStrangersInCell())
    assert [one.guest.host for one in database.read(listed)] == ["living", "silent", "unknown", "withheld"]

    CellEndedRecords(database, cell_operations, SCOPE, KEPT).prune()
    assert [one.guest.host for one in database.read(listed)] == ["living", "withheld"]


def test_an_unknown_guest_that_was_just_listed_is_kept_although_its_host_is_not_recorded(database: Database) -> None:
    guest = Guest(instance_uuid=ids.fresh(), host="a", attempt_id=ids.fresh(), claim_id=ids.fresh())
    database.write(lambda connection: unknown_guests.replace(connection, CELL_UUID, "a", ["a"], [guest]))
    CellEndedRecords(database, cell_operations, SCOPE, KEPT).prune()
    listed = partial(unknown_guests.list_all, cell_uuid=CELL_UUID, message=ListStrangersInCell())
    assert [one.guest for one in database.read(listed)] == [guest]
