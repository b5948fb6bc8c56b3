"""An RPC server that takes only as many messages as it has threads, or one batch; and the dispatch of its calls."""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Any

from moorage import errors, metrics
from moorage.bus.handlers import Answer, Endpoint, LaterAnswers, ReceivedCall, stamp
from moorage.thread_pool import ThreadOccupancy, ThreadPool

import oslo_messaging
from oslo_messaging._drivers.base import PollStyleListenerAdapter
from oslo_messaging._utils import version_is_compatible
from oslo_messaging.rpc import dispatcher
from oslo_messaging.rpc.server import RPCServer

#: Seconds after which a message is taken even if no thread is free. The thread that takes messages also sends the
#: heartbeats of the connection; the broker closes it after about ten seconds without a heartbeat.
_LONGEST_WAIT = 5.0

LOG = logging.getLogger(__name__)


def _logged(work: Callable[..., None], *arguments: Any) -> None:
    try:
        work(*arguments)
    except Exception:
        # The answer cannot be sent, so the caller's call times out.
        LOG.exception("A message could not be answered")


class ThreadedServer(RPCServer):  # type: ignore[misc]
    """Answers messages in a thread pool of the standard library, whose idle threads end at once at a stop.

    The bus library's own server takes every message and keeps it in memory until a thread is free. If all its threads
    wait for something, it continues to take its share of the messages, and answers them after their callers' deadlines.

    :param threads: the number of messages handled at a time.
    :param topic: the topic as metrics name it.
    """

    def __init__(self, *args: Any, threads: int, topic: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._executor_cls = ThreadPool
        self._threads = threads
        self._occupancy = ThreadOccupancy(threads)
        self._in_progress = metrics.RPC_BUSY.labels(topic)
        self._all_threads = metrics.RPC_THREADS.labels(topic)
        self._ending = False
        self._changed = threading.Condition()
        self._of_many = {
            endpoint.method: endpoint for endpoint in self.dispatcher.endpoints if isinstance(endpoint, Endpoint)
        }

    def begin(self) -> None:
        """Begin to take messages."""
        self.start(override_pool_size=self._threads)
        self._all_threads.inc(self._threads)

    def end(self) -> None:
        """Stop taking messages; :meth:`wait` then waits for the taken ones."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._all_threads.dec(self._threads)
        self.stop()

    def seconds_stuck(self) -> float:
        """Return the seconds since a thread last became free, if all threads are busy; else 0."""
        with self._changed:
            return self._occupancy.seconds_stuck()

    def _on_incoming(self, incoming: Any) -> None:
        [message] = incoming
        calls = getattr(message, "calls", incoming)
        for call in calls:
            # The in-process bus gives the caller's deadline; RabbitMQ gives only the earliest time of arrival.
            stamp(call.ctxt, getattr(call, "taken", time.monotonic()), getattr(call, "expires", None))
        # On the in-process bus this is the caller's own thread. It must not wait, because its server has no peers.
        if isinstance(self.listener, PollStyleListenerAdapter):
            # A received batch can no longer be left to a peer: it waits until one thread is free.
            with self._changed:
                self._changed.wait_for(lambda: self._occupancy.busy < self._threads or self._ending, _LONGEST_WAIT)
        for endpoint, together in self._apart(calls):
            if endpoint is None:
                for call in together:
                    self._submit(self._process_incoming, [call])
            else:
                self._submit(self._process_many, endpoint, together)

    def _apart(self, calls: Sequence[Any]) -> Iterator[tuple[Endpoint | None, Sequence[Any]]]:
        """Group the calls of a batch by the endpoint that handles them together; None if each is handled alone."""
        of: dict[Endpoint | None, list[Any]] = {}
        for call in calls:
            of.setdefault(self._endpoint_of_many(call.message) if len(calls) > 1 else None, []).append(call)
        for endpoint, together in of.items():
            yield (endpoint if len(together) > 1 else None), together

    def _endpoint_of_many(self, message: Mapping[str, Any]) -> Endpoint | None:
        endpoint = self._of_many.get(str(message.get("method")))
        if endpoint is None or message.get("namespace") is not None or not endpoint.takes_many:
            return None
        # A message that is too new is refused when it is handled alone.
        return endpoint if is_compatible(endpoint.target.version, str(message.get("version"))) else None

    def _process_many(self, endpoint: Endpoint, calls: Sequence[Any]) -> None:
        """Handle calls that came in one message, and answer them in one message; slow calls run in other threads."""
        found = endpoint.answer_many([ReceivedCall(call.ctxt, call.message.get("args") or {}) for call in calls])
        together = dict.fromkeys(answers for answers in found if isinstance(answers, LaterAnswers))
        self._give(
            [pair for pair in zip(calls, found, strict=True) if not isinstance(pair[1], LaterAnswers)],
            [partial(self._process_together, calls, answers) for answers in together],
        )

    def _process_together(self, calls: Sequence[Any], answers: LaterAnswers) -> None:
        for portion in answers.portions():
            _logged(self._give, [(calls[position], answer) for position, answer in portion])

    def _give(self, pairs: Sequence[tuple[Any, Any]], further: Sequence[Callable[[], None]] = ()) -> None:
        """Send the known answers of calls in one message; handle the other calls in separate threads."""
        alone: list[Callable[[], None]] = [
            partial(self._process_alone, call, handle) for call, handle in pairs if not isinstance(handle, Answer)
        ]
        here: list[Callable[[], None]] = []
        for work in [*alone, *further]:
            try:
                self._submit(work)
            except RuntimeError:  # the pool is stopping and accepts no more work
                here.append(work)
        if answered := [(call, answer) for call, answer in pairs if isinstance(answer, Answer)]:
            answered[0][0].reply_with(answered)
        for work in here:
            work()

    @staticmethod
    def _process_alone(call: Any, handle: Callable[[], Answer]) -> None:
        call.reply_with([(call, handle())])

    def _submit(self, work: Callable[..., None], *arguments: Any) -> None:
        with self._changed:
            self._occupancy.take()
        self._in_progress.inc()
        try:
            submitted = self._work_executor.submit(_logged, work, *arguments)
        except RuntimeError:
            self._done()
            raise
        submitted.add_done_callback(self._done)

    def _done(self, _future: "Future[None] | None" = None) -> None:
        with self._changed:
            self._occupancy.free()
            self._changed.notify()
        self._in_progress.dec()


# --- Dispatch ---------------------------------------------------------------------------------------------------------

_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){1,2}")
#: The longest part of a peer's text in a log line or an answer.
_SHOWN = 100
#: The longest time-out of a monitored call, in seconds. Arbitrary: longer than any caller waits.
_LONGEST_MONITORED = 86_400


@lru_cache(maxsize=1024)  # the library parses both versions at each call
def is_compatible(served: str, version: str) -> bool:
    """Return whether an endpoint takes messages of a version, which is a peer's text."""
    return _VERSION.fullmatch(version) is not None and bool(version_is_compatible(served, version))


class CallDispatcher(dispatcher.RPCDispatcher):  # type: ignore[misc]
    """Finds the endpoint of each call by its method.

    The library would log a refused call as a crash. If the caller asks for heartbeats, it would also begin a thread
    that never ends, and sends them for as long as the caller's process runs.
    """

    def __init__(self, endpoints: Sequence[Any]) -> None:
        super().__init__(list(endpoints), None, oslo_messaging.ExplicitRPCAccessPolicy)
        self._by_method = {
            (endpoint.target.namespace, name): endpoint
            for endpoint in endpoints
            for name in dir(endpoint)
            if self.access_policy.is_allowed(endpoint, name)
        }

    def dispatch(self, incoming: Any) -> Any:
        """Handle a call, and return its encoded answer.

        :raises ExpectedException: the call is refused, or its answer is an error.
        """
        message = incoming.message
        if (refusal := self._refusal(message)) is not None:
            LOG.warning("A message is refused: %s", refusal)
            refused = oslo_messaging.ExpectedException()  # the library does not log this class as a crash
            refused.exc_info = (type(refusal), refusal, None)
            raise refused
        if _asks_for_heartbeats(incoming):
            return super().dispatch(incoming)
        method = message["method"]
        endpoint = self._by_method[message.get("namespace"), method]
        return self._do_dispatch(endpoint, method, incoming.ctxt, message.get("args", {}))

    def _refusal(self, message: Mapping[str, Any]) -> Exception | None:
        """Return the error for a message that no endpoint serves, else None. Its parts may be of any type."""
        namespace, method, version = message.get("namespace"), message.get("method"), message.get("version", "1.0")
        if isinstance(version, str) and isinstance(namespace, str | None):
            endpoint = self._by_method.get((namespace, method)) if isinstance(method, str) else None
            if endpoint is not None and is_compatible(endpoint.target.version, version):
                return None if isinstance(message.get("args", {}), dict) else _NOT_AN_OBJECT
            others = (one.target.version for known, one in self._by_method.items() if known[0] == namespace)
            if any(is_compatible(served, version) for served in others):
                unserved: Exception = dispatcher.NoSuchMethod(str(method)[:_SHOWN])
                return unserved
        too_new: Exception = dispatcher.UnsupportedVersion(str(version)[:_SHOWN], method=str(method)[:_SHOWN])
        return too_new


def _asks_for_heartbeats(incoming: Any) -> bool:
    """Return whether a caller monitors its call, by a number of seconds that the library can wait."""
    seconds = incoming.client_timeout
    return isinstance(seconds, int | float) and 0 < seconds <= _LONGEST_MONITORED


_NOT_AN_OBJECT = errors.InvalidRequest(path="$", reason="Expected `object`")
