"""Test that operations on instances of a deleted cell end: no conductor will ever answer for it."""

import pytest
from support.conductor.builders import CELL_1, wait_until
from support.conductor.moving_world import MovingWorld

from moorage import failpoints, ids
from moorage.messages import ShelveInstance, UnshelveInstance


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
