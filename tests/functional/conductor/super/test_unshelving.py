"""Shelved instances that are placed again, and instances that are built for a consumer which exists."""

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


def others_put(world: MovingWorld, uuid: str) -> None:
    world.placement.put_beside(uuid, NIC, NET_BW_EGR_KILOBIT_PER_SEC=1000)


def comes_to(world: MovingWorld, uuid: str, state: str) -> None:
    wait_until(lambda: world.pending("conductor") == 0)
    assert world.show(uuid).state == state, world.show(uuid)


class Conflicting(FakeScheduler):
    """Finds, so many times, that somebody else has written the consumer."""

    conflicts = 0

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        if self.conflicts > 0:
            self.conflicts -= 1
            self.placement.touch(message.instance_uuids[0])
        return super().select_destinations(message)


def conflicting(world: MovingWorld, conflicts: int) -> None:
    world.scheduler = scheduler = Conflicting(world.placement)
    scheduler.conflicts = conflicts
    world.serve("scheduler", scheduler)


def test_a_shelved_instance_is_claimed_for_in_its_cell_and_started_there(world: MovingWorld) -> None:
    uuid = shelved(world)

    unshelve(world, uuid, host="c")

    comes_to(world, uuid, "active")
    asked = world.scheduler.asked[-1]
    assert asked.request_spec.requested_destination is not None
    assert asked.request_spec.requested_destination.cell == CELL_1.uuid
    assert asked.consumer_generations == {uuid: 2}
    assert world.placement.held[uuid].root == node("c")
    assert world.show(uuid).host == "c"


def test_an_instance_that_is_being_unshelved_shows_so_and_takes_no_other_order(world: MovingWorld) -> None:
    uuid = shelved(world)
    world.cell.refusing = {"unshelve_instance": "not now"}
    unshelve(world, uuid)
    wait_until(lambda: "unshelve_instance" in world.cell.methods())

    assert world.show(uuid).state == "unshelving"
    with pytest.raises(errors.InvalidState):
        unshelve(world, uuid)
    claim_id = world.placement.held[uuid].claim_id
    assert world.order(OwnsClaim(request_id=ids.fresh(), consumer_uuid=uuid, claim_id=claim_id)).owned
    world.cell.refusing = {}
    comes_to(world, uuid, "active")
    assert sum(isinstance(message, UnshelveInCell) for message in world.cell.taken) >= 2


