"""Message batches on RabbitMQ: what is to be sent to a queue while a sending is under way travels in the next one.

Calls to a topic are batched, and answers to the reply queue of one process. A batch of one is the library's own single
message. On the wire a batch of several calls is itself a call, of the method `batch`, which a server of a former
release refuses before anything is begun; its calls are then sent one by one. Only calls that came in a batch are
answered in batches, so that a client of a former release never gets one (ADR 27).
"""

import logging
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import cachetools
import msgspec

from moorage import context
from moorage.batches import Batches, BatchItem
from moorage.bus.rabbit_connection import Connection, NotSentInTime, time_to_live

# isort: split
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
#: The most bytes of a batch of several messages. Arbitrary: a small part of what RabbitMQ takes.
_MAX_BYTES = 2**20
#: Seconds for which calls are sent one by one to a topic after a server of it has refused a batch. Arbitrary.
_REFUSED_SECONDS = 60.0
#: The longest single wait for an answer, in seconds. The library begins with 1 ms after each answer and doubles that.
_POLL_SECONDS = 0.5
#: Stands for the answer of a call whose batch was refused.
_REFUSED = object()

Q = TypeVar("Q")
Body = dict[str, Any]
#: Opens a connection to send over, for as many retries.
Connect = Callable[[int | None], "rpc_common.ConnectionContext"]


class Outgoing(NamedTuple):
    """A message as the library would send it, but without its envelope; ``timeout`` is its caller's, in seconds."""

    body: Body
    timeout: float | None = None


Item = BatchItem[Outgoing, object]


class _Batched(Generic[Q]):
    """The batches of each queue that is being sent to.

    :param send: sends a portion of a batch to a queue; what it returns is returned to each thread that sent.
    """

    def __init__(self, send: Callable[[Q, Sequence[Item]], object]) -> None:
        self._send = send
        self._lock = threading.Lock()
        # In time there are as many queues as there have been callers: those that nobody sends to are forgotten.
        self._by_queue: weakref.WeakValueDictionary[Q, Batches[Outgoing, object]] = weakref.WeakValueDictionary()

    def send(self, queue: Q, message: Outgoing) -> object:
        """Send a message, alone or together with others, and return once the broker has it.

        :raises DeadlineExceeded: the caller's deadline has passed before it was sent.
        """
        with self._lock:
            batches = self._by_queue.get(queue)
            if batches is None:
                batches = Batches(lambda batch: self._carry_out(queue, batch), _MOST)
                self._by_queue[queue] = batches
        return batches.do(message)

    def _carry_out(self, queue: Q, batch: Sequence[Item]) -> None:
        for portion in _portions(_timed(batch)):
            try:
                sent = self._send(queue, portion)
            except Exception as fault:  # noqa: BLE001 - it is raised in each thread that sent
                for item in portion:
                    item.fail(fault)
            else:
                for item in portion:
                    item.succeed(sent)


def _timed(batch: Iterable[Item]) -> Iterator[tuple[float, Item]]:
    """Yield each message of a batch with the seconds that it may spend in the queue; fail those that are too late."""
    for item in batch:
        try:
            with context.adopted(item.context):
                yield time_to_live(item.value.timeout) or 0.0, item
        except NotSentInTime as late:
            item.fail(late)


def _portions(timed: Iterable[tuple[float, Item]]) -> Iterator[list[Item]]:
    """Divide a batch into portions that may travel in one message; the first item of each expires first.

    What travels in one message has one expiry, the first item's: no item is to lose more than half of its time.
    """
    portion: list[Item] = []
    longest = size = 0.0
    for seconds, item in sorted(timed, key=lambda each: each[0]):
        bytes_of_item = len(msgspec.json.encode(item.value.body))
        if portion and (seconds > longest or size + bytes_of_item > _MAX_BYTES):
            yield portion
            portion = []
        if not portion:
            longest, size = 2 * seconds, 0
        portion.append(item)
        size += bytes_of_item
    if portion:
        yield portion


# --- Calls ----------------------------------------------------------------------------------------------------------


class CallQueue(NamedTuple):
    """Where calls go: calls with another number of retries are not sent together."""

    exchange: str
    topic: str
    retry: int | None


class _SentBatch:
    """A batch of calls on its way."""

    def __init__(self, calls: Sequence[Body]) -> None:
        self.msg_ids = [call["_msg_id"] for call in calls]
        self.msg_id = f"batch-{uuid.uuid4().hex}"
        self.body: Body = {
            "namespace": _NAMESPACE,
            "method": _METHOD,
            "version": _VERSION,
            "args": {"calls": calls},
            "_msg_id": self.msg_id,
            "_reply_q": calls[0]["_reply_q"],
            amqp.UNIQUE_ID: self.msg_id,
        }


