"""A pool of threads for a machine that may refuse further threads."""

import logging
from concurrent.futures import ThreadPoolExecutor

LOG = logging.getLogger(__name__)


class ThreadPool(ThreadPoolExecutor):
    """A pool of the standard library that takes work even if the machine refuses a thread: its other threads do it.

    The library queues the work before it starts a thread. If the start fails, it raises an error, and does the work all
    the same. Here ``submit`` raises ``RuntimeError`` only if the work will not be done: the pool has been shut down, or
    has no thread at all.
    """

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as fault:
            if not self._threads:
                self._work_queue.get_nowait()
                raise
            LOG.warning("The work waits for another thread: %s", fault)
