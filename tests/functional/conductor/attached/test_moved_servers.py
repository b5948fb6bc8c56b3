"""Test that attached resources are part of a server's request: they are allocated wherever the server is moved."""

from typing import Any

import pytest
from support.operations.port_room import PORT, WIDTH, Ports, give
from support.operations.room import LARGE, Room

from moorage import errors
from moorage.messages import (
    ConfirmMigration,
    DetachResource,
    EvacuateInstance,
    MigrateInstance,
    RebuildInstance,
    ResizeInstance,
    RevertMigration,
    ShelveInstance,
    UnshelveInstance,
)
from moorage.model import Image, Migration


def moves(room: Room, uuid: str, kind: Any, state: str = "moved", **fields: Any) -> Migration:
    return room.migration_becomes(give(room, kind, uuid, **fields).migration_uuid, state)


def test_an_attached_resource_moves_with_its_server_and_returns_when_the_move_is_reverted(
    room: Room, ports: Ports, server: str
) -> None:
    ports.attach(server)
    [source] = ports.held(server)

    migration = moves(room, server, MigrateInstance)

    [destination] = ports.held(server)
    assert destination.startswith("destination")
    assert ports.held(migration.uuid) == {source: WIDTH}
    [attached] = room.show(server).attached.values()
    assert ports.nics()[str(attached.provider_uuid)] == destination
    with pytest.raises(errors.InvalidState):
        ports.order(server, "_port2")
    with pytest.raises(errors.InvalidState):
        give(room, DetachResource, server, suffix=PORT)
    give(room, RevertMigration, server)
    room.becomes(server, "active")
    assert (ports.held(server), ports.held(migration.uuid)) == ({source: WIDTH}, {})
    assert ports.detach(server).state == "done"
    assert ports.held(server) == {}


@pytest.mark.parametrize(("ending", "size"), [(ConfirmMigration, " (new size)"), (RevertMigration, "")])
def test_a_resized_server_keeps_its_attached_resource_whether_the_resize_is_confirmed_or_reverted(
    room: Room, ports: Ports, server: str, ending: Any, size: str
) -> None:
    ports.attach(server)
    migration = moves(room, server, ResizeInstance, flavor=LARGE, host=room.hosts["source"])
    assert sorted([*ports.held(server), *ports.held(migration.uuid)]) == ["source 0", "source 1"]

    give(room, ending, server)

    room.becomes(server, "active")
    room.until(lambda: not ports.held(migration.uuid), "the migration to end")
    assert list(ports.held(server).values()) == [WIDTH]
    ports.detach(server)
    assert ports.held(server) == {}
    assert room.seen(server).holds == f"instance: source{size}"


def test_a_move_fails_if_no_destination_has_room_for_the_attached_resource(
    room: Room, ports: Ports, server: str
) -> None:
    ports.attach(server)
    for role in ("destination", "alternate"):
        for number in (0, 1):
            ports.take(role, number, 500)

    failed = moves(room, server, MigrateInstance, "failed")

    assert failed.explanation is not None
    assert list(ports.held(server).values()) == [WIDTH]
    room.make_room()
    ports.take("destination", 0, 500)
    ports.take("destination", 1, 500)
    moves(room, server, MigrateInstance)
    assert [name.split()[0] for name in ports.held(server)] == ["alternate"]


def test_an_evacuated_server_has_its_attached_resource_on_the_new_host_and_the_residue_holds_the_old(
    room: Room, ports: Ports, server: str
) -> None:
    ports.attach(server)
    [source] = ports.held(server)
    room.misbehave("silent", server, "source")
    room.force_down("source")
    # Attaching a port sends nothing to the host, so the host may be down.
    assert ports.attach(server, "_port2", 100).state == "done"
    [other] = ports.held(server).keys() - {source} or [source]

    migration = moves(room, server, EvacuateInstance, "confirmed")

    assert {name.split()[0] for name in ports.held(server)} == {"destination"}
    assert sum(ports.held(server).values()) == WIDTH + 100
    assert sum(ports.held(migration.uuid).values()) == WIDTH + 100
    assert set(ports.held(migration.uuid)) == {source, other}
    room.cloud.faults.forget(server)
    room.force_down("source", False)
    room.until(lambda: not ports.held(migration.uuid), "the residue to go")


def test_an_attached_resource_is_released_by_shelving_and_claimed_again_by_unshelving(
    room: Room, ports: Ports, server: str
) -> None:
    ports.attach(server)
    ports.attach(server, "_port2", 100)
    give(room, ShelveInstance, server)
    room.becomes(server, "shelved")
    assert ports.held(server) == {}
    assert [one.provider_uuid for one in room.show(server).attached.values()] == [None, None]
    with pytest.raises(errors.InvalidState, match="is shelved; it has to be active"):
        ports.order(server, "_port3")

    assert ports.detach(server, "_port2").state == "done"

    assert list(room.show(server).attached) == [PORT]
    give(room, UnshelveInstance, server)
    room.becomes(server, "active")
    assert list(ports.held(server).values()) == [WIDTH]
    give(room, RebuildInstance, server, image=Image(id="another"))
    room.until(lambda: not room.seen(server).pending, "the rebuild")
    assert list(ports.held(server).values()) == [WIDTH]
    assert ports.detach(server).state == "done"
    assert ports.held(server) == {}
