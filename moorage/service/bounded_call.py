"""Calls to a database or a broker that may be silent; the wait for each is short."""

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class _Call(Generic[T]):
    """One call, in a separate thread."""

    def __init__(self, name: str, work: Callable[[], T]) -> None:
        self._work = work
        self.began = time.monotonic()
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
            self.ended_at = time.monotonic()
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

    def __init__(self, name: str, work: Callable[[], T], patience: float = 2.0, kept: float = 1.0) -> None:
        self._name = name
        self._work = work
        self._patience = patience
        self._kept = kept
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
        if not call.ended.wait(max(0.0, call.began + self._patience - time.monotonic())):
            raise TimeoutError(f"no answer within {time.monotonic() - call.began:.1f} s")
        return call.outcome()

    def _present(self) -> _Call[T]:
        with self._lock:
            call = self._call
            if call is None or (call.ended.is_set() and time.monotonic() - call.ended_at >= self._kept):
                call = self._call = _Call(self._name, self._work)
            return call
