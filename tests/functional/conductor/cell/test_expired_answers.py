"""Test steps whose request the store has carried out, but whose answer is lost and expires before the repetition."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from support.conductor.builders import FakePlacement, World, node, report, wait_until
from support.conductor.host_reports import ended_attempts, report_gone, report_hosts, start_hosts
from support.conductor.moving_instances import Mover, becomes, built, shelve, shown, unshelve

from moorage import errors
from moorage.messages import DeleteAllocations, EndMove, SwapClaim
from moorage.messages.wire import Mutation
from moorage.model import Instance


class ForgetsAnAnswer(FakePlacement):
    """Carries out the first request of one kind, but neither answers it nor keeps the answer."""

    def __init__(self, kind: type[Mutation[Any]]) -> None:
        super().__init__()
        self.kind = kind
        self.has_forgotten = False
        #: Called before the repetition.
        self.before_repetition: Callable[[], None] = lambda: None

    def once(self, message: Mutation[Any], work: Callable[[], Any]) -> Any:
        answer = super().once(message, work)
        if isinstance(message, self.kind) and not self.has_forgotten:
            self.has_forgotten = True
            del self.answers[message.request_id]
            self.before_repetition()
            raise errors.StoreUnavailable(schema="main", reason="its answer is lost")
        return answer


def moved(world: World) -> Mover:
    """Return the move of an instance that has arrived on host `b`."""
    move = Mover(world, built(world))
    move.move("b")
    becomes(world, move.uuid, "moved")
    return move


def settled(world: World, uuid: str, host: str) -> Instance:
    """Wait until an instance is active on a host and nothing is pending; check that it holds only that host."""
    instance = becomes(world, uuid, "active")
    wait_until(lambda: world.pending("cell") == 0)
    assert instance.host == host
    assert world.placement.held[uuid].claim_id == instance.claim_id
    assert world.placement.hosts_held() == {node(host)}
    assert {guest.host for guest in world.agent.guests.values()} == {host}
    return instance


def waits_for_a_silent_host(world: World) -> bool:
    """Return whether a cleanup waits for a host that does not report."""
    with world.records.engine.connect() as connection:
        reason = connection.exec_driver_sql("SELECT reason FROM cell_operations WHERE kind = 'clean'").scalar()
    return b"has not reported" in (reason or b"")


def test_a_revert_whose_answer_has_expired_ends_on_the_source(world: World) -> None:
    placement = world.replace(ForgetsAnAnswer(EndMove))
    move = moved(world)

    move.end("revert")

    settled(world, move.uuid, "a")
    assert placement.has_forgotten
    assert move.shown().state == "reverted"
    assert [attempt.guest_left for attempt in shown(world, move.uuid).attempts] == [True, False]


def test_a_revert_whose_answer_has_expired_cleans_up_the_residue_on_the_destination(world: World) -> None:
    placement = world.replace(ForgetsAnAnswer(EndMove))
    move = moved(world)
    world.agent.no_reply_to_destroy = placement.declared_down = {"b"}

    move.end("revert")

    instance = becomes(world, move.uuid, "active")
    assert placement.residues == {instance.attempts[1].attempt_id: node("b")}
    world.agent.no_reply_to_destroy = set()
    settled(world, move.uuid, "a")


def test_a_move_that_has_failed_returns_to_its_source_although_the_answer_has_expired(world: World) -> None:
    placement = world.replace(ForgetsAnAnswer(EndMove))
    move = Mover(world, built(world))
    world.agent.failing = {"b"}

    move.move("b")

    settled(world, move.uuid, "a")
    assert placement.has_forgotten
    assert move.shown().state == "failed"


def test_a_return_to_the_source_is_repeated_while_the_instance_has_another_claim(world: World) -> None:
    move = moved(world)
    world.placement.release(move.uuid)
    claim_id = world.placement.claim(move.uuid, node("c"), world.placement.generations[move.uuid])

    move.end("revert")

    wait_until(lambda: world.pending("cell", "AND step = 'give_back' AND tries > 1") == 1)
    assert move.shown().state == "reverting"
    assert world.placement.held[move.uuid].claim_id == claim_id


def test_a_confirm_whose_answer_has_expired_cleans_up_the_residue_on_the_source(world: World) -> None:
    world.conf.set_override("host_down_after", 1.0, group="scheduler")
    world.restart("cell")
    placement = world.replace(ForgetsAnAnswer(EndMove))
    move = moved(world)
    report_hosts(world, hosts=(report("a"),))
    time.sleep(1.2)
    world.agent.no_reply_to_destroy = placement.declared_down = {"a"}

    move.end("confirm")

    becomes(world, move.uuid, "active")
    assert placement.residues == {move.migration: node("a")}
    # The cleanup waits for the silent host, because something is held there.
    wait_until(lambda: waits_for_a_silent_host(world))
    start_hosts(world, "a")
    report_gone(world, *ended_attempts(world, "a"))
    wait_until(lambda: not placement.residues)
    assert placement.hosts_held() == {node("b")}


def test_a_build_takes_over_the_next_host_whose_claim_was_answered_too_late(world: World) -> None:
    placement = world.replace(ForgetsAnAnswer(SwapClaim))
    world.agent.failing = {"a"}

    [uuid] = world.build()

    instance = settled(world, uuid, "b")
    assert placement.has_forgotten
    assert [(attempt.host, attempt.state) for attempt in instance.attempts] == [("a", "failed"), ("b", "active")]


def test_an_unshelving_takes_over_the_next_host_whose_claim_was_answered_too_late(world: World) -> None:
    placement = world.replace(ForgetsAnAnswer(SwapClaim))
    uuid = built(world)
    shelve(world, uuid)
    becomes(world, uuid, "shelved")
    world.agent.failing = {"b"}

    unshelve(world, uuid, "b", "c")

    settled(world, uuid, "c")
    assert placement.has_forgotten


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_a_move_takes_over_the_next_host_whose_claim_was_answered_too_late(world: World, outcome: Any) -> None:
    placement = world.replace(ForgetsAnAnswer(SwapClaim))
    move = Mover(world, built(world))
    world.agent.failing = {"b"}

    move.move("b", "c")

    assert becomes(world, move.uuid, "moved").host == "c"
    assert placement.has_forgotten
    move.end(outcome)
    settled(world, move.uuid, "c" if outcome == "confirm" else "a")


# --- Residues on hosts that report their guests as gone before the repetition -----------------------------------------


@pytest.fixture
def placement(world: World) -> ForgetsAnAnswer:
    """Forget an answer that names a residue; then host `a` reports that nothing is left there."""

    def report() -> None:
        start_hosts(world, "a")
        report_gone(world, *ended_attempts(world, "a"))

    placement = world.replace(ForgetsAnAnswer(DeleteAllocations))
    placement.before_repetition = report
    return placement


def nothing_is_held(world: World, placement: ForgetsAnAnswer) -> None:
    wait_until(lambda: world.pending("cell") == 0)
    assert placement.has_forgotten
    assert placement.residues == {}
    assert placement.hosts_held() == set()


def test_the_residue_of_a_build_that_has_failed_is_released_although_the_answer_has_expired(
    world: World, placement: ForgetsAnAnswer
) -> None:
    world.restart("cell", build_timeout=0.5)
    world.scheduler.hosts = ["a"]
    world.agent.hanging = world.agent.no_reply_to_destroy = {"a"}

    [uuid] = world.build()

    becomes(world, uuid, "error")
    nothing_is_held(world, placement)


def test_the_residue_of_a_deleted_instance_is_released_although_the_answer_has_expired(
    world: World, placement: ForgetsAnAnswer
) -> None:
    uuid = built(world)
    world.agent.no_reply_to_destroy = placement.declared_down = {"a"}

    world.delete(uuid)

    becomes(world, uuid, "deleted")
    nothing_is_held(world, placement)


def test_the_residue_of_a_shelved_instance_is_released_although_the_answer_has_expired(
    world: World, placement: ForgetsAnAnswer
) -> None:
    uuid = built(world)
    world.agent.no_reply_to_destroy = {"a"}
    shelve(world, uuid)
    wait_until(lambda: world.pending("cell", "AND kind = 'shelve' AND tries > 0") == 1)

    placement.declared_down = {"a"}

    becomes(world, uuid, "shelved")
    nothing_is_held(world, placement)
