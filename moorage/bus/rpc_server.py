"""An RPC server that takes no more messages than it has threads for, or a batch, and leaves the others to its peers."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from moorage.config import messaging  # noqa: F401 - first, because it chooses the threading backend

# isort: split
from oslo_messaging._drivers.base import PollStyleListenerAdapter
from oslo_messaging.rpc.server import RPCServer

from moorage import metrics
from moorage.bus.handlers import stamp
from moorage.occupancy import ThreadOccupancy

#: Seconds after which a message is taken though no thread is free. The thread that takes messages also sends the
#: heartbeats of the connection; after a minute without one the broker closes it.
_LONGEST_WAIT = 5.0


class ThreadedServer(RPCServer):  # type: ignore[misc]
    """Answers messages in a thread pool of the standard library, whose idle threads end at once at a stop.

    The library's own server takes every message and keeps it in memory until a thread is free. If all its threads wait
    for something, it goes on taking its share of the messages, and answers them long after their callers have gone.

    :param threads: the number of messages handled at a time.
    :param topic: the topic as metrics name it.
    """

    def __init__(self, *args: Any, threads: int, topic: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._executor_cls = ThreadPoolExecutor
        self._threads = threads
        self._occupancy = ThreadOccupancy(threads)
        self._in_progress = metrics.RPC_BUSY.labels(topic)
        self._all_threads = metrics.RPC_THREADS.labels(topic)
        self._ending = False
        self._changed = threading.Condition()

    def begin(self) -> None:
        """Begin to take messages."""
        self._all_threads.inc(self._threads)
        self.start(override_pool_size=self._threads)

    def end(self) -> None:
        """Take no more messages; :meth:`wait` then waits for those that were taken."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._all_threads.dec(self._threads)
        self.stop()

    def seconds_stuck(self) -> float:
        """Return for how long all threads have been busy without one becoming free; 0 while one is free."""
        with self._changed:
            return self._occupancy.seconds_stuck()

    def _on_incoming(self, incoming: Any) -> None:
        for message in incoming:
            # The in-process bus knows the caller's deadline; RabbitMQ only the earliest time of arrival.
            stamp(message.ctxt, getattr(message, "taken", time.monotonic()), getattr(message, "expires", None))
        # On the in-process bus this is the caller's own thread, and must not wait: its server has no peers.
        has_thread = isinstance(self.listener, PollStyleListenerAdapter)
        # What has come in a batch cannot be left to a peer any more: only its first message waits for a thread.
        waits = has_thread and not any(getattr(message, "is_further", False) for message in incoming)
        with self._changed:
            if waits:
                self._changed.wait_for(lambda: self._occupancy.busy < self._threads or self._ending, _LONGEST_WAIT)
            self._occupancy.take()
        self._in_progress.inc()
        self._work_executor.submit(self._process_incoming, incoming).add_done_callback(self._done)

    def _done(self, _future: "Future[None]") -> None:
        with self._changed:
            self._occupancy.free()
            self._changed.notify()
        self._in_progress.dec()
