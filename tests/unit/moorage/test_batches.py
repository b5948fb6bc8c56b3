"""Test natural batches: items that arrive during a batch form the next one, and each has its own outcome."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.moorage.clock import Clock
from support.moorage.queued_calls import queue, wait_for

from harness.waiting import wait_until
from moorage import context, errors
from moorage.batches import Batches, BatchItem


class Doubling:
    """Carries out batches: doubles numbers, refuses odd ones, and waits at its gate with each batch."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[list[int]] = []
        self.threads: list[threading.Thread] = []
        self.begun = threading.Semaphore(0)

    def hold(self, pool: ThreadPoolExecutor, batches: Batches[int, int]) -> Future[int]:
        """Close the gate, and begin a batch of 0 that waits there."""
        self.gate.clear()
        first = pool.submit(batches.do, 0)
        assert self.begun.acquire(timeout=10)
        return first

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
    """Have each number doubled by its own thread, which waits for the batch under way."""
    return queue(pool, batches, [partial(batches.do, number) for number in numbers])


def test_a_single_item_is_carried_out_at_once_in_its_own_thread(doubling: Doubling) -> None:
    batches = Batches(doubling, most=8)
    assert [batches.do(2), batches.do(4)] == [4, 8]
    assert doubling.batches == [[2], [4]]
    assert set(doubling.threads) == {threading.current_thread()}


def test_items_that_arrive_during_a_batch_form_the_next_one(doubling: Doubling) -> None:
    batches = Batches(doubling, most=3)
    with ThreadPoolExecutor(8) as pool:
        first = doubling.hold(pool, batches)
        others = asked(pool, batches, 2, 4, 6, 8)
        doubling.gate.set()
        assert [future.result(10) for future in (first, *others)] == [0, 4, 8, 12, 16]
    assert doubling.batches == [[0], [2, 4, 6], [8]]


def test_an_error_of_one_item_does_not_affect_the_others(doubling: Doubling) -> None:
    batches = Batches(doubling, most=8)
    with ThreadPoolExecutor(8) as pool:
        first = doubling.hold(pool, batches)
        good, bad, other = asked(pool, batches, 2, 3, 4)
        doubling.gate.set()
        assert (first.result(10), good.result(10), other.result(10)) == (0, 4, 8)
        with pytest.raises(ValueError, match="3"):
            bad.result(10)


def test_a_failed_batch_fails_its_items_without_an_outcome_and_the_next_batch_is_carried_out() -> None:
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
        wait_until(lambda: bool(calls), "the first batch to begin", interval=0.001)
        others = asked(pool, batches, 1, 2, 3)
        gate.set()
        assert (first.result(10), others[0].result(10), others[2].result(10)) == (1, 1, 1)
        with pytest.raises(OSError, match="gone"):
            others[1].result(10)
    assert batches.do(9) == 1


def test_an_item_whose_deadline_passes_while_it_waits_is_refused_and_not_carried_out(doubling: Doubling) -> None:
    batches = Batches(doubling, most=8)

    def hurried() -> int:
        with context.bound(deadline=time.monotonic() + 0.02):
            return batches.do(2)

    with ThreadPoolExecutor(2) as pool:
        first = doubling.hold(pool, batches)
        with pytest.raises(errors.DeadlineExceeded):
            pool.submit(hurried).result(10)
        doubling.gate.set()
        assert first.result(10) == 0
    assert doubling.batches == [[0]]
    assert batches.do(4) == 8


def test_a_caller_waits_beyond_its_deadline_for_an_item_that_has_begun() -> None:
    gates = [threading.Event(), threading.Event()]
    begun: list[threading.Event] = []

    def carry_out(batch: Sequence[BatchItem[int, int]]) -> None:
        begun.append(gates[len(begun)])
        assert begun[-1].wait(10)
        batch[0].succeed(2 * batch[0].value)

    batches = Batches(carry_out, most=8)

    def hurried() -> int:
        with context.bound(deadline=time.monotonic() + 2.0):
            return batches.do(2)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(batches.do, 1)
        wait_until(lambda: bool(begun), "the first batch to begin", interval=0.001)
        late = pool.submit(hurried)
        wait_for(batches, 1)
        gates[0].set()
        assert first.result(10) == 2
        time.sleep(2.05)
        gates[1].set()
        assert late.result(10) == 4


def test_an_item_is_carried_out_in_the_context_in_which_it_was_created() -> None:
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
def test_each_caller_gets_its_own_outcome_once(numbers: list[int], most: int) -> None:
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
def test_a_caller_with_several_items_gets_the_outcome_of_each(asked_for: list[list[int]], most: int) -> None:
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


