"""Test which records of ended operations the conductors purge and which they keep, on SQLite and on MariaDB."""

from typing import Any

import pytest
from sqlalchemy import event, select
from support.conductor.record_builders import CELL_UUID, RECORDS, begin, built

from conductor.engine.operations import Operations
from conductor.engine.revoked_claims import RevokedClaims
from conductor.engine.steps import BUILD, CLEAN, DELETE, Backoff, Ended, NoPayload, Wait
from conductor.housekeeping import pruner
from conductor.retention import CellDeletedInstances, CellEndedRecords, EndedRecords
from conductor.schema import (
    cell_attempts,
    cell_disowned,
    cell_instances,
    cell_operations,
    cell_requests,
    conductor_operations,
)
from moorage import ids
from moorage.db.database import Database
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
    operations.advance(operation, lambda _connection: Wait("two", NoPayload()))
    return operation.uuid


def ended(database: Database, operations: Operations, kind: str, subject: str, reason: str | None = None) -> str:
    """Begin an operation and end it, and return its uuid."""
    operation = begin(database, operations, subject, kind)
    operations.advance(operation, lambda _connection: Ended(reason))
    return operation.uuid


def note_gone(database: Database, attempt_id: str) -> None:
    database.write(lambda connection: RECORDS.change_attempt(connection, attempt_id, guest_gone=True))


def grow_old(database: Database, seconds: float = KEPT + 1) -> None:
    """Let so much time pass for all operations there are."""
    for table in (cell_operations, conductor_operations):
        older = {name: table.c[name] - seconds for name in ("due_at", "updated_at", "created_at")}
        database.write(lambda connection, table=table, older=older: connection.execute(table.update().values(**older)))


def left(database: Database) -> set[str]:
    """Return the uuids of the operations that a cell has on record."""
    return set(database.read(lambda connection: connection.scalars(select(cell_operations.c.uuid)).all()))


def attempts_left(database: Database) -> set[str]:
    return set(database.read(lambda connection: connection.scalars(select(cell_attempts.c.attempt_id)).all()))


def test_what_has_ended_is_forgotten_when_it_is_old_and_what_is_under_way_never(
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


def test_what_an_older_version_has_ended_is_forgotten_too(database: Database, operations: Operations) -> None:
    ended(database, operations, BUILD, ids.fresh())
    database.write(lambda connection: connection.execute(cell_operations.update().values(due_at=None)))
    records = CellEndedRecords(database, cell_operations, SCOPE, KEPT)
    assert records.prune() == 0

    grow_old(database)

    assert records.prune() == 1


def test_the_attempts_of_a_deleted_instance_go_with_the_record_of_its_delete(
    database: Database, operations: Operations
) -> None:
    (deleted, gone), (_, kept) = built(database), built(database)
    note_gone(database, gone)
    note_gone(database, kept)
    ended(database, operations, DELETE, deleted)
    grow_old(database)

    CellEndedRecords(database, cell_operations, SCOPE, KEPT).prune()

    assert attempts_left(database) == {kept}, "the other instance has not been deleted"
    instances = database.read(lambda connection: connection.scalars(select(cell_instances.c.uuid)).all())
    assert deleted in instances, "nothing that comes late builds it once more"


def test_an_attempt_whose_host_may_have_the_guest_stays_until_that_host_has_answered(
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


def test_more_than_one_transaction_forgets_at_once_is_forgotten_all_the_same(
    database: Database, operations: Operations
) -> None:
    # One that must stay is not in the way of those behind it.
    stuck = ended(database, operations, DELETE, built(database)[0])
    for _ in range(5):
        ended(database, operations, BUILD, ids.fresh())
    grow_old(database)

    assert CellEndedRecords(database, cell_operations, SCOPE, KEPT, at_once=2).prune() == 5

    assert left(database) == {stuck}


def test_one_cell_does_not_forget_what_is_anothers(database: Database, operations: Operations) -> None:
    ended(database, operations, BUILD, ids.fresh())
    grow_old(database)

    assert CellEndedRecords(database, cell_operations, {"cell_uuid": ids.fresh()}, KEPT).prune() == 0


def test_the_super_conductor_forgets_its_own(database: Database) -> None:
    operations = Operations(database, conductor_operations, "me", {}, Backoff())
    ended(database, operations, DELETE, ids.fresh())
    grow_old(database)

    assert EndedRecords(database, conductor_operations, {}, KEPT).prune() == 1


def test_revoked_claims_of_one_cell_are_forgotten_in_bounded_transactions(database: Database) -> None:
    revoked = {number: {"claim_id": ids.fresh(), "consumer_uuid": ids.fresh()} for number in range(2 * AT_ONCE + 5)}
    rows = [{**one, **SCOPE, "created_at": 1.0} for one in revoked.values()]
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
    prune = pruner(
        database,
        StoredRequests(database, cell_requests),
        claims,
        CellEndedRecords(database, cell_operations, SCOPE, KEPT),
        CellDeletedInstances(database, CELL_UUID, KEPT),
        Retention(KEPT, KEPT, KEPT),
    )
    try:
        prune()
    finally:
        event.remove(database.engine, "after_cursor_execute", note)

    assert (max(deleted), sum(deleted)) == (AT_ONCE, len(rows))
    found = database.read(lambda connection: set(connection.scalars(select(cell_disowned.c.cell_uuid))))
    assert found == {CELL_UUID, other["cell_uuid"]}
    assert database.read(lambda connection: claims.among(connection, [young, rows[0]["claim_id"]])) == {young}
