"""The library's RabbitMQ driver with Moorage's connections, and with limits on undeliverable replies and on a stop."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import cachetools
from oslo_config import cfg

from moorage.batches import BatchItem
from moorage.bus.calling import REPLIES_OF_CONNECTION, reason
from moorage.bus.handlers import Answer
from moorage.bus.message_json import enveloped
from moorage.bus.rabbit.answer_batches import AnswerSender, ReplyWaiter
from moorage.bus.rabbit.connection import Connection, send_once_there_is_a_queue
from moorage.bus.rabbit.message_batches import CallQueue, CallSender, LibraryCall, calls_of

import oslo_messaging
from oslo_messaging._drivers import amqp, amqpdriver, base, impl_rabbit, pool
from oslo_messaging._drivers import common as rpc_common

LOG = logging.getLogger(__name__)

#: The options of a call that may travel in a batch.
BATCHED: Final = oslo_messaging.TransportOptions()

#: The prefix of the keys of a message's context, on the wire.
_CONTEXT = "_context_"
#: The longest single wait for a message, in seconds. A process detects by a longer wait that it was suspended.
_LONGEST_POLL = 0.5
#: If a wait or pause is longer than intended by this many seconds, the process was suspended or busy. Arbitrary.
_STANDSTILL = 0.1
#: The most bytes in the name of a queue: the protocol has one byte for their number.
_LONGEST_QUEUE_NAME = 255
#: Seconds between two tries to send a reply to a missing queue. Arbitrary.
_REPLY_INTERVAL = 0.25


class ReplyQueues:
    """The missing reply queues, each with the time since which it has been missing.

    Once a queue has been missing for a while, the library drops all replies to it for a minute; it also counts the time
    in which the broker was unreachable. Here the time begins when the broker reports the queue as missing, and ends
    with the first delivered reply. Each reply is tried at least once.

    :param patience: the seconds for which replies to a missing queue are tried; the times are kept for longer.
    """

    _MOST = 1000
    _KEPT_SECONDS = 60.0

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since: cachetools.TTLCache[str, float] = cachetools.TTLCache(
            self._MOST, patience + self._KEPT_SECONDS, timer=clock
        )

    def reply_q_valid(self, _name: str, _msg_id: str) -> bool:
        """Return True: each reply is tried. The library calls this before each reply."""
        return True

    def missing(self, name: str) -> float:
        """Record that a queue is missing, and return for how many seconds it has been missing."""
        with self._lock:
            return self._clock() - self._since.setdefault(name, self._clock())

    def found(self, name: str) -> None:
        """Note that a queue exists."""
        with self._lock:
            self._since.pop(name, None)


class RabbitMessage(amqpdriver.AMQPIncomingMessage):  # type: ignore[misc]
    """An incoming message from RabbitMQ."""

    #: The earliest time at which this process may have received it, by the monotonic clock.
    taken: float
    #: True if it came in a batch: then its answer may travel in a batch as well.
    is_batched = False

    def reply(self, reply: object = None, failure: Any = None) -> None:
        """Send the answer to the caller; a cast has none."""
        self.reply_with([(self, Answer(reply, failure))])

    def reply_with(self, answers: Sequence[tuple["RabbitMessage", Answer]]) -> None:
        """Send the answers to this call, or to several of its batch, which have one caller.

        If the reply queue is missing, wait for a bounded time, unless its caller cannot come back.
        """
        bodies = [call._body(answer) for call, answer in answers if call.orig_msg_id]  # noqa: SLF001 - of this class
        ends_with_caller = (self.reply_q or "").startswith(REPLIES_OF_CONNECTION)
        patience = 0 if ends_with_caller else self.listener.driver.missing_destination_retry_timeout
        while bodies and not self._sent(bodies):
            missing = self._obsolete_reply_queues.missing(self.reply_q)
            if missing >= patience:
                LOG.warning("A caller is gone: its queue %s has been missing for %.0f s", self.reply_q, missing)
                return
            time.sleep(_REPLY_INTERVAL)

    def _body(self, answer: Answer) -> dict[str, Any]:
        text = rpc_common.serialize_remote_exception(answer.failure) if answer.failure else None
        return {"result": answer.result, "failure": text, "ending": True, "_msg_id": self.msg_id}

    def _sent(self, bodies: Sequence[dict[str, Any]]) -> bool:
        """Send answers; return False if their queue is missing."""
        try:
            self._send(bodies)
        except (oslo_messaging.MessageUndeliverable, amqp.AMQPDestinationNotFound):
            return False
        except oslo_messaging.MessageDeliveryFailure as fault:
            if not self.listener.driver.given_up.is_set():
                raise
            LOG.warning("An answer was not sent before the stop: %s", reason(fault))
            return True
        self._obsolete_reply_queues.found(self.reply_q)
        return True

    def _send(self, bodies: Sequence[dict[str, Any]]) -> None:
        driver = self.listener.driver
        if self.is_batched:
            driver.answers.send(self.reply_q, bodies)
            return
        [body] = bodies
        with driver.connect() as connection:
            connection.direct_send(self.reply_q, enveloped({**body, amqp.UNIQUE_ID: uuid.uuid4().hex}))


class RabbitBatch(NamedTuple):
    """The calls of one process that came in one message; ``unique_id`` names them in the library's log."""

    calls: Sequence[RabbitMessage]
    unique_id: str


