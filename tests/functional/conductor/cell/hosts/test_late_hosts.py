"""Test hosts that do not answer in time: a residue is held for their guests until these are gone."""

import time

import pytest
from support.conductor.builders import FakeAgent, FakePlacement, World, node, report, wait_until
from support.conductor.host_reports import report_hosts

from conductor.cell.steps.start import COULD_NOT_REPORT
from moorage import errors, failpoints, ids
from moorage.bus.bus import serves
from moorage.messages import BuildFailedInCell, BuildOnHost, Claimed, Done, ListOperations, SwapClaim


def test_a_host_that_finishes_late_destroys_its_guest_and_one_guest_remains(world: World) -> None:
    world.restart("cell", build_timeout=2.0)
    world.agent.hanging = world.agent.no_reply_to_destroy = {"a"}
    [uuid] = world.build()

    instance = world.becomes(uuid, "active")

    assert [(attempt.host, attempt.state, attempt.reason) for attempt in instance.attempts] == [
        ("a", "failed", "timed out"),
        ("b", "active", None),
    ]
    late = instance.attempts[0].attempt_id
    assert world.placement.residues == {late: node("a")}
    assert world.placement.held[uuid].root == node("b")
    world.agent.released.set()
    wait_until(lambda: late not in world.agent.guests)
    assert len(world.agent.guests) == 1
    assert world.placement.residues == {late: node("a")}, "the host has not confirmed that the guest is gone"
    world.agent.no_reply_to_destroy = set()
    wait_until(lambda: not world.placement.residues)
    wait_until(lambda: world.pending("cell") == 0)
    assert world.show(uuid).state == "active"


def test_a_host_that_finishes_while_no_conductor_runs_is_not_late(world: World) -> None:
    world.restart("cell", build_timeout=2.0)
    world.agent.may_finish.clear()
    [uuid] = world.build()
    wait_until(lambda: world.agent.guests)
    world.stop("cell")
    time.sleep(2.5)  # longer than the wait for the report
    world.start("cell")
    time.sleep(0.3)  # the agent repeats its report from time to time

    world.agent.may_finish.set()

    instance = world.becomes(uuid, "active")
    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "active")]


def test_a_host_that_could_not_report_is_waited_for_once_more_and_not_for_ever(world: World) -> None:
    world.restart("cell", build_timeout=2.0)
    world.agent.hanging = world.agent.no_reply_to_destroy = {"a"}
    [uuid] = world.build()
    wait_until(lambda: world.agent.guests)
    world.stop("cell")
    time.sleep(2.5)
    world.conf.set_override("build_timeout", 3600.0, group="conductor")
    world.start("cell")

    def reasons() -> set[str | None]:
        return {one.reason for one in world.bus.client("conductor").call(ListOperations(instance_uuid=uuid))}

    wait_until(lambda: COULD_NOT_REPORT in reasons())
    world.stop("cell")
    with world.records.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE cell_operations SET due_at = 1 WHERE step = 'wait'")
    world.conf.set_override("build_timeout", 0.5, group="conductor")
    world.start("cell")
    assert world.becomes(uuid, "active").attempts[0].reason == "timed out"


def test_the_cleanup_of_a_host_that_is_away_waits_for_its_return_and_is_not_tried_all_the_time(world: World) -> None:
    world.conf.set_override("host_down_after", 1.5, group="scheduler")
    world.restart("cell", build_timeout=2.0)
    world.agent.hanging = world.agent.no_reply_to_destroy = {"a"}
    report_hosts(world, hosts=(report("a"),), alive=("a",))
    [uuid] = world.build()
    world.becomes(uuid, "active")

    wait_until(lambda: world.pending("cell", "AND kind = 'clean' AND tries = 0 AND reason IS NOT NULL") == 1)
    assert world.placement.residues


def test_a_claim_that_a_late_host_has_not_accepted_is_released_without_a_residue(world: World) -> None:
    class SlowAgent(FakeAgent):
        def build(self, message: BuildOnHost) -> None:
            if message.host == "a":
                assert self.released.wait(20)
            super().build(message)

    world.restart("cell", build_timeout=2.0)
    world.replace(SlowAgent(world.bus))
    [uuid] = world.build()

    world.becomes(uuid, "active")

    assert world.placement.residues == {}
    assert world.placement.hosts_held() == {node("b")}
    assert world.agent.destroyed == []
    with pytest.raises(errors.ClaimReleased):
        world.agent.accept(world.agent.build_on("a"))


def test_when_the_last_host_is_late_the_instance_is_in_error_and_holds_nothing_but_a_residue(world: World) -> None:
    world.restart("cell", build_timeout=2.0)
    world.scheduler.hosts = ["a"]
    world.agent.hanging = world.agent.no_reply_to_destroy = {"a"}
    [uuid] = world.build()

    instance = world.becomes(uuid, "error")

    assert "a: timed out" in str(instance.reason)
    assert world.placement.held == {}
    assert world.placement.residues == {instance.attempts[0].attempt_id: node("a")}
    world.agent.no_reply_to_destroy = set()
    wait_until(lambda: not world.placement.residues)
    assert world.agent.guests == {}


def test_the_late_report_of_a_failure_releases_the_residue(world: World) -> None:
    world.restart("cell", build_timeout=2.0)
    world.agent.hanging = world.agent.no_reply_to_destroy = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    wait_until(lambda: bool(world.placement.residues))

    late = world.agent.build_on("a")
    del world.agent.guests[late.attempt_id]
    world.agent.report_failed(late, "it broke after all")

    wait_until(lambda: not world.placement.residues)
    wait_until(lambda: world.pending("cell") == 0)
    assert world.show(uuid).attempts[0].reason == "timed out"


