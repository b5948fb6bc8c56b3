"""Test builds in their cell: the fall-back from host to host, and the two gates."""

import threading
import time
from typing import Any

import pytest
from msgspec import structs
from support.conductor.builders import CELL_1, FakeAgent, FakePlacement, World, node, report, wait_until
from support.conductor.host_reports import report_hosts

from conductor.commands.timeline import attempt_in_words
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    AcceptClaim,
    AttemptsGone,
    BuildFinished,
    BuildOnHost,
    Claimed,
    DeleteAllocations,
    Done,
    ListAllocationCandidates,
    SwapClaim,
)
from moorage.model import AllocationCandidates, AllocationRequest, EndedAttempt, ProviderAmounts


def calls_of(placement: FakePlacement, kind: type[object]) -> list[object]:
    """Return the calls of one kind."""
    return [call for call in placement.calls if isinstance(call, kind)]


# --- Falling back -----------------------------------------------------------------------------------------------------


class ReshapesB(FakePlacement):
    """A placement role in which a reshape has moved the inventories of host b to a child provider."""

    child = node("child of b")

    def __init__(self) -> None:
        super().__init__()
        self.full = {node("b")}
        self.provide(node("b"), self.child)
        self.model.providers[self.child].parent = node("b")

    @serves(ListAllocationCandidates)
    def list_allocation_candidates(self, message: ListAllocationCandidates) -> AllocationCandidates:
        amounts: dict[str, int] = {}
        for group in message.request.groups.values():
            amounts |= group.resources
        found = AllocationRequest(
            allocations={self.child: ProviderAmounts(resources=amounts)},
            mappings=dict.fromkeys(message.request.groups, (self.child,)),
        )
        return AllocationCandidates(allocation_requests=(found,))


def test_an_alternate_whose_host_was_reshaped_since_it_was_chosen_is_claimed_where_its_amounts_are_now(
    world: World,
) -> None:
    world.replace(ReshapesB())
    world.agent.failing = {"a"}

    [uuid] = world.build()
    instance = world.becomes(uuid, "active")

    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "failed"), ("b", "active")]
    refused, swap = [call for call in world.placement.calls if isinstance(call, SwapClaim)]
    assert set(refused.claimed.allocations) == {node("b")}
    assert set(swap.claimed.allocations) == {ReshapesB.child}
    request = world.agent.build_on("b").allocation_request
    assert request is None or set(request.allocations) == {ReshapesB.child}


def test_a_build_falls_back_to_its_second_alternate_without_scheduler_and_super_conductor(
    world: World,
) -> None:
    world.agent.failing = {"a", "b"}
    accept = world.agent.accept
    begun, go_on = threading.Event(), threading.Event()

    def wait(message: BuildOnHost) -> None:
        accept(message)
        begun.set()
        assert go_on.wait(10)

    world.agent.accept = wait  # type: ignore[method-assign]
    [uuid] = world.build()
    assert begun.wait(10)
    wait_until(lambda: world.pending("conductor") == 0)
    world.stop("super")
    world.servers.pop("scheduler").stop()
    go_on.set()
    wait_until(lambda: node("c") in world.placement.hosts_held() and world.pending("cell") == 0)
    world.start("super")

    instance = world.becomes(uuid, "active")

    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [
        ("a", "failed"),
        ("b", "failed"),
        ("c", "active"),
    ]
    assert instance.attempts[0].reason == "a is broken"
    assert world.placement.hosts_held() == {node("c")}


class HasConsumerInPlaceOfResidue(FakePlacement):
    """A placement role in which another client has written a consumer with the uuid of an attempt, until it goes."""

    is_there = True

    def carry_out(self, message: Any) -> Any:
        if isinstance(message, SwapClaim) and message.leave_residue and self.is_there:
            raise errors.InvalidState(reason="no residue can be left")
        return super().carry_out(message)


def test_a_swap_that_cannot_leave_a_residue_is_retried_with_the_reason_on_record(world: World) -> None:
    placement = world.replace(HasConsumerInPlaceOfResidue())
    world.restart("cell", build_timeout=2.0)
    world.agent.hanging = {"a"}

    [uuid] = world.build()

    retried = "AND step = 'swap' AND CAST(reason AS TEXT) LIKE '%no residue can be left%'"
    wait_until(lambda: world.pending("cell", retried) == 1)
    placement.is_there = False
    assert world.becomes(uuid, "active").host == "b"
    first, *repeated = [call for call in placement.calls if isinstance(call, SwapClaim)]
    assert {call.request_id for call in repeated} == {first.request_id}


@pytest.mark.parametrize("how", ["declared_down", "disabled"])
def test_an_alternate_that_was_forced_down_or_disabled_meanwhile_is_skipped(world: World, how: str) -> None:
    world.agent.failing = {"a"}
    setattr(world.placement, how, {"b"})

    [uuid] = world.build()

    instance = world.becomes(uuid, "active")
    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [
        ("a", "failed"),
        ("b", "skipped"),
        ("c", "active"),
    ]
    assert instance.attempts[1].reason == "host b is forced down or disabled"
    assert {build.host for build in world.agent.builds} == {"a", "c"}


