"""Test builds in the super conductor: recorded, placed, handed over."""

import pytest
from support.conductor.builders import FakeScheduler, LosesReplies, World, node, wait_until

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.cli import lists
from moorage.messages import ListInstances, SelectDestinations
from moorage.model import Explanation, FilterCount, Selection

# --- Without trouble --------------------------------------------------------------------------------------------------


def test_an_instance_is_placed_handed_over_and_built_under_one_request_id(world: World) -> None:
    [uuid] = world.build(request_id="req-1")

    instance = world.becomes(uuid, "active")

    assert (instance.host, instance.cell, instance.request_id) == ("a", "cell1", "req-1")
    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "active")]
    held = world.placement.held[uuid]
    assert (held.root, held.claim_id, held.accepted_by) == (
        node("a"),
        instance.claim_id,
        instance.attempts[0].attempt_id,
    )
    assert world.scheduler.origins == ["req-1"]
    assert world.scheduler.requests[0].num_alternates == 2
    assert world.scheduler.requests[0].owner == "conductor"
    assert world.agent.builds[0].resources == {"VCPU": 1, "MEMORY_MB": 1024}
    assert (world.agent.builds[0].host, world.agent.builds[0].node) == ("a", "a")
    assert world.pending("conductor") == world.pending("cell") == 0


def test_instances_of_one_request_are_placed_in_one_decision_and_listed_in_their_order(world: World) -> None:
    uuids = world.build(*(ids.fresh() for _ in range(20)))

    for uuid in uuids:
        world.becomes(uuid, "active")

    assert len(world.scheduler.requests) == 1
    listed = world.bus.client("conductor").call(ListInstances())
    assert [instance.uuid for instance in listed] == uuids
    assert world.bus.client("conductor").call(ListInstances(project_id="another")) == []


def test_instances_are_listed_in_parts(world: World) -> None:
    uuids = world.build(*(ids.fresh() for _ in range(6)))
    for uuid in uuids:
        world.becomes(uuid, "active")
    world.delete(uuids[2])
    world.becomes(uuids[2], "deleted")
    left = [uuid for uuid in uuids if uuid != uuids[2]]
    conductor = world.bus.client("conductor")

    first = conductor.call(ListInstances(limit=2))
    second = conductor.call(ListInstances(limit=2, after=first[-1].number))
    assert [each.uuid for each in first + second] == left[:4]

    for at_once in (1, 2, 5, 1000):
        assert [each.uuid for each in lists.instances(conductor, ListInstances(), at_once)] == left
        assert [each.uuid for each in lists.instances(conductor, ListInstances(deleted=True), at_once)] == uuids
    assert lists.instances(conductor, ListInstances(project_id="another"), 2) == []


def test_the_same_request_twice_builds_once_and_another_content_is_refused(world: World) -> None:
    uuid = ids.fresh()

    assert world.build(uuid, request_id="req-1") == world.build(uuid, request_id="req-1") == [uuid]
    with pytest.raises(errors.RequestIdReused):
        world.build(ids.fresh(), request_id="req-1")
    with pytest.raises(errors.AlreadyExists):
        world.build(uuid)
    with pytest.raises(errors.InvalidRequest):
        world.build(uuid, uuid)

    world.becomes(uuid, "active")
    assert len(world.agent.builds) == 1


# --- Requests to the scheduler ----------------------------------------------------------------------------------------


def test_a_refusal_is_kept_with_its_explanation(world: World) -> None:
    found = Explanation(hosts=3, filters=(FilterCount(name="resources", hosts=3, removed=3),))

    def refuse(message: SelectDestinations) -> list[list[Selection]]:
        raise errors.NoValidHost(
            instances=1,
            summary=found.summary(),
            explanation={"hosts": 3, "filters": [{"name": "resources", "hosts": 3, "removed": 3}]},
        )

    world.scheduler.decide = refuse  # type: ignore[method-assign]
    [uuid] = world.build()

    instance = world.becomes(uuid, "error")

    assert instance.explanation == found
    assert "0 of 3 hosts: 3 removed by resources" in str(instance.reason)
    assert world.placement.calls == world.scheduler.requests, "nothing was claimed, so nothing is released"


