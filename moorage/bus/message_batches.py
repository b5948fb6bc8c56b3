"""Message batches on RabbitMQ: the calls of one process to one topic travel together, and so do their answers.

While a batch of calls is under way, the calls that are made meanwhile wait, and travel in the next one; a call that is
made while nothing is under way is sent at once. Nagle's algorithm does the same for small segments (RFC 896). Answers
that are to be sent to one process while another answer is being sent to it travel in the next message.

A batch of one is the library's own single message. On the wire a batch of several calls is itself a call, of the method
`batch`, which a server of a former release refuses before anything is begun; its calls are then sent one by one. Only
calls that came in a batch are answered in batches, so that a client of a former release never gets one (ADR 26).
"""

import logging
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cachetools
import msgspec

from moorage import context, metrics
from moorage.batches import Batches, BatchItem
from moorage.bus.rabbit_connection import Connection, NotSentInTime, time_to_live

# isort: split
import oslo_messaging
from oslo_messaging._drivers import amqp, amqpdriver
from oslo_messaging._drivers import common as rpc_common

LOG = logging.getLogger(__name__)

# On the wire. Former releases serve this name space at version 1.0, and no such method.
_NAMESPACE = "moorage.bus"
_METHOD = "batch"
_VERSION = "1.1"
_ANSWERS = "moorage_answers"

#: The most messages of one batch. Arbitrary: one server takes them all, and its peers none of them.
_MOST = 32
#: So many calls that wait are worth a message of their own, whatever is under way. Arbitrary.
_FULL = 8
#: The least and the longest time, in seconds, for which calls wait for a batch that is under way. Arbitrary.
_LEAST_PATIENCE, _MOST_PATIENCE = 0.005, 0.5
#: The most bytes of a batch of several messages. Arbitrary: a small part of what RabbitMQ takes.
_MAX_BYTES = 2**20
#: Seconds for which calls are sent one by one to a topic after a server of it has refused a batch. Arbitrary.
_REFUSED_SECONDS = 60.0
#: The longest single wait for an answer, in seconds. The library begins with 1 ms after each answer and doubles that.
_POLL_SECONDS = 0.5
#: Calls that wait for answers before the library warns of a leak; by its default it does so at ten. Arbitrary.
_MANY_CALLS = 1000
#: What a thread receives instead of an answer: that it is to send the waiting calls; that its batch was refused.
_YOUR_TURN = object()
_REFUSED = object()

Body = dict[str, Any]
#: Opens a connection to send over, with a number of retries.
Connect = Callable[[int | None], rpc_common.ConnectionContext]


def _size(body: Body) -> int:
    """Return the bytes of a message."""
    return len(msgspec.json.encode(body))


# --- Calls ----------------------------------------------------------------------------------------------------------


class CallQueue(NamedTuple):
    """Where calls go; those with another number of retries are not sent together."""

    exchange: str
    topic: str
    retry: int | None


@dataclass(eq=False, slots=True)
class _OutgoingCall:
    """A call of one thread."""

    body: Body
    timeout: float
    #: The thread's context: its deadline shows how much of the time-out is over.
    of_thread: context.Context = field(default_factory=context.current)
    batch: "_CallBatch | None" = None

    @property
    def msg_id(self) -> str:
        """The id by which its thread receives the answer."""
        return str(self.body["_msg_id"])

    def seconds_in_queue(self) -> float:
        """Return how long it may spend in the broker's queue; 0 if it is too late to be sent."""
        try:
            with context.adopted(self.of_thread):
                return time_to_live(self.timeout) or 0.0
        except NotSentInTime:
            return 0.0


@dataclass(eq=False)
class _CallBatch:
    """Calls that travel in one message; the first one expires first."""

    calls: Sequence[_OutgoingCall]
    sent: float
    msg_id: str = field(default_factory=lambda: f"batch-{uuid.uuid4().hex}")
    is_answered: bool = False

    def message(self) -> Body:
        """Return the message; that of a single call is the library's own."""
        bodies = [call.body for call in self.calls]
        if len(bodies) == 1:
            single: Body = rpc_common.serialize_msg({**bodies[0], amqp.UNIQUE_ID: self.msg_id})
            return single
        return {
            "namespace": _NAMESPACE,
            "method": _METHOD,
            "version": _VERSION,
            "args": {"calls": bodies},
            "_msg_id": self.msg_id,
            "_reply_q": bodies[0]["_reply_q"],
            amqp.UNIQUE_ID: self.msg_id,
        }


def calls_of(message: Mapping[str, Any]) -> list[Body] | None:
    """Return the calls of a batch, or None for a single message."""
    if message.get("namespace") != _NAMESPACE or message.get("method") != _METHOD:
        return None
    arguments = message.get("args")
    calls = arguments.get("calls") if isinstance(arguments, dict) else None
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


