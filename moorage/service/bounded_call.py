"""Calls to a database or a broker that may be silent; the wait for each is short."""

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Waiting:
    """The clock of calls, and the way to wait for one; a test may replace both."""

    def now(self) -> float:
        """Return the seconds of a clock that is never set."""
        return time.monotonic()

    def wait(self, ended: threading.Event, seconds: float) -> bool:
        """Wait for the end of a call for a time at most; return whether it has ended."""
        return ended.wait(seconds)


_WAITING = Waiting()


class _Call(Generic[T]):
    """One call, in a separate thread."""

    def __init__(self, name: str, work: Callable[[], T], now: Callable[[], float]) -> None:
        self._work = work
        self._now = now
        self.began = now()
        self.ended = threading.Event()
        self.ended_at = 0.0
        self._result: list[T] = []
        self._fault: Exception | None = None
        inside = contextvars.Context()
        threading.Thread(target=inside.run, args=(self._run,), name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._result.append(self._work())
        except Exception as fault:  # noqa: BLE001 - it is raised in the threads that want the result
            self._fault = fault
        finally:
            self.ended_at = self._now()
            self.ended.set()

    def outcome(self) -> T:
        """Return the result, or raise the exception, of a call that has ended."""
        if self._fault is not None:
            raise self._fault
        return self._result[0]


class BoundedCall(Generic[T]):
    """A call whose result is cached for a short time; the wait for the result is short as well.

    At most one call is in progress: if it hangs, it occupies one thread, however often its result is requested.

    :param patience: seconds from the beginning of a call for which its result is waited for.
    :param kept: seconds after the end of a call for which its result, or its exception, is returned again.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], T],
        patience: float = 2.0,
        kept: float = 1.0,
        waiting: Waiting = _WAITING,
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
        :raises Exception: the call has raised this exception.
        """
        call = self._present()
        now = self._waiting.now
        if not self._waiting.wait(call.ended, max(0.0, call.began + self._patience - now())):
            raise TimeoutError(f"no answer within {now() - call.began:.1f} s")
        return call.outcome()

    def _present(self) -> _Call[T]:
        with self._lock:
            call, now = self._call, self._waiting.now
            if call is None or (call.ended.is_set() and now() - call.ended_at >= self._kept):
                call = self._call = _Call(self._name, self._work, now)
            return call