def calls_of(message: Mapping[str, Any]) -> list[Body] | None:
    """Return the calls of a batch, or None for a single message."""
    if message.get("namespace") != _NAMESPACE or message.get("method") != _METHOD:
        return None
    arguments = message.get("args")
    calls = arguments.get("calls") if isinstance(arguments, dict) else None
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


class CallSender:
    """Send the calls of one process in batches, and wait for their answers."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._batched: _Batched[CallQueue] = _Batched(self._send)
        # Those on their way: each is kept by the threads that wait for its answers.
        self._sent: weakref.WeakValueDictionary[str, _SentBatch] = weakref.WeakValueDictionary()
        self._refused: cachetools.TTLCache[CallQueue, bool] = cachetools.TTLCache(10_000, _REFUSED_SECONDS)
        self._lock = threading.Lock()

    def may_send_to(self, queue: CallQueue) -> bool:
        """Return False if a server there has refused a batch a short time ago."""
        with self._lock:
            return queue not in self._refused

    def was_refused(self, queue: CallQueue, result: object) -> bool:
        """Return whether the answer of a call is that its batch was refused, and note it for the queue."""
        if result is not _REFUSED:
            return False
        LOG.info("A server of %s is of a former release: calls are sent to it one by one", queue.topic)
        with self._lock:
            self._refused[queue] = True
        return True

    def call(self, queue: CallQueue, body: Body, timeout: float, waiter: "ReplyWaiter", reply_queue: str) -> Any:
        """Send a call, alone or together with others, and return its answer; see :meth:`was_refused`.

        :raises DeadlineExceeded: its time was over before it was sent.
        :raises MessagingTimeout: no answer in time.
        """
        msg_id = uuid.uuid4().hex
        body.update(_msg_id=msg_id, _reply_q=reply_queue, _timeout=None)
        waiter.listen(msg_id)
        try:
            sent = self._batched.send(queue, Outgoing(body, timeout))
            left = context.seconds_left()
            result = waiter.wait(msg_id, timeout if left is None else left, None, reply_queue)
            del sent  # until here: it is found by its id as long as a thread keeps it
        finally:
            waiter.unlisten(msg_id)
        if isinstance(result, Exception):
            raise result
        return result

    def calls_of_batch(self, msg_id: str) -> Sequence[str]:
        """Return the ids of the calls of a batch that is on its way; empty if this is no batch's id."""
        sent = self._sent.get(msg_id)
        return [] if sent is None else sent.msg_ids

    def _send(self, queue: CallQueue, portion: Sequence[Item]) -> object:
        calls = [item.value.body for item in portion]
        first = portion[0]
        sent: _SentBatch | None = None
        if len(calls) == 1:
            amqp._add_unique_id(calls[0])  # noqa: SLF001 - as the library's own sending
            body = rpc_common.serialize_msg(calls[0])
        else:
            sent = _SentBatch(calls)
            self._sent[sent.msg_id] = sent
            body = sent.body
        # The connection reads from the context how much of the first one's time is over.
        with context.adopted(first.context), self._connect(queue.retry) as connection:
            connection.topic_send(
                exchange_name=queue.exchange,
                topic=queue.topic,
                msg=body,
                timeout=first.value.timeout,
                retry=queue.retry,
            )
        return sent


# --- Answers --------------------------------------------------------------------------------------------------------


class AnswerSender:
    """Send the answers to calls that came in batches, those to one process in batches as well."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._batched: _Batched[str] = _Batched(self._send)

    def send(self, reply_queue: str, answer: Body) -> None:
        """Send an answer, alone or together with others, and return once the broker has it.

        :raises MessageUndeliverable: there is no such queue.
        """
        self._batched.send(reply_queue, Outgoing(answer))

    def _send(self, reply_queue: str, portion: Sequence[Item]) -> None:
        answers = [item.value.body for item in portion]
        body = rpc_common.serialize_msg(answers[0]) if len(answers) == 1 else {_ANSWERS: answers}
        with self._connect(None) as connection:
            connection.direct_send(reply_queue, body)


class ReplyWaiter(amqpdriver.ReplyWaiter):  # type: ignore[misc]
    """The library's thread that receives a process's answers, with batches of them and refused batches of calls."""

    def __init__(self, reply_queue: str, connection: Connection, modules: Sequence[str], calls: CallSender) -> None:
        self._calls = calls  # first: the library's construction starts the thread
        super().__init__(reply_queue, connection, modules)

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
