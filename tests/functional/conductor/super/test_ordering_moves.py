"""Test orders to move: they are recorded or refused at once, and shown."""

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


# --- Without trouble --------------------------------------------------------------------------------------------------


def test_a_migration_gives_the_source_to_the_migration_and_the_cell_the_claimed_destination(world: MovingWorld) -> None:
    uuid = world.active()
    claim_id = world.placement.held[uuid].claim_id

    migration = world.comes_to(world.migrate(uuid), "moved")

    assert (migration.source_host, migration.destination_host, migration.cell) == ("a", "b", "cell1")
    assert world.placement.migrations[migration.uuid].claim_id == claim_id
    handed_over = the_only(MoveInCell, world.cell.received)
    assert [selection.service_host for selection in handed_over.selections] == ["b", "c"]
    assert handed_over.selections[0].claim_id == world.placement.held[uuid].claim_id
    request = world.scheduler.requests[-1]
    assert request.move is not None
    assert (request.move.held, request.owner, request.num_alternates) == (handed_over.held, "conductor", 2)
    assert (world.show(uuid).state, world.show(uuid).migration_uuid) == ("moved", migration.uuid)


def test_hosts_named_by_one_operation_are_not_requested_by_the_next(world: MovingWorld) -> None:
    uuid = world.active()
    record = world.cell.instances[uuid]
    record.spec = type(record.spec)(
        project_id="p", user_id="u", flavor=record.spec.flavor, force_hosts=("a",), ignore_hosts=("c",)
    )

    migration_uuid = world.resize(uuid, host="c")
    world.comes_to(migration_uuid, "moved")

    request = world.scheduler.requests[-1].request_spec
    assert request.requested_destination is not None
    assert (request.requested_destination.host, request.requested_destination.cell) == ("c", CELL_1.uuid)
    assert (request.force_hosts, request.ignore_hosts, request.flavor) == ((), (), LARGE)
    lasting = the_only(MoveInCell, world.cell.received).request_spec
    assert lasting.requested_destination is None
    assert world.show(uuid).flavor == LARGE


def test_a_repeated_order_gets_the_same_answer(world: MovingWorld) -> None:
    uuid = world.active()
    order = MigrateInstance(request_id=ids.fresh(), instance_uuid=uuid)

    first = world.order(order)
    world.comes_to(first.migration_uuid, "moved")

    assert world.order(order) == first
    assert len(world.migrations()) == 1
    with pytest.raises(errors.RequestIdReused):
        world.order(MigrateInstance(request_id=order.request_id, instance_uuid=uuid, host="c"))


def test_an_ordered_move_is_shown_before_its_cell_has_recorded_it(world: MovingWorld) -> None:
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


def test_an_order_repeated_while_the_first_one_is_being_recorded_gets_the_same_answer(world: MovingWorld) -> None:
    uuid, request_id = world.active(), ids.fresh()
    answers: list[str] = []

    def overtake(name: str) -> None:
        # The first one has found no stored request, and is about to read the state of the instance.
        if name == "serve.conductor.migrate_instance.send.conductor.cell.list_instances" and not answers:
            answers.append("")
            answers[0] = world.migrate(uuid, request_id=request_id)

    with failpoints.observed(overtake):
        assert world.migrate(uuid, request_id=request_id) == answers[0]


def test_an_instance_whose_unshelving_was_not_finished_can_be_unshelved_again(world: MovingWorld) -> None:
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


def test_orders_about_an_unknown_a_deleted_or_an_unplaced_instance_are_refused(world: MovingWorld) -> None:
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
def test_a_host_that_takes_no_instances_is_refused_as_destination_at_once(
    world: MovingWorld, host: Any, reason: str
) -> None:
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


def test_an_instance_is_evacuated_only_from_a_host_that_is_forced_down(world: MovingWorld) -> None:
    uuid = world.active()
    world.scheduler.states = [host_state("a", up=False), host_state("b")]
    with pytest.raises(errors.InvalidState, match="forced-down"):
        world.evacuate(uuid)
    world.scheduler.states = [host_state("a", up=False, forced_down=True), host_state("b")]

    world.comes_to(world.evacuate(uuid, host="b"), "moved")

    assert world.scheduler.requests[-1].move is not None
    assert world.scheduler.requests[-1].move.kind == "evacuation"


def test_the_cell_decides_about_an_evacuation_from_a_host_that_the_schedulers_do_not_know(world: MovingWorld) -> None:
    uuid = world.active()
    world.scheduler.states = [host_state("b"), host_state("a", cell_uuid=ids.fresh())]

    world.comes_to(world.evacuate(uuid, host="b"), "moved")


def test_an_order_whose_cell_does_not_answer_is_refused_and_changes_nothing(world: MovingWorld) -> None:
    uuid = world.active()
    world.servers.pop(f"conductor.{CELL_1.uuid}").stop()

    with ThreadPoolExecutor(10) as threads:
        answers = [threads.submit(world.order, order) for order in all_orders(uuid)]
        for answer in answers:
            with pytest.raises(errors.CellUnreachable):
                answer.result()
    assert world.migrations() == []


def test_an_unknown_migration_is_not_found(world: MovingWorld) -> None:
    with pytest.raises(errors.MigrationNotFound):
        world.order(ShowMigration(uuid=ids.fresh()))


# --- Forwarded to the cell --------------------------------------------------------------------------------------------


def test_an_order_that_the_cell_alone_carries_out_is_recorded_there_when_it_is_answered(world: MovingWorld) -> None:
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


def test_migrations_are_listed_by_instance_and_ended_ones_only_on_request(world: MovingWorld) -> None:
    one, other = world.active(), world.active()
    first = world.migrate(one)
    world.comes_to(first, "moved")
    world.order(ConfirmMigration(request_id=ids.fresh(), instance_uuid=one))
    second = world.migrate(other)
    world.comes_to(second, "moved")

    assert [each.uuid for each in world.migrations(ended=False)] == [second]
    assert [each.uuid for each in world.migrations()] == [first, second]
    assert [each.uuid for each in world.migrations(one)] == [first]
    # The super conductor has recorded the end by itself, and shows it without the cell.
    wait_until(lambda: world.pending_migrations() == 1)
    world.servers.pop(f"conductor.{CELL_1.uuid}").stop()
    assert [each.state for each in world.migrations()] == ["confirmed", "moving"]