def test_an_instance_for_which_there_is_no_host_stays_shelved_and_says_why_until_it_is_tried_again(
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


def test_a_host_that_cannot_be_gone_to_is_refused_at_once(world: MovingWorld) -> None:
    uuid = shelved(world)
    world.scheduler.states = [host_state("b", up=False)]

    with pytest.raises(errors.InvalidState):
        unshelve(world, uuid, host="b")
    with pytest.raises(errors.HostNotFound):
        unshelve(world, uuid, host="nowhere")
    assert world.show(uuid).state == "shelved"


@pytest.mark.parametrize(("policy", "state"), [("fail", "shelved"), ("retry", "shelved"), ("combine", "active")])
def test_what_others_have_put_on_a_shelved_instance_is_added_to_only_under_combine(
    world: MovingWorld, policy: str, state: str
) -> None:
    world.restart("super", consumer_conflict_policy=policy)
    uuid = shelved(world)
    others_put(world, uuid)

    unshelve(world, uuid)

    comes_to(world, uuid, state)
    assert [message.keep_held for message in world.scheduler.asked[1:]] == ([True] if policy == "combine" else [])


@pytest.mark.parametrize(
    ("policy", "conflicts", "state"),
    [("fail", 1, "shelved"), ("retry", 2, "active"), ("retry", 3, "shelved"), ("combine", 4, "active")],
)
def test_what_unshelving_does_when_others_write_meanwhile_is_the_policys(
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
    """Loses the first request, and refuses the others."""

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        self.asked.append(message)
        if len(self.asked) == 1:
            raise errors.Overloaded(reason="it is held back")
        raise errors.NoValidHost(instances=1, summary="all are full", explanation={"hosts": 3})


@pytest.mark.parametrize("others_write", [False, True])
def test_a_request_that_is_carried_out_after_its_unshelving_has_ended_is_refused(
    world: MovingWorld, others_write: bool
) -> None:
    uuid = shelved(world)
    if others_write:
        others_put(world, uuid)
    scheduler = Losing(world.placement)
    world.serve("scheduler", scheduler)
    unshelve(world, uuid)
    comes_to(world, uuid, "shelved")
    extras = world.placement.foreign.get(uuid, {})
    assert bool(extras) == others_write

    with pytest.raises(errors.ConsumerGenerationConflict):
        world.scheduler.select_destinations(scheduler.asked[0])

    assert world.placement.held == {}
    assert world.placement.foreign.get(uuid, {}) == extras
    world.serve("scheduler", world.scheduler)
    unshelve(world, uuid)
    comes_to(world, uuid, "active")


# --- Built for a consumer that exists ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "state"), [("fail", "error"), ("retry", "error"), ("combine", "active")])
def test_an_instance_is_built_for_a_consumer_that_exists_only_under_combine(
    world: MovingWorld, policy: str, state: str
) -> None:
    world.restart("super", consumer_conflict_policy=policy)
    uuid = ids.fresh()
    others_put(world, uuid)
    others_put(world, uuid)

    world.build(uuid)

    world.becomes(uuid, state)
    assert (uuid in world.placement.held) == (state == "active")


def test_an_instance_is_never_built_for_a_consumer_that_is_placed(world: MovingWorld) -> None:
    uuid = ids.fresh()
    world.placement.claim(uuid, node("b"))

    world.build(uuid)

    assert "it is placed already, by claim" in str(world.becomes(uuid, "error").reason)
    assert world.placement.held[uuid].root == node("b")


@pytest.mark.parametrize("policy", ["retry", "combine"])
def test_a_consumer_that_is_placed_keeps_all_though_the_build_that_was_refused_is_gone_on_with_after_a_crash(
    world: MovingWorld, policy: str
) -> None:
    world.restart("super", consumer_conflict_policy=policy)
    uuid, crashed = ids.fresh(), list[str]()
    claim_id = world.placement.claim(uuid, node("b"))

    def strike(name: str) -> None:
        if name == "step.build.hand_over.begin" and not crashed:
            crashed.append(name)
            raise errors.StoreUnavailable(schema="conductor", reason="it is gone")

    with failpoints.observed(strike):
        world.build(uuid)
        world.becomes(uuid, "error")
        wait_until(lambda: world.pending("conductor") == 0)

    assert crashed
    assert world.placement.held[uuid].claim_id == claim_id
    assert uuid not in world.placement.deleted


class Late(FakeScheduler):
    """Answers no first request."""

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        if not self.asked:
            self.asked.append(message)
            raise errors.Overloaded(reason="it is held back")
        return super().select_destinations(message)


def assert_refused_and_kept(world: MovingWorld, uuid: str, claim_id: str) -> None:
    """Wait until a build has ended in error, and verify that the consumer of its uuid holds what it held."""
    world.becomes(uuid, "error")
    wait_until(lambda: world.pending("conductor") == 0)
    assert uuid not in world.placement.deleted
    assert world.placement.held[uuid].claim_id == claim_id


@pytest.mark.parametrize("policy", ["fail", "retry", "combine"])
def test_a_consumer_that_is_placed_keeps_all_though_the_first_request_for_a_build_was_not_answered(
    world: MovingWorld, policy: str
) -> None:
    world.restart("super", consumer_conflict_policy=policy)
    uuid = ids.fresh()
    claim_id = world.placement.claim(uuid, node("b"))
    world.serve("scheduler", Late(world.placement))

    world.build(uuid)

    assert_refused_and_kept(world, uuid, claim_id)


@pytest.mark.parametrize("policy", ["fail", "retry", "combine"])
def test_a_consumer_whose_claim_a_host_has_accepted_keeps_all_when_an_instance_that_was_refused_for_it_is_deleted(
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


def test_a_consumer_whose_claim_a_host_has_accepted_keeps_all_when_a_build_fails_after_an_unanswered_request(
    world: MovingWorld,
) -> None:
    uuid = ids.fresh()
    claim_id = world.placement.claim(uuid, node("b"))
    world.placement.held[uuid].accepted_by = ids.fresh()
    world.serve("scheduler", Losing(world.placement))

    world.build(uuid)

    assert_refused_and_kept(world, uuid, claim_id)


@pytest.mark.parametrize("deleted", [True, False])
def test_what_others_hold_stays_where_that_is_configured_though_a_build_upon_it_has_failed(
    world: MovingWorld, *, deleted: bool
) -> None:
    world.restart("super", delete_foreign_amounts=deleted)
    uuid = ids.fresh()
    others_put(world, uuid)
    others_put(world, uuid)
    before = world.placement.foreign
    # The first request is not answered, and may be carried out later: the instance is deleted for good.
    world.serve("scheduler", Losing(world.placement))

    world.build(uuid)

    world.becomes(uuid, "error")
    wait_until(lambda: uuid in world.placement.deleted)
    assert world.placement.foreign == ({} if deleted else before)
