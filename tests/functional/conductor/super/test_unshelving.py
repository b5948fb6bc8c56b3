"""Test unshelving, and builds of instances whose consumer already exists."""

import pytest
from support.conductor.builders import CELL_1, FakeScheduler, host_state, node, wait_until
from support.conductor.moving_world import MovingWorld

from moorage import errors, failpoints, ids
from moorage.bus.bus import serves
from moorage.messages import OwnsClaim, SelectDestinations, ShelveInstance, UnshelveInCell, UnshelveInstance
from moorage.model import Selection

NIC = ids.derived("node", "nic")


def shelved(world: MovingWorld) -> str:
    uuid = world.active()
    world.order(ShelveInstance(request_id=ids.fresh(), instance_uuid=uuid))
    assert world.placement.held == {}
    return uuid


def unshelve(world: MovingWorld, uuid: str, host: str | None = None) -> None:
    world.order(UnshelveInstance(request_id=ids.fresh(), instance_uuid=uuid, host=host))


def put_foreign_amounts(world: MovingWorld, uuid: str) -> None:
    world.placement.put_beside(uuid, NIC, NET_BW_EGR_KILOBIT_PER_SEC=1000)


def comes_to(world: MovingWorld, uuid: str, state: str) -> None:
    wait_until(lambda: world.pending("conductor") == 0)
    assert world.show(uuid).state == state, world.show(uuid)


class Conflicting(FakeScheduler):
    """Bumps the generation of the consumer before the first requests, as a write of another client does."""

    conflicts = 0

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        if self.conflicts > 0:
            self.conflicts -= 1
            self.placement.touch(message.instance_uuids[0])
        return super().select_destinations(message)


def conflicting(world: MovingWorld, conflicts: int) -> None:
    world.replace(Conflicting(world.placement)).conflicts = conflicts


def test_a_shelved_instance_is_claimed_and_started_in_its_cell(world: MovingWorld) -> None:
    uuid = shelved(world)

    unshelve(world, uuid, host="c")

    comes_to(world, uuid, "active")
    request = world.scheduler.requests[-1]
    assert request.request_spec.requested_destination is not None
    assert request.request_spec.requested_destination.cell == CELL_1.uuid
    assert request.consumer_generations == {uuid: 2}
    assert world.placement.held[uuid].root == node("c")
    assert world.show(uuid).host == "c"


def test_an_instance_that_is_being_unshelved_takes_no_other_order(world: MovingWorld) -> None:
    uuid = shelved(world)
    world.cell.refusing = {"unshelve_instance": "not now"}
    unshelve(world, uuid)
    wait_until(lambda: "unshelve_instance" in world.cell.methods())

    assert world.show(uuid).state == "unshelving"
    with pytest.raises(errors.InvalidState):
        unshelve(world, uuid)
    claim_id = world.placement.held[uuid].claim_id
    assert claim_id is not None
    assert world.order(OwnsClaim(request_id=ids.fresh(), consumer_uuid=uuid, claim_id=claim_id)).owned
    world.cell.refusing = {}
    comes_to(world, uuid, "active")
    assert sum(isinstance(message, UnshelveInCell) for message in world.cell.received) >= 2


def test_an_instance_without_a_valid_host_stays_shelved_with_a_reason_until_it_is_unshelved_again(
    world: MovingWorld,
) -> None:
    uuid = shelved(world)
    world.scheduler.hosts = []

    unshelve(world, uuid)

    comes_to(world, uuid, "shelved")
    assert world.show(uuid).explanation is not None
    assert "no hosts" in str(world.show(uuid).reason)
    assert world.placement.held == {}
    world.scheduler.hosts = ["b"]
    unshelve(world, uuid)
    comes_to(world, uuid, "active")
    assert world.show(uuid).explanation is None


def test_a_host_that_takes_no_instances_is_refused_as_destination_at_once(world: MovingWorld) -> None:
    uuid = shelved(world)
    world.scheduler.states = [host_state("b", up=False)]

    with pytest.raises(errors.InvalidState):
        unshelve(world, uuid, host="b")
    with pytest.raises(errors.HostNotFound):
        unshelve(world, uuid, host="nowhere")
    assert world.show(uuid).state == "shelved"


