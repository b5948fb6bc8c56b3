"""Test a revert whose first step is carried out by two conductors: one was paused for longer than its lease."""

import threading
from collections.abc import Callable

import pytest
from support.conductor.builders import World, wait_until
from support.conductor.fake_agent import FakeAgent
from support.conductor.moving_instances import Mover, becomes, built, shown

from moorage import errors
from moorage.bus.bus import Bus, serves
from moorage.messages import Done, StopOnHost


class TwoAnswers(FakeAgent):
    """Answers the first conductor that the source has its guest, and the second one that it has none.

    :param take_over: lets the second conductor take the operation, while the first one waits.
    """

    def __init__(self, bus: Bus, take_over: Callable[[], object]) -> None:
        super().__init__(bus)
        self.take_over = take_over
        self.stops = 0
        self.lock = threading.Lock()
        #: Set when the first conductor, and when the second one, is to get its answer.
        self.first, self.second = threading.Event(), threading.Event()

    @serves(StopOnHost)
    def stop_instance(self, message: StopOnHost) -> Done:
        answer = super().stop_instance(message)
        with self.lock:
            self.stops += 1
            number = self.stops
        # The first order of all belongs to the move itself.
        if number == 2:
            self.take_over()
            assert self.first.wait(60)
        elif number == 3:
            assert self.second.wait(60)
            raise errors.InvalidState(reason=f"attempt {message.attempt_id} has no guest here")
        return answer


@pytest.fixture
def agent(world: World) -> TwoAnswers:
    world.stop("cell")
    agent = world.replace(TwoAnswers(world.bus, lambda: world.lose_leases()))
    world.start("cell")
    world.start("cell", "another")
    return agent


def reverting(world: World, agent: TwoAnswers) -> Mover:
    """Order a revert, whose first step then waits in both conductors."""
    move = Mover(world, built(world))
    move.move("b")
    becomes(world, move.uuid, "moved")
    move.end("revert")
    wait_until(lambda: agent.stops == 3)
    return move


def test_a_paused_conductor_destroys_nothing_after_another_one_has_given_up_the_revert(
    world: World, agent: TwoAnswers
) -> None:
    move = reverting(world, agent)
    _source, arrived = shown(world, move.uuid).attempts
    agent.second.set()
    wait_until(lambda: move.shown().reason is not None)
    assert move.shown().state == "moved"

    agent.first.set()

    # A conductor that stops ends the steps under way.
    world.stop("cell")
    world.stop("another")
    world.start("cell")
    assert agent.destroyed == []
    assert shown(world, move.uuid).attempts[1].state == "active"
    assert arrived.attempt_id in agent.guests
    move.end("confirm")
    assert becomes(world, move.uuid, "active").host == "b"


def test_a_revert_is_not_given_up_after_a_paused_conductor_has_ended_the_attempt(
    world: World, agent: TwoAnswers
) -> None:
    move = reverting(world, agent)
    _source, arrived = shown(world, move.uuid).attempts
    agent.first.set()
    wait_until(lambda: agent.destroyed == [arrived.attempt_id])

    agent.second.set()

    assert becomes(world, move.uuid, "active").host == "a"
    assert move.shown().state == "reverted"
    assert agent.stopped == set()
