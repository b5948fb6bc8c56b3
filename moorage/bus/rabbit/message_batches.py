"""Message batches on RabbitMQ: the calls of one process to one topic travel together, and so do their answers.

While a batch of calls is in flight, new calls wait and travel in the next batch. If no batch is in flight, a call is
sent at once. Nagle's algorithm does the same for small segments (RFC 896). Calls that one thread makes at the same time
travel in one batch from the start. While an answer is being sent to a process, further answers to it wait and travel in
the next message (:mod:`moorage.bus.rabbit.answer_batches`).

A batch of one call is the library's own single message. On the wire a batch of several calls is itself a call, of the
method `batch`. A server of a former release refuses this call before it carries anything out; the calls are then sent
one by one. Only calls that came in a batch are answered in batches, so a client of a former release never gets a batch
of answers (ADR 26).
"""

import logging
import queue
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import cachetools
import msgspec

from moorage import context, metrics
from moorage.batches import BatchItem
from moorage.bus.message_json import dumps, enveloped
from moorage.bus.rabbit.connection import seconds_in_queue, send_once_there_is_a_queue

import oslo_messaging
from oslo_messaging._drivers import amqp
from oslo_messaging._drivers import common as rpc_common

if TYPE_CHECKING:
    from moorage.bus.rabbit.answer_batches import ReplyWaiter

LOG = logging.getLogger(__name__)

# Part of the wire format. Former releases serve this name space at version 1.0, without the method of batches.
_NAMESPACE = "moorage.bus"
_METHOD = "batch"
_VERSION = "1.1"

#: The most messages of one batch. Arbitrary: a larger batch would spread less work to the other servers of a topic.
MOST = 32
#: The number of waiting calls that are sent at once, even while another batch is in flight. Arbitrary.
_FULL = 16
#: The shortest and the longest time, in seconds, for which calls wait for a batch in flight. Arbitrary.
_LEAST_PATIENCE, _MOST_PATIENCE = 0.005, 0.5
#: The most bytes of a batch of several messages. Arbitrary: a small part of what RabbitMQ takes.
MAX_BYTES = 2**20
#: Seconds for which calls to a topic are sent one by one after one of its servers has refused a batch. Arbitrary.
_REFUSED_SECONDS = 60.0
#: Values that a thread receives instead of an answer: it must send the waiting calls; or its batch was refused.
_YOUR_TURN = object()
REFUSED = object()

Body = dict[str, Any]
#: Opens a connection to send over, with a number of retries.
Connect = Callable[[int | None], rpc_common.ConnectionContext]


def size_of(body: Body) -> int:
    """Return the size of a message in bytes."""
    try:
        return len(msgspec.json.encode(body))
    except UnicodeEncodeError:  # a text that is not valid UTF-8: the receiver refuses it and names its field
        return len(dumps(body))


class CallQueue(NamedTuple):
    """The queue that calls are sent to; calls with different numbers of retries are not sent together."""

    exchange: str
    topic: str
    retry: int | None


class LibraryCall(NamedTuple):
    """A call as the library gives it to its driver; the time-out is in seconds."""

    ctxt: dict[str, Any]
    message: dict[str, Any]
    timeout: float

    def body(self, reply_queue: str) -> Body:
        """Return the message of this call, with a new id."""
        body = {**self.message, "_msg_id": uuid.uuid4().hex, "_reply_q": reply_queue, "_timeout": None}
        amqp.pack_context(body, self.ctxt)
        return body


@dataclass(eq=False, slots=True)
class OutgoingCall:
    """A call of one thread.

    :param received: the queue for this call and its answers; the calls that a thread makes at once share it.
    """

    body: Body
    timeout: float
    #: The caller's context: its deadline shows how much of the time-out is left.
    of_thread: context.Context = field(default_factory=context.current)
    received: "queue.SimpleQueue[tuple[OutgoingCall, Any]]" = field(default_factory=queue.SimpleQueue)
    batch: "_CallBatch | None" = None
    #: The time after which nobody waits for its answer, by the monotonic clock.
    ends: float = field(init=False)

    def __post_init__(self) -> None:
        deadline = self.of_thread.deadline
        self.ends = min(time.monotonic() + self.timeout, float("inf") if deadline is None else deadline)

    @property
    def msg_id(self) -> str:
        """The id by which its thread receives the answer."""
        return str(self.body["_msg_id"])

    def put(self, received: Any) -> None:
        """Take an answer for this call; the library's queues have this method."""
        self.received.put((self, received))

    def expect_answer(self) -> None:
        """Note that its answer came in a message with others, and is about to be put."""
        if self.batch is not None:
            self.batch.untaken.add(self)

    def seconds_in_queue(self) -> float:
        """Return the seconds that it may spend in the broker's queue; 0 or less if it is too late to be sent."""
        deadline = self.of_thread.deadline
        return seconds_in_queue(self.timeout, None if deadline is None else deadline - time.monotonic())


