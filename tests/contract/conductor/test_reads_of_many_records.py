"""Test that a part of a cell's records is read or deleted without reading the attempts of all other instances."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, Table, insert
from support.conductor.record_builders import CELL_UUID
from support.databases.rows_read import rows_read, rows_read_by
from support.databases.statements import statements_of

from conductor.cell.hosts.forwarded import ForwardedHosts
from conductor.cell.records.instances import CellRecords
from conductor.cell.records.lives import HostLives
from conductor.cell.records.migrations import MigrationRecords
from conductor.engine.operation_list import list_operations
from conductor.engine.steps import DELETE, MOVE
from conductor.retention import CellDeletedInstances, CellEndedRecords
from conductor.schema import cell_attempts, cell_hosts, cell_instances, cell_migrations, cell_operations
from moorage import ids
from moorage.db.database import Database
from moorage.model import HostReport

MANY, AT_ONCE = 12_000, 100
#: Each record of a part is looked up in a few tables, and deleted from some of them: at most 1949 rows are read. The
#: statistics by which MariaDB plans its reads are estimates. Whoever reads all records reads three times as many.
MOST = 40 * AT_ONCE
TIMES = {"created_at": 1.0, "updated_at": 1.0}


def instance(number: int, state: str) -> dict[str, Any]:
    uuid = ids.derived("many", number)
    return {"cell_uuid": CELL_UUID, "uuid": uuid, "request_id": uuid, "state": state, "attempt_number": 1, **TIMES}


def attempt(number: int, state: str, *, guest_gone: bool) -> dict[str, Any]:
    return {
        "cell_uuid": CELL_UUID,
        "attempt_id": ids.derived("many", "attempt", number),
        "instance_uuid": ids.derived("many", number),
        "number": 1,
        "host": f"host{number % 100}",
        "agent": "agent",
        "claim_id": ids.derived("many", "claim", number),
        "state": state,
        "guest_gone": guest_gone,
        **TIMES,
    }


def deletion(number: int) -> dict[str, Any]:
    return {
        "cell_uuid": CELL_UUID,
        "uuid": ids.derived("many", "deletion", number),
        "kind": DELETE,
        "request_id": "r",
        "subject": ids.derived("many", number),
        "step": "release",
        "step_number": 3,
        "payload": b"{}",
        "tries": 0,
        "state": "done",
        "due_at": 1.0,
        "lease_number": 1,
        **TIMES,
    }


def host(number: int) -> dict[str, Any]:
    name = f"host{number}"
    report = HostReport(service_host=name, nodename=name, compute_node_uuid=ids.derived("many", name), agent="agent")
    return {
        "cell_uuid": CELL_UUID,
        "service_host": name,
        "nodename": name,
        "agent": "agent",
        "description": msgspec.json.encode(report),
        "description_number": 2,
        "acknowledged_number": 1,
        "last_seen": 1.0,
    }


def record(database: Database, table: Table, rows: list[dict[str, Any]]) -> None:
    database.write(lambda connection: connection.execute(insert(table), rows))
    if not database.is_sqlite:
        with database.engine.connect() as connection:
            connection.exec_driver_sql(f"ANALYZE TABLE {table.name}")


def in_one_part(database: Database, work: Callable[[Connection], Any]) -> Any:
    """Run a transaction; on MariaDB, it reads few rows."""
    if database.is_sqlite:
        return database.write(work)
    result, read = rows_read(database, work, writing=True)
    assert read < MOST
    return result


@pytest.mark.parametrize("count", [1, AT_ONCE])
def test_the_descriptions_of_some_hosts_are_acknowledged(database: Database, count: int) -> None:
    record(database, cell_hosts, [host(number) for number in range(MANY)])
    hosts = ForwardedHosts(database, CELL_UUID, 60.0)
    some = hosts.unacknowledged(count)
    if database.is_sqlite:
        hosts.acknowledge(some)
    else:
        _, read = rows_read_by(database, lambda: hosts.acknowledge(some))
        assert read < MOST
    assert hosts.unacknowledged(1)[0] not in some


def test_the_returning_hosts_of_an_agent_are_found_among_many_hosts_of_others(database: Database) -> None:
    agents = 120
    rows = [host(number) | {"agent": f"agent{number % agents}", "is_returning": number < 2} for number in range(MANY)]
    record(database, cell_hosts, rows)
    lives = HostLives(CELL_UUID)
    found = in_one_part(database, lambda connection: lives.returning(connection, "agent1"))
    assert list(found) == ["host1"]


@pytest.fixture
def many_deleted(database: Database) -> Database:
    """The records of many instances that were deleted long ago; the guest of one of them may be left."""
    record(database, cell_instances, [instance(number, "deleted") for number in range(MANY)])
    record(database, cell_attempts, [attempt(number, "ended", guest_gone=number != 7) for number in range(MANY)])
    return database


def test_a_part_of_deleted_instances_is_pruned(many_deleted: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conductor.retention._AT_ONCE", AT_ONCE)
    pruned = CellDeletedInstances(many_deleted, CELL_UUID, kept=1000.0)
    assert in_one_part(many_deleted, pruned._prune_some) == AT_ONCE


def test_a_part_of_ended_operations_is_pruned(many_deleted: Database) -> None:
    record(many_deleted, cell_operations, [deletion(number) for number in range(MANY)])
    scope = {"cell_uuid": CELL_UUID}
    ended = CellEndedRecords(many_deleted, cell_operations, scope, kept=1000.0, at_once=AT_ONCE)
    assert in_one_part(many_deleted, ended._prune_some) == AT_ONCE


def test_a_part_of_ended_moves_is_pruned_with_the_old_attempts_and_migrations_of_the_instances(
    many_deleted: Database,
) -> None:
    record(many_deleted, cell_operations, [deletion(number) | {"kind": MOVE} for number in range(AT_ONCE)])
    of = {"kind": "resize", "instance_state": "active", "source_number": 1, "source_host": "a", "is_aborted": False}
    ended = {"cell_uuid": CELL_UUID, "request_id": "r", "state": "confirmed", **of, **TIMES}
    uuids = [ids.derived("many", number) for number in range(MANY)]
    moves = [{**ended, "uuid": ids.derived("move", uuid), "instance_uuid": uuid} for uuid in uuids]
    often = [
        attempt(MANY + n, "ended", guest_gone=True) | {"number": n, "instance_uuid": uuids[3]} for n in range(2, 250)
    ]
    record(many_deleted, cell_migrations, moves)
    record(many_deleted, cell_attempts, often)
    scope = {"cell_uuid": CELL_UUID}
    pruned = CellEndedRecords(many_deleted, cell_operations, scope, kept=1000.0, at_once=AT_ONCE)
    assert in_one_part(many_deleted, pruned._prune_some) == AT_ONCE
    records = CellRecords(CELL_UUID)
    left = many_deleted.read(lambda connection: records.attempts(connection, uuids[3]))
    assert len(left) == 1 + len(often) - AT_ONCE


def test_a_page_of_pending_operations_reads_few_ended_ones(database: Database) -> None:
    rows = [deletion(number) | {"state": "pending" if number % 40 == 0 else "done"} for number in range(MANY)]
    record(database, cell_operations, rows)
    pending = sorted(row["uuid"] for row in rows if row["state"] == "pending")
    page = partial(list_operations, table=cell_operations, scope={"cell_uuid": CELL_UUID}, ended=False, limit=AT_ONCE)
    for after, wanted in ((None, pending[:AT_ONCE]), (pending[99], pending[100:200]), (pending[-3], pending[-2:])):
        assert [each.uuid for each in in_one_part(database, partial(page, after=after))] == wanted


def test_a_page_for_an_audit_has_existing_instances_and_deleted_ones_whose_guests_may_be_left(
    many_deleted: Database,
) -> None:
    # Their uuids are among those of the deleted ones.
    existing = range(MANY, 2 * MANY)
    record(many_deleted, cell_instances, [instance(number, "active") for number in existing])
    record(many_deleted, cell_attempts, [attempt(number, "active", guest_gone=False) for number in existing])
    wanted = sorted(ids.derived("many", number) for number in (7, *existing))
    left = wanted.index(ids.derived("many", 7))
    after = wanted[left - 3]
    page = in_one_part(many_deleted, lambda connection: CellRecords(CELL_UUID).part(connection, after, AT_ONCE))
    assert page.uuids == wanted[left - 2 :][:AT_ONCE]
    assert page.more_after == page.uuids[-1]


def test_a_page_for_an_audit_looks_at_few_deleted_instances(many_deleted: Database) -> None:
    wanted = sorted(ids.derived("many", number) for number in (7, *range(MANY, MANY + 3)))
    record(many_deleted, cell_instances, [instance(number, "active") for number in range(MANY, MANY + 3)])
    cell = CellRecords(CELL_UUID)
    found, after = [], None
    for _ in range(MANY // AT_ONCE):
        part = in_one_part(many_deleted, partial(cell.part, after=after, limit=AT_ONCE))
        found += part.uuids
        if (after := part.more_after) is None:
            break
    assert found == wanted
    assert after is None


def test_the_attempts_of_some_migrations_are_found_among_those_of_builds(many_deleted: Database) -> None:
    # MariaDB estimates the rows of more than 200 values by the average of the index.
    moves = [ids.derived("many", "move", number) for number in range(250)]
    attempts = [
        attempt(number, "active", guest_gone=False) | {"number": 2, "migration_uuid": moves[number - MANY]}
        for number in range(MANY, MANY + len(moves))
    ]
    record(many_deleted, cell_attempts, attempts)
    records = CellRecords(CELL_UUID)
    found = in_one_part(many_deleted, lambda connection: records.attempts_shown(connection, "migration_uuid", moves))
    assert found.keys() == set(moves)


def test_the_next_attempt_is_numbered_without_reading_all_earlier_ones(database: Database) -> None:
    made = [attempt(number, "ended", guest_gone=True) | {"number": number} for number in range(1, MOST + 1)]
    uuid = ids.derived("moved often")
    record(database, cell_attempts, [each | {"instance_uuid": uuid} for each in made])
    cell = CellRecords(CELL_UUID)
    assert in_one_part(database, partial(cell.next_number, instance_uuid=uuid)) == MOST + 1
    assert in_one_part(database, partial(cell.next_number, instance_uuid=ids.fresh())) == 1


def test_migrations_are_shown_without_reading_their_requests(database: Database) -> None:
    of = {"kind": "resize", "instance_state": "active", "source_number": 1, "source_host": "a", "is_aborted": False}
    row = instance(1, "moved") | of
    del row["attempt_number"]
    record(database, cell_migrations, [row | {"instance_uuid": row["uuid"]}])
    with statements_of(database) as sent:
        shown = database.read(
            lambda connection: MigrationRecords(CellRecords(CELL_UUID)).show(connection, [row["uuid"]])
        )
    assert [(one.uuid, one.kind) for one in shown] == [(row["uuid"], "resize")]
    assert not any("request_spec" in statement for statement in sent)


@pytest.mark.parametrize("ended", [False, True])
def test_the_guests_that_may_be_on_a_part_of_the_hosts_are_read(many_deleted: Database, ended: bool) -> None:
    elsewhere = [
        attempt(number, "active", guest_gone=False) | {"host": f"other{number % 100}"}
        for number in range(MANY, 2 * MANY)
    ]
    record(many_deleted, cell_attempts, elsewhere)
    hosts = [f"host{number}" for number in range(50)]
    records = CellRecords(CELL_UUID)
    found = in_one_part(many_deleted, lambda connection: records.on_hosts(connection, hosts, ended=ended))
    assert [each.attempt_id for each in found] == [ids.derived("many", "attempt", 7)]
