"""Moves as they are ordered: on record at once, refused at once where that can be seen, and shown."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.conductor.builders import CELL_1, host_state, wait_until
from support.conductor.moving_world import LARGE, MovingWorld

from moorage import errors, failpoints, ids
from moorage.messages import (
    AbortMigration,
    ConfirmMigration,
    EvacuateInstance,
    LiveMigrateInstance,
    MigrateInstance,
    MoveInCell,
    RebuildInstance,
    ResizeInstance,
    RevertMigration,
    ShelveInstance,
    ShowMigration,
    UnshelveInstance,
)
from moorage.messages.wire import Mutation
from moorage.model import Image


def the_only(kind: type, messages: list[Any]) -> Any:
    [found] = [message for message in messages if isinstance(message, kind)]
    return found


# --- Straight ---------------------------------------------------------------------------------------------------------


def test_a_migration_gives_the_source_to_the_migration_and_the_cell_the_claimed_destination(world: MovingWorld) -> None:
    uuid = world.active()
    claim_id = world.placement.held[uuid].claim_id

    migration = world.comes_to(world.migrate(uuid), "moved")

    assert (migration.source_host, migration.destination_host, migration.cell) == ("a", "b", "cell1")
    assert world.placement.migrations[migration.uuid].claim_id == claim_id
    handed = the_only(MoveInCell, world.cell.taken)
    assert [selection.service_host for selection in handed.selections] == ["b", "c"]
    assert handed.selections[0].claim_id == world.placement.held[uuid].claim_id
    asked = world.scheduler.asked[-1]
    assert asked.move is not None
    assert (asked.move.held, asked.owner, asked.num_alternates) == (handed.held, "conductor", 2)
    assert (world.show(uuid).state, world.show(uuid).migration_uuid) == ("moved", migration.uuid)


def test_what_one_operation_names_is_not_asked_for_by_the_next(world: MovingWorld) -> None:
    uuid = world.active()
    record = world.cell.instances[uuid]
    record.spec = type(record.spec)(
        project_id="p", user_id="u", flavor=record.spec.flavor, force_hosts=("a",), ignore_hosts=("c",)
    )

    migration_uuid = world.resize(uuid, host="c")
    world.comes_to(migration_uuid, "moved")

    asked = world.scheduler.asked[-1].request_spec
    assert asked.requested_destination is not None
    assert (asked.requested_destination.host, asked.requested_destination.cell) == ("c", CELL_1.uuid)
    assert (asked.force_hosts, asked.ignore_hosts, asked.flavor) == ((), (), LARGE)
    lasting = the_only(MoveInCell, world.cell.taken).request_spec
    assert lasting.requested_destination is None
    assert world.show(uuid).flavor == LARGE


def test_an_order_is_answered_the_same_however_often_and_however_late_it_is_repeated(world: MovingWorld) -> None:
    uuid = world.active()
    order = MigrateInstance(request_id=ids.fresh(), instance_uuid=uuid)

    first = world.order(order)
    world.comes_to(first.migration_uuid, "moved")

    assert world.order(order) == first
    assert len(world.migrations()) == 1
    with pytest.raises(errors.RequestIdReused):
        world.order(MigrateInstance(request_id=order.request_id, instance_uuid=uuid, host="c"))


def test_a_move_that_has_been_ordered_shows_before_its_cell_knows_of_it(world: MovingWorld) -> None:
    uuid = world.active()
    with world.cell.lock:
        migration_uuid = world.migrate(uuid)

        assert world.migration(migration_uuid).state == "placing"
        assert (world.show(uuid).state, world.show(uuid).migration_uuid) == ("moving", migration_uuid)
        with pytest.raises(errors.InvalidState):
            world.migrate(uuid)
        with pytest.raises(errors.InvalidState):
            world.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    world.comes_to(migration_uuid, "moved")


def test_an_order_sent_again_while_the_first_sending_is_being_recorded_is_answered_the_same(world: MovingWorld) -> None:
    uuid, request_id = world.active(), ids.fresh()
    answers: list[str] = []

    def overtake(name: str) -> None:
        # It has looked for an answer and found none, and is about to ask how the instance stands.
        if name == "serve.conductor.migrate_instance.send.conductor.cell.list_instances" and not answers:
            answers.append("")
            answers[0] = world.migrate(uuid, request_id=request_id)

    with failpoints.observed(overtake):
        assert world.migrate(uuid, request_id=request_id) == answers[0]


def test_an_instance_that_was_taken_off_the_shelf_for_nothing_can_be_unshelved_again(world: MovingWorld) -> None:
    uuid = world.active()
    world.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    world.cell.instances[uuid].state = "unshelving"

    world.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))

    world.becomes(uuid, "active")


# --- Refused ----------------------------------------------------------------------------------------------------------


def all_orders(uuid: str, host: str | None = None) -> list[Mutation[Any]]:
    fresh = ids.fresh
    return [
        MigrateInstance(request_id=fresh(), instance_uuid=uuid, host=host),
        ResizeInstance(request_id=fresh(), instance_uuid=uuid, flavor=LARGE, host=host),
        LiveMigrateInstance(request_id=fresh(), instance_uuid=uuid, host=host),
        EvacuateInstance(request_id=fresh(), instance_uuid=uuid, host=host),
        UnshelveInstance(request_id=fresh(), instance_uuid=uuid, host=host),
        ConfirmMigration(request_id=fresh(), instance_uuid=uuid),
        RevertMigration(request_id=fresh(), instance_uuid=uuid),
        AbortMigration(request_id=fresh(), instance_uuid=uuid, migration_uuid=fresh()),
        ShelveInstance(request_id=fresh(), instance_uuid=uuid),
        RebuildInstance(request_id=fresh(), instance_uuid=uuid, image=Image(id="other")),
    ]


def test_no_order_is_taken_for_an_instance_that_is_unknown_or_deleted_or_in_no_cell(world: MovingWorld) -> None:
    deleted = world.active()
    world.delete(deleted)
    world.becomes(deleted, "deleted")
    for order in all_orders(ids.fresh()):
        with pytest.raises(errors.InstanceNotFound):
            world.order(order)
    for order in all_orders(deleted):
        with pytest.raises(errors.InvalidState):
            world.order(order)
    world.scheduler.hosts = []
    [unplaced] = world.build()
    world.becomes(unplaced, "error")
    for order in all_orders(unplaced):
        with pytest.raises(errors.InvalidState):
            world.order(order)

    assert world.migrations() == []


@pytest.mark.parametrize("state", ["building", "moving", "moved", "shelving", "shelved", "rebuilding", "error"])
def test_only_an_active_instance_is_moved_and_an_evacuated_one_may_be_in_error(world: MovingWorld, state: str) -> None:
    uuid = world.active()
    world.scheduler.states = [host_state("a", forced_down=True), host_state("b")]
    world.cell.instances[uuid].state = state
    migrate, resize, live_migrate, evacuate, unshelve, *_ = all_orders(uuid)

    for order in (migrate, resize, live_migrate, *([] if state == "error" else [evacuate])):
        with pytest.raises(errors.InvalidState) as refusal:
            world.order(order)
        assert f"is {state}" in str(refusal.value)
    if state != "shelved":
        with pytest.raises(errors.InvalidState):
            world.order(unshelve)
    assert world.migrations() == []


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        (host_state("b", up=False), "is down"),
        (host_state("b", forced_down=True), "is down"),
        (host_state("b", disabled=True, disabled_reason="its fan"), "is disabled: its fan"),
        (host_state("b", cell_uuid=ids.fresh()), "another cell"),
        (host_state("a"), "already"),
    ],
)
def test_a_host_that_cannot_be_gone_to_is_refused_at_once(world: MovingWorld, host: Any, reason: str) -> None:
    uuid = world.active()
    world.scheduler.states = [host]

    with pytest.raises(errors.InvalidState, match=reason):
        world.migrate(uuid, host=host.service_host)
    with pytest.raises(errors.HostNotFound):
        world.migrate(uuid, host="nowhere")
    assert world.migrations() == []
    assert world.show(uuid).state == "active"


def test_a_resize_may_name_the_host_that_the_instance_is_on(world: MovingWorld) -> None:
    uuid = world.active()

    migration = world.comes_to(world.resize(uuid, host="a"), "moved")

    assert (migration.source_host, migration.destination_host) == ("a", "a")


def test_nothing_is_evacuated_from_a_host_that_is_not_forced_down(world: MovingWorld) -> None:
    uuid = world.active()
    world.scheduler.states = [host_state("a", up=False), host_state("b")]
    with pytest.raises(errors.InvalidState, match="forced-down"):
        world.evacuate(uuid)
    world.scheduler.states = [host_state("a", up=False, forced_down=True), host_state("b")]

    world.comes_to(world.evacuate(uuid, host="b"), "moved")

    assert world.scheduler.asked[-1].move is not None
    assert world.scheduler.asked[-1].move.kind == "evacuation"


def test_an_order_whose_cell_does_not_answer_is_refused_as_such_and_changes_nothing(world: MovingWorld) -> None:
    uuid = world.active()
    world.servers.pop(f"conductor.{CELL_1.uuid}").stop()

    with ThreadPoolExecutor(10) as threads:
        answers = [threads.submit(world.order, order) for order in all_orders(uuid)]
        for answer in answers:
            with pytest.raises(errors.CellUnreachable):
                answer.result()
    assert world.migrations() == []


def test_a_migration_that_is_not_there_is_said_not_to_be_there(world: MovingWorld) -> None:
    with pytest.raises(errors.MigrationNotFound):
        world.order(ShowMigration(uuid=ids.fresh()))


# --- Passed on to the cell --------------------------------------------------------------------------------------------


def test_what_the_cell_alone_carries_out_is_on_its_record_once_it_is_answered(world: MovingWorld) -> None:
    uuid = world.active()
    fresh = ids.fresh
    migration_uuid = world.migrate(uuid)
    world.comes_to(migration_uuid, "moved")

    confirm = ConfirmMigration(request_id=fresh(), instance_uuid=uuid)
    world.order(confirm)
    assert world.migration(migration_uuid).state == "confirmed"
    world.order(RebuildInstance(request_id=fresh(), instance_uuid=uuid, image=Image(id="other")))
    world.order(ShelveInstance(request_id=fresh(), instance_uuid=uuid))
    world.order(confirm)

    assert world.show(uuid).state == "shelved"
    assert world.cell.methods()[-3:] == ["end_move", "rebuild_instance", "shelve_instance"]
    with pytest.raises(errors.InvalidState):
        world.order(RevertMigration(request_id=fresh(), instance_uuid=uuid))
    with pytest.raises(errors.RequestIdReused):
        world.order(ConfirmMigration(request_id=confirm.request_id, instance_uuid=fresh()))


def test_migrations_are_listed_by_instance_and_those_that_are_over_only_on_request(world: MovingWorld) -> None:
    one, other = world.active(), world.active()
    first = world.migrate(one)
    world.comes_to(first, "moved")
    world.order(ConfirmMigration(request_id=ids.fresh(), instance_uuid=one))
    second = world.migrate(other)
    world.comes_to(second, "moved")

    assert [each.uuid for each in world.migrations(ended=False)] == [second]
    assert [each.uuid for each in world.migrations()] == [first, second]
    assert [each.uuid for each in world.migrations(one)] == [first]
    # Settled without being asked for, it is known without the cell.
    wait_until(lambda: world.pending_migrations() == 1)
    world.servers.pop(f"conductor.{CELL_1.uuid}").stop()
    assert [each.state for each in world.migrations()] == ["confirmed", "moving"]
