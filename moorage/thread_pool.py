"""A pool of threads for a machine that may refuse further threads, and the time for which all threads are busy."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

LOG = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class NoThread(RuntimeError):
    """The machine has refused the first thread of a pool."""


class ThreadPool(ThreadPoolExecutor):
    """A pool of the standard library that takes work even if the machine refuses a thread: its other threads do it.

    The library queues the work before it starts a thread. If the start fails, it raises an error, and does the work all
    the same. Here ``submit`` raises ``RuntimeError`` only if the work will not be done: the pool has been shut down, or
    has no thread at all (:class:`NoThread`).
    """

    def submit_or_do(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Submit work; do it in this thread if the pool has no thread at all."""
        try:
            return self.submit(work, *args, **kwargs)
        except NoThread as refusal:
            LOG.warning("The work is done without another thread: %s", refusal)
        done: Future[R] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as fault:  # noqa: BLE001 - as in a thread of the pool, the caller gets it from the result
            done.set_exception(fault)
        return done

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as fault:
            if not self._threads:
                self._work_queue.get_nowait()
                raise NoThread(*fault.args) from fault
            LOG.warning("The work waits for another thread: %s", fault)


class ThreadOccupancy:
    """Counts busy threads. The caller must hold the lock that it also holds when it gives work to a thread.

    :param threads: the number of threads.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.busy = 0
        #: The time when a thread last became free, or when the first thread became busy.
        self._moved_at = time.monotonic()

    def take(self) -> None:
        """Count one more busy thread; if the count exceeds the number of threads, work is waiting."""
        if not self.busy:
            self._moved_at = time.monotonic()
        self.busy += 1

    def free(self) -> None:
        """Count one busy thread less."""
        self.busy -= 1
        self._moved_at = time.monotonic()

    def seconds_stuck(self) -> float:
        """Return the seconds since a thread last became free, if all threads are busy; else 0."""
        return 0.0 if self.busy < self.threads else time.monotonic() - self._moved_at
