"""Test the migration records of the super conductor, on SQLite and on MariaDB."""

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import Connection
from support.conductor.record_builders import advance
from support.databases.rows_read import rows_read

from conductor.engine.operations import Operations
from conductor.engine.steps import DELETE, MOVE, Backoff, Ended, NoPayload, Operation, Retry
from conductor.schema import conductor_migrations, conductor_operations
from conductor.super.endpoints.migrations import SuperMigrationView
from conductor.super.endpoints.moves import require_free
from conductor.super.records import instances as super_records
from conductor.super.records import migrations as super_migrations
from conductor.super.records.instances import NewInstances
from conductor.super.steps.delete import SuperDeletes
from conductor.super.steps.move import PrepareMoveStep
from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import DeleteInstance, ListMigrations
from moorage.model import Flavor, Migration, RequestSpec

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=1024))
CELL = ids.fresh()


@pytest.fixture
def operations(database: Database) -> Operations:
    return Operations(database, conductor_operations, "me", {}, Backoff())


def instance(database: Database) -> str:
    uuid = ids.fresh()
    database.write(lambda connection: super_records.add(connection, [NewInstances([uuid], SPEC, ids.fresh(), "built")]))
    return uuid


def order(connection: Connection, operations: Operations, uuid: str) -> Operation:
    require_free(connection, operations, uuid)
    migration_uuid, payload = ids.fresh(), PrepareMoveStep(kind="cold-migration", cell_uuid=CELL)
    super_migrations.add(
        connection, migration_uuid, instance_uuid=uuid, cell_uuid=CELL, kind="cold-migration", request_id="r"
    )
    [begun] = operations.begin(connection, [Operation.new("req", migration_uuid, MOVE, uuid, "prepare", payload)])
    return begun


def listed(database: Database, **wanted: Any) -> list[str]:
    message = ListMigrations(**{"ended": True} | wanted)
    return [each.uuid for each in database.read(lambda c: super_migrations.list_all(c, message))]


def test_a_short_page_of_open_migrations_reads_no_ended_ones(database: Database) -> None:
    same = {"cell_uuid": CELL, "request_id": "r", "kind": "resize", "created_at": 1.0, "updated_at": 1.0}
    rows = [
        {"uuid": ids.fresh(), "instance_uuid": ids.fresh(), "state": "moving" if number >= 6000 else "ended", **same}
        for number in range(6600)
    ]
    database.write(lambda connection: connection.execute(conductor_migrations.insert(), rows))
    assert listed(database, ended=False, limit=10) == [row["uuid"] for row in rows[6000:6010]]
    if not database.is_sqlite:
        with database.engine.connect() as connection:
            connection.exec_driver_sql("ANALYZE TABLE conductor_migrations")
        page = ListMigrations(ended=False, limit=10)
        assert rows_read(database, lambda connection: super_migrations.list_all(connection, page))[1] < 2 * 600


