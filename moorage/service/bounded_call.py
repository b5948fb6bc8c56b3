"""Calls to a database or a broker that may be silent; the wait for each is short."""

import contextvars
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

from moorage import errors

T = TypeVar("T")


class Waiting:
    """The clock of calls, and the way to wait for one; a test may replace both."""

    def now(self) -> float:
        """Return the seconds of a clock that is never set."""
        return time.monotonic()

    def wait(self, call: "Future[Any]", seconds: float) -> bool:
        """Wait for the end of a call for a time at most; return whether it has ended."""
        return call in futures.wait([call], seconds).done


_WAITING = Waiting()


class _Call(Future[T]):
    """One call, in a separate thread."""

    def __init__(self, name: str, work: Callable[[], T], now: Callable[[], float]) -> None:
        super().__init__()
        self.began, self.ended_at = now(), 0.0
        inside = contextvars.Context()
        thread = threading.Thread(target=inside.run, args=(self._run, work, now), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as refusal:  # the machine has no thread left
            self.ended_at = now()
            self.set_exception(errors.Overloaded(reason=str(refusal)))

    def _run(self, work: Callable[[], T], now: Callable[[], float]) -> None:
        try:
            end = partial(self.set_result, work())
        except BaseException as fault:  # noqa: BLE001 - it is raised in the threads that want the result
            end = partial(self.set_exception, fault)
        self.ended_at = now()
        end()


class BoundedCall(Generic[T]):
    """A call whose result is cached for a short time; the wait for the result is short as well.

    At most one call is in progress: if it hangs, it occupies one thread, however often its result is requested.

    :param patience: seconds from the beginning of a call for which its result is waited for.
    :param kept: seconds after the end of a call for which its result, or its exception, is returned again.
    """

    def __init__(
        self, name: str, work: Callable[[], T], patience: float = 2.0, kept: float = 1.0, waiting: Waiting = _WAITING
    ) -> None:
        self._name = name
        self._work = work
        self._patience = patience
        self._kept = kept
        self._waiting = waiting
        self._lock = threading.Lock()
        self._call: _Call[T] | None = None

    def begin(self) -> None:
        """Begin a call, unless one is in progress or has just ended."""
        self._present()

    def result(self) -> T:
        """Return the result of a call that was begun now or a short time ago.

        :raises TimeoutError: the call has not ended in time.
        :raises Overloaded: the machine has no thread for it.
        :raises Exception: the call has raised this exception.
        """
        call = self._present()
        now = self._waiting.now
        if not self._waiting.wait(call, max(0.0, call.began + self._patience - now())):
            raise TimeoutError(f"no answer within {now() - call.began:.1f} s")
        return call.result()

    def _present(self) -> _Call[T]:
        with self._lock:
            call, now = self._call, self._waiting.now
            if call is None or (call.done() and now() - call.ended_at >= self._kept):
                call = self._call = _Call(self._name, self._work, now)
            return call