def test_of_several_items_only_those_past_their_deadline_are_refused(
    doubling: Doubling,
) -> None:
    batches = Batches(doubling, 8)
    late = context.Context(deadline=time.monotonic() + 0.1)
    items = [BatchItem[int, int](2), BatchItem[int, int](4, late), BatchItem[int, int](6)]
    with ThreadPoolExecutor(2) as pool:
        first = doubling.hold(pool, batches)
        several = pool.submit(batches.do_all, items)
        wait_until(lambda: items[1].is_done, "the late item to be refused", interval=0.005)
        doubling.gate.set()
        several.result(10)
        assert first.result(10) == 0
    assert [items[0].outcome(), items[2].outcome()] == [4, 12]
    with pytest.raises(errors.DeadlineExceeded):
        items[1].outcome()
    assert doubling.batches == [[0], [2, 6]]


def test_items_past_their_deadline_are_withdrawn_and_the_next_item_is_carried_out(
    doubling: Doubling,
) -> None:
    batches = Batches(doubling, 8)
    late = context.Context(deadline=time.monotonic() + 0.1)
    items = [BatchItem[int, int](2, late), BatchItem[int, int](4, late)]
    with ThreadPoolExecutor(3) as pool:
        first = doubling.hold(pool, batches)
        batches.do_all(items)
        last = pool.submit(batches.do, 6)
        doubling.gate.set()
        assert [first.result(10), last.result(10)] == [0, 12]
    assert [type(item._error) for item in items] == [errors.DeadlineExceeded] * 2
    assert doubling.batches == [[0], [6]]


class Slow:
    """Carries out batches, by a clock that each of them sets forward, and notes them."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds = seconds
        self.clock = clock
        self.batches: list[list[int]] = []
        #: Called in the next batch, before its time passes.
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self, batch: Sequence[BatchItem[int, int]]) -> None:
        self.batches.append([item.value for item in batch])
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        self.clock.now += self.seconds
        for item in batch:
            item.succeed(2 * item.value)

    def hurried(self, seconds: float, value: int) -> BatchItem[int, int]:
        """Return an item whose caller waits so long."""
        return BatchItem(value, context.Context(deadline=self.clock.now + seconds))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """Batches that each take four seconds."""
    clock = Clock()
    monkeypatch.setattr("moorage.batches.time", SimpleNamespace(monotonic=clock))
    return Slow(4.0, clock)


def during_a_batch(batches: Batches[int, int], slow: Slow, items: Sequence[BatchItem[int, int]]) -> None:
    """Have items carried out that arrive while another batch is in progress."""
    with ThreadPoolExecutor(1) as pool:
        begun = len(slow.batches)
        slow.meanwhile = lambda: wait_for(batches, 1)
        first = pool.submit(batches.do, 0)
        wait_until(lambda: len(slow.batches) > begun, "a batch to begin", interval=0.001)
        batches.do_all(items)
        first.result(10)


def test_an_item_that_has_waited_and_cannot_be_done_in_time_is_refused_and_delays_no_other(slow: Slow) -> None:
    batches = Batches(slow, 8, refuse_late=True)
    batches.do(0)
    # It outlives the batch in progress, but not the one after it.
    items = [slow.hurried(7.0, 2), slow.hurried(60.0, 4), BatchItem[int, int](6)]
    during_a_batch(batches, slow, items)
    assert slow.batches == [[0], [0], [4, 6]]
    assert [items[1].outcome(), items[2].outcome()] == [8, 12]
    with pytest.raises(errors.Overloaded, match=r"^[^:]*: 3 s are left, and it takes about 4\.8 s"):
        items[0].outcome()


def test_if_none_of_the_waiting_items_can_be_done_in_time_the_next_one_is_carried_out_at_once(slow: Slow) -> None:
    batches = Batches(slow, 8, refuse_late=True)
    batches.do(0)
    late = slow.hurried(7.0, 2)
    during_a_batch(batches, slow, [late])
    with pytest.raises(errors.Overloaded):
        late.outcome()
    # Nothing is in progress now: whoever comes is tried, whatever the last batches took.
    last = slow.hurried(3.0, 4)
    batches.do_all([last])
    assert last.outcome() == 8
    assert slow.batches == [[0], [0], [4]]


@pytest.mark.parametrize("quick_ones", [0, 2])
def test_a_single_slow_batch_refuses_nothing_after_it(slow: Slow, quick_ones: int) -> None:
    slow.seconds = 0.0
    batches = Batches(slow, 8, refuse_late=True)
    for _ in range(quick_ones):
        batches.do(0)
    slow.seconds = 4.0
    items = [slow.hurried(7.0, 2)]
    during_a_batch(batches, slow, items)
    assert items[0].outcome() == 4


def test_items_are_not_refused_early_unless_this_is_wanted(slow: Slow) -> None:
    batches = Batches(slow, 8)
    batches.do(0)
    items = [slow.hurried(7.0, 2)]
    during_a_batch(batches, slow, items)
    assert items[0].outcome() == 4
