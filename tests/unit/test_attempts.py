"""What an agent remembers of attempts, and for how long."""

from compute import attempts
from compute.attempts import Attempts


def test_an_attempt_is_taken_up_once_until_it_is_let_go() -> None:
    known = Attempts()

    first = known.take_up("a")

    assert first is not None
    assert known.take_up("a") is None
    known.let_go(first)
    assert known.take_up("a") is first


def test_a_destroyed_attempt_is_never_taken_up() -> None:
    known = Attempts()

    with known.destroying("a"):
        assert known.take_up("a") is None
    assert known.take_up("a") is None


def test_the_oldest_are_forgotten_and_those_in_hand_are_not() -> None:
    known = Attempts()
    in_hand = known.take_up("in hand")
    first = known.take_up("first")
    assert in_hand is not None
    assert first is not None
    known.let_go(first)

    for number in range(attempts._REMEMBERED):
        passing = known.take_up(str(number))
        assert passing is not None
        known.let_go(passing)

    assert known.take_up("in hand") is None
    assert known.take_up("first") is not first


def test_whoever_is_taken_up_while_the_agent_stops_waits_for_nothing() -> None:
    known = Attempts()
    before = known.take_up("before")

    known.stop()
    after = known.take_up("after")

    assert before is not None
    assert before.interrupt.is_set()
    assert after is not None
    assert after.interrupt.is_set()
