"""Test shared transactions: values that arrive together are carried out in one, and each has its own outcome."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import Connection
from support.moorage.clock import Clock
from support.moorage.queued_calls import queue

from harness.waiting import wait_until
from moorage import context, errors, failpoints
from moorage.db.shared_transactions import SharedTransactions

#: No database is needed: the connection is not used.
NO_CONNECTION = cast(Connection, None)


class Halving:
    """Halve numbers; refuse odd ones with their own error, and zero with one that rolls the transaction back."""

    def __init__(self) -> None:
        self.transactions: list[list[int]] = []
        self.open = threading.Event()
        self.open.set()
        self.begun = threading.Event()
        self.away = False
        self.shared = SharedTransactions[int, int](self.run, self.work)

    def run(self, work: Callable[[Connection], Any]) -> Any:
        context.check_deadline("in the transaction")
        return work(NO_CONNECTION)

    def work(self, _connection: Connection, numbers: Sequence[int]) -> list[int | Exception]:
        self.transactions.append(list(numbers))
        self.begun.set()
        assert self.open.wait(10)
        if self.away:
            raise errors.StoreUnavailable(schema="test", reason="it is away")
        if 0 in numbers:
            raise ValueError("zero is in the way")
        return [KeyError(number) if number % 2 else number // 2 for number in numbers]

    def together(self, numbers: Sequence[int]) -> list[object]:
        """Carry out numbers that arrive while the transaction of another one is under way."""
        self.open.clear()
        with ThreadPoolExecutor(len(numbers) + 1) as threads:
            first = threads.submit(self.shared.do, 100)
            assert self.begun.wait(10)
            made = queue(threads, self.shared._batches, [partial(self.shared.do, number) for number in numbers])
            self.open.set()
            faults = [each.exception(10) for each in (first, *made)][1:]
        return [type(fault) if fault else one.result() for one, fault in zip(made, faults, strict=True)]


def test_values_that_arrive_together_share_a_transaction_and_have_their_own_outcomes() -> None:
    halving = Halving()

    assert halving.together([2, 3, 4]) == [1, KeyError, 2]
    assert halving.transactions == [[100], [2, 3, 4]]


def test_a_value_that_rolls_back_the_transaction_does_not_fail_the_others() -> None:
    halving = Halving()

    assert halving.together([2, 0, 3, 4]) == [1, ValueError, KeyError, 2]
    assert halving.transactions[:2] == [[100], [2, 0, 3, 4]]
    assert sorted(halving.transactions[2:]) == [[0], [2], [3], [4]]


def test_a_late_value_that_is_refused_does_not_end_the_transaction_of_the_others_in_its_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    halving, clock = Halving(), Clock()
    for module in ("moorage.batches", "moorage.context", "moorage.db.shared_transactions"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=clock))

    def run(work: Callable[[Connection], Any]) -> Any:
        result = halving.run(work)
        clock.now += 1.0
        context.check_deadline("before COMMIT")
        return result

    shared = SharedTransactions[int, int](run, halving.work)
    for _ in range(2):
        shared.do(100)  # so long does a transaction take
    halving.transactions.clear()
    halving.begun.clear()
    halving.open.clear()

    def hurried() -> int:
        # Enough for the wait, and not for a transaction after it.
        with context.bound(deadline=clock.now + 1.5):
            return shared.do(2)

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(shared.do, 100)
        assert halving.begun.wait(10)
        # The first that waits carries out the next batch.
        calls: list[Callable[[], int]] = [hurried, partial(shared.do, 4), partial(shared.do, 6)]
        late, *made = queue(threads, shared._batches, calls)
        halving.open.set()
        assert isinstance(late.exception(10), errors.Overloaded)
        assert [one.result(10) for one in (first, *made)] == [50, 2, 3]
    assert halving.transactions == [[100], [4, 6]]


def test_an_unavailable_database_is_tried_once_for_all() -> None:
    halving = Halving()
    halving.away = True

    assert halving.together([2, 4]) == [errors.StoreUnavailable] * 2
    assert halving.transactions == [[100], [2, 4]]


def test_values_do_not_share_a_transaction_while_failpoints_are_observed() -> None:
    halving = Halving()
    halving.open.clear()
    with failpoints.observed(lambda _name: None), ThreadPoolExecutor(3) as threads:
        made = [threads.submit(halving.shared.do, number) for number in (2, 4, 6)]
        wait_until(lambda: len(halving.transactions) == 3, lambda: halving.transactions, interval=0.001)
        halving.open.set()
        assert [one.result(10) for one in made] == [1, 2, 3]
    assert sorted(halving.transactions) == [[2], [4], [6]]


def test_a_blocked_value_delays_the_others_only_for_a_short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moorage.db.shared_transactions.PATIENCE", 0.2)
    stuck, free, passed = threading.Event(), threading.Event(), threading.Event()

    def work(_connection: Connection, numbers: Sequence[int]) -> list[int | Exception]:
        if 13 in numbers:
            stuck.set()
            left = context.seconds_left()
            # Like a locked row, it is waited for as long as there is time.
            if not free.wait(10 if left is None else max(left, 0.0)):
                raise errors.Overloaded(reason="the row is locked")
        else:
            passed.set()
        return list(numbers)

    shared = SharedTransactions[int, int](lambda run: run(NO_CONNECTION), work)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(shared.do, 13)
        assert stuck.wait(10)
        others = [threads.submit(shared.do, number) for number in (1, 2)]

        assert [one.result(10) for one in others] == [1, 2]
        assert passed.is_set()
        assert not first.done()
        free.set()
        assert first.result(10) == 13


def test_a_single_value_raises_its_own_error_and_keeps_its_own_deadline() -> None:
    halving = Halving()
    with pytest.raises(KeyError):
        halving.shared.do(3)
    with context.bound(deadline=0.0), pytest.raises(errors.DeadlineExceeded):
        halving.shared.do(2)
    assert halving.shared.do(2) == 1
