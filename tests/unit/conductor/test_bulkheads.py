"""Test that a silent destination delays calls to the others only by its share of the threads, and only for a time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest

from conductor.engine import bulkheads
from conductor.engine.bulkheads import Bulkheads, CircuitOpen, KeptPlace, Postponed
from conductor.engine.steps import Backoff
from moorage import errors

UNANSWERED = errors.NoReply(topic="there", method="work", seconds=1.0)


class Probe:
    """Answers once it is told to."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.probed = threading.Semaphore(0)
        self.ends = threading.Event()
        self.ends.set()

    def __call__(self) -> None:
        self.probed.release()
        assert self.ends.wait(20)
        if not self.answers.is_set():
            raise UNANSWERED


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
def built() -> Iterator[Callable[..., Bulkheads]]:
    made: list[Bulkheads] = []

    def build(share: int = 2, *, postpones: bool = True, patience: float = 60.0) -> Bulkheads:
        quick = Backoff(first=0.001, longest=0.01)
        made.append(Bulkheads("cell", share, quick, (errors.NoReply,), patience, postpones=postpones))
        made[-1].start()
        return made[-1]

    yield build
    for each in made:
        each.stop()


def fail(bulkheads_: Bulkheads, probe: Probe, fault: errors.MoorageError = UNANSWERED) -> None:
    with pytest.raises(type(fault)), bulkheads_.admit("a", "a", probe):
        raise fault


def fall_silent(bulkheads_: Bulkheads, probe: Probe) -> None:
    """Let a call time out, and a probe as well."""
    fail(bulkheads_, probe)
    # The second one begins when the first is over.
    for _ in range(2):
        assert probe.probed.acquire(timeout=20)


def begin(bulkheads_: Bulkheads, probe: Probe) -> AbstractContextManager[None]:
    """Begin a call that goes on."""
    call = bulkheads_.admit("a", "a", probe)
    call.__enter__()
    return call


def time_out(call: AbstractContextManager[None]) -> None:
    """End it without an answer."""
    assert not call.__exit__(errors.NoReply, UNANSWERED, None)