def test_after_contention_the_scheduler_is_asked_again_with_a_new_id_a_bounded_number_of_times(world: World) -> None:
    decide = world.scheduler.decide

    def lose_twice(message: SelectDestinations) -> list[list[Selection]]:
        if len(world.scheduler.requests) < 3:
            raise errors.ClaimContention(tries=20)
        return decide(message)

    world.scheduler.decide = lose_twice  # type: ignore[method-assign]
    [uuid] = world.build()
    world.becomes(uuid, "active")
    assert len({request.request_id for request in world.scheduler.requests}) == 3

    def always_lose(message: SelectDestinations) -> list[list[Selection]]:
        raise errors.ClaimContention(tries=20)

    world.scheduler.requests.clear()
    world.conf.set_override("max_contention_retries", 1, group="conductor")
    world.scheduler.decide = always_lose  # type: ignore[method-assign]
    [uuid] = world.build()
    assert "Other claims were faster" in str(world.becomes(uuid, "error").reason)
    assert len(world.scheduler.requests) == 2


class WithoutDatabase(FakeScheduler):
    """Answers a number of times that its database is unavailable."""

    failures = 9

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        if len(self.requests) < self.failures:
            self.requests.append(message)
            raise errors.StoreUnavailable(schema="main", reason="silent")
        return super().select_destinations(message)


def test_a_build_is_retried_more_often_if_the_scheduler_has_no_database_than_if_it_is_silent(world: World) -> None:
    scheduler = world.replace(WithoutDatabase(world.placement))

    [uuid] = world.build()

    world.becomes(uuid, "active")
    assert len({message.request_id for message in scheduler.requests}) == 1
    assert len(scheduler.requests) == 10


def test_a_build_ends_in_error_while_the_database_of_all_schedulers_stays_away(world: World) -> None:
    world.replace(WithoutDatabase(world.placement)).failures = 1000

    [uuid] = world.build()

    assert "cannot be reached" in str(world.becomes(uuid, "error").reason)
    assert world.placement.held == {}


@pytest.mark.short_calls
def test_an_unanswered_request_is_repeated_with_the_same_id_and_claims_once(world: World) -> None:
    world.replace(LosesReplies(world.placement))

    [uuid] = world.build()

    world.becomes(uuid, "active")
    assert len(world.scheduler.requests) == 2
    assert len({request.request_id for request in world.scheduler.requests}) == 1


@pytest.mark.short_calls
def test_a_repeated_request_asks_for_as_many_alternates_as_when_the_build_was_ordered(world: World) -> None:
    class Reconfiguring(LosesReplies):
        def before_repetition(self, message: SelectDestinations) -> None:
            world.conf.set_override("max_attempts", 5, group="conductor")

    scheduler = world.replace(Reconfiguring(world.placement))

    [uuid] = world.build()

    world.becomes(uuid, "active")
    assert [message.num_alternates for message in scheduler.requests] == [2, 2]
    assert len({message.request_id for message in scheduler.requests}) == 1

    [later] = world.build()
    world.becomes(later, "active")
    assert scheduler.requests[-1].num_alternates == 4


def test_an_order_that_needs_more_hosts_than_one_answer_can_name_is_refused_whole(world: World) -> None:
    world.conf.set_override("max_attempts", 100, group="conductor")
    uuids = [ids.fresh() for _ in range(101)]

    with pytest.raises(errors.InvalidRequest, match=r"101 instances with 100 attempts each .* at most 100 instances"):
        world.build(*uuids)

    assert world.bus.client("conductor").call(ListInstances()) == []
    assert world.pending("conductor") == 0
    assert world.build(*uuids[:100]) == uuids[:100]


class TooLargeAnswers(FakeScheduler):
    """Carries out requests, but their answers do not fit into a message."""

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        super().select_destinations(message)
        raise errors.ReplyTooLarge(method=message.method, size=20_000_000, limit=12_000_000)


