"""Test the conductors' answers about claims that no host has accepted."""

import pytest
from support.conductor.builders import CELL_1, SPEC, FakeAgent, LosesReplies, World, selection, wait_until

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import BuildInCell, BuildOnHost, Done, InstanceBuild, Ownership, OwnsClaim, OwnsClaimInCell


def owned(world: World, consumer: str, claim_id: str) -> bool:
    message = OwnsClaim(request_id=ids.fresh(), consumer_uuid=consumer, claim_id=claim_id)
    return world.bus.client("conductor").call(message).owned


def test_the_super_conductor_owns_every_claim_of_a_build_that_is_not_handed_over(world: World) -> None:
    world.replace(LosesReplies(world.placement))
    [uuid] = world.build()
    wait_until(lambda: uuid in world.placement.held)

    claim_id = world.placement.held[uuid].claim_id
    assert claim_id is not None
    assert owned(world, uuid, claim_id)
    assert owned(world, uuid, ids.fresh()), "the answer under way may name any claim"
    world.becomes(uuid, "active")


def test_whether_a_claim_of_an_unknown_instance_is_owned_is_not_answered(world: World) -> None:
    with pytest.raises(errors.InstanceNotFound):
        owned(world, ids.fresh(), ids.fresh())
    with pytest.raises(errors.InstanceNotFound):
        world.cell_call(OwnsClaimInCell(request_id="r", consumer_uuid=ids.fresh(), claim_id=ids.fresh()))


@pytest.mark.short_calls
def test_after_the_hand_over_only_the_cell_answers_whether_a_claim_is_owned(world: World) -> None:
    [uuid] = world.build()
    claim_id = str(world.becomes(uuid, "active").claim_id)
    wait_until(lambda: world.pending("conductor") == 0)

    assert owned(world, uuid, claim_id)
    assert not owned(world, uuid, ids.fresh())
    world.stop("cell")
    with pytest.raises(errors.CellUnreachable):
        owned(world, uuid, claim_id)


@pytest.mark.parametrize(
    "fault", [errors.StoreUnavailable(schema="cell", reason="it is away"), errors.Overloaded(reason="it is full")]
)
def test_a_cell_that_cannot_serve_counts_as_unreachable(world: World, fault: errors.Unavailable) -> None:
    class Cell:
        @serves(OwnsClaimInCell)
        def owns_claim(self, _message: OwnsClaimInCell) -> Ownership:
            raise fault

    [uuid] = world.build()
    claim_id = str(world.becomes(uuid, "active").claim_id)
    wait_until(lambda: world.pending("conductor") == 0)
    world.stop("cell")
    world.serve(f"conductor.{CELL_1.uuid}", Cell())

    with pytest.raises(errors.CellUnreachable) as caught:
        owned(world, uuid, claim_id)

    assert caught.value.cell == CELL_1.name
    assert caught.value.reason == str(fault).rstrip(".")


def test_a_cell_owns_every_claim_of_an_instance_with_an_operation_under_way(world: World) -> None:
    class Silent(FakeAgent):
        @serves(BuildOnHost)
        def build_instance(self, message: BuildOnHost) -> Done:
            self.builds.append(message)
            return Done()

    world.replace(Silent(world.bus))
    [uuid] = world.build()
    wait_until(lambda: world.waiting() == 1 and world.pending("conductor") == 0)

    assert owned(world, uuid, world.agent.builds[0].claim_id)
    assert owned(world, uuid, ids.fresh())


def test_claims_of_an_instance_in_error_or_deleted_are_not_owned(world: World) -> None:
    world.agent.failing = {"a", "b", "c"}
    failed, deleted = world.build(ids.fresh(), ids.fresh())
    world.becomes(failed, "error")
    world.delete(deleted)
    world.becomes(deleted, "deleted")
    wait_until(lambda: world.pending("conductor") == world.pending("cell") == 0)
    claim_id = ids.fresh()

    assert not owned(world, failed, claim_id)
    assert not owned(world, failed, claim_id), "the question can be repeated"
    assert not owned(world, deleted, ids.fresh())


def test_a_build_under_a_revoked_claim_starts_nothing_and_deletes_the_consumer(world: World) -> None:
    uuid, claim_id = ids.fresh(), ids.fresh()
    world.revoke(CELL_1.uuid, claim_id, uuid)
    build = InstanceBuild(instance_uuid=uuid, request_spec=SPEC, selections=(selection("a", claim_id),))

    world.cell_call(BuildInCell(request_id="build", builds=(build,)))

    wait_until(lambda: world.pending("cell") == 0)
    assert uuid in world.placement.deleted
    assert world.agent.builds == []
