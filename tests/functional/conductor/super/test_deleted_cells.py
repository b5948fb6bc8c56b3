"""Test that operations on instances of a deleted cell end: no conductor will ever answer for it."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from support.conductor.builders import CELL_1, node, wait_until
from support.conductor.moving_world import MovingWorld

from moorage import failpoints, ids
from moorage.messages import ListOperations, ShelveInstance, UnshelveInstance


@pytest.fixture(autouse=True)
def short_calls(world: MovingWorld) -> None:
    """Shorten the wait for the conductors of a deleted cell."""
    world.conf.set_override("call_timeout", 3.0, group="rpc")
    world.restart("super")


def delete_cell(world: MovingWorld) -> None:
    """Delete the cell and stop its conductors."""
    world.servers.pop(f"conductor.{CELL_1.uuid}").stop()
    world.placement.cells.clear()


@pytest.mark.parametrize("known", [True, False])
def test_a_shelved_instance_of_a_deleted_cell_can_be_deleted(world: MovingWorld, known: bool) -> None:
    uuid = world.active()
    world.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    world.restart("super")
    if known:  # the super conductor has the address of the cell
        assert world.show(uuid).cell == "cell1"
    delete_cell(world)

    world.delete(uuid)

    wait_until(lambda: world.pending("conductor") == 0)
    assert world.show(uuid).state == "deleted"
    assert uuid in world.placement.deleted


def test_a_migration_ends_with_its_instance_in_a_deleted_cell(world: MovingWorld) -> None:
    uuid = world.active()
    migration_uuid = world.migrate(uuid)
    world.comes_to(migration_uuid, "moved")
    # Its hosts are deleted first, with the allocations on them.
    for consumer in (migration_uuid, uuid):
        world.placement.release(consumer)
    delete_cell(world)

    world.delete(uuid)

    wait_until(lambda: world.pending("conductor") == 0)
    assert world.pending_migrations() == 0
    assert world.migration(migration_uuid).state == "ended"


def test_an_instance_whose_claim_a_host_has_accepted_stays_without_its_cell(world: MovingWorld) -> None:
    uuid = world.active()
    world.restart("super")
    delete_cell(world)

    world.delete(uuid)

    wait_until(lambda: world.pending("conductor", "AND tries > 1") == 1)
    assert world.show(uuid).state == "deleting"
    assert uuid in world.placement.held


def test_a_build_that_its_deleted_cell_never_took_ends_with_its_instances(world: MovingWorld) -> None:
    world.servers.pop(f"conductor.{CELL_1.uuid}").stop()
    uuids = world.build(ids.fresh(), ids.fresh())
    wait_until(lambda: world.pending("conductor", "AND step = 'hand_over' AND tries > 0") == 1)
    world.placement.cells.clear()

    for uuid in uuids:
        world.delete(uuid)

    wait_until(lambda: world.pending("conductor") == 0)
    assert {world.show(uuid).state for uuid in uuids} == {"deleted"}
    assert world.placement.held == {}


def test_an_unshelving_that_nothing_was_claimed_for_ends_without_its_cell(world: MovingWorld) -> None:
    uuid = world.active()
    world.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    world.scheduler.hosts = []

    def delete(name: str) -> None:
        if name == "step.unshelve.cancel.begin" and world.placement.cells:
            delete_cell(world)

    with failpoints.observed(delete):
        world.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
        wait_until(lambda: world.pending("conductor") == 0)
    assert world.placement.cells == []


def deleting_at(
    world: MovingWorld, point: str, *, first: Callable[[], None] = lambda: None
) -> AbstractContextManager[None]:
    """Delete the cell when a step reaches a failpoint.

    :param first: called before that.
    """

    def delete(name: str) -> None:
        if name == point and world.placement.cells:
            first()
            delete_cell(world)

    return failpoints.observed(delete)


@pytest.mark.parametrize("step", ["prepare", "hand_over"])
def test_a_move_whose_cell_is_deleted_before_it_has_taken_it_fails(world: MovingWorld, step: str) -> None:
    uuid = world.active()
    claim_id = world.placement.held[uuid].claim_id

    with deleting_at(world, f"step.move.{step}.begin"):
        migration = world.comes_to(world.migrate(uuid), "failed")

    assert "There is no cell" in str(migration.reason)
    assert world.placement.held[uuid].claim_id == claim_id
    assert world.placement.hosts_held() == {node("a")}
    assert migration.uuid not in world.placement.held


def test_a_move_fails_without_its_cell_after_all_that_it_has_claimed_was_released(world: MovingWorld) -> None:
    uuid = world.active()
    migration_uuid = ids.derived("r", "migration")

    def release() -> None:
        # The hosts of the cell are deleted first, with the allocations on them.
        for consumer in (migration_uuid, uuid):
            world.placement.release(consumer)

    with deleting_at(world, "step.move.hand_over.begin", first=release):
        assert world.migrate(uuid, request_id="r") == migration_uuid
        migration = world.comes_to(migration_uuid, "failed")

    assert "There is no cell" in str(migration.reason)
    assert world.placement.held == {}


@pytest.mark.parametrize("released", [True, False])
@pytest.mark.parametrize("step", ["prepare", "hand_over"])
def test_an_unshelving_whose_cell_is_deleted_before_it_has_taken_it_ends(
    world: MovingWorld, step: str, *, released: bool
) -> None:
    uuid = world.active()
    world.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))

    def release() -> None:
        if released and uuid in world.placement.held:
            world.placement.release(uuid)

    with deleting_at(world, f"step.unshelve.{step}.begin", first=release):
        world.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
        wait_until(lambda: world.pending("conductor") == 0)

    assert world.placement.held == {}
    [operation] = [one for one in world.order(ListOperations(ended=True)) if one.kind == "unshelve"]
    assert (operation.state, "There is no cell" in str(operation.reason)) == ("failed", True)


def test_a_hand_over_waits_for_a_cell_that_is_not_listed_if_a_host_has_accepted_its_claim(world: MovingWorld) -> None:
    uuid = world.active()
    world.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))

    def accept() -> None:
        world.placement.held[uuid].accepted_by = ids.fresh()

    with deleting_at(world, "step.unshelve.hand_over.begin", first=accept):
        world.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
        wait_until(lambda: world.pending("conductor", "AND step = 'hand_over' AND tries > 1") == 1)

    assert uuid in world.placement.held
