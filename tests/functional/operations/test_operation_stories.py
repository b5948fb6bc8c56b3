"""Test orders that are sent at the same time, and a resize on a nearly full host."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.conductor.order_table import give
from support.operations.cloud import Troubles, TroublesomeCloud, plan
from support.operations.room import LARGE, SMALL, Room, rooms_of

from moorage import errors, ids
from moorage.messages import GetResourceProvider, MigrateInstance, Ordered


@pytest.fixture(scope="module")
def room() -> Iterator[Room]:
    with TroublesomeCloud(plan("combine", hosts=3)) as cloud:
        [room] = rooms_of(cloud, Troubles())
        yield room


@pytest.fixture
def server(room: Room) -> Iterator[str]:
    """Return an active server on the source."""
    uuid = room.build()
    yield uuid
    give(room, "delete", uuid)
    room.becomes(uuid, "deleted")
    room.clear(uuid)


def used(room: Room, role: str) -> int:
    return room.placement.call(GetResourceProvider(uuid=room.nodes[role])).used["VCPU"]


# --- A nearly full host -----------------------------------------------------------------------------------------------


def test_a_resize_on_the_same_host_needs_room_for_both_sizes_and_frees_the_old_one_when_confirmed(
    room: Room, server: str
) -> None:
    room.fill("source", leave=LARGE.vcpus - 1)
    before = room.seen(server)

    ordered = give(room, "resize", server, room.hosts["source"])
    assert isinstance(ordered, Ordered)
    refused = room.migration_becomes(ordered.migration_uuid, "failed")

    assert refused.explanation is not None
    after = room.seen(server)
    assert (after.server, after.holds) == (before.server, before.holds)
    room.make_room()
    room.fill("source", leave=LARGE.vcpus)
    give(room, "resize", server, room.hosts["source"])
    room.becomes(server, "moved")
    assert used(room, "source") == 16
    assert room.seen(server).holds == "instance: source (new size); migration: source"
    give(room, "confirm", server)
    room.becomes(server, "active")
    assert used(room, "source") == 16 - SMALL.vcpus


# --- Twice at the same time -------------------------------------------------------------------------------------------


def at_once(room: Room, uuid: str, *orders: str) -> Counter[str]:
    """Send orders at the same time; return the number of accepted orders of each kind, and of refused ones."""

    def one(order: str) -> str:
        try:
            give(room, order, uuid)
        except (errors.InvalidState, errors.StaleOrder):
            return "refused"
        return order

    with ThreadPoolExecutor(len(orders)) as threads:
        return Counter(threads.map(one, orders))


def test_one_of_many_moves_ordered_at_the_same_time_is_accepted(room: Room, server: str) -> None:
    answers = at_once(room, server, "migrate", "migrate", "migrate", "resize", "resize", "migrate")

    assert answers["refused"] == 5
    room.becomes(server, "moved")
    assert room.seen(server).holds.count("migration") == 1


def test_one_of_confirm_and_revert_ordered_at_the_same_time_is_carried_out(room: Room, server: str) -> None:
    give(room, "migrate", server)
    room.becomes(server, "moved")

    answers = at_once(room, server, "confirm", "revert")

    assert answers["refused"] == 1
    room.becomes(server, "active")
    which = "destination" if answers["confirm"] else "source"
    seen = room.seen(server)
    assert (seen.server, seen.holds) == (f"active on the {which}", f"instance: {which}")


def test_orders_to_shelve_move_and_rebuild_at_the_same_time_are_not_mixed(room: Room, server: str) -> None:
    at_once(room, server, "shelve", "migrate", "rebuild")

    room.until(lambda: not room.seen(server).pending, "all to be carried out")
    seen = room.seen(server)
    assert (seen.server, seen.holds) in {
        ("shelved", ""),
        ("moved on the destination", "instance: destination; migration: source"),
        ("active on the source", "instance: source"),
    }


def test_the_same_order_sent_twice_is_carried_out_once(room: Room, server: str) -> None:
    message = MigrateInstance(request_id=ids.fresh(), instance_uuid=server)
    first = room.order(message)
    room.becomes(server, "moved")

    assert room.order(message) == first
    assert room.seen(server).holds == "instance: destination; migration: source"