class _Outbox:
    """The calls of this process to one queue: those that wait to be sent, and the batches that are under way.

    A batch is under way until its first answer is there, and no longer than answers usually take: a call that takes
    long holds nobody back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[_OutgoingCall] = []
        self._under_way: list[_CallBatch] = []
        #: The waiting call whose thread is to send the next batch, from when it was told until it does so.
        self._turn_of: _OutgoingCall | None = None
        #: The seconds after which the first answer to a batch usually comes: a moving average.
        self._usual_seconds = 0.0

    @property
    def patience(self) -> float:
        """The seconds that a call waits for a batch that is under way."""
        return min(max(2 * self._usual_seconds, _LEAST_PATIENCE), _MOST_PATIENCE)

    def add(self, call: _OutgoingCall) -> _CallBatch | None:
        """Add a call; return the batch that its thread is to send now, or None if it is to wait."""
        with self._lock:
            self._waiting.append(call)
            is_first = self._turn_of is None and not self._are_any_under_way()
            return self._take() if is_first or len(self._waiting) >= _FULL else None

    def take(self) -> _CallBatch | None:
        """Return the batch that the thread whose turn it is, or which has waited long enough, is to send now."""
        with self._lock:
            return self._take()

    def remove(self, call: _OutgoingCall, is_answered: bool) -> _OutgoingCall | None:
        """Remove a call that is over; return the call whose thread is to be told to send the next batch, if any."""
        with self._lock:
            if call in self._waiting:
                self._waiting.remove(call)
            if call.batch is not None:
                self._note_end(call.batch, is_answered)
            if self._turn_of is call:
                self._turn_of = None
            if not self._waiting or self._turn_of is not None or self._are_any_under_way():
                return None
            self._turn_of = self._waiting[0]
            return self._turn_of

    def _note_end(self, batch: _CallBatch, is_answered: bool) -> None:
        # The first answer alone says how long answers take, also to a batch that has been waited for no longer. One
        # that is very late counts as twice as late as usual: it says little about the others.
        if is_answered and not batch.is_answered:
            seconds = min(self._clock() - batch.sent, 2 * self.patience)
            self._usual_seconds += (seconds - self._usual_seconds) / 8
            batch.is_answered = True
        if batch in self._under_way:
            self._under_way.remove(batch)

    def _are_any_under_way(self) -> bool:
        earliest = self._clock() - self.patience
        self._under_way = [batch for batch in self._under_way if batch.sent > earliest]
        return bool(self._under_way)

    def _take(self) -> _CallBatch | None:
        """Take the waiting calls that may travel in one message; None if all of them are too late.

        What travels in one message expires at once, when its first call does: no call is to lose more than half of
        its time by that.
        """
        self._turn_of = None
        timed = sorted(
            (
                (seconds, position)
                for position, call in enumerate(self._waiting)
                if (seconds := call.seconds_in_queue())
            ),
        )
        taken: list[_OutgoingCall] = []
        size = 0
        for seconds, position in timed[:_MOST]:
            call = self._waiting[position]
            size += _size(call.body)
            if taken and (seconds > 2 * timed[0][0] or size > _MAX_BYTES):
                break
            taken.append(call)
        if not taken:
            return None
        batch = _CallBatch(taken, self._clock())
        for call in taken:
            call.batch = batch
            self._waiting.remove(call)
        self._under_way.append(batch)
        return batch


class CallSender:
    """Send the calls of this process in batches, and receive their answers."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        # In time calls go to as many queues as there have been agents.
        self._outboxes: weakref.WeakValueDictionary[CallQueue, _Outbox] = weakref.WeakValueDictionary()
        # Those under way, which the threads of their calls keep.
        self._batches: weakref.WeakValueDictionary[str, _CallBatch] = weakref.WeakValueDictionary()
        self._refused: cachetools.TTLCache[CallQueue, bool] = cachetools.TTLCache(10_000, _REFUSED_SECONDS)

    def may_send_to(self, queue: CallQueue) -> bool:
        """Return False if a server there has refused a batch a short time ago."""
        with self._lock:
            return queue not in self._refused

    def was_refused(self, queue: CallQueue, result: object) -> bool:
        """Return whether the result of a call is that its batch was refused; note that for the queue."""
        if result is not _REFUSED:
            return False
        LOG.info("A server of %s is of a former release: calls are sent to it one by one", queue.topic)
        with self._lock:
            self._refused[queue] = True
        return True

    def call(self, queue: CallQueue, body: Body, timeout: float, waiter: "ReplyWaiter", reply_queue: str) -> Any:
        """Send a call, alone or together with others, and return its result; see :meth:`was_refused`.

        :raises MessagingTimeout: no answer in time.
        """
        call = _OutgoingCall({**body, "_msg_id": uuid.uuid4().hex, "_reply_q": reply_queue, "_timeout": None}, timeout)
        with self._lock:
            outbox = self._outboxes.setdefault(queue, _Outbox())
        waiter.listen(call.msg_id)
        is_answered = False
        try:
            self._send(queue, outbox.add(call), waiter)
            while (received := self._receive(call, outbox, waiter)) is _YOUR_TURN:
                self._send(queue, outbox.take(), waiter)
            if isinstance(received, Exception):
                raise received
            is_answered = True
            result, _is_last = waiter._process_reply(received)  # noqa: SLF001 - the base class's own
            if isinstance(result, Exception):
                raise result
            return result
        finally:
            waiter.unlisten(call.msg_id)
            if (following := outbox.remove(call, is_answered)) is not None:
                waiter.waiters.put(following.msg_id, _YOUR_TURN)

    def _receive(self, call: _OutgoingCall, outbox: _Outbox, waiter: "ReplyWaiter") -> Any:
        """Return the answer of a call, the error of its sending, or that its thread is to send what waits."""
        left = context.seconds_left()
        seconds = max(call.timeout if left is None else left, 0.0)
        if call.batch is None and outbox.patience < seconds:
            with suppress(oslo_messaging.MessagingTimeout):
                return waiter.waiters.get(call.msg_id, outbox.patience)
            # Sent meanwhile by another thread, or else what is under way takes longer than usual.
            return _YOUR_TURN if call.batch is None else self._receive(call, outbox, waiter)
        return waiter.waiters.get(call.msg_id, seconds)

    def _send(self, queue: CallQueue, batch: _CallBatch | None, waiter: "ReplyWaiter") -> None:
        """Send a batch; if that fails, the error is the answer to each of its calls."""
        if batch is None:
            return
        if len(batch.calls) > 1:
            self._batches[batch.msg_id] = batch
        first = batch.calls[0]
        metrics.BATCH_SIZE.labels("calls").observe(len(batch.calls))
        try:
            # The connection reads from the context how much of the first one's time is over.
            with context.adopted(first.of_thread), self._connect(queue.retry) as connection:
                connection.topic_send(
                    exchange_name=queue.exchange,
                    topic=queue.topic,
                    msg=batch.message(),
                    timeout=first.timeout,
                    retry=queue.retry,
                )
        except Exception as fault:  # noqa: BLE001 - it is raised in the thread of each call
            for call in batch.calls:
                waiter.waiters.put(call.msg_id, fault)

    def calls_of_batch(self, msg_id: str) -> Sequence[str]:
        """Return the ids of the calls of a batch that is under way; empty if this is no batch's id."""
        batch = self._batches.get(msg_id)
        return () if batch is None else [call.msg_id for call in batch.calls]


