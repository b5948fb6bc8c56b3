"""Test moves that return to a source that another client has released, though a guest may be on the destination."""

from collections.abc import Iterator

import pytest
from support.operations.cloud import Troubles, TroublesomeCloud, plan
from support.operations.pooled_room import PooledRoom

from moorage import failpoints, ids
from moorage.messages import (
    AcceptClaim,
    BuildFailedInCell,
    DeleteInstance,
    EvacuateInstance,
    ListOperations,
    MigrateInstance,
    RevertMigration,
)
from moorage.model import Attempt, Resources

#: The amounts of the server on its host; it also has 20 GB of the pool.
SIZE: Resources = {"VCPU": 2, "MEMORY_MB": 4096}
BACK: dict[str, Resources] = {"source": SIZE, "pool": {"DISK_GB": 20}}


@pytest.fixture(scope="module")
def stage() -> Iterator[PooledRoom]:
    with TroublesomeCloud(plan("combine", hosts=3, disk_gb=0)) as cloud:
        yield PooledRoom.furnish(cloud)


@pytest.fixture
def server(stage: PooledRoom) -> Iterator[str]:
    """Return a server on the source; at the end, verify that it has returned there and holds nothing else."""
    room = stage.room
    uuid = room.build()
    yield uuid
    room.becomes(uuid, "active")
    room.cloud.faults.forget(uuid)
    stage.comes_to_hold(uuid, instance=BACK)
    room.until(lambda: not room.pending(uuid), "the cleanup to end")
    assert [attempt.host for attempt in room.show(uuid).attempts if attempt.guest_left] == [room.hosts["source"]]


def test_a_move_leaves_a_residue_of_a_guest_that_may_be_on_the_destination(stage: PooledRoom, server: str) -> None:
    room = stage.room
    for how in ("hanging", "silent"):
        room.misbehave(how, server, "destination")
    order = MigrateInstance(request_id=ids.fresh(), instance_uuid=server, host=room.hosts["destination"])
    migration_uuid = room.order(order).migration_uuid
    room.until(lambda: room.is_building(server, "destination"), "the guest to arrive")

    room.take_away(migration_uuid)

    room.until(lambda: room.given_up(server, "destination"), "the host to be given up")
    stage.comes_to_hold(server, instance=BACK, residue={"destination": SIZE})
    room.migration_becomes(migration_uuid, "failed")


def test_a_revert_leaves_a_residue_of_a_guest_that_may_be_on_the_destination(stage: PooledRoom, server: str) -> None:
    room = stage.room
    order = MigrateInstance(request_id=ids.fresh(), instance_uuid=server, host=room.hosts["destination"])
    migration_uuid = room.order(order).migration_uuid
    room.becomes(server, "moved")
    room.misbehave("silent", server, "destination")

    room.take_away(migration_uuid)
    room.order(RevertMigration(request_id=ids.fresh(), instance_uuid=server))

    stage.comes_to_hold(server, instance=BACK, residue={"destination": SIZE})
    room.migration_becomes(migration_uuid, "reverted")


@pytest.mark.parametrize("is_accepted", [False, True])
def test_an_evacuation_that_was_not_begun_returns_unless_its_destination_has_accepted_it(
    stage: PooledRoom, server: str, is_accepted: bool
) -> None:
    room, troubles, order = stage.room, Troubles(), ids.fresh()
    accepted: list[Attempt] = []

    def is_back() -> None:
        """Accept the claim for the destination, take the source away, and remove the mark of its host."""
        instance = room.show(server)
        if is_accepted:
            accepted.append(instance.attempts[-1])
            names = {"consumer_uuid": server, "attempt_id": accepted[0].attempt_id, "host": accepted[0].host}
            room.placement.call(AcceptClaim(request_id=ids.fresh(), claim_id=str(instance.claim_id), **names))
        room.take_away(room.migration_of(server))
        room.force_down("source", False)

    troubles.arm(order, "step.move.start.begin", is_back)
    room.force_down("source")
    with failpoints.observed(troubles):
        migration_uuid = room.order(EvacuateInstance(request_id=order, instance_uuid=server)).migration_uuid
        if is_accepted:
            room.until(lambda: "wait" in steps(stage, server), "the report of the host to be waited for")
        else:
            room.migration_becomes(migration_uuid, "failed")
        assert not troubles.disarm(order)
    for attempt in accepted:
        instance = room.show(server)
        failure = BuildFailedInCell(
            request_id=ids.fresh(),
            instance_uuid=server,
            attempt_id=attempt.attempt_id,
            claim_id=str(instance.claim_id),
            reason="it is broken",
        )
        room.cloud.client(f"conductor.{instance.cell_uuid}").call(failure)

    assert ("it is broken" if is_accepted else "not forced down") in str(
        room.migration_becomes(migration_uuid, "failed").reason
    )


def test_a_deletion_releases_the_residue_of_a_return_that_it_has_interrupted(stage: PooledRoom) -> None:
    room, troubles, order = stage.room, Troubles(), ids.fresh()
    server = room.build()

    def is_back() -> None:
        room.take_away(room.migration_of(server))
        room.force_down("source", False)

    def is_unwanted() -> None:
        room.order(DeleteInstance(request_id=ids.fresh(), instance_uuid=server))

    troubles.arm(order, "step.move.start.begin", is_back)
    troubles.arm(order, "step.move.give_back.done", is_unwanted)
    room.force_down("source")
    with failpoints.observed(troubles):
        room.order(EvacuateInstance(request_id=order, instance_uuid=server))
        room.becomes(server, "deleted")

    assert not troubles.disarm(order)
    room.until(lambda: not room.pending(server), "the cleanup to end")
    stage.comes_to_hold(server)


def steps(stage: PooledRoom, server: str) -> set[str]:
    """Return the steps of the pending operations of a server."""
    return {one.step for one in stage.room.ask(ListOperations(instance_uuid=server))}
