"""The library's RPC server, which takes no more messages than it has threads for: the others are for its peers."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from moorage.config import messaging  # noqa: F401 - first, because it chooses the threading backend

# isort: split
from oslo_messaging._drivers.base import PollStyleListenerAdapter
from oslo_messaging.rpc.server import RPCServer

from moorage.bus.handlers import stamp

#: Seconds after which a message is taken though no thread is free. The thread that takes messages is also the one that
#: tells the broker that this server lives, which a broker that hears nothing for a minute does not believe any more.
_LONGEST_WAIT = 5.0


class ThreadedServer(RPCServer):  # type: ignore[misc]
    """Answers messages in threads of the standard library: idle, they end at once and not within a second.

    The library itself takes whatever comes and keeps it in memory until a thread is free. A server whose threads all
    wait for something would go on taking its share, until long after those who asked have gone.

    :param threads: how many messages are worked on at a time.
    """

    def __init__(self, *args: Any, threads: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._executor_cls = ThreadPoolExecutor
        self._threads = threads
        self._busy = 0
        self._ending = False
        self._changed = threading.Condition()

    def begin(self) -> None:
        """Begin to take messages."""
        self.start(override_pool_size=self._threads)

    def end(self) -> None:
        """Take no more of them; :meth:`wait` then waits for those that were taken."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self.stop()

    def _on_incoming(self, incoming: Any) -> None:
        for message in incoming:
            # Within one process the end of the caller's time is known, and over RabbitMQ since when it may be here.
            stamp(message.ctxt, getattr(message, "taken", time.monotonic()), getattr(message, "expires", None))
        # Within one process the caller's own thread comes here, and must not be kept: its server has no peers.
        has_thread = isinstance(self.listener, PollStyleListenerAdapter)
        with self._changed:
            if has_thread:
                self._changed.wait_for(lambda: self._busy < self._threads or self._ending, _LONGEST_WAIT)
            self._busy += 1
        self._work_executor.submit(self._process_incoming, incoming).add_done_callback(self._done)

    def _done(self, _future: "Future[None]") -> None:
        with self._changed:
            self._busy -= 1
            self._changed.notify()