def test_claims_whose_answer_is_too_large_are_released(world: World) -> None:
    world.replace(TooLargeAnswers(world.placement))

    uuids = world.build(ids.fresh(), ids.fresh())

    for uuid in uuids:
        assert "20000000 bytes" in str(world.becomes(uuid, "error").reason)
    wait_until(lambda: world.pending("conductor") == 0)
    assert world.placement.held == {}
    assert len(world.scheduler.requests) == 1


@pytest.mark.short_calls
def test_when_the_scheduler_never_answers_the_instance_is_in_error_and_a_late_claim_is_impossible(world: World) -> None:
    world.replace(LosesReplies(world.placement)).lost = 99

    [uuid] = world.build()

    assert "There was no answer" in str(world.becomes(uuid, "error").reason)
    wait_until(lambda: uuid in world.placement.deleted)
    assert world.placement.held == {}
    assert len({request.request_id for request in world.scheduler.requests}) == 1
    wait_until(lambda: world.pending("conductor") == 0)


@pytest.mark.short_calls
def test_an_instance_whose_claim_was_released_meanwhile_is_requested_again_alone(world: World) -> None:
    class LosesOneClaim(LosesReplies):
        def before_repetition(self, message: SelectDestinations) -> None:
            self.placement.release(message.instance_uuids[1])

    world.replace(LosesOneClaim(world.placement))

    uuids = world.build(*(ids.fresh() for _ in range(3)))

    for uuid in uuids:
        world.becomes(uuid, "active")
    first, repeat, again = world.scheduler.requests
    assert first == repeat
    assert again.instance_uuids == (uuids[1],)
    assert again.request_id != first.request_id


def test_deleting_one_instance_of_a_request_whose_reply_was_lost_leaves_the_others(
    world: World,
) -> None:
    world.replace(LosesReplies(world.placement))
    uuids = world.build(*(ids.fresh() for _ in range(5)))
    wait_until(lambda: len(world.placement.held) == 5)

    world.delete(uuids[2])

    world.becomes(uuids[2], "deleted")
    for uuid in uuids:
        if uuid != uuids[2]:
            world.becomes(uuid, "active")
    assert set(world.placement.held) == set(uuids) - {uuids[2]}
    assert {guest.instance_uuid for guest in world.agent.guests.values()} == set(world.placement.held)


def test_a_delete_before_the_selection_leaves_the_other_instances_of_the_request(world: World) -> None:
    world.servers.pop("scheduler").stop()
    uuids = world.build(ids.fresh(), ids.fresh())
    world.delete(uuids[0])
    world.becomes(uuids[0], "deleted")
    world.serve("scheduler", world.scheduler)

    world.becomes(uuids[1], "active")
    assert set(world.placement.held) == {uuids[1]}
    assert world.show(uuids[0]).state == "deleted"


# --- Handing over -----------------------------------------------------------------------------------------------------


@pytest.mark.short_calls
def test_a_build_waits_for_an_unreachable_cell_with_a_reason_and_continues_when_the_cell_is_back(world: World) -> None:
    world.stop("cell")
    [uuid] = world.build()
    wait_until(lambda: "cell cell1 cannot be reached" in str(world.show(uuid).reason))
    assert world.show(uuid).state == "building"

    world.start("cell")

    instance = world.becomes(uuid, "active")
    assert instance.reason is None


@pytest.mark.short_calls
def test_a_restarted_super_conductor_continues_a_build_where_it_was(world: World) -> None:
    world.stop("cell")
    [uuid] = world.build()
    wait_until(lambda: uuid in world.placement.held)
    world.stop("super")
    world.start("super")
    world.start("cell")

    world.becomes(uuid, "active")
    assert len({request.request_id for request in world.scheduler.requests}) == 1


@pytest.mark.short_calls
def test_an_instance_is_shown_from_the_super_conductors_record_while_its_cell_does_not_answer(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")
    world.stop("cell")

    instance = world.show(uuid)

    assert instance.state == "building"
    assert "cell1" in str(instance.reason)
    assert len(world.bus.client("conductor").call(ListInstances())) == 1
