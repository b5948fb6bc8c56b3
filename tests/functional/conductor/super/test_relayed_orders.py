"""Test orders that the super conductor forwards to the cell: attached resources, and repeated orders."""

import threading
from typing import Any

import pytest
from support.conductor.moving_world import MovingWorld

from moorage import errors, failpoints, ids
from moorage.messages import AttachResource, ConfirmMigration, DetachResource, ShelveInstance, ShowOperation
from moorage.model import AttachedResource, ResourceGroup

PORT = ResourceGroup(resources={"NET_BW_EGR_KILOBIT_PER_SEC": 1000})


def attach(uuid: str, suffix: str = "_port1", request_id: str | None = None) -> AttachResource:
    return AttachResource(request_id=request_id or ids.fresh(), instance_uuid=uuid, suffix=suffix, group=PORT)


def test_the_operation_that_the_cell_names_in_its_answer_can_be_shown(world: MovingWorld) -> None:
    uuid = world.active()
    message = attach(uuid)

    begun = world.order(message)

    assert world.order(ShowOperation(uuid=begun.operation_uuid)).kind == "attach"
    assert world.show(uuid).attached["_port1"].resources == PORT.resources
    detached = world.order(DetachResource(request_id=ids.fresh(), instance_uuid=uuid, suffix="_port1"))
    assert world.order(ShowOperation(uuid=detached.operation_uuid)).kind == "detach"
    assert world.show(uuid).attached == {}
    assert world.order(message) == begun
    assert world.show(uuid).attached == {}
    with pytest.raises(errors.RequestIdReused):
        world.order(attach(uuid, "_port2", message.request_id))


def test_a_repeated_order_that_the_cell_has_carried_out_is_answered_whatever_was_ordered_since(
    world: MovingWorld,
) -> None:
    uuid = world.active()
    world.comes_to(world.migrate(uuid), "moved")
    confirm = ConfirmMigration(request_id=ids.fresh(), instance_uuid=uuid)
    lost: list[str] = []
    go_on = threading.Event()

    def lose_answer(name: str) -> None:
        # The cell has answered, but nothing is recorded: as if this conductor had died.
        if name.startswith("serve.conductor.confirm_migration.answered.") and not lost:
            lost.append(name)
            raise failpoints.Dropped(name)
        if name == "step.move.prepare.begin":
            assert go_on.wait(60.0)

    with failpoints.observed(lose_answer):
        with pytest.raises(errors.CellUnreachable):
            world.order(confirm)
        migration_uuid = world.migrate(uuid)
        with pytest.raises(errors.InvalidState, match="is being placed"):
            world.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
        try:
            world.order(confirm)
        finally:
            go_on.set()
        world.comes_to(migration_uuid, "moved")

    assert len(lost) == 1


def test_an_order_about_an_instance_that_is_not_handed_over_yet_is_refused_for_its_state(
    world: MovingWorld,
) -> None:
    go_on, reached = threading.Event(), threading.Event()

    def pause(name: str) -> None:
        if name == "step.build.hand_over.begin":
            reached.set()
            assert go_on.wait(60.0)

    with failpoints.observed(pause):
        [uuid] = world.build()
        assert reached.wait(60.0)
        try:
            with pytest.raises(errors.InvalidState, match="is being built"):
                world.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
        finally:
            go_on.set()
        world.becomes(uuid, "active")
    world.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    world.becomes(uuid, "shelved")


def test_a_repeated_order_about_an_instance_that_its_cell_has_refused_since_is_refused_for_its_state(
    world: MovingWorld,
) -> None:
    go_on, reached = threading.Event(), threading.Event()

    def pause(name: str) -> None:
        if name == "step.build.hand_over.begin":
            reached.set()
            assert go_on.wait(60.0)

    world.cell.refusing["build_instances"] = "it takes nothing"
    with failpoints.observed(pause):
        [uuid] = world.build()
        shelve = ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid)
        assert reached.wait(60.0)
        try:
            with pytest.raises(errors.InvalidState, match="is being built"):
                world.order(shelve)
        finally:
            go_on.set()
        world.becomes(uuid, "error")
    with pytest.raises(errors.InvalidState, match=f"instance {uuid} is error and in no cell"):
        world.order(shelve)


# --- Commands ---------------------------------------------------------------------------------------------------------


def test_a_resource_is_attached_shown_and_detached_by_command(world: MovingWorld, moorage: Any) -> None:
    uuid = world.active()
    words = ("--resource", "NET_BW_EGR_KILOBIT_PER_SEC=1000", "--required", "CUSTOM_BLUE")

    status, [row] = moorage("instance", "attach-resource", uuid, "_port1", *words)

    assert (status, row["instance"], row["group"], row["state"]) == (0, uuid, "_port1", "done")
    assert row["operation"] in world.cell.operations
    _status, shown = moorage("instance", "show", uuid)
    assert shown["attached _port1"] == "1000 NET_BW_EGR_KILOBIT_PER_SEC, of a_nic0"
    gone = ids.fresh()
    world.cell.instances[uuid].attached["_port1"] = AttachedResource(resources=PORT.resources, provider_uuid=gone)
    assert moorage("instance", "show", uuid)[1]["attached _port1"].endswith(f"of {gone}")
    world.cell.instances[uuid].attached["_port1"] = AttachedResource(resources=PORT.resources)
    assert moorage("instance", "show", uuid)[1]["attached _port1"].endswith("not claimed yet")
    status, [row] = moorage("instance", "detach-resource", uuid, "_port1", "--no-wait")
    assert (status, world.show(uuid).attached) == (0, {})
    assert moorage("instance", "detach-resource", uuid, "_port1")[0] == 1


def test_a_command_whose_operation_fails_prints_the_reason_and_has_an_exit_status(
    world: MovingWorld, moorage: Any
) -> None:
    uuid = world.active()
    world.cell.no_room = {"_port1": "no provider has room"}
    words = ("--resource", "NET_BW_EGR_KILOBIT_PER_SEC=1000")

    status, [row] = moorage("instance", "attach-resource", uuid, "_port1", *words)

    assert (status, row["state"], row["reason"]) == (1, "failed", "no provider has room")
    assert moorage("instance", "attach-resource", uuid, "_port1", *words, "--no-wait")[0] == 0
    assert moorage("instance", "attach-resource", uuid, "_port2", *words, "--in-tree", uuid)[0] == 2
