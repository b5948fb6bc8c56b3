"""Test natural batches: what comes while one is under way goes with the next, and each item has its own outcome."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.moorage.queued_calls import queue, wait_for

from moorage import context, errors
from moorage.batches import Batches, BatchItem


class Doubling:
    """A carrier-out that doubles numbers, refuses odd ones, and waits at its gate with each batch."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[list[int]] = []
        self.threads: list[threading.Thread] = []
        self.begun = threading.Semaphore(0)

    def __call__(self, batch: Sequence[BatchItem[int, int]]) -> None:
        self.batches.append([item.value for item in batch])
        self.threads.append(threading.current_thread())
        self.begun.release()
        assert self.gate.wait(10)
        for item in batch:
            if item.value % 2:
                item.fail(ValueError(item.value))
            else:
                item.succeed(2 * item.value)


@pytest.fixture
def doubling() -> Doubling:
    return Doubling()


def asked(pool: ThreadPoolExecutor, batches: Batches[int, int], *numbers: int) -> list[Future[int]]:
    """Have each number doubled by a thread of its own, which waits for the batch under way."""
    return queue(pool, batches, [partial(batches.do, number) for number in numbers])


def test_one_alone_is_carried_out_at_once_in_its_own_thread(doubling: Doubling) -> None:
    batches = Batches(doubling, most=8)
    assert [batches.do(2), batches.do(4)] == [4, 8]
    assert doubling.batches == [[2], [4]]
    assert set(doubling.threads) == {threading.current_thread()}


def test_what_comes_while_one_is_under_way_goes_together_with_the_next(doubling: Doubling) -> None:
    batches = Batches(doubling, most=3)
    with ThreadPoolExecutor(8) as pool:
        doubling.gate.clear()
        first = pool.submit(batches.do, 0)
        assert doubling.begun.acquire(timeout=10)
        others = asked(pool, batches, 2, 4, 6, 8)
        doubling.gate.set()
        assert [future.result(10) for future in (first, *others)] == [0, 4, 8, 12, 16]
    assert doubling.batches == [[0], [2, 4, 6], [8]]


def test_an_error_of_one_is_no_error_of_its_neighbours(doubling: Doubling) -> None:
    batches = Batches(doubling, most=8)
    with ThreadPoolExecutor(8) as pool:
        doubling.gate.clear()
        first = pool.submit(batches.do, 0)
        assert doubling.begun.acquire(timeout=10)
        good, bad, other = asked(pool, batches, 2, 3, 4)
        doubling.gate.set()
        assert (first.result(10), good.result(10), other.result(10)) == (0, 4, 8)
        with pytest.raises(ValueError, match="3"):
            bad.result(10)


def test_a_batch_that_fails_as_a_whole_fails_for_all_that_have_no_outcome_and_the_next_is_carried_out() -> None:
    gate, calls = threading.Event(), []

    def carry_out(batch: Sequence[BatchItem[int, int]]) -> None:
        calls.append([item.value for item in batch])
        assert gate.wait(10)
        batch[0].succeed(1)
        if len(batch) > 1:
            raise OSError("gone")

    batches = Batches(carry_out, most=2)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(batches.do, 0)
        while not calls:
            time.sleep(0.001)
        others = asked(pool, batches, 1, 2, 3)
        gate.set()
        assert (first.result(10), others[0].result(10), others[2].result(10)) == (1, 1, 1)
        with pytest.raises(OSError, match="gone"):
            others[1].result(10)
    assert batches.do(9) == 1


def test_whose_deadline_passes_while_it_waits_is_refused_and_never_carried_out(doubling: Doubling) -> None:
    batches = Batches(doubling, most=8)

    def hurried() -> int:
        with context.bound(deadline=time.monotonic() + 0.02):
            return batches.do(2)

    with ThreadPoolExecutor(2) as pool:
        doubling.gate.clear()
        first = pool.submit(batches.do, 0)
        assert doubling.begun.acquire(timeout=10)
        with pytest.raises(errors.DeadlineExceeded):
            pool.submit(hurried).result(10)
        doubling.gate.set()
        assert first.result(10) == 0
    assert doubling.batches == [[0]]
    assert batches.do(4) == 8


