"""Test that a silent destination delays calls to the others only by its share of the threads, and only for a time."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from conductor.engine import bulkheads
from conductor.engine.acknowledgements import AcknowledgingClient, service_bulkheads
from conductor.engine.bulkheads import Bulkheads, CircuitOpen
from conductor.engine.step_calls import StepCall
from conductor.engine.steps import Backoff
from conductor.engine.waiting_steps import KeptPlace, Postponed
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.config import options
from moorage.messages import GetAllocations, ListHosts

UNANSWERED = errors.NoReply(topic="there", method="work", seconds=1.0)


class Probe:
    """A probe that is answered once `answers` is set, and lasts until `ends` is set."""

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

    def build(
        share: int = 2,
        *,
        postpones: bool = True,
        patience: float = 60.0,
        opens_on: tuple[type[errors.MoorageError], ...] = (errors.NoReply,),
    ) -> Bulkheads:
        quick = Backoff(first=0.001, longest=0.01)
        made.append(Bulkheads("cell", share, quick, opens_on, patience, postpones=postpones))
        made[-1].start()
        return made[-1]

    yield build
    for each in made:
        each.stop()


def fail(destinations: Bulkheads, probe: Probe, fault: errors.MoorageError = UNANSWERED) -> None:
    with pytest.raises(type(fault)), destinations.admit("a", "a", probe):
        raise fault


def fall_silent(destinations: Bulkheads, probe: Probe) -> None:
    """Let a call time out, and a probe as well."""
    fail(destinations, probe)
    # The second probe begins when the first is over.
    for _ in range(2):
        assert probe.probed.acquire(timeout=20)


def begin(destinations: Bulkheads, probe: Probe) -> AbstractContextManager[None]:
    """Begin a call that goes on."""
    call = destinations.admit("a", "a", probe)
    call.__enter__()
    return call


def postponed_step(destinations: Bulkheads, probe: Probe, tries: int = 0, place: KeptPlace | None = None) -> Postponed:
    """Run a step whose call is postponed, and return the exception."""
    with bulkheads.StepScope(tries, place), pytest.raises(Postponed) as postponed, destinations.admit("a", "a", probe):
        raise AssertionError("the call is made")
    return postponed.value


def time_out(call: AbstractContextManager[None]) -> None:
    """End a call without an answer."""
    assert not call.__exit__(errors.NoReply, UNANSWERED, None)


def test_after_timeouts_no_call_is_made_to_a_destination_until_it_answers(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    destinations = built()
    fall_silent(destinations, probe)

    with pytest.raises(CircuitOpen, match="it has not answered for"), destinations.admit("a", "a", probe):
        raise AssertionError("the call is made")
    with destinations.admit("b", "b", probe):
        pass
    answered = threading.Event()
    postponed_step(destinations, probe, tries=1).register(lambda _: answered.set())
    assert not answered.is_set()
    probe.answers.set()
    assert answered.wait(20)
    with destinations.admit("a", "a", probe):
        pass


def test_a_call_checks_only_destinations_with_waiting_steps(
    built: Callable[..., Bulkheads], probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    due = bulkheads._Bulkhead.due

    def noted(self: bulkheads._Bulkhead, *settings: Any) -> list[Callable[[], None]]:
        checked.append(self.name)
        return due(self, *settings)

    def wake(place: KeptPlace | None) -> None:
        woken.set()
        if place is not None:
            place.give_back()

    monkeypatch.setattr(bulkheads._Bulkhead, "due", noted)
    destinations, woken = built(share=1), threading.Event()
    for name in map(str, range(20)):
        with destinations.admit(name, name, probe):
            pass
    assert not checked
    with destinations.admit("a", "a", probe):
        postponed_step(destinations, probe).register(wake)
    assert woken.is_set()
    assert set(checked) == {"a"}
    checked.clear()
    with destinations.admit("a", "a", probe):
        pass
    assert not checked


def test_after_one_lost_message_a_question_is_asked_and_a_step_waits_for_the_probe(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    probe.ends.clear()
    destinations, woken = built(), threading.Event()
    fail(destinations, probe)
    assert probe.probed.acquire(timeout=20)

    postponed_step(destinations, probe).register(lambda _: woken.set())
    assert not woken.is_set()
    fail(destinations, probe)

    probe.answers.set()
    probe.ends.set()
    assert woken.wait(20)


@pytest.mark.parametrize("fault", [errors.InvalidState(reason="no"), errors.BusUnavailable(reason="away")])
def test_a_refusal_or_an_unavailable_bus_does_not_open_the_breaker(
    built: Callable[..., Bulkheads], probe: Probe, fault: errors.MoorageError
) -> None:
    destinations = built()
    fail(destinations, probe, fault)
    with destinations.admit("a", "a", probe):
        pass


def test_an_unavailable_bus_that_opens_the_breaker_counts_as_a_failed_probe(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    probe.ends.clear()
    destinations, away = built(opens_on=(errors.BusUnavailable,)), errors.BusUnavailable(reason="away")
    fail(destinations, probe, away)
    # It does not wait for the probe.
    with bulkheads.StepScope(tries=0), pytest.raises(CircuitOpen), destinations.admit("a", "a", probe):
        raise AssertionError("the call is made")
    probe.ends.set()


def test_a_call_that_was_not_sent_because_of_its_deadline_is_no_answer(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    probe.ends.clear()
    destinations = built()
    fail(destinations, probe)
    assert probe.probed.acquire(timeout=20)

    fail(destinations, probe, errors.DeadlineExceeded(point="before it was sent"))

    postponed_step(destinations, probe)
    probe.ends.set()


def test_a_timeout_of_a_call_that_began_before_an_answer_does_not_open_the_breaker(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    destinations = built()
    first = begin(destinations, probe)
    with destinations.admit("a", "a", probe):
        pass
    time_out(first)
    # A call outside of a step would still be made after one lost message.
    with bulkheads.StepScope(tries=0), destinations.admit("a", "a", probe):
        pass


def test_a_step_beyond_the_share_is_postponed_until_a_call_is_over(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    destinations, woken = built(share=1), threading.Event()
    with destinations.admit("a", "a", probe):
        with bulkheads.StepScope(tries=0):
            with pytest.raises(Postponed) as postponed, destinations.admit("a", "a", probe):
                raise AssertionError("the call is made")
            with destinations.admit("b", "b", probe):
                pass
        postponed.value.register(lambda _: woken.set())
        assert not woken.is_set()
    assert woken.is_set()


def test_the_place_of_an_ended_call_is_kept_for_the_step_that_has_waited_longest(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    destinations, woken = built(share=1), list[KeptPlace | None]()

    with destinations.admit("a", "a", probe):
        for _ in range(2):
            postponed_step(destinations, probe).register(woken.append)
    assert len(woken) == 1
    # A third step comes before the first one has got a thread, and waits behind the second.
    postponed_step(destinations, probe).register(woken.append)

    for number in range(3):
        assert len(woken) == number + 1, "one step is woken at a time"
        with bulkheads.StepScope(0, woken[number]):
            if number != 1:  # The second step ends without its call.
                with destinations.admit("a", "a", probe):
                    postponed_step(destinations, probe)
    with bulkheads.StepScope(0), destinations.admit("a", "a", probe):
        pass


def test_a_repeated_step_that_waits_for_a_service_does_not_overtake_a_new_one(probe: Probe) -> None:
    destinations = service_bulkheads(options.new({"conductor": {"workers": 4}}), Backoff())
    woken: list[str] = []
    with destinations.admit("a", "a", probe):
        postponed_step(destinations, probe).register(lambda _: woken.append("new"))
        postponed_step(destinations, probe, tries=1).register(lambda _: woken.append("repeated"))
    assert woken == ["new"]


def test_a_silent_scheduler_takes_no_place_from_steps_that_call_the_placement_role(probe: Probe) -> None:
    client: Any = SimpleNamespace(ping=probe)
    unused: Any = None  # only answers are acknowledged
    destinations = service_bulkheads(options.new({"conductor": {"workers": 4}}), Backoff())
    services = AcknowledgingClient(client, unused, destinations)
    with bulkheads.StepScope(0):
        waiting = services.calling(ListHosts())
        next(waiting)
    with bulkheads.StepScope(0), pytest.raises(Postponed):
        next(services.calling(ListHosts()))
    with bulkheads.StepScope(0):
        reading = services.calling(GetAllocations(consumer_uuid=ids.fresh()))
        assert isinstance(next(reading), StepCall)
    reading.close()
    waiting.close()


def test_a_call_of_a_step_that_cannot_be_postponed_is_overloaded_if_the_others_have_waited_for_too_long(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    client: Any = SimpleNamespace(ping=probe)
    unused: Any = None  # only answers are acknowledged
    services = AcknowledgingClient(client, unused, built(share=1, patience=0.0), may_postpone=False)
    waiting = services.calling(ListHosts())
    next(waiting)
    with (
        bulkheads.StepScope(0),
        pytest.raises(errors.Overloaded, match="list_hosts was not sent to scheduler: 1 calls"),
    ):
        services.call(ListHosts())
    waiting.close()


def test_the_kinds_of_the_steps_that_wait_take_turns(built: Callable[..., Bulkheads], probe: Probe) -> None:
    destinations, woken = built(share=1), list[str]()

    def wait(kind: str) -> None:
        with (
            bulkheads.StepScope(0, kind=kind),
            pytest.raises(Postponed) as postponed,
            destinations.admit("a", "a", probe),
        ):
            raise AssertionError("the call is made")

        def wake(place: KeptPlace | None) -> None:
            woken.append(kind)
            assert place is not None
            place.give_back()

        postponed.value.register(wake)

    with destinations.admit("a", "a", probe):
        for kind in ("build", "build", "build", "move"):
            wait(kind)
    assert woken == ["build", "move", "build", "build"]


@pytest.mark.parametrize("tries", [0, 1])
def test_a_step_that_is_begun_anew_takes_the_place_of_the_older_one_that_waits(
    built: Callable[..., Bulkheads], probe: Probe, tries: int
) -> None:
    destinations, woken = built(share=1), list[tuple[str, bool]]()

    def wait(name: str, key: str, tries: int = 0) -> None:
        with (
            bulkheads.StepScope(tries, key=key),
            pytest.raises(Postponed) as postponed,
            destinations.admit("a", "a", probe),
        ):
            raise AssertionError("the call is made")
        postponed.value.register(lambda place: woken.append((name, place is not None)))

    with destinations.admit("a", "a", probe):
        wait("first", key="s")
        wait("other", key="t")
        wait("second", key="s", tries=tries)
        assert woken == [("first", False)]
    assert woken == [("first", False), ("second", True)]


def test_a_step_may_call_a_destination_again_while_another_step_uses_the_share(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    destinations = built(share=1)
    with bulkheads.StepScope(tries=0):
        with destinations.admit("a", "a", probe):
            pass
        with bulkheads.StepScope(tries=0):
            of_another = begin(destinations, probe)
        with destinations.admit("a", "a", probe):
            pass
    time_out(of_another)


def test_when_the_breaker_opens_each_waiting_step_is_woken_once_in_order(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    destinations, woken = built(share=1), list[int]()
    first = begin(destinations, probe)

    def wake(number: int, _place: KeptPlace | None) -> None:
        woken.append(number)

    for number in range(3):
        postponed_step(destinations, probe).register(partial(wake, number))

    time_out(first)

    while len(woken) < 3:
        assert probe.probed.acquire(timeout=20), woken
    assert woken == [0, 1, 2]
    # From its second try on, the record of a step names the reason, and the step waits.
    postponed_step(destinations, probe, tries=1)


def test_without_postponing_each_step_is_refused_while_the_breaker_is_open(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    destinations, refused = built(postpones=False), threading.Event()
    probe.ends.clear()
    fail(destinations, probe)
    postponed_step(destinations, probe, tries=1).register(lambda _: refused.set())
    probe.ends.set()
    # The step has waited for the probe, and is now refused.
    assert refused.wait(20)
    for tries in (0, 1, 2):
        with bulkheads.StepScope(tries), pytest.raises(CircuitOpen), destinations.admit("a", "a", probe):
            pass


def test_a_question_waits_for_a_busy_destination_but_not_for_a_hanging_one(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    busy, hanging = built(share=1, patience=60.0), built(share=1, patience=0.0)
    with busy.admit("a", "a", probe), busy.admit("a", "a", probe):
        pass
    call = begin(hanging, probe)
    with pytest.raises(CircuitOpen, match="1 calls wait"), hanging.admit("a", "a", probe):
        raise AssertionError("the call is made")
    time_out(call)


def test_after_one_lost_message_questions_use_no_more_than_the_share_until_the_probe_is_answered(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    probe.ends.clear()
    destinations = built(share=1)
    fail(destinations, probe)
    assert probe.probed.acquire(timeout=20)

    call = begin(destinations, probe)
    with pytest.raises(CircuitOpen, match="1 calls wait"), destinations.admit("a", "a", probe):
        raise AssertionError("the call is made")

    probe.answers.set()
    probe.ends.set()
    wait_until(lambda: _is_admitted(destinations, probe))
    time_out(call)


def test_steps_whose_calls_are_made_together_take_one_place_of_the_share(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    made = built(share=1)
    together = object()
    with (
        bulkheads.StepScope(0, group=together),
        made.admit("a", "a", probe),
        bulkheads.StepScope(0, group=together),
        made.admit("a", "a", probe),
    ):
        with bulkheads.StepScope(0), pytest.raises(Postponed), made.admit("a", "a", probe):
            pass
        with bulkheads.StepScope(0, group=object()), pytest.raises(Postponed), made.admit("a", "a", probe):
            pass
    with bulkheads.StepScope(0), made.admit("a", "a", probe):
        pass


def test_a_destination_that_nobody_has_called_for_long_is_not_probed_any_more(
    built: Callable[..., Bulkheads], probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulkheads, "_UNCALLED_SECONDS", 0.0)
    destinations = built()
    fail(destinations, probe)
    assert probe.probed.acquire(timeout=20)
    wait_until(lambda: not destinations._open)
    assert not probe.probed.acquire(blocking=False)
    assert _is_admitted(destinations, probe)


def test_a_destination_for_which_a_step_waits_is_probed_however_long_ago_it_was_called(
    built: Callable[..., Bulkheads], probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulkheads, "_UNCALLED_SECONDS", 0.0)
    destinations, answered = built(), threading.Event()
    probe.ends.clear()
    fail(destinations, probe)
    postponed_step(destinations, probe, tries=1).register(lambda _: answered.set())
    probe.ends.set()
    for _ in range(3):
        assert probe.probed.acquire(timeout=20)
    assert not answered.is_set()
    probe.answers.set()
    assert answered.wait(20)


def test_steps_that_wait_for_a_destination_that_was_deleted_go_on_and_the_log_does_not_tell_that_it_answers(
    built: Callable[..., Bulkheads], probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    destinations, continued, is_deleted = built(), threading.Event(), threading.Event()

    def probe_or_miss() -> None:
        if is_deleted.is_set():
            raise errors.CellNotFound(name="a")
        probe()

    with pytest.raises(errors.NoReply), destinations.admit("a", "a", probe_or_miss):
        raise UNANSWERED
    for _ in range(2):
        assert probe.probed.acquire(timeout=20)
    postponed_step(destinations, probe, tries=1).register(lambda _: continued.set())
    with caplog.at_level(logging.INFO):
        is_deleted.set()
        assert continued.wait(20)
    assert _is_admitted(destinations, probe)
    assert "answers again" not in caplog.text
    assert "There is no cell a" in caplog.text


class SilentDestinations:
    """Destinations that answer no probe; while `is_holding`, each probe lasts until `let_go` is released."""

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


def test_a_new_silent_destination_is_probed_at_once_although_many_others_are_silent(
    built: Callable[..., Bulkheads], probe: Probe
) -> None:
    destinations, silent, last = built(), SilentDestinations(), Probe()
    names = {f"silent {number}" for number in range(40)}
    for name in names:
        with pytest.raises(errors.NoReply), destinations.admit(name, name, partial(silent.probe, name)):
            raise UNANSWERED
    silent.wait_for(lambda: silent.probed == names)
    # While the last destination is probed, the next probes of all others become due.
    last.ends.clear()
    with pytest.raises(errors.NoReply), destinations.admit("last", "last", last):
        raise UNANSWERED
    assert last.probed.acquire(timeout=20)
    time.sleep(0.1)
    silent.is_holding = True
    last.ends.set()
    silent.wait_for(lambda: silent.held == 8)
    # The next probes of all others become due before that of the new one.
    time.sleep(0.1)

    fail(destinations, probe)
    silent.let_go.release(8)

    try:
        assert probe.probed.acquire(timeout=5), silent.held
    finally:
        silent.is_holding = False
        silent.let_go.release(1000)


@pytest.mark.parametrize("most", [0, 1])
def test_destinations_are_probed_although_the_machine_refuses_further_threads(
    built: Callable[..., Bulkheads], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, 0

    def refused(thread: threading.Thread) -> None:
        nonlocal started
        if threading.current_thread().name.startswith("probes of"):
            if started == most:
                raise RuntimeError("can't start new thread")
            started += 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    limited = built()
    probes = [Probe() for _ in range(3)]
    for number, probe in enumerate(probes):
        with pytest.raises(errors.NoReply), limited.admit(str(number), "a", probe):
            raise UNANSWERED
    for probe in probes:
        assert probe.probed.acquire(timeout=20)
        probe.answers.set()
    for number, probe in enumerate(probes):
        wait_until_answers(limited, str(number), probe)


def wait_until_answers(limited: Bulkheads, key: str, probe: Probe) -> None:
    """Wait until a step may call this destination."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with contextlib.suppress(CircuitOpen, Postponed), bulkheads.StepScope(0), limited.admit(key, "a", probe):
            return
        time.sleep(0.01)
    pytest.fail("it is not called again")


def _is_admitted(destinations: Bulkheads, probe: Probe) -> bool:
    try:
        with destinations.admit("a", "a", probe):
            return True
    except CircuitOpen:
        return False