@dataclass(eq=False)
class _CallBatch:
    """Calls that travel in one message, in the order in which they expire."""

    calls: Sequence[OutgoingCall]
    sent: float
    msg_id: str = field(default_factory=lambda: f"batch-{uuid.uuid4().hex}")
    is_answered: bool = False
    #: The calls whose answers came in one message, and whose threads have not taken them yet.
    untaken: set[OutgoingCall] = field(default_factory=set)

    def message(self) -> Body:
        """Return the message; for a single call it is the library's own."""
        bodies = [call.body for call in self.calls]
        if len(bodies) == 1:
            return enveloped({**bodies[0], amqp.UNIQUE_ID: self.msg_id})
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
    """The calls of this process to one queue: the waiting calls, and the batches in flight.

    A batch counts as in flight until its first answer arrives, and at most about as long as answers usually take, so
    that a slow call does not delay others. If several answers arrive in one message, it counts as in flight until their
    threads have taken all of them: otherwise the next call of the first thread would travel alone, and the next calls
    of the others would wait for its answer.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[OutgoingCall] = []
        self._under_way: list[_CallBatch] = []
        #: The waiting call whose thread must send the next batch, and has not done so yet.
        self._turn_of: OutgoingCall | None = None
        #: The seconds after which the first answer to a batch usually comes: a moving average.
        self._usual_seconds = 0.0

    @property
    def patience(self) -> float:
        """The seconds that a call waits for a batch in flight."""
        return min(max(2 * self._usual_seconds, _LEAST_PATIENCE), _MOST_PATIENCE)

    def add(self, *calls: OutgoingCall) -> _CallBatch | None:
        """Add calls of one thread; return the batch that this thread must send now, or None if the calls wait."""
        with self._lock:
            self._waiting += calls
            is_first = self._turn_of is None and not self._are_any_under_way()
            return self._take() if is_first or len(self._waiting) >= _FULL else None

    def take(self) -> _CallBatch | None:
        """Return the batch that the calling thread must send now: its turn has come, or it has waited long enough."""
        with self._lock:
            return self._take()

    def remove(self, call: OutgoingCall, is_answered: bool) -> OutgoingCall | None:
        """Remove a call that is over; return the call whose thread must send the next batch, if any."""
        with self._lock:
            if call in self._waiting:
                self._waiting.remove(call)
            if call.batch is not None:
                call.batch.untaken.discard(call)
                self._note_end(call.batch, is_answered)
            if self._turn_of is call:
                self._turn_of = None
            if not self._waiting or self._turn_of is not None or self._are_any_under_way():
                return None
            self._turn_of = self._waiting[0]
            return self._turn_of

    def _note_end(self, batch: _CallBatch, is_answered: bool) -> None:
        # Only the time of a batch's first answer is measured, even if the calls no longer waited for it. A very long
        # time counts as twice the patience, because it is not typical.
        if is_answered and not batch.is_answered:
            seconds = min(self._clock() - batch.sent, 2 * self.patience)
            self._usual_seconds += (seconds - self._usual_seconds) / 8
            batch.is_answered = True
        if batch in self._under_way and not batch.untaken:
            self._under_way.remove(batch)

    def _are_any_under_way(self) -> bool:
        earliest = self._clock() - self.patience
        self._under_way = [batch for batch in self._under_way if batch.sent > earliest]
        return bool(self._under_way)

    def _take(self) -> _CallBatch | None:
        """Take the waiting calls that may travel in one message; None if all of them are too late.

        A message expires as a whole, when its first call does. No call may lose more than half of its time by that.
        """
        self._turn_of = None
        left = {call: call.seconds_in_queue() for call in self._waiting}
        in_time = sorted((call for call in left if left[call] > 0), key=left.__getitem__)
        taken: list[OutgoingCall] = []
        size = 0
        for call in in_time[:MOST]:
            size += size_of(call.body)
            if taken and (left[call] > 2 * left[taken[0]] or size > MAX_BYTES):
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
        # Weak values: otherwise the mapping would keep an entry for every agent that was ever called.
        self._outboxes: weakref.WeakValueDictionary[CallQueue, _Outbox] = weakref.WeakValueDictionary()
        # The batches in flight; the threads of their calls hold the references.
        self._batches: weakref.WeakValueDictionary[str, _CallBatch] = weakref.WeakValueDictionary()
        self._refused: cachetools.TTLCache[CallQueue, bool] = cachetools.TTLCache(10_000, _REFUSED_SECONDS)

    def may_send_to(self, target: CallQueue) -> bool:
        """Return False if a server of this queue has refused a batch a short time ago."""
        with self._lock:
            return target not in self._refused

    def call(
        self, target: CallQueue, items: Sequence[BatchItem[LibraryCall, Any]], waiter: "ReplyWaiter", reply_queue: str
    ) -> Iterator[Sequence[BatchItem[LibraryCall, Any]]]:
        """Send calls, alone or together with others, and set the result or the error of each.

        The error of a call without an answer in time is ``MessagingTimeout``.

        :return: yields the calls that are over; calls that end at the same time are yielded together. If such a call
            has no outcome, a server of a former release has refused its batch, and the call must be sent by itself.
        """
        received: queue.SimpleQueue[tuple[OutgoingCall, Any]] = queue.SimpleQueue()
        calls = {
            OutgoingCall(item.value.body(reply_queue), item.value.timeout, item.context, received): item
            for item in items
        }
        with self._lock:
            outbox = self._outboxes.setdefault(target, _Outbox())
        for call in calls:
            waiter.listen_for(call)
        try:
            self._send(target, outbox.add(*calls))
            while calls:
                ended = []
                for call, answer in self._received(received, calls, outbox):
                    if answer is _YOUR_TURN:
                        self._send(target, outbox.take())
                    elif (item := calls.pop(call, None)) is not None:
                        self._end(call, outbox, waiter, is_answered=not isinstance(answer, Exception))
                        if answer is REFUSED:
                            self._note_refusal(target)
                        else:
                            waiter.give(item, answer)
                        ended.append(item)
                if ended:
                    yield ended
        finally:
            for call in calls:
                self._end(call, outbox, waiter, is_answered=False)

    @staticmethod
    def _received(
        received: "queue.SimpleQueue[tuple[OutgoingCall, Any]]", calls: Collection[OutgoingCall], outbox: _Outbox
    ) -> list[tuple[OutgoingCall, Any]]:
        """Wait until something has been received for calls, and return it.

        It is an answer, the error of a failed sending, or the request to this thread to send the waiting calls.
        """
        seconds = max(min(call.ends for call in calls) - time.monotonic(), 0.0)
        waits = any(call.batch is None for call in calls) and outbox.patience < seconds
        try:
            found = [received.get(timeout=outbox.patience if waits else seconds)]
        except queue.Empty:
            if not waits:
                return [(call, oslo_messaging.MessagingTimeout()) for call in calls if call.ends <= time.monotonic()]
            # Either another thread has sent the calls meanwhile, or the batches in flight take longer than usual.
            return [(call, _YOUR_TURN) for call in calls if call.batch is None][:1]
        while True:
            try:
                found.append(received.get_nowait())
            except queue.Empty:
                return found

    @staticmethod
    def _end(call: OutgoingCall, outbox: _Outbox, waiter: "ReplyWaiter", *, is_answered: bool) -> None:
        waiter.unlisten(call.msg_id)
        if (following := outbox.remove(call, is_answered)) is not None:
            following.put(_YOUR_TURN)

    def _note_refusal(self, target: CallQueue) -> None:
        with self._lock:
            if target not in self._refused:
                LOG.info("A server of %s has the previous release: calls are sent to it one by one", target.topic)
            self._refused[target] = True

    def _send(self, target: CallQueue, batch: _CallBatch | None) -> None:
        """Send a batch; if this fails, the error is the answer to each of its calls."""
        if batch is None:
            return
        if len(batch.calls) > 1:
            self._batches[batch.msg_id] = batch
        first = batch.calls[0]
        metrics.BATCH_SIZE.labels("calls").observe(len(batch.calls))
        try:
            # The connection reads from the context how much time the first call has left.
            with context.adopted(first.of_thread):
                send_once_there_is_a_queue(
                    partial(self._publish, target, batch.message(), first.timeout), first.timeout
                )
        except Exception as fault:  # noqa: BLE001 - it is raised in the thread of each call
            for call in batch.calls:
                call.put(fault)

    def _publish(
        self, target: CallQueue, message: Body, timeout: float, options: oslo_messaging.TransportOptions | None
    ) -> None:
        with self._connect(target.retry) as connection:
            connection.topic_send(
                exchange_name=target.exchange,
                topic=target.topic,
                msg=message,
                timeout=timeout,
                retry=target.retry,
                transport_options=options,
            )

    def calls_of_batch(self, msg_id: str) -> Sequence[str]:
        """Return the ids of the calls of a batch in flight; empty if this is not the id of a batch."""
        batch = self._batches.get(msg_id)
        return () if batch is None else [call.msg_id for call in batch.calls]