class RabbitListener(amqpdriver.RpcAMQPListener):  # type: ignore[misc]
    """A listener that records for each message the earliest time at which this process may have received it."""

    def __init__(self, driver: "RabbitDriver", connection: rpc_common.ConnectionContext) -> None:
        super().__init__(driver, connection)
        self._obsolete_reply_queues = ReplyQueues(driver.missing_destination_retry_timeout)

    def stop(self) -> None:
        """Stop receiving, and leave unread messages to other servers; answers use other connections."""
        super().stop()
        self.conn.close()

    @property
    def _current_timeout(self) -> float:
        """The seconds of the library's next single wait for a message.

        The library begins with 1 ms after each message and doubles it, because of late acknowledgements. Calls have no
        late acknowledgements.
        """
        return _LONGEST_POLL

    @_current_timeout.setter
    def _current_timeout(self, seconds: float) -> None:
        pass

    def __call__(self, message: Any) -> None:
        """Add one message that was read from the socket, or all messages of a batch."""
        taken = self._earliest()
        if not self._is_taken(message):
            return
        calls = calls_of(message)
        received = [self._incoming(call) for call in ([message] if calls is None else calls)]
        for incoming in received:
            incoming.taken, incoming.is_batched = taken, calls is not None
        if calls is None:
            self.incoming += received
        elif received:
            self.incoming.append(RabbitBatch(received, received[0].unique_id))

    def _is_taken(self, message: Any) -> bool:
        """Acknowledge a message or batch as the library does; return whether it should be carried out."""
        try:
            message.acknowledge()
            self.msg_id_cache.add(self.msg_id_cache.check_duplicate_message(message))
        except rpc_common.DuplicateMessageError:
            LOG.warning("A duplicate message is ignored")
            return False
        except Exception as fault:  # noqa: BLE001 - several libraries may raise it
            LOG.warning("A message is discarded, because it could not be acknowledged: %s", fault)
            return False
        return True

    def _incoming(self, call: Mapping[str, Any]) -> RabbitMessage:
        """Return a call as the library would build it, but without the library's three copies of the context."""
        ctxt = {name.removeprefix(_CONTEXT): value for name, value in call.items() if name.startswith(_CONTEXT)}
        message = {name: value for name, value in call.items() if not name.startswith("_")}
        # Without the name of a queue, no answer can be sent: the call is a cast.
        of_caller = call if _may_be_queue(call.get("_reply_q")) else {}
        msg_id, reply_q, timeout = map(of_caller.get, ("_msg_id", "_reply_q", "_timeout"))
        caches = self._obsolete_reply_queues, self._message_operations_handler
        return RabbitMessage(self, ctxt, message, msg_id, msg_id, reply_q, timeout, *caches)

    def _earliest(self) -> float:
        """Return the earliest time at which the message that was just read may have reached the socket."""
        since, until, now = self.conn.waits_since, self.conn.waited_until, time.monotonic()
        if since - until > _STANDSTILL:
            return float(until)
        return float(since) if now - since > _LONGEST_POLL + _STANDSTILL else now


def _may_be_queue(name: object) -> bool:
    """Return whether a queue may have this name, which is a peer's content."""
    return isinstance(name, str) and 0 < len(name.encode(errors="surrogatepass")) <= _LONGEST_QUEUE_NAME


