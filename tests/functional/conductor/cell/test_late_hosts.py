"""Hosts that do not answer in time: what they may still have stays held, until nothing of it is left."""

import pytest
from support.conductor.builders import FakeAgent, FakePlacement, World, node, wait_until

from moorage import errors
from moorage.bus.bus import serves
from moorage.messages import BuildOnHost, Claimed, SwapClaim


def test_a_host_that_finishes_late_destroys_its_guest_and_one_guest_remains(world: World) -> None:
    world.restart("cell", build_timeout=1.0)
    world.agent.hanging = world.agent.deaf = {"a"}
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
    assert world.placement.residues == {late: node("a")}, "the host has not said that nothing is left"
    world.agent.deaf = set()
    wait_until(lambda: not world.placement.residues)
    wait_until(lambda: world.pending("cell") == 0)
    assert world.show(uuid).state == "active"


def test_what_a_late_host_never_accepted_is_released_outright(world: World) -> None:
    class Dawdles(FakeAgent):
        def build(self, message: BuildOnHost) -> None:
            if message.host == "a":
                assert self.released.wait(20)
            super().build(message)

    world.restart("cell", build_timeout=1.0)
    world.put(Dawdles(world.bus))
    [uuid] = world.build()

    world.becomes(uuid, "active")

    assert world.placement.residues == {}
    assert world.placement.hosts_held() == {node("b")}
    assert world.agent.destroyed == []
    late = next(taken for taken in world.agent.taken if taken.host == "a")
    with pytest.raises(errors.ClaimReleased):
        world.agent.accept(late)


def test_when_the_last_host_is_late_the_instance_is_in_error_and_holds_nothing_but_a_residue(world: World) -> None:
    world.restart("cell", build_timeout=1.0)
    world.scheduler.hosts = ["a"]
    world.agent.hanging = world.agent.deaf = {"a"}
    [uuid] = world.build()

    instance = world.becomes(uuid, "error")

    assert "a: timed out" in str(instance.reason)
    assert world.placement.held == {}
    assert world.placement.residues == {instance.attempts[0].attempt_id: node("a")}
    world.agent.deaf = set()
    wait_until(lambda: not world.placement.residues)
    assert world.agent.guests == {}


def test_a_late_failure_is_the_hosts_word_that_nothing_is_left(world: World) -> None:
    world.restart("cell", build_timeout=1.0)
    world.agent.hanging = world.agent.deaf = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    wait_until(lambda: bool(world.placement.residues))

    late = next(taken for taken in world.agent.taken if taken.host == "a")
    del world.agent.guests[late.attempt_id]
    world.agent.report_failed(late, "it broke after all")

    wait_until(lambda: not world.placement.residues)
    wait_until(lambda: world.pending("cell") == 0)
    assert world.show(uuid).attempts[0].reason == "timed out"


def test_a_report_that_comes_while_a_late_host_is_given_up_does_not_count(world: World) -> None:
    world.restart("cell", build_timeout=1.0)
    world.agent.hanging = {"a"}
    swap = world.placement.swap_claim

    class FinishesDuringTheSwap(FakePlacement):
        @serves(SwapClaim)
        def swap_claim(self, message: SwapClaim) -> Claimed:
            world.agent.released.set()
            wait_until(lambda: not world.agent.guests)
            return swap(message)

    other = FinishesDuringTheSwap()
    other.__dict__ = world.placement.__dict__
    world.serve("placement", other)
    [uuid] = world.build()

    instance = world.becomes(uuid, "active")

    assert instance.host == "b"
    wait_until(lambda: not world.placement.residues)
    assert [guest.host for guest in world.agent.guests.values()] == ["b"]


def test_an_instance_whose_host_does_not_answer_is_deleted_and_the_host_keeps_a_residue(world: World) -> None:
    world.restart("cell", delete_patience=0.3)
    world.agent.deaf = {"a"}
    [uuid] = world.build()
    attempt_id = world.becomes(uuid, "active").attempts[0].attempt_id

    world.delete(uuid)

    world.becomes(uuid, "deleted")
    assert world.placement.held == {}
    assert uuid in world.placement.deleted
    assert world.placement.residues == {attempt_id: node("a")}
    assert len(world.agent.guests) == 1
    world.agent.deaf = set()
    wait_until(lambda: not world.placement.residues)
    assert world.agent.guests == {}
    wait_until(lambda: world.pending("cell") == 0)


def test_deleting_does_not_wait_for_a_host_that_is_being_cleaned_up(world: World) -> None:
    world.restart("cell", build_timeout=1.0)
    world.agent.hanging = world.agent.deaf = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")

    world.delete(uuid)

    world.becomes(uuid, "deleted")
    assert len(world.placement.residues) == 1
    world.agent.deaf = set()
    wait_until(lambda: not world.placement.residues)
    assert world.agent.guests == {}


def test_an_instance_deleted_while_its_late_host_is_given_up_leaves_nothing(world: World) -> None:
    class RefusesSwaps(FakePlacement):
        @serves(SwapClaim)
        def swap_claim(self, message: SwapClaim) -> Claimed:
            self.calls.append(message)
            raise errors.Overloaded(reason="for now")

    other = RefusesSwaps()
    other.__dict__ = world.placement.__dict__
    world.serve("placement", other)
    world.restart("cell", build_timeout=1.0)
    world.agent.hanging = {"a"}
    [uuid] = world.build()
    wait_until(lambda: any(isinstance(call, SwapClaim) for call in world.placement.calls))

    world.delete(uuid)

    world.becomes(uuid, "deleted")
    assert world.placement.hosts_held() == set()
    assert world.agent.guests == {}
    # The swap might have been carried out without an answer: its attempt is cleaned up in any case.
    wait_until(lambda: world.pending("cell") == 0)