def test_a_build_that_would_fail_everywhere_ends_in_error_after_its_first_attempt(world: World) -> None:
    world.agent.failing = {"a", "b", "c"}
    world.agent.fails_everywhere = True

    [uuid] = world.build()

    instance = world.becomes(uuid, "error")
    [attempt] = instance.attempts
    assert (attempt.host, attempt.state, attempt.no_other_host) == ("a", "failed", True)
    assert "no other host is tried" in attempt_in_words(attempt)
    assert "a: a is broken" in str(instance.reason)
    assert world.placement.hosts_held() == set()
    # The failure does not count against the host.
    assert world.failed_builds() == 0


def test_released_foreign_amounts_on_a_failed_host_are_named_in_the_reason_of_its_attempt(world: World) -> None:
    class Foreign(FakePlacement):
        @serves(SwapClaim)
        def swap_claim(self, message: SwapClaim) -> Claimed:
            lost = {node("a"): ProviderAmounts(resources={"VGPU": 2})}
            return structs.replace(super().swap_claim(message), extras=lost)

    world.replace(Foreign())
    world.agent.failing = {"a"}
    [uuid] = world.build()

    instance = world.becomes(uuid, "active")

    lost = f"foreign allocations were deleted: 2 VGPU of provider {node('a')}"
    assert [attempt.reason for attempt in instance.attempts] == [f"a is broken; {lost}", None]


def test_when_every_host_fails_the_error_names_each_attempt_and_nothing_is_held(world: World) -> None:
    world.agent.failing = {"a", "b", "c"}
    [uuid] = world.build()

    instance = world.becomes(uuid, "error")

    for host in "abc":
        assert f"{host}: {host} is broken" in str(instance.reason)
    assert instance.host is None
    assert world.placement.held == {}
    assert world.placement.deleted == set()


def test_an_alternate_that_has_filled_up_is_skipped(world: World) -> None:
    world.agent.failing = {"a"}
    world.placement.full = {node("b")}
    [uuid] = world.build()

    instance = world.becomes(uuid, "active")

    assert [attempt.state for attempt in instance.attempts] == ["failed", "skipped", "active"]
    assert "not enough room" in str(instance.attempts[1].reason)


def test_an_alternate_that_has_not_reported_for_long_is_skipped(world: World) -> None:
    world.conf.set_override("host_down_after", 2.0, group="scheduler")
    world.restart("cell")
    report_hosts(world, hosts=(report("b"),))
    time.sleep(2.2)
    world.agent.failing = {"a"}
    [uuid] = world.build()

    instance = world.becomes(uuid, "active")

    assert [attempt.state for attempt in instance.attempts] == ["failed", "skipped", "active"]
    assert "not reported" in str(instance.attempts[1].reason)


@pytest.mark.short_calls
def test_a_swap_whose_answer_is_lost_is_repeated_and_carried_out_once(world: World) -> None:
    class LosesASwap(FakePlacement):
        slow = True

        @serves(SwapClaim)
        def swap_claim(self, message: SwapClaim) -> Claimed:
            answer = super().swap_claim(message)
            if self.slow:
                self.slow = False
                wait_until(lambda: len(calls_of(self, SwapClaim)) > 1, "the repetition", 60.0)
            return answer

    world.replace(LosesASwap())
    world.agent.failing = {"a"}
    [uuid] = world.build()

    instance = world.becomes(uuid, "active")

    assert [attempt.state for attempt in instance.attempts] == ["failed", "active"]
    assert world.placement.held[uuid].claim_id == instance.claim_id
    swaps = [call for call in world.placement.calls if isinstance(call, SwapClaim)]
    assert len(swaps) == 2
    assert swaps[0] == swaps[1]


def test_a_repeated_swap_does_not_skip_its_host_which_it_may_have_claimed_already(world: World) -> None:
    class LosesItsFirstAnswer(FakePlacement):
        @serves(SwapClaim)
        def swap_claim(self, message: SwapClaim) -> Claimed:
            answer = super().swap_claim(message)
            if self.declared_down:
                return answer
            self.declared_down = {"b"}
            raise errors.NoReply(topic="placement", method=message.method, seconds=0.0)

    world.replace(LosesItsFirstAnswer())
    world.agent.failing = {"a"}
    [uuid] = world.build()

    wait_until(lambda: world.show(uuid).state in ("active", "error"))

    instance = world.show(uuid)
    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "failed"), ("b", "active")]
    assert world.placement.held[uuid].claim_id == instance.claim_id
    assert world.placement.hosts_held() == {node("b")}
    swaps = [call for call in world.placement.calls if isinstance(call, SwapClaim)]
    assert len(swaps) == 2
    assert swaps[0] == swaps[1]


