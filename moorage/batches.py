"""Natural batches: requests of several threads that arrive while one batch is in progress form the next one.

No request waits while no batch is in progress, and no timer delays a request. The requesting threads carry out the
batches themselves, one after another. The thread that has waited longest carries out the next batch, so there is no
worker thread to start or stop.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from moorage import context, errors, metrics

T = TypeVar("T")
R = TypeVar("R")

#: The time that a caller must have left for a batch, as a multiple of what the last ones took: the durations vary.
_MARGIN = 1.2


def in_parts(
    values: Sequence[T], size: Callable[[T], int], most: int, most_values: float = math.inf
) -> Iterator[Sequence[T]]:
    """Yield values in parts of at most ``most`` bytes and ``most_values`` values.

    :param size: returns the bytes of a value; a value larger than ``most`` is a part by itself.
    """
    start = total = 0
    for number, value in enumerate(values if len(values) > 1 else ()):
        length = size(value)
        if number > start and (total + length > most or number - start >= most_values):
            yield values[start:number]
            start, total = number, 0
        total += length
    yield values[start:]


class BatchItem(Generic[T, R]):
    """One request of a thread; its result or error is set while its batch is carried out.

    :param of_caller: the caller's context, with its ids and its deadline; by default the context of this thread.
    """

    __slots__ = ("_error", "_result", "context", "is_done", "value")

    def __init__(self, value: T, of_caller: context.Context | None = None) -> None:
        self.value = value
        self.context = context.current() if of_caller is None else of_caller
        self.is_done = False
        self._result: R | None = None
        self._error: BaseException | None = None

    def succeed(self, result: R) -> None:
        """Set the result."""
        self._result, self.is_done = result, True

    def fail(self, error: BaseException) -> None:
        """Set the error."""
        self._error, self.is_done = error, True

    def do(self, work: Callable[[T], R]) -> None:
        """Carry this item out alone, in the context of its caller, and set its result or its error."""
        try:
            with context.adopted(self.context):
                self.succeed(work(self.value))
        except Exception as fault:  # noqa: BLE001 - outcome() raises it
            self.fail(fault)

    @property
    def error(self) -> BaseException | None:
        """The error, if there is one."""
        return self._error

    def outcome(self) -> R:
        """Return the result, or raise the error."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # it is set, or its type includes None


class _Group:
    """The items that one thread requests at once; one batch carries them out."""

    __slots__ = ("items", "turn")

    def __init__(self, items: Sequence[BatchItem[Any, Any]]) -> None:
        self.items = items
        #: Set when all items are done, or when its thread must carry out the next batch.
        self.turn = threading.Event()

    def pending(self) -> list[BatchItem[Any, Any]]:
        """Return the items that are not done."""
        return [item for item in self.items if not item.is_done]

    def seconds_left(self) -> float | None:
        """Return the seconds until the earliest deadline of its callers; None if no caller has a deadline."""
        deadlines = [item.context.deadline for item in self.pending() if item.context.deadline is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None


class Batches(Generic[T, R]):
    """Carry out the requests of threads in batches.

    :param carry_out: sets the result or the error of each item of a batch. An error that it raises itself becomes the
        error of every item without an outcome. It must end within bounded time.
    :param most: the most items of one batch.
    :param kind: the kind of requests, as metrics name it.
    :param refuse_late: refuse an item that has waited for a batch if its caller's deadline comes before the next one
        can be expected to end. Carried out, it would be of no use, and the items behind it would be late in their turn.
    """

    def __init__(
        self,
        carry_out: Callable[[Sequence[BatchItem[T, R]]], None],
        most: int,
        kind: str = "other",
        *,
        refuse_late: bool = False,
    ) -> None:
        self._carry_out = carry_out
        self._refuse_late = refuse_late
        #: The seconds that the last two batches took. Two, so that a single slow one does not refuse those after it.
        self._durations = deque([0.0], maxlen=2)
        self._sizes = metrics.BATCH_SIZE.labels(kind)
        self._most = most
        self._lock = threading.Lock()
        self._is_under_way = False
        #: The first one's thread carries out the next batch.
        self._waiting: deque[_Group] = deque()

    def do(self, value: T) -> R:
        """Have one request carried out, alone or together with requests of other threads, and return its result.

        :raises DeadlineExceeded: the caller's deadline passed before the request was begun.
        :raises Overloaded: the caller's deadline comes too early, with ``refuse_late``.
        """
        item: BatchItem[T, R] = BatchItem(value)
        self._do_together(_Group([item]))
        return item.outcome()

    def do_all(self, items: Sequence[BatchItem[T, R]]) -> None:
        """Have several requests carried out, in batches with those of other threads, and return when all are done."""
        for start in range(0, len(items), self._most):
            self._do_together(_Group(items[start : start + self._most]))

    def _do_together(self, group: _Group) -> None:
        with self._lock:
            self._waiting.append(group)
            waits = self._is_under_way
            self._is_under_way = True
        while waits and not group.turn.wait(group.seconds_left()):
            if not self._withdraw_late(group):
                # The batch of this group is in progress, and ends within bounded time.
                group.turn.wait()
                break
        if group.pending():
            self._carry_out_next(have_waited=waits)

    def _refuse_late_items(self, batch: Sequence[BatchItem[T, R]]) -> list[BatchItem[T, R]]:
        """Refuse the items whose deadlines come before the batch can be expected to end, and return the others."""
        seconds = _MARGIN * min(self._durations)
        now = time.monotonic()
        for item in batch:
            if item.context.deadline is not None and (left := item.context.deadline - now) < seconds:
                reason = f"{max(left, 0.0):.3g} s are left, and it takes about {seconds:.3g} s"
                item.fail(errors.Overloaded(reason=reason))
        return [item for item in batch if not item.is_done]

    def _withdraw_late(self, group: _Group) -> bool:
        """Fail the items of a group whose deadlines have passed; return False if the group's batch has begun."""
        with self._lock:
            if group.turn.is_set():
                return True
            if group not in self._waiting:
                return False
            for item in group.pending():
                if item.context.deadline is not None and item.context.deadline <= time.monotonic():
                    item.fail(errors.DeadlineExceeded(point="before it was begun"))
            if not group.pending():
                self._waiting.remove(group)
                group.turn.set()
            return True

    def _carry_out_next(self, *, have_waited: bool) -> None:
        groups: list[_Group] = []
        batch: list[BatchItem[T, R]] = []
        with self._lock:
            while self._waiting and (not groups or len(batch) + len(self._waiting[0].pending()) <= self._most):
                groups.append(self._waiting.popleft())
                batch += groups[-1].pending()
        try:
            if have_waited and self._refuse_late:
                batch = self._refuse_late_items(batch)
            if batch:
                began = time.monotonic()
                self._sizes.observe(len(batch))
                self._carry_out(batch)
                self._durations.append(time.monotonic() - began)
        except BaseException as fault:
            for item in batch:
                if not item.is_done:
                    item.fail(fault)
            if not isinstance(fault, Exception):
                raise
        finally:
            with self._lock:
                # Start the next batch before the other groups of this batch are woken, so that it is not delayed.
                if self._waiting:
                    self._waiting[0].turn.set()
                else:
                    self._is_under_way = False
            for group in groups:
                group.turn.set()
