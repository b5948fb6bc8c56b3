"""A bounded pool of daemon threads for an agent's tasks."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from moorage import context

LOG = logging.getLogger(__name__)


class Workers:
    """A pool of threads.

    They are daemon threads, unlike those of the standard library's executor: a spawn that hangs must not keep the
    process of a stopped agent alive.
    """

    def __init__(self, name: str, count: int) -> None:
        self._tasks: queue.SimpleQueue[tuple[context.Context, Callable[[], object]] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(count)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def submit(self, task: Callable[[], object]) -> None:
        """Queue ``task``, under the ids of the caller's context; after a stop it is never carried out."""
        self._tasks.put((context.current(), task))

    def stop(self, seconds: float) -> bool:
        """Begin no more tasks, and wait for the tasks in progress; return whether all have ended within ``seconds``."""
        self._stopping.set()
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(deadline - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (queued := self._tasks.get()) is not None and not self._stopping.is_set():
            caller, task = queued
            try:
                # Without the deadline: the caller does not wait for the task.
                with context.adopted(replace(caller, deadline=None)):
                    task()
            except Exception:  # the thread must survive any fault of one task
                LOG.exception("A task has failed")