def test_what_has_been_begun_is_waited_for_beyond_its_callers_deadline() -> None:
    gates = [threading.Event(), threading.Event()]
    begun: list[threading.Event] = []

    def carry_out(batch: Sequence[BatchItem[int, int]]) -> None:
        begun.append(gates[len(begun)])
        assert begun[-1].wait(10)
        batch[0].succeed(2 * batch[0].value)

    batches = Batches(carry_out, most=8)

    def hurried() -> int:
        with context.bound(deadline=time.monotonic() + 0.2):
            return batches.do(2)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(batches.do, 1)
        while not begun:
            time.sleep(0.001)
        late = pool.submit(hurried)
        wait_for(batches, 1)
        gates[0].set()
        assert first.result(10) == 2
        time.sleep(0.25)
        gates[1].set()
        assert late.result(10) == 4


def test_an_item_done_alone_is_done_in_the_context_of_its_thread() -> None:
    seen: list[str | None] = []

    def note(_number: int) -> int:
        seen.append(context.current().request_id)
        return 0

    with context.bound(request_id="req-1"):
        item: BatchItem[int, int] = BatchItem(1)
    with context.bound(request_id="req-2"):
        item.do(note)
    assert (seen, item.outcome()) == (["req-1"], 0)


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 5))
def test_whoever_asks_for_whatever_gets_his_own_outcome_once(numbers: list[int], most: int) -> None:
    doubling = Doubling()
    batches = Batches(doubling, most)

    def outcome(ask: Callable[[], int]) -> object:
        try:
            return ask()
        except ValueError as refusal:
            return str(refusal)

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda number: outcome(lambda: batches.do(number)), numbers))
    assert found == [str(number) if number % 2 else 2 * number for number in numbers]
    assert sorted(number for batch in doubling.batches for number in batch) == sorted(numbers)
    assert all(len(batch) <= most for batch in doubling.batches)


@given(st.lists(st.lists(st.integers(0, 50), max_size=9), max_size=8), st.integers(1, 5))
def test_who_asks_for_several_things_at_once_gets_the_outcome_of_each(asked_for: list[list[int]], most: int) -> None:
    doubling = Doubling()
    batches = Batches(doubling, most)

    def outcomes(numbers: list[int]) -> list[object]:
        items = [BatchItem[int, int](number) for number in numbers]
        batches.do_all(items)
        assert all(item.is_done for item in items)
        return [item._result if item._error is None else str(item._error) for item in items]

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(outcomes, asked_for))
    assert found == [[str(number) if number % 2 else 2 * number for number in numbers] for numbers in asked_for]
    assert sorted(number for batch in doubling.batches for number in batch) == sorted(itertools.chain(*asked_for))
    assert all(len(batch) <= most for batch in doubling.batches)


def test_of_several_things_those_whose_deadline_passes_while_they_wait_are_refused_and_the_others_done(
    doubling: Doubling,
) -> None:
    batches = Batches(doubling, 8)
    doubling.gate.clear()
    late = context.Context(deadline=time.monotonic() + 0.1)
    items = [BatchItem[int, int](2), BatchItem[int, int](4, late), BatchItem[int, int](6)]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(batches.do, 0)
        assert doubling.begun.acquire(timeout=10)
        several = pool.submit(batches.do_all, items)
        wait_for_done(items[1])
        doubling.gate.set()
        several.result(10)
        assert first.result(10) == 0
    assert [items[0].outcome(), items[2].outcome()] == [4, 12]
    with pytest.raises(errors.DeadlineExceeded):
        items[1].outcome()
    assert doubling.batches == [[0], [2, 6]]


def test_several_things_that_are_all_too_late_are_taken_back_and_what_comes_next_is_carried_out(
    doubling: Doubling,
) -> None:
    batches = Batches(doubling, 8)
    doubling.gate.clear()
    late = context.Context(deadline=time.monotonic() + 0.1)
    items = [BatchItem[int, int](2, late), BatchItem[int, int](4, late)]
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(batches.do, 0)
        assert doubling.begun.acquire(timeout=10)
        batches.do_all(items)
        last = pool.submit(batches.do, 6)
        doubling.gate.set()
        assert [first.result(10), last.result(10)] == [0, 12]
    assert [type(item._error) for item in items] == [errors.DeadlineExceeded] * 2
    assert doubling.batches == [[0], [6]]


def wait_for_done(item: BatchItem[int, int]) -> None:
    end = time.monotonic() + 10
    while not item.is_done:
        assert time.monotonic() < end
        time.sleep(0.005)