@pytest.mark.parametrize(("policy", "state"), [("fail", "shelved"), ("retry", "shelved"), ("combine", "active")])
def test_a_shelved_instance_with_foreign_amounts_is_unshelved_only_under_combine(
    world: MovingWorld, policy: str, state: str
) -> None:
    world.restart("super", consumer_conflict_policy=policy)
    uuid = shelved(world)
    put_foreign_amounts(world, uuid)

    unshelve(world, uuid)

    comes_to(world, uuid, state)
    assert [message.keep_held for message in world.scheduler.requests[1:]] == ([True] if policy == "combine" else [])


@pytest.mark.parametrize(
    ("policy", "conflicts", "state"),
    [("fail", 1, "shelved"), ("retry", 2, "active"), ("retry", 3, "shelved"), ("combine", 4, "active")],
)
def test_the_conflict_policy_decides_how_often_unshelving_is_retried_when_other_clients_write(
    world: MovingWorld, policy: str, conflicts: int, state: str
) -> None:
    world.restart("super", consumer_conflict_policy=policy, max_contention_retries=2)
    uuid = shelved(world)
    conflicting(world, conflicts)

    unshelve(world, uuid)

    comes_to(world, uuid, state)
    assert len(world.placement.held) == (state == "active")
    if state == "shelved":
        conflicting(world, 0)
        unshelve(world, uuid)
        comes_to(world, uuid, "active")


def test_an_instance_that_is_deleted_while_it_is_unshelved_leaves_nothing(world: MovingWorld) -> None:
    uuid = shelved(world)
    world.cell.refusing = {"unshelve_instance": "not now"}
    unshelve(world, uuid)
    wait_until(lambda: "unshelve_instance" in world.cell.methods())

    world.delete(uuid)

    world.becomes(uuid, "deleted")
    wait_until(lambda: world.pending("conductor") == 0)
    assert world.placement.held == {}


class Losing(FakeScheduler):
    """Does not answer the first request, and refuses the others."""

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        self.requests.append(message)
        if len(self.requests) == 1:
            raise errors.Overloaded(reason="it is held back")
        raise errors.NoValidHost(instances=1, summary="all are full", explanation={"hosts": 3})


@pytest.mark.parametrize("others_write", [False, True])
def test_a_request_that_is_carried_out_after_its_unshelving_has_ended_is_refused(
    world: MovingWorld, others_write: bool
) -> None:
    uuid = shelved(world)
    if others_write:
        put_foreign_amounts(world, uuid)
    scheduler = Losing(world.placement)
    world.serve("scheduler", scheduler)
    unshelve(world, uuid)
    comes_to(world, uuid, "shelved")
    extras = world.placement.foreign.get(uuid, {})
    assert bool(extras) == others_write

    with pytest.raises(errors.ConsumerGenerationConflict):
        world.scheduler.select_destinations(scheduler.requests[0])

    assert world.placement.held == {}
    assert world.placement.foreign.get(uuid, {}) == extras
    world.serve("scheduler", world.scheduler)
    unshelve(world, uuid)
    comes_to(world, uuid, "active")


# --- Builds for existing consumers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "state"), [("fail", "error"), ("retry", "error"), ("combine", "active")])
def test_an_instance_is_built_for_an_existing_consumer_only_under_combine(
    world: MovingWorld, policy: str, state: str
) -> None:
    world.restart("super", consumer_conflict_policy=policy)
    uuid = ids.fresh()
    put_foreign_amounts(world, uuid)
    put_foreign_amounts(world, uuid)

    world.build(uuid)

    world.becomes(uuid, state)
    assert (uuid in world.placement.held) == (state == "active")


def test_an_instance_is_never_built_for_a_placed_consumer(world: MovingWorld) -> None:
    uuid = ids.fresh()
    world.placement.claim(uuid, node("b"))

    world.build(uuid)

    assert "it is placed already, by claim" in str(world.becomes(uuid, "error").reason)
    assert world.placement.held[uuid].root == node("b")


