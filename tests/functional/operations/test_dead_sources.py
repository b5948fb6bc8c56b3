"""Test servers whose host is dead for good, on a whole cloud: they leave it, and residues are held there."""

from collections.abc import Iterator

import pytest
from support.operations.cloud import Troubles, TroublesomeCloud, plan
from support.operations.room import Room, rooms_of

from moorage import errors, ids
from moorage.messages import (
    ConfirmMigration,
    DeleteHost,
    DeleteInstance,
    MigrateInstance,
    ShelveInstance,
    ShowMigration,
    UnshelveInstance,
)


@pytest.fixture
def room() -> Iterator[Room]:
    """Return a room; the test kills one of its hosts."""
    with TroublesomeCloud(plan("combine", hosts=3)) as cloud:
        [room] = rooms_of(cloud, Troubles())
        yield room


def test_servers_leave_a_dead_host_and_its_residues_are_released_when_it_is_deleted(room: Room) -> None:
    source = room.hosts["source"]
    moved, shelved, running = room.build(), room.build(), room.build()
    move = MigrateInstance(request_id=ids.fresh(), instance_uuid=moved, host=room.hosts["destination"])
    migration = room.order(move).migration_uuid
    room.becomes(moved, "moved")
    for uuid in (moved, shelved):
        room.misbehave("silent", uuid, "source")
    room.order(ConfirmMigration(request_id=ids.fresh(), instance_uuid=moved))
    room.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=shelved))
    advice = f"moorage host set {source} --forced-down"
    room.until(lambda: advice in str(room.ask(ShowMigration(uuid=migration)).reason), "the advice")
    assert (room.show(moved).state, room.show(shelved).state) == ("moved", "shelving")

    room.force_down("source")

    room.becomes(moved, "active")
    room.becomes(shelved, "shelved")
    assert room.ask(ShowMigration(uuid=migration)).state == "confirmed"
    assert room.seen(moved).holds == "instance: destination; residue: source"
    assert room.seen(shelved).holds == "residue: source"
    with pytest.raises(errors.InvalidState, match="evacuate it"):
        room.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=running))
    assert (room.show(running).state, room.seen(running).holds) == ("active", "instance: source")

    room.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=shelved, host=room.hosts["alternate"]))
    room.becomes(shelved, "active")
    assert room.seen(shelved).holds == "instance: alternate; residue: source"
    delete = DeleteHost(request_id=ids.fresh(), service_host=source)
    with pytest.raises(errors.InvalidState, match=running):
        room.cloud.client("scheduler").call(delete)
    room.order(DeleteInstance(request_id=ids.fresh(), instance_uuid=running))
    room.becomes(running, "deleted")
    room.cloud.client("scheduler").call(delete)

    assert room.seen(moved).holds == "instance: destination"
    assert room.seen(shelved).holds == "instance: alternate"
