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


class FailingCell:
    """Answers questions about claims with an error, as long as there is one."""

    def __init__(self, fault: errors.Unavailable) -> None:
        self.fault: errors.Unavailable | None = fault
        self.asked: list[str] = []

    @serves(OwnsClaimInCell)
    def owns_claim(self, message: OwnsClaimInCell) -> Ownership:
        self.asked.append(message.claim_id)
        if self.fault is not None:
            raise self.fault
        return Ownership(owned=True)


AWAY = errors.StoreUnavailable(schema="cell", reason="it is away")


def in_failing_cell(world: World, fault: errors.Unavailable) -> tuple[FailingCell, str]:
    """Return a cell that cannot serve, and an instance that is active in it."""
    [uuid] = world.build()
    world.becomes(uuid, "active")
    wait_until(lambda: world.pending("conductor") == 0)
    world.stop("cell")
    cell = FailingCell(fault)
    world.serve(f"conductor.{CELL_1.uuid}", cell)
    return cell, uuid


@pytest.mark.parametrize("fault", [AWAY, errors.Overloaded(reason="it is full")])
def test_a_cell_that_cannot_serve_counts_as_unreachable(world: World, fault: errors.Unavailable) -> None:
    _cell, uuid = in_failing_cell(world, fault)

    with pytest.raises(errors.CellUnreachable) as caught:
        owned(world, uuid, ids.fresh())

    assert caught.value.cell == CELL_1.name
    assert caught.value.reason == str(fault).rstrip(".")


def test_a_cell_that_could_not_serve_is_not_asked_about_each_claim(world: World) -> None:
    cell, uuid = in_failing_cell(world, AWAY)
    first, second = ids.fresh(), ids.fresh()

    reasons = []
    for claim_id in (first, second):
        with pytest.raises(errors.CellUnreachable) as caught:
            owned(world, uuid, claim_id)
        reasons.append(caught.value.reason)

    assert cell.asked == [first]
    assert reasons == [str(AWAY).rstrip(".")] * 2


def test_a_cell_is_asked_about_each_claim_although_a_caller_had_no_time_left(world: World) -> None:
    cell, uuid = in_failing_cell(world, errors.DeadlineExceeded(point="before it was begun"))
    claims = [ids.fresh(), ids.fresh()]

    for claim_id in claims:
        with pytest.raises(errors.CellUnreachable):
            owned(world, uuid, claim_id)

    assert cell.asked == claims


@pytest.mark.short_calls
def test_a_cell_that_could_not_serve_is_asked_about_claims_again_after_a_while(world: World) -> None:
    cell, uuid = in_failing_cell(world, AWAY)
    with pytest.raises(errors.CellUnreachable):
        owned(world, uuid, ids.fresh())
    cell.fault = None

    def is_owned() -> bool:
        try:
            return owned(world, uuid, ids.fresh())
        except errors.CellUnreachable:
            return False

    wait_until(is_owned)


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
