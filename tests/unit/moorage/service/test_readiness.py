"""Test whether a process is ready: the reasons of its checks, bounded in time and remembered for a moment."""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import pytest
from support.processes.stopwatch import Stopwatch

from harness.waiting import wait_until
from moorage import errors, metrics
from moorage.metrics import GaugeSample
from moorage.service import liveness
from moorage.service.bounded_call import BoundedCall, Waiting
from moorage.service.process import Periodic
from moorage.service.readiness import Check, NotReady, Readiness, Sampler


class _Service:
    def __init__(
        self, checks: Mapping[str, Check] | None = None, samplers: Mapping[str, Sampler] | None = None
    ) -> None:
        self._checks = checks or {}
        self._samplers = samplers or {}

    def checks(self) -> Mapping[str, Check]:
        return self._checks

    def samplers(self) -> Mapping[str, Sampler]:
        return self._samplers


def _passes() -> None:
    """Nothing is wrong."""


def _away() -> None:
    raise errors.StoreUnavailable(schema="main", reason="gone")


def test_a_process_is_ready_only_between_its_start_and_its_stop() -> None:
    readiness = Readiness()
    assert readiness.reasons() == {"started": "not started yet"}
    readiness.begin(_Service())
    assert readiness.reasons() == {}
    readiness.end()
    assert readiness.reasons() == {"started": "stopping"}


def test_a_service_without_checks_is_ready_once_it_has_started() -> None:
    readiness = Readiness()
    readiness.begin(object())
    assert readiness.reasons() == {}


def test_each_check_that_fails_gives_its_reason_and_the_others_none() -> None:
    def is_old() -> None:
        raise NotReady("the view is old")

    readiness = Readiness()
    readiness.begin(_Service({"database": _away, "broker": _passes, "view": is_old}))
    reasons = readiness.reasons()
    assert reasons.keys() == {"database", "view"}
    assert "gone" in reasons["database"]
    assert reasons["view"] == "the view is old"


def test_a_check_that_raises_an_unexpected_error_is_a_reason() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    readiness = Readiness()
    readiness.begin(_Service({"database": broken}))
    assert "ZeroDivisionError" in readiness.reasons()["database"]


class _PlayedTime(Waiting):
    """A clock on which time passes only in waits; a wait for a call that has not ended takes all of its seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def wait(self, call: "Future[Any]", seconds: float) -> bool:
        if not call.done():
            self.seconds += seconds
        return call.done()


def test_silent_checks_cost_their_patience_once_and_one_thread_each() -> None:
    release, time = threading.Event(), _PlayedTime()
    readiness = Readiness(patience=0.3, kept=0.0, waiting=time)
    readiness.begin(_Service({f"silent {number}": release.wait for number in range(5)}))
    before = threading.active_count()
    try:
        reasons = readiness.reasons()
        assert time.seconds == 0.3
        assert set(reasons.values()) == {"no answer within 0.3 s"}
        assert len(reasons) == 5
        # A check that hangs is neither called nor waited for again.
        for _ in range(20):
            assert len(readiness.reasons()) == 5
        assert time.seconds == 0.3
        assert threading.active_count() == before + 5
    finally:
        release.set()
    wait_until(lambda: threading.active_count() == before)


def test_a_silent_check_is_waited_for_and_passes_once_it_answers() -> None:
    release = threading.Event()
    readiness = Readiness(patience=0.3, kept=0.0)
    readiness.begin(_Service({"silent": release.wait}))
    watch = Stopwatch()
    assert "no answer within" in readiness.reasons()["silent"]
    assert watch.elapsed >= 0.3
    release.set()
    wait_until(lambda: readiness.reasons() == {}, readiness.reasons, interval=0.01)


def test_a_check_runs_again_only_after_its_answer_has_expired() -> None:
    asked: list[int] = []

    class Time(_PlayedTime):
        def wait(self, call: "Future[Any]", seconds: float) -> bool:
            return Waiting.wait(self, call, 60)

    time = Time()
    readiness = Readiness(kept=0.2, waiting=time)
    readiness.begin(_Service({"database": lambda: asked.append(1)}))
    for _ in range(50):
        assert readiness.reasons() == {}
        time.seconds += 0.2 / 51
    assert len(asked) == 1
    time.seconds += 0.01
    readiness.reasons()
    assert len(asked) == 2


def test_samples_have_the_readiness_and_the_values_of_the_service_without_failed_ones() -> None:
    def view() -> Iterable[GaugeSample]:
        return [metrics.VIEW_AGE.sample(3.0)]

    def broken() -> Iterable[GaugeSample]:
        raise errors.StoreUnavailable(schema="cell", reason="gone")

    readiness = Readiness()
    assert readiness.samples() == [metrics.READY.sample(0.0, "started")]
    readiness.begin(_Service({"database": _away, "broker": _passes}, {"view": view, "operations": broken}))
    assert readiness.samples() == [
        metrics.READY.sample(1.0, "started"),
        metrics.READY.sample(0.0, "database"),
        metrics.READY.sample(1.0, "broker"),
        metrics.VIEW_AGE.sample(3.0),
    ]


def test_a_process_whose_machine_refuses_threads_is_not_ready_and_still_has_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    readiness = Readiness(kept=0.0)
    readiness.begin(_Service({"database": _passes}, {"view": lambda: [metrics.VIEW_AGE.sample(3.0)]}))
    with monkeypatch.context() as machine:
        machine.setattr(threading.Thread, "start", refused)
        assert "can't start new thread" in readiness.reasons()["database"]
        assert readiness.samples() == [metrics.READY.sample(1.0, "started"), metrics.READY.sample(0.0, "database")]
    assert readiness.reasons() == {}


def test_a_bounded_call_gives_every_thread_the_result_of_one_call() -> None:
    begun, release = threading.Event(), threading.Event()
    calls: list[int] = []

    def work() -> int:
        calls.append(1)
        begun.set()
        release.wait(10)
        return len(calls)

    bounded = BoundedCall("one", work, patience=10.0)
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(bounded.result())) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert begun.wait(10)
    release.set()
    for thread in threads:
        thread.join(10)
    assert results == [1] * 8


def test_a_bounded_call_raises_what_the_call_raises() -> None:
    bounded = BoundedCall("one", _away)
    with pytest.raises(errors.StoreUnavailable):
        bounded.result()


def test_a_thread_that_dies_is_reported_and_one_that_is_stopped_is_not() -> None:
    periodic = Periodic("a periodic of this test", _passes, 60.0)
    periodic.start()
    assert "a periodic of this test" not in liveness.dead()
    periodic.stop()
    assert "a periodic of this test" not in liveness.dead()
    thread = threading.Thread(target=_passes, name="a thread of this test")
    thread.start()
    liveness.watch(thread)
    thread.join()
    try:
        assert "a thread of this test" in liveness.dead()
    finally:
        liveness.forget(thread)


def test_a_periodic_that_ends_before_its_stop_returns_has_not_died() -> None:
    dead: list[str] = []

    class EndsAtOnce(threading.Event):
        def set(self) -> None:
            super().set()
            periodic._thread.join()
            dead.extend(liveness.dead())

    periodic = Periodic("a periodic of this test", _passes, 60.0)
    periodic._ended = EndsAtOnce()
    periodic.start()

    periodic.stop()

    assert "a periodic of this test" not in dead
