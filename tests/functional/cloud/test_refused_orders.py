"""Test that impossible orders are refused with a clear error, and change nothing in any of the three schemas."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import ColumnElement, Connection, Table, select
from support.conductor.order_table import (
    ADVISED,
    FIRST,
    FIRST_OTHERWISE,
    MOVES,
    ORDERS,
    REFUSED,
    give,
    refused,
    server_in,
)
from support.databases.database_dump import differences, dump
from support.operations.cloud import Troubles, TroublesomeCloud, plan
from support.operations.room import Room, rooms_of

from conductor.schema import cell_attempts, cell_instances, conductor_instances
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.messages import BuildInstances, ListMigrations, ListOperations, SetHost
from moorage.model.inspection import OperationSummary

#: Tables that a decision without a valid host may change: those with the record of the order.
RECORDS = {"conductor_migrations", "conductor_operations", "conductor_instances", "cell_migrations", "cell_instances"}
#: Tables of the store that it may change, so that a late copy of the request cannot claim anything.
FENCES = {"tombstones", "consumers"}


@pytest.fixture(scope="module")
def rooms() -> Iterator[tuple[Room, Room]]:
    """Return one room in each of two cells."""
    with TroublesomeCloud(replace(plan("combine", hosts=6), cells=2)) as cloud:
        # A server stays in its state while a host is silent, because `delete_patience` does not end.
        cloud.faults.when_silent = lambda _instance_uuid: None
        here, there = rooms_of(cloud, Troubles())
        yield here, there


@pytest.fixture
def room(rooms: tuple[Room, Room]) -> Room:
    return rooms[0]


@contextmanager
def nothing_changing(room: Room) -> Iterator[None]:
    """Verify that the block changes nothing."""
    before = dump(room.cloud.database)
    yield
    assert differences(before, dump(room.cloud.database)) == {}


# --- State and name ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", REFUSED)
def test_an_order_that_is_impossible_in_the_state_of_a_server_is_refused_and_changes_nothing(
    room: Room, state: str
) -> None:
    with server_in(room, state) as uuid, nothing_changing(room):
        faults = {order: refused(room, order, uuid) for order in REFUSED[state]}
    assert {order: type(fault) for order, fault in faults.items()} == dict.fromkeys(REFUSED[state], errors.InvalidState)
    assert FIRST[state] in str(faults["evacuate"])
    others = {order: str(faults[order]) for order in ADVISED if order in faults}
    assert {order: text for order, text in others.items() if FIRST_OTHERWISE[state] not in text} == {}


def test_orders_about_an_unknown_server_are_refused_and_change_nothing(room: Room) -> None:
    unknown = ids.fresh()
    with nothing_changing(room):
        faults = [refused(room, order, unknown) for order in ORDERS]
    assert {type(fault) for fault in faults} == {errors.InstanceNotFound}
    assert all(unknown in str(fault) for fault in faults)


# --- Hosts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [*MOVES, "evacuate", "unshelve"])
def test_a_server_moves_only_to_another_host_of_its_cell_that_is_known_up_and_enabled(
    rooms: tuple[Room, Room], order: str
) -> None:
    room, other_cell = rooms
    scheduler = room.cloud.client("scheduler")
    alternate = room.hosts["alternate"]
    wrong = {
        "nowhere": (errors.HostNotFound, "nowhere"),
        other_cell.hosts["source"]: (errors.InvalidState, "another cell"),
        room.hosts["destination"]: (errors.InvalidState, "down"),
        alternate: (errors.InvalidState, "new disks"),
    }
    if order not in ("resize", "unshelve"):
        wrong[room.hosts["source"]] = (errors.InvalidState, "already")
    with server_in(room, "shelved" if order == "unshelve" else "active") as uuid:
        if order == "evacuate":
            room.force_down("source")
        room.force_down("destination")
        scheduler.call(
            SetHost(request_id=ids.fresh(), service_host=alternate, disabled=True, disabled_reason="new disks")
        )
        with nothing_changing(room):
            for host, (kind, why) in wrong.items():
                with pytest.raises(kind, match=why):
                    give(room, order, uuid, host)
        room.force_down("destination", down=False)
        scheduler.call(SetHost(request_id=ids.fresh(), service_host=alternate, disabled=False))


@pytest.mark.parametrize("order", [*MOVES, "evacuate", "unshelve"])
def test_a_server_that_is_moved_to_a_full_host_stays_as_it_was_and_the_refusal_is_explained(
    room: Room, order: str
) -> None:
    with server_in(room, "shelved" if order == "unshelve" else "active") as uuid:
        room.fill("destination")
        if order == "evacuate":
            room.force_down("source")
        before, shown = dump(room.cloud.database, but=["updated_at"]), room.show(uuid)

        give(room, order, uuid, room.hosts["destination"])

        room.until(lambda: not room.seen(uuid).pending, "it to be refused")
        after = differences(before, dump(room.cloud.database, but=["updated_at"]))
        assert after.keys() <= RECORDS | FENCES
        now = room.show(uuid)
        for field in ("state", "host", "claim_id", "attempts"):
            assert getattr(now, field) == getattr(shown, field)
        migrations = room.ask(ListMigrations(instance_uuid=uuid, ended=True))
        explained = now if order == "unshelve" else migrations[-1]
        assert explained.explanation is not None


# --- Twice at the same time -------------------------------------------------------------------------------------------

#: By order: the state in which it begins, the fault of the hosts that keeps it from ending, and whether the second of
#: two equal orders is refused.
TWICE = {
    "migrate": ("active", "hanging", True),
    "resize": ("active", "hanging", True),
    "live-migrate": ("active", "hanging", True),
    "evacuate": ("active", "hanging", True),
    "unshelve": ("shelved", "hanging", True),
    "confirm": ("moved", "silent", False),
    "shelve": ("active", "silent", False),
    "delete": ("active", "silent", False),
}


def has_ended_before(one: OperationSummary, next_one: OperationSummary) -> bool:
    """Return whether one operation had ended when the next one began.

    A deletion that is ordered again when the cell already has the order is forwarded again.
    """
    return one.state != "pending" and one.idle >= next_one.age


@pytest.mark.parametrize("order", TWICE)
def test_one_of_two_equal_orders_at_the_same_time_is_carried_out(room: Room, order: str) -> None:
    state, how, is_refused = TWICE[order]
    with server_in(room, state) as uuid:
        room.misbehave(how, uuid, *room.hosts)
        if order == "evacuate":
            room.force_down("source")

        with ThreadPoolExecutor(2) as threads:
            faults = list(threads.map(lambda _: refused(room, order, uuid), range(2)))

        refusals = [type(fault) for fault in faults if fault is not None]
        # The order with the smaller number may reach the cell last, and is stale then.
        assert refusals in ([errors.InvalidState] * is_refused, [errors.StaleOrder])
        kind = "move" if order in (*MOVES, "evacuate") else order
        begun = [one for one in room.ask(ListOperations(instance_uuid=uuid, ended=True)) if one.kind == kind]
        for one, next_one in pairwise(sorted(begun, key=lambda each: (each.cell_uuid or "", -each.age))):
            assert one.cell_uuid != next_one.cell_uuid or has_ended_before(one, next_one), "it is under way twice"
        assert len(room.ask(ListMigrations(instance_uuid=uuid, ended=True))) == (
            1 if kind in ("move", "confirm") else 0
        )


def test_one_of_two_builds_of_a_server_at_the_same_time_is_carried_out_and_later_ones_change_nothing(
    room: Room,
) -> None:
    uuid = ids.fresh()

    def build() -> type[errors.MoorageError] | None:
        message = BuildInstances(request_id=ids.fresh(), request_spec=room.spec("source"), instance_uuids=(uuid,))
        try:
            room.order(message)
        except errors.MoorageError as fault:
            return type(fault)
        return None

    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda _: build(), range(2)))

    assert sorted(map(str, answers)) == sorted(map(str, [None, errors.AlreadyExists]))
    room.becomes(uuid, "active")
    assert room.seen(uuid).holds == "instance: source"
    room.until(lambda: not room.seen(uuid).pending, "it to be done")
    with nothing_changing(room):
        assert build() is errors.AlreadyExists
    give(room, "delete", uuid)
    room.becomes(uuid, "deleted")
    with nothing_changing(room):
        assert build() is errors.AlreadyExists


# --- Restored records -------------------------------------------------------------------------------------------------


def test_orders_are_refused_as_often_as_there_were_orders_since_the_backup_of_the_super_conductor(room: Room) -> None:
    backup = conductor_instances.update().values(order_number=0)
    with server_in(room, "active") as uuid:
        for _ in range(3):
            give(room, "rebuild", uuid)
            room.becomes(uuid, "active")
        room.cloud.database.write(
            lambda connection: connection.execute(backup.where(conductor_instances.c.uuid == uuid))
        )

        faults = [refused(room, "rebuild", uuid) for _ in range(3)]

        assert [type(fault) for fault in faults] == [errors.StaleOrder, errors.StaleOrder, type(None)]
        room.becomes(uuid, "active")


def test_the_guest_of_a_server_takes_orders_after_the_database_of_its_cell_was_restored(room: Room) -> None:
    def set_number(number: int) -> None:
        changed = cell_instances.update().where(cell_instances.c.uuid == uuid).values(guest_order_number=number)
        room.cloud.database.write(lambda connection: connection.execute(changed))

    with server_in(room, "active") as uuid:
        set_number(5)
        give(room, "rebuild", uuid)
        room.becomes(uuid, "active")
        set_number(0)

        give(room, "rebuild", uuid)

        room.becomes(uuid, "active")


def test_a_server_that_was_deleted_since_the_backup_of_its_cell_is_deleted_there_again(room: Room) -> None:
    tables = (cell_instances, cell_attempts)

    def rows(connection: Connection) -> list[list[dict[str, Any]]]:
        return [
            [row._asdict() for row in connection.execute(select(table).where(_of(table, uuid)))] for table in tables
        ]

    def restore(connection: Connection) -> None:
        for table, of_backup in zip(tables, backup, strict=True):
            connection.execute(table.delete().where(_of(table, uuid)))
            connection.execute(table.insert(), of_backup)

    def states() -> list[str]:
        return [row["state"] for row in room.cloud.database.read(rows)[0]]

    with server_in(room, "active") as uuid:
        backup = room.cloud.database.read(rows)
        give(room, "delete", uuid)
        room.becomes(uuid, "deleted")
        room.cloud.database.write(restore)
        assert states() == ["active"]

        give(room, "delete", uuid)

        wait_until(lambda: states() == ["deleted"], "the deletion in the cell", 60)
        room.becomes(uuid, "deleted")


def _of(table: Table, uuid: str) -> ColumnElement[bool]:
    return table.c["uuid" if table is cell_instances else "instance_uuid"] == uuid
