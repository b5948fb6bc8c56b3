"""A pool of threads for a machine that may refuse further threads."""

import logging
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
