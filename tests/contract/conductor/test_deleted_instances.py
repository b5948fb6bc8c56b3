"""Test which records of deleted instances the conductors purge and which they keep, on SQLite and on MariaDB."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, cast

import pytest
from sqlalchemy import Connection, Table, select
from support.conductor.record_builders import CELL_UUID, RECORDS, SPEC, advance, begin, built

from conductor.engine.operations import Operations
from conductor.engine.steps import BUILD, DELETE, Backoff, Ended, Operation
from conductor.retention import CellDeletedInstances, SuperDeletedInstances
from conductor.schema import (
    cell_attempts,
    cell_instances,
    cell_operations,
    conductor_instances,
    conductor_migrations,
    conductor_operations,
)
from conductor.super.cell_clients import Cells
from conductor.super.records import instances as super_records
from conductor.super.records import migrations as super_migrations
from conductor.super.records.instances import NewInstances
from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import ShowInCell
from moorage.model import Instance

KEPT = 1000.0
OTHER_CELL = ids.fresh()


class FakeCells(Cells):
    """Cells with these instances in these states; a cell without an entry does not answer."""

    patience = 1.0

    def __init__(self, known: Mapping[str, Mapping[str, str]], deleted: Collection[str] = ()) -> None:
        self.known = known
        self.deleted = deleted

    def call(self, uuid: str, message: Any, timeout: float | None = None) -> Any:
        if uuid in self.deleted:
            raise errors.CellNotFound(name=uuid)
        if uuid not in self.known:
            raise errors.CellUnreachable(cell=uuid, reason="it is dead")
        named = cast(ShowInCell, message).instance_uuids
        return [
            Instance(
                uuid=uuid,
                project_id="p",
                user_id="u",
                flavor=SPEC.flavor,
                state=state,
                request_id="r",
                created_at=0.0,
                updated_at=0.0,
            )
            for uuid, state in self.known[uuid].items()
            if uuid in named
        ]


def ordered(database: Database, state: str, cell_uuid: str | None = CELL_UUID) -> str:
    """Record an instance of the super conductor that is in a state, and return its uuid."""
    uuid = ids.fresh()

    def work(connection: Any) -> None:
        super_records.add(connection, [NewInstances([uuid], SPEC, ids.fresh(), ids.fresh())])
        connection.execute(
            conductor_instances.update()
            .where(conductor_instances.c.uuid == uuid)
            .values(state=state, cell_uuid=cell_uuid)
        )

    database.write(work)
    return uuid


def in_cell(database: Database, state: str, *, guest_gone: bool) -> str:
    """Record an instance of a cell with an attempt that has a claim, and return its uuid."""
    uuid, attempt_id = built(database)

    def work(connection: Any) -> None:
        RECORDS.change_attempt(connection, attempt_id, guest_gone=guest_gone)
        connection.execute(cell_instances.update().where(cell_instances.c.uuid == uuid).values(state=state))

    database.write(work)
    return uuid


def operations_of(database: Database, table: Table) -> Operations:
    scope = {"cell_uuid": CELL_UUID} if table is cell_operations else {}
    return Operations(database, table, "me", scope, Backoff())


def begun(database: Database, table: Table, subject: str, kind: str = DELETE) -> Operation:
    return begin(database, operations_of(database, table), subject, kind)


def grow_old(database: Database, seconds: float = KEPT + 1) -> None:
    """Make all instances older by some seconds."""
    for table in (conductor_instances, cell_instances):
        older = table.update().values(updated_at=table.c.updated_at - seconds)
        database.write(partial(Connection.execute, statement=older))


def left(database: Database, table: Table, column: str = "uuid") -> set[str]:
    return set(database.read(lambda connection: connection.scalars(select(table.c[column])).all()))


# --- A cell ----------------------------------------------------------------------------------------------------------


def test_a_cell_purges_an_instance_that_was_deleted_long_ago_with_its_attempts_and_operations(
    database: Database,
) -> None:
    old, active = in_cell(database, "deleted", guest_gone=True), in_cell(database, "active", guest_gone=False)
    advance(
        operations_of(database, cell_operations), begun(database, cell_operations, old), lambda _connection: Ended()
    )
    grow_old(database)
    young = in_cell(database, "deleted", guest_gone=True)

    assert CellDeletedInstances(database, CELL_UUID, KEPT).prune() == 1

    assert left(database, cell_instances) == {active, young}
    assert left(database, cell_attempts, "instance_uuid") == {active, young}
    assert left(database, cell_operations) == set()


def test_a_cell_keeps_an_instance_that_may_have_a_guest_or_has_an_operation(database: Database) -> None:
    with_guest = in_cell(database, "deleted", guest_gone=False)
    worked_on = in_cell(database, "deleted", guest_gone=True)
    begun(database, cell_operations, worked_on)
    grow_old(database)

    assert CellDeletedInstances(database, CELL_UUID, KEPT).prune() == 0
    assert CellDeletedInstances(database, OTHER_CELL, KEPT).prune() == 0
    assert left(database, cell_instances) == {with_guest, worked_on}


# --- The super conductor ---------------------------------------------------------------------------------------------


def test_the_super_conductor_purges_instances_that_no_cell_has(
    database: Database,
) -> None:
    forgotten, known = ordered(database, "deleted"), ordered(database, "deleted")
    in_dead_cell, in_none = ordered(database, "deleted", OTHER_CELL), ordered(database, "deleted", None)
    building = ordered(database, "building")
    for uuid in (forgotten, known):
        database.write(
            partial(
                super_migrations.add,
                uuid=uuid,
                instance_uuid=uuid,
                cell_uuid=CELL_UUID,
                kind="cold-migration",
                request_id="r",
            )
        )
    grow_old(database)
    young = ordered(database, "deleted", None)
    cells = FakeCells({CELL_UUID: {known: "deleted"}})

    assert SuperDeletedInstances(database, cells, KEPT).prune() == 2

    assert left(database, conductor_instances) == {known, in_dead_cell, building, young}
    assert forgotten not in left(database, conductor_migrations, "instance_uuid")
    assert known in left(database, conductor_migrations, "instance_uuid")
    assert in_none not in left(database, conductor_instances)
    with pytest.raises(errors.InstanceNotFound):
        database.read(lambda connection: super_records.read(connection, forgotten))


def test_the_super_conductor_keeps_an_instance_that_has_an_operation(database: Database) -> None:
    deleted, built = ordered(database, "deleted", None), ordered(database, "deleted", None)
    operation = begun(database, conductor_operations, deleted)
    building = begun(database, conductor_operations, ids.fresh(), BUILD)
    database.write(
        lambda connection: connection.execute(
            conductor_instances.update().where(conductor_instances.c.uuid == built).values(operation_uuid=building.uuid)
        )
    )
    grow_old(database)
    instances = SuperDeletedInstances(database, FakeCells({}), KEPT)

    assert instances.prune() == 0

    for each in (operation, building):
        advance(operations_of(database, conductor_operations), each, lambda _connection: Ended())
    database.write(lambda connection: connection.execute(conductor_operations.delete()))
    assert instances.prune() == 2


def test_the_instances_of_a_cell_that_an_operator_has_deleted_are_purged(database: Database) -> None:
    deleted, deleting, active = (ordered(database, state, OTHER_CELL) for state in ("deleted", "deleting", "active"))
    grow_old(database)
    instances = SuperDeletedInstances(database, FakeCells({}, deleted=[OTHER_CELL]), KEPT)

    assert instances.prune() == 1
    instances.sync_with_cells()

    assert left(database, conductor_instances) == {deleting, active}
    states = [database.read(lambda c, uuid=uuid: super_records.read(c, uuid)).state for uuid in (deleting, active)]  # type: ignore[misc]
    assert states == ["deleted", "active"]
    assert deleted not in left(database, conductor_instances)


def test_more_instances_than_fit_in_one_transaction_are_purged_and_kept_ones_block_none(database: Database) -> None:
    stuck = {ordered(database, "deleted", OTHER_CELL) for _ in range(5)}
    for _ in range(20):
        ordered(database, "deleted", None)
    # All have the same time, so the parts must also be ordered by the number.
    database.write(lambda connection: connection.execute(conductor_instances.update().values(updated_at=1.0)))

    assert SuperDeletedInstances(database, FakeCells({}), KEPT, at_once=3).prune() == 20

    assert left(database, conductor_instances) == stuck


def test_an_instance_becomes_deleted_after_its_cell_has_deleted_or_purged_it(database: Database) -> None:
    deleted, forgotten = ordered(database, "deleting"), ordered(database, "deleting")
    under_way, silent = ordered(database, "deleting"), ordered(database, "deleting", OTHER_CELL)
    not_taken = ordered(database, "deleting")
    begun(database, conductor_operations, not_taken)
    cells = FakeCells({CELL_UUID: {deleted: "deleted", under_way: "deleting"}})

    SuperDeletedInstances(database, cells, KEPT, at_once=2).sync_with_cells()

    def state(uuid: str) -> str:
        return database.read(lambda connection: super_records.read(connection, uuid)).state

    assert [state(uuid) for uuid in (deleted, forgotten)] == ["deleted", "deleted"]
    assert {state(uuid) for uuid in (under_way, silent, not_taken)} == {"deleting"}