def test_a_destination_that_lets_a_call_time_out_is_waited_for_no_more_until_it_answers(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    all_of_them = built()
    fall_silent(all_of_them, probe)

    with pytest.raises(CircuitOpen, match="it has not answered for"), all_of_them.admit("a", "a", probe):
        raise AssertionError("the call is made")
    with all_of_them.admit("b", "b", probe):
        pass
    answered = threading.Event()
    with bulkheads.step(tries=1), pytest.raises(Postponed) as postponed, all_of_them.admit("a", "a", probe):
        raise AssertionError("the call is made")
    postponed.value.register(lambda _: answered.set())
    assert not answered.is_set()
    probe.answers.set()
    assert answered.wait(20)
    with all_of_them.admit("a", "a", probe):
        pass


def test_a_call_looks_only_at_the_destinations_that_steps_wait_for(
    built: Callable[..., Bulkheads], probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    due = bulkheads._Bulkhead.due

    def noted(self: bulkheads._Bulkhead, *settings: Any) -> list[Callable[[], None]]:
        looked_at.append(self.name)
        return due(self, *settings)

    monkeypatch.setattr(bulkheads._Bulkhead, "due", noted)
    all_of_them, woken = built(share=1), threading.Event()
    for name in map(str, range(20)):
        with all_of_them.admit(name, name, probe):
            pass
    assert not looked_at
    with all_of_them.admit("a", "a", probe):
        with bulkheads.step(tries=0), pytest.raises(Postponed) as postponed, all_of_them.admit("a", "a", probe):
            raise AssertionError("the call is made")
        postponed.value.register(lambda place: (woken.set(), place and place.give_back()))
    assert woken.is_set()
    assert set(looked_at) == {"a"}
    looked_at.clear()
    with all_of_them.admit("a", "a", probe):
        pass
    assert not looked_at


def test_after_one_lost_message_a_question_is_asked_and_a_step_waits_for_the_probe(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    probe.ends.clear()
    all_of_them, woken = built(), threading.Event()
    fail(all_of_them, probe)
    assert probe.probed.acquire(timeout=20)

    with bulkheads.step(tries=0), pytest.raises(Postponed) as postponed, all_of_them.admit("a", "a", probe):
        raise AssertionError("the call is made")
    postponed.value.register(lambda _: woken.set())
    assert not woken.is_set()
    with pytest.raises(errors.NoReply), all_of_them.admit("a", "a", probe):
        raise UNANSWERED

    probe.answers.set()
    probe.ends.set()
    assert woken.wait(20)


@pytest.mark.parametrize("fault", [errors.InvalidState(reason="no"), errors.BusUnavailable(reason="away")])
def test_neither_a_refusal_nor_a_bus_that_is_away_makes_a_destination_silent(
    built: Callable[..., Bulkheads], probe: Probe, fault: errors.MoorageError
) -> None:
    all_of_them = built()
    fail(all_of_them, probe, fault)
    with all_of_them.admit("a", "a", probe):
        pass


def test_a_call_that_was_not_sent_because_its_callers_time_was_over_is_no_answer(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    probe.ends.clear()
    all_of_them = built()
    fail(all_of_them, probe)
    assert probe.probed.acquire(timeout=20)

    fail(all_of_them, probe, errors.DeadlineExceeded(point="before it was sent"))

    with bulkheads.step(tries=0), pytest.raises(Postponed), all_of_them.admit("a", "a", probe):
        raise AssertionError("the call is made")
    probe.ends.set()


def test_a_call_that_began_before_another_one_was_answered_shows_no_silence(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    all_of_them = built()
    first = begin(all_of_them, probe)
    with all_of_them.admit("a", "a", probe):
        pass
    time_out(first)
    with all_of_them.admit("a", "a", probe):
        pass


def test_a_step_beyond_the_share_is_postponed_until_a_call_is_over(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    all_of_them, woken = built(share=1), threading.Event()
    with all_of_them.admit("a", "a", probe):
        with bulkheads.step(tries=0):
            with pytest.raises(Postponed) as postponed, all_of_them.admit("a", "a", probe):
                raise AssertionError("the call is made")
            with all_of_them.admit("b", "b", probe):
                pass
        postponed.value.register(lambda _: woken.set())
        assert not woken.is_set()
    assert woken.is_set()


def test_the_place_of_a_call_that_is_over_is_kept_for_the_step_that_has_waited_longest(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    all_of_them, woken = built(share=1), list[KeptPlace | None]()

    def is_postponed(place: KeptPlace | None = None) -> Postponed:
        with bulkheads.step(0, place), pytest.raises(Postponed) as postponed, all_of_them.admit("a", "a", probe):
            raise AssertionError("the call is made")
        return postponed.value

    with all_of_them.admit("a", "a", probe):
        for _ in range(2):
            is_postponed().register(woken.append)
    assert len(woken) == 1
    # Another one comes before the first has got a thread, and takes its turn behind the second.
    is_postponed().register(woken.append)

    for number in range(3):
        assert len(woken) == number + 1, "one goes on at a time"
        with bulkheads.step(0, woken[number]):
            if number != 1:  # and this one ends without its call
                with all_of_them.admit("a", "a", probe):
                    is_postponed()
    with bulkheads.step(0), all_of_them.admit("a", "a", probe):
        pass


def test_a_step_goes_on_with_a_destination_that_it_has_called_before(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    all_of_them = built(share=1)
    with bulkheads.step(tries=0):
        with all_of_them.admit("a", "a", probe):
            pass
        with bulkheads.step(tries=0):
            of_another = begin(all_of_them, probe)
        with all_of_them.admit("a", "a", probe):
            pass
    time_out(of_another)


def test_when_a_destination_falls_silent_each_step_that_waits_is_told_so_once_one_after_the_other(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    all_of_them, told = built(share=1), list[int]()
    first = begin(all_of_them, probe)
    for number in range(3):
        with bulkheads.step(tries=0), pytest.raises(Postponed) as caught, all_of_them.admit("a", "a", probe):
            raise AssertionError("the call is made")
        caught.value.register(lambda _, number=number: told.append(number))

    time_out(first)

    while len(told) < 3:
        assert probe.probed.acquire(timeout=20), told
    assert told == [0, 1, 2]
    # From then on its record names the reason, and it waits.
    with bulkheads.step(tries=1), pytest.raises(Postponed), all_of_them.admit("a", "a", probe):
        raise AssertionError("the call is made")


def test_where_steps_are_not_postponed_they_are_refused_each_time(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    all_of_them, refused = built(postpones=False), threading.Event()
    probe.ends.clear()
    fail(all_of_them, probe)
    with bulkheads.step(tries=1), pytest.raises(Postponed) as caught, all_of_them.admit("a", "a", probe):
        raise AssertionError("the call is made")
    caught.value.register(lambda _: refused.set())
    probe.ends.set()
    # It has waited for the probe, and goes on to be refused.
    assert refused.wait(20)
    for tries in (0, 1, 2):
        with bulkheads.step(tries), pytest.raises(CircuitOpen), all_of_them.admit("a", "a", probe):
            pass


def test_a_question_waits_for_a_busy_destination_and_not_for_one_that_answers_nothing(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    busy, hanging = built(share=1, patience=60.0), built(share=1, patience=0.0)
    with busy.admit("a", "a", probe), busy.admit("a", "a", probe):
        pass
    call = begin(hanging, probe)
    with pytest.raises(CircuitOpen, match="1 calls wait"), hanging.admit("a", "a", probe):
        raise AssertionError("the call is made")
    time_out(call)


def test_steps_whose_calls_one_thread_makes_together_hold_one_place_of_the_share(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    made = built(share=1)
    together = object()
    with (
        bulkheads.step(0, group=together),
        made.admit("a", "a", probe),
        bulkheads.step(0, group=together),
        made.admit("a", "a", probe),
    ):
        with bulkheads.step(0), pytest.raises(Postponed), made.admit("a", "a", probe):
            pass
        with bulkheads.step(0, group=object()), pytest.raises(Postponed), made.admit("a", "a", probe):
            pass
    with bulkheads.step(0), made.admit("a", "a", probe):
        pass


class SilentOnes:
    """Many destinations whose probes nobody answers; once they are held, each probe ends when it is let go."""

    def __init__(self) -> None:
        self.probed: set[str] = set()
        self.held = 0
        self.is_holding = False
        self.let_go = threading.Semaphore(0)
        self.changed = threading.Condition()

    def probe(self, name: str) -> None:
        with self.changed:
            self.probed.add(name)
            self.held += self.is_holding
            self.changed.notify_all()
            is_held = self.is_holding
        if is_held:
            assert self.let_go.acquire(timeout=20)
        raise UNANSWERED

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 20)


def test_a_lost_message_is_cleared_up_at_once_though_many_others_have_been_silent_for_long(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    all_of_them, silent, last = built(), SilentOnes(), Probe()
    names = {f"silent {number}" for number in range(40)}
    for name in names:
        with pytest.raises(errors.NoReply), all_of_them.admit(name, name, partial(silent.probe, name)):
            raise UNANSWERED
    silent.wait_for(lambda: silent.probed == names)
    # While this one is probed, the next probes of all others become due.
    last.ends.clear()
    with pytest.raises(errors.NoReply), all_of_them.admit("last", "last", last):
        raise UNANSWERED
    assert last.probed.acquire(timeout=20)
    time.sleep(0.1)
    silent.is_holding = True
    last.ends.set()
    silent.wait_for(lambda: silent.held == 8)

    fail(all_of_them, probe)
    silent.let_go.release(8)

    try:
        assert probe.probed.acquire(timeout=5), silent.held
    finally:
        silent.is_holding = False
        silent.let_go.release(1000)
