"""Test that an answer is requested once for all viewers, and that a slow part of the cloud blocks one thread."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.moorage.clock import Clock

from dashboard.shared_answer import SharedAnswer
from moorage import errors


def test_an_answer_is_reused_until_its_interval_is_over() -> None:
    clock, asked = Clock(), list[int]()

    def ask() -> int:
        asked.append(1)
        return len(asked)

    answer = SharedAnswer(ask, 2.0, clock)

    assert [answer.get(), answer.get()] == [1, 1]
    clock.now = 1.9
    assert answer.get() == 1
    clock.now = 2.0
    assert answer.get() == 2


def test_a_slow_answer_is_requested_less_often() -> None:
    clock, asked = Clock(), list[float]()

    def slow() -> int:
        clock.now += 1.0
        asked.append(clock.now)
        return len(asked)

    answer = SharedAnswer(slow, 2.0, clock)
    answer.get()
    clock.now = 20.9
    assert answer.get() == 1, "the request took a second, so it may be made every twenty"
    clock.now = 21.0
    assert answer.get() == 2


def test_a_failure_is_kept_like_an_answer_and_raised_as_a_new_error_for_each_viewer() -> None:
    clock, asked = Clock(), list[int]()

    def failing() -> int:
        asked.append(1)
        raise errors.NoReply(topic="conductor", method="list_instances", seconds=1.0)

    answer = SharedAnswer(failing, 2.0, clock)
    raised = []
    for _ in range(2):
        with pytest.raises(errors.NoReply) as fault:
            answer.get()
        raised.append(fault.value)

    assert len(asked) == 1
    assert raised[0] is not raised[1]
    assert str(raised[0]) == str(raised[1])


def test_a_failure_is_followed_by_a_new_request_after_its_interval() -> None:
    clock, outcomes = Clock(), [errors.NoReply(topic="t", method="m", seconds=1.0)]

    def once_failing() -> str:
        if outcomes:
            raise outcomes.pop()
        return "well"

    answer = SharedAnswer(once_failing, 2.0, clock)
    with pytest.raises(errors.NoReply):
        answer.get()
    clock.now = 2.0
    assert answer.get() == "well"


def test_a_slow_failure_is_kept_no_longer_than_a_fast_one() -> None:
    clock, outcomes = Clock(), [errors.NoReply(topic="t", method="m", seconds=10.0)]

    def silent_once() -> str:
        if outcomes:
            clock.now += 10.0
            raise outcomes.pop()
        return "well"

    answer = SharedAnswer(silent_once, 2.0, clock)
    with pytest.raises(errors.NoReply):
        answer.get()
    clock.now = 11.9
    with pytest.raises(errors.NoReply):
        answer.get()
    clock.now = 12.0
    assert answer.get() == "well"


def test_while_one_thread_asks_the_others_get_the_previous_answer() -> None:
    clock, asking, go_on = Clock(), threading.Event(), threading.Event()
    asked: list[int] = []

    def ask() -> int:
        asked.append(1)
        if len(asked) == 2:
            asking.set()
            assert go_on.wait(30)
        return len(asked)

    answer = SharedAnswer(ask, 2.0, clock)
    assert answer.get() == 1
    clock.now = 5.0
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(answer.get)
        assert asking.wait(30)
        assert answer.get() == 1, "this thread did not wait"
        go_on.set()
        assert slow.result(30) == 2
    assert len(asked) == 2


def test_all_threads_wait_for_the_first_answer_which_is_requested_once() -> None:
    asking, go_on, asked = threading.Event(), threading.Event(), list[int]()

    def ask() -> str:
        asked.append(1)
        asking.set()
        assert go_on.wait(30)
        return "first"

    answer = SharedAnswer(ask, 2.0)
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(answer.get)
        assert asking.wait(30)
        others = [threads.submit(answer.get) for _ in range(2)]
        go_on.set()
        assert [one.result(30) for one in (first, *others)] == ["first"] * 3
    assert len(asked) == 1