class RabbitDriver(impl_rabbit.RabbitDriver):  # type: ignore[misc]
    """The library's RabbitMQ driver with Moorage's connections, messages, listeners and batches."""

    _reply_q: str | None
    _waiter: ReplyWaiter  # None before the first call

    def __init__(self, conf: cfg.ConfigOpts, url: oslo_messaging.TransportURL, **settings: Any) -> None:
        super().__init__(conf, url, **settings)
        #: Once it is set, nothing waits any longer for an unreachable broker.
        self.given_up = threading.Event()
        made: pool.ConnectionPool = self._connection_pool
        made.connection_cls = partial(Connection, given_up=self.given_up)
        self._calls = CallSender(self.connect)
        self.answers = AnswerSender(self.connect)

    def connect(self, retry: int | None = None) -> rpc_common.ConnectionContext:
        """Return a connection for sending; it returns to the pool at the end of its context."""
        return self._get_connection(rpc_common.PURPOSE_SEND, retry)

    def send(
        self,
        target: oslo_messaging.Target,
        ctxt: dict[str, Any],
        message: dict[str, Any],
        wait_for_reply: bool | None = None,
        timeout: float | None = None,
        call_monitor_timeout: float | None = None,
        retry: int | None = None,
        transport_options: oslo_messaging.TransportOptions | None = None,
    ) -> Any:
        """Send a message, and wait for its answer if it is a call."""
        if transport_options is BATCHED and timeout is not None:
            alone: BatchItem[LibraryCall, Any] = BatchItem(LibraryCall(ctxt, message, timeout))
            for _over in self.send_many(target, [alone], retry):
                pass
            return alone.outcome()
        if not wait_for_reply or timeout is None:
            return super().send(target, ctxt, message, wait_for_reply, timeout, call_monitor_timeout, retry)
        send = partial(super().send, target, ctxt, message, True, timeout, call_monitor_timeout, retry)
        return send_once_there_is_a_queue(send, timeout)

    def send_many(
        self, target: oslo_messaging.Target, calls: Sequence[BatchItem[LibraryCall, Any]], retry: int | None
    ) -> Iterator[Sequence[BatchItem[LibraryCall, Any]]]:
        """Send calls that may travel together, as :meth:`.CallSender.call` describes; each has an outcome at last."""
        topic = target.topic if target.server is None else f"{target.topic}.{target.server}"
        queue = CallQueue(self._get_exchange(target), topic, retry)
        portions: Iterable[Sequence[BatchItem[LibraryCall, Any]]] = [calls]
        if self._calls.may_send_to(queue):
            reply_queue = self._get_reply_q()
            portions = self._calls.call(queue, calls, self._waiter, reply_queue)
        for portion in portions:
            if over := [call for call in portion if call.is_done]:
                yield over
            for call in portion:
                if not call.is_done:
                    call.do(lambda each: self.send(target, each.ctxt, each.message, True, each.timeout, retry=retry))
                    yield [call]

    def listen(
        self, target: oslo_messaging.Target, batch_size: int, batch_timeout: float | None
    ) -> base.PollStyleListenerAdapter:
        """Return a listener to the topic's queue and the server's own; Moorage sends no fan-out messages."""
        connection = self._get_connection(rpc_common.PURPOSE_LISTEN)
        listener = RabbitListener(self, connection)
        for name in (target.topic, f"{target.topic}.{target.server}"):
            connection.declare_topic_consumer(exchange_name=self._get_exchange(target), topic=name, callback=listener)
        return base.PollStyleListenerAdapter(listener, batch_size, batch_timeout)

    def cleanup(self) -> None:
        """Close all connections without waiting for an unreachable broker; calls in flight get no reply."""
        self.given_up.set()
        waiter = self._waiter
        super().cleanup()
        self._waiter = waiter  # calls in flight still unregister themselves from it

    def _get_connection(self, purpose: str = rpc_common.PURPOSE_SEND, retry: int | None = None) -> Any:
        if self._connection_pool is None:
            raise oslo_messaging.MessageDeliveryFailure("the connections to the broker are closed")
        return super()._get_connection(purpose, retry)

    def _get_reply_q(self) -> str:
        """Return the name of this process's reply queue, which the first call creates."""
        with self._reply_q_lock:
            if self._reply_q is None:
                name = self._get_reply_queue_name()
                connection = self._get_connection(rpc_common.PURPOSE_LISTEN)
                self._waiter = ReplyWaiter(name, connection, self._allowed_remote_exmods, self._calls)
                self._reply_q, self._reply_q_conn = name, connection
            return self._reply_q