@pytest.mark.short_calls
def test_a_build_falls_back_if_an_agent_neither_answers_nor_accepts_the_claim(world: World) -> None:
    class SilentOnA(FakeAgent):
        @serves(BuildOnHost)
        def build_instance(self, message: BuildOnHost) -> Done:
            if message.host == "a":
                self.builds.append(message)
                wait_until(lambda: calls_of(world.placement, SwapClaim), "the swap", 60.0)
                return Done()
            return super().build_instance(message)

    world.replace(SilentOnA(world.bus))
    [uuid] = world.build()

    instance = world.becomes(uuid, "active")

    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "failed"), ("b", "active")]
    assert instance.attempts[0].reason == "the agent did not answer"
    with pytest.raises(errors.ClaimReleased):
        world.agent.accept(world.agent.build_on("a"))


@pytest.mark.short_calls
@pytest.mark.parametrize(("hosts", "fenced_by"), [(["a", "b", "c"], SwapClaim), (["a"], DeleteAllocations)])
def test_a_build_waits_for_an_agent_that_has_accepted_the_claim_without_answering(
    world: World, hosts: list[str], fenced_by: type[object]
) -> None:
    class SlowToAnswer(FakeAgent):
        @serves(BuildOnHost)
        def build_instance(self, message: BuildOnHost) -> Done:
            done = super().build_instance(message)
            wait_until(lambda: calls_of(world.placement, fenced_by), "the fence", 60.0)
            return done

    world.scheduler.hosts = hosts
    world.replace(SlowToAnswer(world.bus)).may_finish.clear()
    [uuid] = world.build()
    wait_until(lambda: calls_of(world.placement, fenced_by))
    world.agent.may_finish.set()

    instance = world.becomes(uuid, "active")

    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "active")]
    assert world.placement.hosts_held() == {node("a")}


@pytest.mark.short_calls
def test_when_no_agent_answers_and_no_host_is_left_the_claim_is_fenced_and_released(world: World) -> None:
    world.scheduler.hosts = ["a"]
    world.servers.pop(f"compute.{CELL_1.uuid}").stop()
    [uuid] = world.build()

    instance = world.becomes(uuid, "error")

    assert "a: the agent did not answer" in str(instance.reason)
    assert world.placement.held == {}


# --- The gates --------------------------------------------------------------------------------------------------------


def test_an_old_attempt_passes_neither_gate_and_its_failure_has_no_effect(world: World) -> None:
    world.agent.failing = {"a"}
    [uuid] = world.build()
    instance = world.becomes(uuid, "active")
    old = world.agent.build_on("a")

    with pytest.raises(errors.ClaimReleased):
        world.agent.accept(old)
    with pytest.raises(errors.ClaimReleased):
        world.cell_call(
            BuildFinished(request_id=ids.fresh(), instance_uuid=uuid, attempt_id=old.attempt_id, claim_id=old.claim_id)
        )
    world.agent.report_failed(old, "once more")

    again = world.show(uuid)
    assert (again.state, again.host, again.attempts) == ("active", instance.host, instance.attempts)


def test_both_gates_may_be_passed_twice_by_the_same_attempt(world: World) -> None:
    [uuid] = world.build()
    world.becomes(uuid, "active")

    world.agent.accept(world.agent.builds[0])
    world.agent.finish(world.agent.builds[0])

    assert world.show(uuid).state == "active"
    assert len(world.agent.guests) == 1


class RefusedAtTheGate(FakeAgent):
    """Reports that nothing is left of an attempt whose claim the store has released, as an agent does."""

    def build(self, message: BuildOnHost) -> None:
        try:
            super().build(message)
        except errors.ClaimReleased:
            gone = EndedAttempt(
                host=message.host,
                instance_uuid=message.instance_uuid,
                attempt_id=message.attempt_id,
                claim_id=message.claim_id,
            )
            self.conductor.call(AttemptsGone(request_id=ids.fresh(), agent="agent", attempts=(gone,)))


def test_a_build_whose_claim_another_client_has_released_ends_when_its_host_reports_that_nothing_is_left(
    world: World,
) -> None:
    class Released(FakePlacement):
        @serves(AcceptClaim)
        def accept_claim(self, message: AcceptClaim) -> Done:
            self.release(message.consumer_uuid)
            return super().accept_claim(message)

    placement = world.replace(Released())
    world.replace(RefusedAtTheGate(world.bus))

    [uuid] = world.build()

    instance = world.becomes(uuid, "error")
    [attempt] = instance.attempts
    assert (attempt.host, attempt.state, attempt.guest_left) == ("a", "failed", False)
    assert "nothing of it is left" in str(attempt.reason)
    assert placement.hosts_held() == set()
    assert world.agent.guests == {}
