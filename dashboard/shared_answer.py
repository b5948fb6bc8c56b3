"""An answer of another part of the cloud, shared by all viewers of the page."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

from moorage import errors

T = TypeVar("T")

#: The maximum share of the time that is spent on asking: a slow answer is requested less often.
_SHARE = 0.05


class SharedAnswer(Generic[T]):
    """Keeps an answer for a while, and requests a new one when a viewer wants it. Safe to use from several threads.

    One thread asks at a time. While it does, the others get the previous answer, so that a slow part of the cloud holds
    only one thread of the page. The others wait only for the first answer. A failure is kept as well, but
    not for longer if it took long, so that a part of the cloud that was away is shown again soon.

    :param ask: returns a new answer, or raises one of Moorage's errors.
    :param interval: seconds for which an outcome is kept; an answer for twenty times the time that it took, if that is
        longer.
    """

    def __init__(self, ask: Callable[[], T], interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._interval = interval
        self._clock = clock
        self._asking = threading.Lock()
        self._outcome: Callable[[], T] | None = None
        self._until = float("-inf")

    def get(self) -> T:
        """Return the current answer.

        :raises MoorageError: the last request failed with this error.
        """
        known = self._outcome
        if known is None:
            with self._asking:
                # Another thread may have asked in the meantime.
                return (self._outcome or self._renewed())()
        if self._clock() < self._until or not self._asking.acquire(blocking=False):
            return known()
        try:
            return self._renewed()()
        finally:
            self._asking.release()

    def _renewed(self) -> Callable[[], T]:
        """Ask again, and return the outcome; the caller holds the lock."""
        began = self._clock()
        try:
            answer = self._ask()
        except errors.MoorageError as fault:
            return self._keep(partial(_fail, type(fault), fault.data), self._interval)
        return self._keep(lambda: answer, max(self._interval, (self._clock() - began) / _SHARE))

    def _keep(self, outcome: Callable[[], T], seconds: float) -> Callable[[], T]:
        self._until = self._clock() + seconds
        self._outcome = outcome
        return outcome


def _fail(kind: type[errors.MoorageError], data: dict[str, Any]) -> NoReturn:
    # Each viewer gets a new exception, because a raised exception keeps the traceback of the thread that raised it.
    raise kind(**data)