def test_a_report_that_arrives_during_the_swap_away_from_a_late_host_does_not_count(world: World) -> None:
    world.restart("cell", build_timeout=2.0)
    world.agent.hanging = {"a"}

    class FinishesDuringTheSwap(FakePlacement):
        @serves(SwapClaim)
        def swap_claim(self, message: SwapClaim) -> Claimed:
            world.agent.released.set()
            wait_until(lambda: not world.agent.guests)
            return super().swap_claim(message)

    world.replace(FinishesDuringTheSwap())
    [uuid] = world.build()

    instance = world.becomes(uuid, "active")

    assert instance.host == "b"
    wait_until(lambda: not world.placement.residues)
    assert [guest.host for guest in world.agent.guests.values()] == ["b"]


def test_an_instance_whose_host_does_not_answer_is_deleted_and_the_host_keeps_a_residue(world: World) -> None:
    world.restart("cell", delete_patience=0.3)
    world.agent.no_reply_to_destroy = {"a"}
    [uuid] = world.build()
    attempt_id = world.becomes(uuid, "active").attempts[0].attempt_id

    world.delete(uuid)

    world.becomes(uuid, "deleted")
    assert world.placement.held == {}
    assert uuid in world.placement.deleted
    assert world.placement.residues == {attempt_id: node("a")}
    assert len(world.agent.guests) == 1
    world.agent.no_reply_to_destroy = set()
    wait_until(lambda: not world.placement.residues)
    assert world.agent.guests == {}
    wait_until(lambda: world.pending("cell") == 0)


def test_deleting_does_not_wait_for_a_host_that_is_declared_down(world: World) -> None:
    world.restart("cell", delete_patience=3600.0)
    [uuid] = world.build()
    attempt_id = world.becomes(uuid, "active").attempts[0].attempt_id
    world.agent.no_reply_to_destroy = world.placement.declared_down = {"a"}

    world.delete(uuid)

    world.becomes(uuid, "deleted")
    assert world.placement.residues == {attempt_id: node("a")}
    world.agent.no_reply_to_destroy = set()
    wait_until(lambda: not world.placement.residues)
    assert world.agent.guests == {}


def test_deleting_waits_for_a_host_that_is_not_declared_down_beside_one_that_is(world: World) -> None:
    world.restart("cell", delete_patience=3600.0)
    world.agent.failing = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    world.agent.no_reply_to_destroy, world.placement.declared_down = {"b"}, {"a"}

    world.delete(uuid)

    wait_until(lambda: world.pending("cell") == 1)
    assert world.show(uuid).state == "deleting"
    world.placement.declared_down = {"a", "b"}
    world.becomes(uuid, "deleted")


def test_deleting_does_not_wait_for_a_host_that_is_being_cleaned_up(world: World) -> None:
    world.restart("cell", build_timeout=2.0)
    world.agent.hanging = world.agent.no_reply_to_destroy = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")

    world.delete(uuid)

    world.becomes(uuid, "deleted")
    assert len(world.placement.residues) == 1
    world.agent.no_reply_to_destroy = set()
    wait_until(lambda: not world.placement.residues)
    assert world.agent.guests == {}


def test_an_instance_deleted_during_the_swap_away_from_a_late_host_leaves_nothing(world: World) -> None:
    class RefusesSwaps(FakePlacement):
        @serves(SwapClaim)
        def swap_claim(self, message: SwapClaim) -> Claimed:
            self.calls.append(message)
            raise errors.Overloaded(reason="for now")

    world.replace(RefusesSwaps())
    world.restart("cell", build_timeout=2.0)
    world.agent.hanging = {"a"}
    [uuid] = world.build()
    wait_until(lambda: any(isinstance(call, SwapClaim) for call in world.placement.calls))

    world.delete(uuid)

    world.becomes(uuid, "deleted")
    assert world.placement.hosts_held() == set()
    assert world.agent.guests == {}
    # The swap might have been carried out without an answer, so its attempt is cleaned up in any case.
    wait_until(lambda: world.pending("cell") == 0)


def test_a_host_that_has_accepted_a_claim_and_failed_in_an_earlier_life_is_not_waited_for(world: World) -> None:
    class Unheard(FakeAgent):
        @serves(BuildOnHost)
        def build_instance(self, message: BuildOnHost) -> Done:
            if message.host == "a":
                if message not in self.builds:
                    self.builds.append(message)
                    self.accept(message)
                raise errors.NoReply(topic="host a", method=message.method, seconds=0.0)
            return super().build_instance(message)

    agent = world.replace(Unheard(world.bus))
    reported: list[str] = []

    def fail(name: str) -> None:
        if name == "step.build.swap.begin" and not reported:
            reported.append(name)
            build = agent.build_on("a")
            world.cell_call(
                BuildFailedInCell(
                    request_id=ids.fresh(),
                    instance_uuid=build.instance_uuid,
                    attempt_id=build.attempt_id,
                    claim_id=build.claim_id,
                    reason="its disk is full",
                    life=7,
                )
            )

    with failpoints.observed(fail):
        [uuid] = world.build()
        first, second = world.becomes(uuid, "active").attempts

    assert (first.state, first.reason, second.host) == ("failed", "its disk is full", "b")
    wait_until(lambda: world.placement.hosts_held() == {node("b")})
