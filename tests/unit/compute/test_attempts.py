"""Test which attempts an agent remembers, and for how long."""

import pytest

from compute import attempts
from compute.attempts import Attempts
from compute.cell_messages import finished
from moorage import ids
from moorage.model import EndedAttempt, Guest


def guest(attempt: str, host: str = "host-0001") -> Guest:
    return Guest(instance_uuid=ids.derived(attempt, "instance"), host=host, attempt_id=attempt, claim_id=ids.fresh())


def ended(attempt: str) -> EndedAttempt:
    return EndedAttempt(host="host-0001", instance_uuid=ids.fresh(), attempt_id=attempt, claim_id=ids.fresh())


def test_an_attempt_is_taken_up_once_until_it_is_let_go() -> None:
    known = Attempts()

    first = known.take_up(guest("a"))

    assert first is not None
    assert known.take_up(guest("a")) is None
    known.let_go(first)
    assert known.take_up(guest("a")) is first


def test_a_destroyed_attempt_is_never_taken_up() -> None:
    known = Attempts()

    attempt = known.mark_destroyed(ended("a"))
    assert known.take_up(guest("a")) is None
    known.release(attempt)
    assert known.take_up(guest("a")) is None


def test_old_attempts_are_forgotten_except_those_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_REMEMBERED", 10)
    known = Attempts()
    in_hand = known.take_up(guest("in hand"))
    first = known.take_up(guest("first"))
    assert in_hand is not None
    assert first is not None
    known.let_go(first)

    for number in range(attempts._REMEMBERED):
        passing = known.take_up(guest(str(number)))
        assert passing is not None
        known.let_go(passing)

    assert known.take_up(guest("in hand")) is None
    assert known.take_up(guest("first")) is not first


def test_a_stopping_agent_interrupts_its_attempts_and_new_ones() -> None:
    known = Attempts()
    before = known.take_up(guest("before"))

    known.stop()
    after = known.take_up(guest("after"))

    assert before is not None
    assert before.interrupt.is_set()
    assert after is not None
    assert after.interrupt.is_set()


def test_an_attempt_of_an_earlier_incarnation_is_inherited_once_unless_it_is_known() -> None:
    known = Attempts()
    ours = known.take_up(guest("ours"))
    assert ours is not None
    assert known.inherit(guest("ours")) is None
    ours.report = finished(guest("ours"))
    known.let_go(ours)

    assert known.inherit(guest("ours")) is None
    inherited = known.inherit(guest("left"))
    assert inherited is not None
    assert known.take_up(guest("left")) is None
    assert known.inherit(guest("left")) is None
    inherited.report = finished(guest("left"))
    known.let_go(inherited)
    assert known.inherit(guest("left")) is None


def test_an_attempt_that_has_ended_without_a_result_is_inherited_unless_it_was_destroyed() -> None:
    known = Attempts()
    ours = known.take_up(guest("ours"))
    assert ours is not None
    known.let_go(ours)

    assert known.inherit(guest("ours")) is ours
    known.let_go(ours)
    known.mark_destroyed(ended("ours"))
    assert known.inherit(guest("ours")) is None


def test_a_count_has_the_attempts_in_hand_on_its_hosts_without_destroyed_ones() -> None:
    known = Attempts()
    here, there, over, done = guest("here"), guest("there", "host-0002"), guest("over"), guest("done")
    for one in (here, there, over):
        assert known.take_up(one) is not None
    finished = known.take_up(done)
    assert finished is not None
    known.let_go(finished)

    known.mark_destroyed(ended("over"))
    with known.counting(["host-0001"]) as in_hand:
        assert in_hand == [here]


def test_an_interrupted_attempt_does_not_wait_for_the_end_of_a_count() -> None:
    known = Attempts()
    attempt = known.take_up(guest("a"))
    assert attempt is not None

    with known.counting(["host-0001"]):
        known.wait_for_count(attempt, "host-0002")
        known.mark_destroyed(ended("a"))
        known.wait_for_count(attempt, "host-0001")
    known.wait_for_count(attempt, "host-0001")