def test_a_list_of_migrations_without_a_limit_has_at_most_as_many_as_a_message_may_have(
    database: Database, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conductor.engine.rows.MAX_LISTED", 2)
    of = [instance(database) for _ in range(3)]
    orders = [database.write(lambda c, uuid=uuid: order(c, operations, uuid)) for uuid in of[:2]]  # type: ignore[misc]
    assert listed(database) == [one.uuid for one in orders]

    database.write(lambda c: order(c, operations, of[2]))

    with pytest.raises(errors.ReplyTooLarge, match="3 bytes or list entries, but a message can have at most 2"):
        listed(database)
    assert listed(database, instance_uuid=of[0]) == [orders[0].uuid]


def test_a_migration_is_on_record_from_its_order_on_and_does_not_change_after_its_end(
    database: Database, operations: Operations
) -> None:
    uuid, other = instance(database), instance(database)
    first = database.write(lambda c: order(c, operations, uuid))
    second = database.write(lambda c: order(c, operations, other))
    advance(operations, first, lambda _connection: Retry("nobody answers"))
    found = database.read(lambda c: super_migrations.read(c, first.uuid))
    assert (found.state, found.reason, found.kind) == ("placing", "nobody answers", "cold-migration")

    def fail(connection: Connection) -> None:
        super_migrations.change(connection, first.uuid, state="failed", reason="full", explanation={"hosts": 3})
        super_migrations.change(connection, first.uuid, state="moving")

    database.write(fail)

    found = database.read(lambda c: super_migrations.read(c, first.uuid))
    assert (found.state, found.reason) == ("failed", "full")
    assert found.explanation is not None
    assert found.explanation.hosts == 3
    assert listed(database) == [first.uuid, second.uuid]
    assert listed(database, instance_uuid=other) == [second.uuid]
    assert listed(database, ended=False) == [second.uuid]
    # In parts, each of which begins after the last number of the previous part.
    [part] = database.read(lambda c: super_migrations.list_all(c, ListMigrations(ended=True, limit=1)))
    assert part.uuid == first.uuid
    assert listed(database, limit=1, after=part.number) == [second.uuid]
    assert listed(database, limit=1, after=part.number + 1) == []
    database.write(lambda c: super_migrations.delete(c, [uuid]))
    with pytest.raises(errors.MigrationNotFound):
        database.read(lambda c: super_migrations.read(c, first.uuid))


def test_of_concurrent_orders_about_one_instance_one_is_recorded(database: Database, operations: Operations) -> None:
    uuid = instance(database)
    refused: list[errors.MoorageError] = []
    together = threading.Barrier(4)

    def run() -> None:
        together.wait(60)
        try:
            database.write(lambda c: order(c, operations, uuid))
        except errors.InvalidState as fault:
            refused.append(fault)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(refused) == 3
    assert len(listed(database)) == 1


def test_an_order_to_delete_ends_a_move_unless_the_move_is_being_cancelled(
    database: Database, operations: Operations
) -> None:
    deletes = SuperDeletes(cast(Any, SimpleNamespace(operations=operations)))
    uuid, undone = instance(database), instance(database)
    begun = database.write(lambda c: order(c, operations, uuid))
    cancelling = Operation.new("req", uuid=ids.fresh(), kind=MOVE, subject=undone, step="cancel", payload=NoPayload())
    database.write(lambda c: operations.begin(c, [cancelling]))

    for each in (uuid, undone):
        message = DeleteInstance(request_id=ids.fresh(), instance_uuid=each)
        database.write(partial(deletes.order, message=message))

    assert not database.read(lambda c: operations.is_pending(c, begun.uuid))
    assert database.read(lambda c: super_migrations.read(c, begun.uuid)).state == "ended"
    assert database.read(lambda c: operations.is_pending(c, cancelling.uuid))

    def delete_of(uuid: str) -> Operation | None:
        return database.write(lambda c: operations.lock_one_pending(c, uuid, DELETE))

    for each in (uuid, undone):
        assert delete_of(each) is not None
        with pytest.raises(errors.InvalidState):
            database.write(partial(order, operations=operations, uuid=each))


def test_an_instance_can_be_moved_again_after_its_move_has_ended(database: Database, operations: Operations) -> None:
    uuid = instance(database)
    begun = database.write(lambda c: order(c, operations, uuid))
    assert database.read(partial(super_records.being_placed, uuids=[uuid]))[uuid] == (MOVE, begun.uuid)
    with pytest.raises(errors.InvalidState):
        database.write(lambda c: order(c, operations, uuid))

    advance(operations, begun, lambda _connection: Ended())

    assert database.read(partial(super_records.being_placed, uuids=[uuid])) == {}
    database.write(lambda c: order(c, operations, uuid))


def test_the_cells_are_polled_for_open_migrations_by_page(
    database: Database, operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conductor.super.endpoints.migrations.MAX_INSTANCES", 2)
    uuids = [instance(database) for _ in range(5)]
    ordered = [database.write(partial(order, operations=operations, uuid=uuid)) for uuid in uuids]
    for one in ordered:
        database.write(partial(super_migrations.change, uuid=one.uuid, state="moving"))
    asked: list[list[str]] = []

    def read_of(_cell_uuid: str, named: list[str], _message: object) -> list[Migration]:
        asked.append(named)
        over: dict[str, Any] = {"kind": "resize", "state": "confirmed", "source_host": "h1", "updated_at": 1.0}
        return [Migration(uuid=uuid, instance_uuid=ids.fresh(), **over) for uuid in named]

    cells = SimpleNamespace(cell=lambda _uuid: SimpleNamespace(name="cell1"), read_of=read_of)
    SuperMigrationView(cast(Any, SimpleNamespace(database=database, cells=cells))).sync_with_cells()

    assert asked == [[one.uuid for one in ordered[first : first + 2]] for first in (0, 2, 4)]
    assert not listed(database, ended=False)