@pytest.mark.parametrize("policy", ["retry", "combine"])
def test_a_placed_consumer_keeps_its_claim_if_the_refused_build_is_continued_after_a_crash(
    world: MovingWorld, policy: str
) -> None:
    world.restart("super", consumer_conflict_policy=policy)
    uuid, crashed = ids.fresh(), list[str]()
    claim_id = world.placement.claim(uuid, node("b"))

    def crash(name: str) -> None:
        if name == "step.build.hand_over.begin" and not crashed:
            crashed.append(name)
            raise errors.StoreUnavailable(schema="conductor", reason="it is gone")

    with failpoints.observed(crash):
        world.build(uuid)
        world.becomes(uuid, "error")
        wait_until(lambda: world.pending("conductor") == 0)

    assert crashed
    assert world.placement.held[uuid].claim_id == claim_id
    assert uuid not in world.placement.deleted


class Late(FakeScheduler):
    """Does not answer the first request."""

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        if not self.requests:
            self.requests.append(message)
            raise errors.Overloaded(reason="it is held back")
        return super().select_destinations(message)


def assert_refused_and_kept(world: MovingWorld, uuid: str, claim_id: str) -> None:
    """Wait until a build has ended in error, and verify that the consumer of its uuid holds what it held."""
    world.becomes(uuid, "error")
    wait_until(lambda: world.pending("conductor") == 0)
    assert uuid not in world.placement.deleted
    assert world.placement.held[uuid].claim_id == claim_id


@pytest.mark.parametrize("policy", ["fail", "retry", "combine"])
def test_a_placed_consumer_keeps_its_claim_if_the_first_request_of_a_build_is_not_answered(
    world: MovingWorld, policy: str
) -> None:
    world.restart("super", consumer_conflict_policy=policy)
    uuid = ids.fresh()
    claim_id = world.placement.claim(uuid, node("b"))
    world.serve("scheduler", Late(world.placement))

    world.build(uuid)

    assert_refused_and_kept(world, uuid, claim_id)


@pytest.mark.parametrize("policy", ["fail", "retry", "combine"])
def test_a_consumer_with_an_accepted_claim_keeps_it_when_the_instance_refused_for_it_is_deleted(
    world: MovingWorld, policy: str
) -> None:
    world.restart("super", consumer_conflict_policy=policy)
    uuid = ids.fresh()
    claim_id = world.placement.claim(uuid, node("b"))
    world.placement.held[uuid].accepted_by = ids.fresh()
    world.build(uuid)
    world.becomes(uuid, "error")

    world.delete(uuid)

    assert claim_id in str(world.becomes(uuid, "deleted").reason)
    assert world.placement.held[uuid].claim_id == claim_id
    assert uuid not in world.placement.deleted


def test_a_consumer_with_an_accepted_claim_keeps_it_when_a_build_fails_after_an_unanswered_request(
    world: MovingWorld,
) -> None:
    uuid = ids.fresh()
    claim_id = world.placement.claim(uuid, node("b"))
    world.placement.held[uuid].accepted_by = ids.fresh()
    world.serve("scheduler", Losing(world.placement))

    world.build(uuid)

    assert_refused_and_kept(world, uuid, claim_id)


@pytest.mark.parametrize("deleted", [True, False])
def test_foreign_amounts_are_kept_after_a_failed_build_where_that_is_configured_and_named_in_any_case(
    world: MovingWorld, *, deleted: bool
) -> None:
    world.restart("super", delete_foreign_amounts=deleted)
    uuid = ids.fresh()
    put_foreign_amounts(world, uuid)
    put_foreign_amounts(world, uuid)
    before = world.placement.foreign
    # The first request is not answered, and may be carried out later: the instance is deleted for good.
    world.serve("scheduler", Losing(world.placement))

    world.build(uuid)

    world.becomes(uuid, "error")
    wait_until(lambda: uuid in world.placement.deleted)
    assert world.placement.foreign == ({} if deleted else before)
    wait_until(lambda: world.pending("conductor") == 0)
    what = "foreign allocations were deleted" if deleted else "foreign allocations stay"
    reason = str(world.show(uuid).reason)
    assert "all are full" in reason
    assert f"; {what}: " in reason
    assert "NET_BW_EGR_KILOBIT_PER_SEC" in reason