# --- Answers --------------------------------------------------------------------------------------------------------


class AnswerSender:
    """Send the answers to calls that came in batches; those to one process travel in batches as well."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        # In time there are as many reply queues as there have been callers.
        self._batches: weakref.WeakValueDictionary[str, Batches[Body, None]] = weakref.WeakValueDictionary()

    def send(self, reply_queue: str, answers: Sequence[Body]) -> None:
        """Send answers, together with others where these wait, and return once the broker has them.

        :raises MessageUndeliverable: there is no such queue.
        """
        with self._lock:
            batches = self._batches.get(reply_queue)
            if batches is None:
                batches = Batches(lambda batch: self._send_batch(reply_queue, batch), _MOST, "answers")
                self._batches[reply_queue] = batches
        items: list[BatchItem[Body, None]] = [BatchItem(answer) for answer in answers]
        batches.do_all(items)
        for item in items:
            item.outcome()

    def _send_batch(self, reply_queue: str, batch: Sequence[BatchItem[Body, None]]) -> None:
        portion: list[BatchItem[Body, None]] = []
        size = 0
        for item in batch:
            size += _size(item.value)
            if portion and size > _MAX_BYTES:
                self._send_portion(reply_queue, portion)
                portion, size = [], _size(item.value)
            portion.append(item)
        self._send_portion(reply_queue, portion)

    def _send_portion(self, reply_queue: str, portion: Sequence[BatchItem[Body, None]]) -> None:
        answers = [item.value for item in portion]
        with self._connect(None) as connection:
            body = rpc_common.serialize_msg(answers[0]) if len(answers) == 1 else {_ANSWERS: answers}
            connection.direct_send(reply_queue, body)
        for item in portion:
            item.succeed(None)


class ReplyWaiter(amqpdriver.ReplyWaiter):  # type: ignore[misc]
    """The library's thread that receives a process's answers, with batches of them and refused batches of calls."""

    def __init__(self, reply_queue: str, connection: Connection, modules: Sequence[str], calls: CallSender) -> None:
        self._calls = calls  # first: the library's construction starts the thread
        super().__init__(reply_queue, connection, modules)
        self.waiters._wrn_threshold = _MANY_CALLS  # noqa: SLF001 - there is no option

    def poll(self) -> None:
        """Receive answers until the stop."""
        while not self._thread_exit_event.is_set():
            try:
                self.conn.consume(timeout=_POLL_SECONDS)
            except rpc_common.Timeout:
                continue
            except Exception:
                LOG.exception("An answer could not be received")

    def __call__(self, message: Any) -> None:
        """Give the answers in a message to the threads that wait for them."""
        message.acknowledge()
        for answer in message.pop(_ANSWERS, [message]):
            msg_id = answer.pop("_msg_id", None)
            refused = self._calls.calls_of_batch(msg_id)
            if not refused:
                self.waiters.put(msg_id, answer)
            for each in refused:
                self.waiters.put(each, {"result": _REFUSED, "failure": None, "ending": True})
