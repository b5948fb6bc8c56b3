"""A bounded number of threads that work off what an agent has taken up."""

import logging
import queue
import threading
import time
from collections.abc import Callable

LOG = logging.getLogger(__name__)


class Workers:
    """Threads that carry out one task after the other.

    They are daemons, which those of the standard library's executor are not: a spawn that hangs must not keep a
    stopped agent's process alive.
    """

    def __init__(self, name: str, count: int) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(count)
        ]

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def submit(self, task: Callable[[], object]) -> None:
        """Have ``task`` carried out when a thread is free; once stopped, never."""
        self._tasks.put(task)

    def stop(self, seconds: float) -> bool:
        """Begin no other task, and wait for those under way; tell whether all have ended within ``seconds``."""
        self._stopping.set()
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(deadline - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None and not self._stopping.is_set():
            try:
                task()
            except Exception:  # the thread must outlive whatever one task meets
                LOG.exception("A task has failed")
