"""Test that a page of the instances that exist reads few others, however many deleted instances are on record."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert
from support.conductor.record_builders import SPEC as SMALL
from support.conductor.record_builders import selected
from support.databases.rows_read import rows_read

from conductor.cell.records.instances import CellRecords, NewInstance
from conductor.engine.rows import SPECS_AT_ONCE
from conductor.schema import conductor_instances
from conductor.super.records import instances as super_records
from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import InstanceBuild, ListInstances
from moorage.model import Instance

#: Far more than the entries of a page.
MANY, EXISTING = 6_000, 2_000
LIMIT = 100
#: Each state may have a whole page, and its entries are read again from a temporary table.
MOST = 12 * LIMIT
SPEC = b'{"project_id":"p","user_id":"u","flavor":{"vcpus":1,"memory_mb":1}}'
STATES = ("building", "error", "deleting", "deleted")


def row(number: int, state: str, project: str = "p") -> dict[str, Any]:
    uuid = ids.derived("pages", number)
    return {
        "id": number,
        "uuid": uuid,
        "operation_uuid": uuid,
        "request_id": uuid,
        "project_id": project,
        "user_id": "u",
        "name": "web" if number % 3 else None,
        "request_spec": SPEC,
        "state": state,
        "handed_over": True,
        "order_number": 0,
        "created_at": 1.0,
        "updated_at": 1.0,
    }


def record(database: Database, rows: list[dict[str, Any]]) -> None:
    database.write(lambda connection: connection.execute(insert(conductor_instances), rows))


def numbers(database: Database, message: ListInstances) -> list[int]:
    found = database.read(lambda connection: super_records.list_all(connection, message))
    return [instance.number for instance in found]


def test_pages_have_the_requested_instances_in_the_order_of_their_numbers(database: Database) -> None:
    # A newer release may record a state that this one does not know.
    states = (*STATES, "frozen")
    rows = [row(number, states[number * number % 5], f"p{number % 2}") for number in range(1, 61)]
    record(database, rows)
    for project, name, deleted, after, limit in product((None, "p1"), (None, "web"), (False, True), (0, 17), (4, 100)):
        wanted = [
            each["id"]
            for each in rows
            if each["id"] > after
            and project in (None, each["project_id"])
            and name in (None, each["name"])
            and (deleted or each["state"] != "deleted")
        ]
        page = ListInstances(project_id=project, name=name, deleted=deleted, after=after or None, limit=limit)
        assert numbers(database, page) == wanted[:limit], page


@pytest.mark.parametrize("project", [None, "p"])
def test_a_page_of_existing_instances_reads_no_deleted_ones(database: Database, project: str | None) -> None:
    existing = range(MANY, MANY + EXISTING)
    rows = [row(number, "deleted", "p" if number % 2 else "q") for number in range(1, MANY)]
    record(database, rows + [row(number, STATES[number % 3]) for number in existing])
    page = ListInstances(project_id=project, limit=LIMIT)
    assert numbers(database, page) == list(existing)[:LIMIT]
    if not database.is_sqlite:
        assert read_for(database, page) < MOST


def test_a_page_of_a_large_project_reads_no_later_ones(database: Database) -> None:
    record(database, [row(number, "building") for number in range(1, MANY)])
    page = ListInstances(project_id="p", deleted=True, after=100, limit=LIMIT)
    assert numbers(database, page) == list(range(101, 101 + LIMIT))
    if not database.is_sqlite:
        assert read_for(database, page) < MOST


@pytest.mark.parametrize("project", [None, "p"])
def test_a_list_without_a_limit_reads_one_instance_more_than_a_message_may_have(
    database: Database, monkeypatch: pytest.MonkeyPatch, project: str | None
) -> None:
    record(database, [row(number, "building") for number in range(1, MANY)])
    monkeypatch.setattr("conductor.engine.rows.MAX_LISTED", LIMIT)
    wanted = ListInstances(project_id=project)

    def refused(connection: Connection) -> None:
        with pytest.raises(errors.ReplyTooLarge, match=f"{LIMIT + 1} bytes or list entries, but .* at most {LIMIT}"):
            super_records.list_all(connection, wanted)

    database.read(refused)
    if not database.is_sqlite:
        with_current_statistics(database)
        assert rows_read(database, refused)[1] < MOST
    assert numbers(database, ListInstances(project_id=project, after=MANY - 1 - LIMIT)) == [*range(MANY - LIMIT, MANY)]


@pytest.mark.parametrize("deleted", [False, True])
def test_a_page_reads_few_requests_at_a_time(database: Database, deleted: bool) -> None:
    record(database, [row(number, "building") for number in range(1, 2 * SPECS_AT_ONCE + 2)])
    page = ListInstances(deleted=deleted, limit=1000)
    assert_few_requests_at_a_time(database, lambda connection: super_records.list_all(connection, page))


def test_a_cell_reads_few_requests_at_a_time(database: Database) -> None:
    cell = CellRecords(ids.fresh())
    uuids = [ids.derived("pages", number) for number in range(2 * SPECS_AT_ONCE + 1)]
    builds = [
        NewInstance(
            ids.fresh(), InstanceBuild(instance_uuid=uuid, request_spec=SMALL, selections=(selected("c"),)), "r"
        )
        for uuid in uuids
    ]
    database.write(lambda connection: cell.add(connection, builds))
    assert_few_requests_at_a_time(database, lambda connection: cell.show(connection, uuids))
    assert_few_requests_at_a_time(database, lambda connection: cell.show(connection, uuids, with_request=True))


def assert_few_requests_at_a_time(database: Database, work: Callable[[Connection], list[Instance]]) -> None:
    """Check that no statement reads more requests than ``SPECS_AT_ONCE``, and that none copies requests by a union."""
    counts: list[int] = []

    def note(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "request_spec" in statement:
            assert "UNION" not in statement
            counts.append(cursor.rowcount)

    event.listen(database.engine, "after_cursor_execute", note)
    try:
        found = database.read(work)
    finally:
        event.remove(database.engine, "after_cursor_execute", note)
    assert len({instance.uuid for instance in found}) == len(found) == 2 * SPECS_AT_ONCE + 1
    assert len(counts) == 3
    if not database.is_sqlite:  # whose driver does not count the rows of a SELECT
        assert max(counts) == SPECS_AT_ONCE


def read_for(database: Database, page: ListInstances) -> int:
    """Return how many rows MariaDB reads for a page, with current statistics."""
    with_current_statistics(database)
    return rows_read(database, lambda connection: super_records.list_all(connection, page))[1]


def with_current_statistics(database: Database) -> None:
    with database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE TABLE conductor_instances")
