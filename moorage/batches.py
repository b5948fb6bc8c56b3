"""Natural batches: what several threads ask for while one batch is under way is carried out together with the next one.

Nobody waits while nothing is under way, and no timer delays anything. The threads that ask carry the batches out
themselves, one after another: each batch by the thread that has waited longest, so that there is no thread to start
and none to stop.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from moorage import context, errors, metrics

T = TypeVar("T")
R = TypeVar("R")


class BatchItem(Generic[T, R]):
    """One thing that a thread asks for; it is given a result or an error while its batch is carried out."""

    __slots__ = ("_error", "_result", "_turn", "context", "is_done", "value")

    def __init__(self, value: T) -> None:
        self.value = value
        #: The context of the thread that asks: its ids and its deadline.
        self.context = context.current()
        self.is_done = False
        self._turn = threading.Event()
        self._result: R | None = None
        self._error: BaseException | None = None

    def succeed(self, result: R) -> None:
        """Set the result."""
        self._result, self.is_done = result, True

    def fail(self, error: BaseException) -> None:
        """Set the error."""
        self._error, self.is_done = error, True

    def do(self, work: Callable[[T], R]) -> None:
        """Carry this item out alone, in the context of its thread, and set its result or its error."""
        try:
            with context.adopted(self.context):
                self.succeed(work(self.value))
        except Exception as fault:  # noqa: BLE001 - it is raised in the thread that asked
            self.fail(fault)

    # What follows is for the batches.

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until this item is done or its thread is to carry out a batch; return False if neither came in time."""
        return self._turn.wait(seconds)

    def wake(self) -> None:
        """Wake the thread that asks."""
        self._turn.set()

    @property
    def is_awake(self) -> bool:
        """True if its thread has been woken."""
        return self._turn.is_set()

    def outcome(self) -> R:
        """Return the result, or raise the error."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # it is set, or of a type that has null


class Batches(Generic[T, R]):
    """Carry out what threads ask for, in batches.

    :param carry_out: gives each item of a batch its result or its error; an error that it raises itself is that of
        every item which has neither. It must end within bounded time.
    :param most: the most items of one batch.
    :param kind: what they are, as metrics name it.
    """

    def __init__(self, carry_out: Callable[[Sequence[BatchItem[T, R]]], None], most: int, kind: str = "other") -> None:
        self._carry_out = carry_out
        self._sizes = metrics.BATCH_SIZE.labels(kind)
        self._most = most
        self._lock = threading.Lock()
        self._is_under_way = False
        #: The first one's thread carries out the next batch.
        self._waiting: deque[BatchItem[T, R]] = deque()

    def do(self, value: T) -> R:
        """Have one thing done, alone or together with what others ask for, and return its result.

        :raises DeadlineExceeded: the caller's deadline has passed before it was begun.
        """
        item: BatchItem[T, R] = BatchItem(value)
        with self._lock:
            self._waiting.append(item)
            waits = self._is_under_way
            self._is_under_way = True
        if waits and not item.wait(context.seconds_left()):
            self._withdraw(item)
            # It has been begun, or its turn has just come: that takes bounded time.
            item.wait()
        if not item.is_done:
            self._carry_out_next()
        return item.outcome()

    def _withdraw(self, item: BatchItem[T, R]) -> None:
        """Take an item back whose caller waits no longer.

        :raises DeadlineExceeded: it was not begun, and will not be.
        """
        with self._lock:
            if not item.is_awake and item in self._waiting:
                self._waiting.remove(item)
                raise errors.DeadlineExceeded(point="before it was begun")

    def _carry_out_next(self) -> None:
        with self._lock:
            batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
        self._sizes.observe(len(batch))
        try:
            self._carry_out(batch)
        except BaseException as fault:
            for item in batch:
                if not item.is_done:
                    item.fail(fault)
            if not isinstance(fault, Exception):
                raise
        finally:
            with self._lock:
                # Before the others of this batch are woken: what waits is not to wait for them as well.
                if self._waiting:
                    self._waiting[0].wake()
                else:
                    self._is_under_way = False
            for item in batch:
                item.wake()
