"""Orders that cannot be carried out change nothing and say why; and what a resize on a nearly full host holds."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from operation_cloud import Troubles, TroublesomeCloud, plan
from operation_room import LARGE, SMALL, Room, rooms_of

from moorage import errors, ids
from moorage.messages import (
    AbortMigration,
    ConfirmMigration,
    DeleteInstance,
    EvacuateInstance,
    GetResourceProvider,
    LiveMigrateInstance,
    MigrateInstance,
    Ordered,
    RebuildInstance,
    ResizeInstance,
    RevertMigration,
    SetHost,
    ShelveInstance,
    ShowMigration,
    UnshelveInstance,
)
from moorage.model import Image, Migration

#: Every order that there is, of a server and of the host that it may name.
ORDERS: Mapping[str, Callable[[str, str | None], object]] = {
    "delete": lambda uuid, _host: DeleteInstance(request_id=ids.fresh(), instance_uuid=uuid),
    "migrate": lambda uuid, host: MigrateInstance(request_id=ids.fresh(), instance_uuid=uuid, host=host),
    "resize": lambda uuid, host: ResizeInstance(request_id=ids.fresh(), instance_uuid=uuid, host=host, flavor=LARGE),
    "confirm": lambda uuid, _host: ConfirmMigration(request_id=ids.fresh(), instance_uuid=uuid),
    "revert": lambda uuid, _host: RevertMigration(request_id=ids.fresh(), instance_uuid=uuid),
    "live-migrate": lambda uuid, host: LiveMigrateInstance(request_id=ids.fresh(), instance_uuid=uuid, host=host),
    "abort": lambda uuid, _host: AbortMigration(request_id=ids.fresh(), instance_uuid=uuid),
    "evacuate": lambda uuid, host: EvacuateInstance(request_id=ids.fresh(), instance_uuid=uuid, host=host),
    "shelve": lambda uuid, _host: ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid),
    "unshelve": lambda uuid, host: UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid, host=host),
    "rebuild": lambda uuid, _host: RebuildInstance(request_id=ids.fresh(), instance_uuid=uuid, image=Image(id="other")),
}
MOVES = ("migrate", "resize", "live-migrate")
#: What is refused of a server in each state. To delete one is never refused.
REFUSED = {
    "active": ("confirm", "revert", "abort", "evacuate", "unshelve"),
    "moved": (*MOVES, "abort", "evacuate", "shelve", "unshelve", "rebuild"),
    "shelved": (*MOVES, "confirm", "revert", "abort", "evacuate", "shelve", "rebuild"),
    "deleted": tuple(name for name in ORDERS if name != "delete"),
}


@pytest.fixture(scope="module")
def rooms() -> Iterator[tuple[Room, Room]]:
    """One room in each of two cells."""
    with TroublesomeCloud(replace(plan("combine", hosts=6), cells=2)) as cloud:
        here, there = rooms_of(cloud, Troubles())
        yield here, there


@pytest.fixture
def room(rooms: tuple[Room, Room]) -> Room:
    return rooms[0]


@pytest.fixture
def server(room: Room) -> Iterator[str]:
    """A server that is active on the source."""
    uuid = room.build()
    yield uuid
    room.order(ORDERS["delete"](uuid, None))
    room.becomes(uuid, "deleted")
    room.clear(uuid)


def give(room: Room, order: str, uuid: str, host: str | None = None) -> object:
    return room.order(ORDERS[order](uuid, host))


def ends(room: Room, ordered: object, state: str) -> Migration:
    assert isinstance(ordered, Ordered)
    shown = ShowMigration(uuid=ordered.migration_uuid)
    room.until(lambda: room.ask(shown).state == state, state)
    return room.ask(shown)


def used(room: Room, role: str) -> int:
    return room.placement.call(GetResourceProvider(uuid=room.nodes[role])).used["VCPU"]


# --- A nearly full host -----------------------------------------------------------------------------------------------


def test_a_resize_on_its_host_fits_only_if_both_sizes_do_and_once_confirmed_the_old_one_is_free(
    room: Room, server: str
) -> None:
    room.fill("source", leave=LARGE.vcpus - 1)
    before = room.seen(server)

    refused = ends(room, give(room, "resize", server, room.hosts["source"]), "failed")

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


# --- Refused ----------------------------------------------------------------------------------------------------------


def in_state(room: Room, uuid: str, state: str) -> None:
    """Bring a server that is active into another state."""
    order = {"moved": "migrate", "shelved": "shelve", "deleted": "delete"}.get(state)
    if order is not None:
        give(room, order, uuid)
        room.becomes(uuid, state)


@pytest.mark.parametrize("state", REFUSED)
def test_an_order_that_does_not_suit_a_servers_state_is_refused_and_changes_nothing(
    room: Room, server: str, state: str
) -> None:
    in_state(room, server, state)
    before, shown = room.seen(server), room.show(server)
    for order in REFUSED[state]:
        with pytest.raises(errors.InvalidState, match=None if state == "active" else state):
            give(room, order, server)
    assert (room.seen(server), room.show(server)) == (before, shown)


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_can_be_ordered_for_a_server_that_is_not_known(room: Room, order: str) -> None:
    unknown = ids.fresh()
    with pytest.raises(errors.InstanceNotFound, match=unknown):
        give(room, order, unknown)


def test_a_server_is_sent_only_to_another_host_of_its_cell_that_is_known_up_and_enabled(
    rooms: tuple[Room, Room], server: str
) -> None:
    room, other_cell = rooms
    room.force_down("destination")
    room.cloud.client("scheduler").call(
        SetHost(
            request_id=ids.fresh(), service_host=room.hosts["alternate"], disabled=True, disabled_reason="new disks"
        )
    )
    before = room.seen(server)
    wrong = {
        "nowhere": (errors.HostNotFound, "nowhere"),
        other_cell.hosts["source"]: (errors.InvalidState, "another cell"),
        room.hosts["destination"]: (errors.InvalidState, "down"),
        room.hosts["alternate"]: (errors.InvalidState, "new disks"),
    }
    for order in MOVES:
        for host, (kind, why) in wrong.items():
            with pytest.raises(kind, match=why):
                give(room, order, server, host)
        if order != "resize":
            with pytest.raises(errors.InvalidState, match="already"):
                give(room, order, server, room.hosts["source"])
    assert room.seen(server) == before
    room.force_down("destination", down=False)
    room.cloud.client("scheduler").call(
        SetHost(request_id=ids.fresh(), service_host=room.hosts["alternate"], disabled=False)
    )


@pytest.mark.parametrize("order", MOVES)
def test_a_server_that_is_sent_to_a_full_host_stays_where_it_is_and_the_refusal_is_explained(
    room: Room, server: str, order: str
) -> None:
    room.fill("destination")

    migration = ends(room, give(room, order, server, room.hosts["destination"]), "failed")

    assert migration.explanation is not None
    room.becomes(server, "active")
    assert room.seen(server).holds == "instance: source"
    assert room.show(server).flavor == SMALL


# --- Twice at the same time -------------------------------------------------------------------------------------------


def at_once(room: Room, uuid: str, *orders: str) -> Counter[str]:
    """Give orders at the same time; return how many were accepted of each, and how many refused."""

    def one(order: str) -> str:
        try:
            give(room, order, uuid)
        except errors.InvalidState:
            return "refused"
        return order

    with ThreadPoolExecutor(len(orders)) as threads:
        return Counter(threads.map(one, orders))


def test_of_many_moves_that_are_ordered_at_the_same_time_one_is_accepted(room: Room, server: str) -> None:
    answers = at_once(room, server, "migrate", "migrate", "migrate", "resize", "resize", "migrate")

    assert answers["refused"] == 5
    room.becomes(server, "moved")
    assert room.seen(server).holds.count("migration") == 1


def test_of_confirm_and_revert_at_the_same_time_one_is_carried_out(room: Room, server: str) -> None:
    in_state(room, server, "moved")

    answers = at_once(room, server, "confirm", "revert")

    assert answers["refused"] == 1
    room.becomes(server, "active")
    which = "destination" if answers["confirm"] else "source"
    seen = room.seen(server)
    assert (seen.server, seen.holds) == (f"active on the {which}", f"instance: {which}")


def test_shelving_and_moving_at_the_same_time_are_not_mixed(room: Room, server: str) -> None:
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
