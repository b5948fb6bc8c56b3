"""The library's RabbitMQ driver, with limits of ours: to a message's way, to replies nobody takes, and to a stop.

The broker cannot tell how long a message has waited in a queue without two clocks being compared, so that wait is
limited instead: a message expires in the queue after a part of its caller's time, and the server that takes it has
another part, counted from then (ADR 2).
"""

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import cachetools
from oslo_config import cfg

from moorage import context
from moorage.bus import broker

# isort: split
import oslo_messaging
from oslo_messaging._drivers import amqp, amqpdriver, base, impl_rabbit, pool
from oslo_messaging._drivers import common as rpc_common

LOG = logging.getLogger(__name__)

#: Parts of a caller's time: for the queue, and for the server that has taken the message. What is left of it covers the
#: answer's way back, and the half second in which a server does not know when a message arrived.
QUEUE_PART = 0.4
SERVER_PART = 0.5

#: Socket time-outs shorter than this are those of calls with little time; a publisher's confirm may take longer.
_SHORTEST_SOCKET_TIMEOUT = 1.0
#: The longest wait for a message in one go. A process that stood still finds out by having waited for longer.
_LONGEST_POLL = 0.5
#: Of a wait or a pause that is longer than intended by this, the process stood still or was busy. Arbitrary.
_STANDSTILL = 0.1
#: Between two tries to send a reply to a queue that is not there. Arbitrary.
_REPLY_INTERVAL = 0.25


class NotSentInTime(rpc_common.Timeout):  # type: ignore[misc]  # which the library lets through, unlike others
    """A message could not be sent before the part of its caller's time began that is the server's."""


class Connection(impl_rabbit.Connection):  # type: ignore[misc]
    """One connection to the broker.

    :param given_up: once it is set, nothing but receiving waits any more for a broker that is away.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        url: oslo_messaging.TransportURL,
        purpose: str,
        retry: int | None = None,
        *,
        given_up: threading.Event,
    ) -> None:
        self._given_up = given_up
        self._heartbeat_thread: threading.Thread | None = None  # the library's; it connects before it sets it
        #: When messages were last waited for, from and to, by the monotonic clock.
        self.waits_since = self.waited_until = time.monotonic()
        super().__init__(conf, url, purpose, retry)

    def consume(self, timeout: float | None = None) -> None:
        """Wait for messages and note since when."""
        self.waits_since = time.monotonic()
        try:
            super().consume(timeout)
        finally:
            self.waited_until = time.monotonic()

    def ensure_connection(self) -> None:
        """Connect anew, as often as this connection is allowed to try.

        The heartbeat's thread tries once and comes back later: it holds the lock that senders wait for.
        """
        tries = 0 if threading.current_thread() is self._heartbeat_thread else self.max_retries
        # The library would leave the socket of the former connection to the garbage collector.
        self.connection.collect()
        self._set_current_channel(None)
        self.connection.ensure_connection(
            errback=self._connection_failed,
            max_retries=tries,
            interval_start=self.interval_start,
            interval_step=self.interval_stepping,
            interval_max=self.interval_max,
        )
        self._set_current_channel(self.connection.channel())
        self.set_transport_socket_timeout()

    def _heartbeat_check(self) -> None:
        """Exchange heartbeats.

        :raises OSError: the connection is lost; the library would make another one beside it.
        """
        if not self.connection.connected:
            raise ConnectionResetError("the connection to the broker is lost")
        super()._heartbeat_check()

    def ensure(
        self,
        method: Callable[[], object],
        retry: int | None = None,
        recoverable_error_callback: Callable[[Exception], None] | None = None,
        **settings: Any,
    ) -> Any:
        """Do something again after the loss of the connection, unless the broker was given up meanwhile."""
        # Receiving brings a callback of its own, which ends it in time.
        callback = recoverable_error_callback or self._stop_if_given_up
        return super().ensure(method, retry, callback, **settings)

    def set_transport_socket_timeout(self, timeout: float | None = None) -> None:
        """Limit reads and writes on the socket; a call with little time does not cut off its publisher's confirm."""
        super().set_transport_socket_timeout(None if timeout is None else max(timeout, _SHORTEST_SOCKET_TIMEOUT))

    def close(self) -> None:
        """Close the connection without waiting long for a broker that says nothing."""
        self.set_transport_socket_timeout(_SHORTEST_SOCKET_TIMEOUT)
        super().close()

    def _connection_failed(self, fault: Exception, _interval: float) -> None:
        LOG.warning("The broker cannot be reached: %s", fault)
        self._stop_if_given_up(fault)

    def _stop_if_given_up(self, fault: Exception) -> None:
        if self._given_up.is_set():
            raise oslo_messaging.MessageDeliveryFailure(f"The broker is waited for no longer: {fault}")

    def _publish(
        self,
        exchange: Any,
        msg: Any,
        routing_key: str | None = None,
        timeout: float | None = None,
        transport_options: Any = None,
    ) -> None:
        """Publish a message that expires in time; also repeated after a loss of the connection.

        :raises NotSentInTime: it is too late for that.
        """
        super()._publish(exchange, msg, routing_key, _time_to_live(timeout), transport_options)


def _time_to_live(timeout: float | None) -> float | None:
    """Return the seconds that a message of a call with this time-out may spend in a queue, if it is limited."""
    if timeout is None:
        return None
    left = context.seconds_left()
    lost = 0.0 if left is None else max(0.0, timeout - left)
    if lost >= timeout * QUEUE_PART:
        raise NotSentInTime
    return timeout * QUEUE_PART - lost


class _ReplyQueues:
    """Since when which callers' queues for replies are missing.

    The library counts a queue as gone for a minute once it was missing for a while, and counts the broker's own absence
    in. Here the time begins when the broker says that the queue is missing, each reply is tried at least once, and the
    first that arrives shows that its queue is back.
    """

    _MOST = 1000
    _KEPT_SECONDS = 60.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: cachetools.TTLCache[str, float] = cachetools.TTLCache(self._MOST, self._KEPT_SECONDS)

    def reply_q_valid(self, _name: str, _msg_id: str) -> bool:
        """Return whether a reply to a queue is to be tried, as the library asks."""
        return True

    def missing(self, name: str) -> float:
        """Return for how many seconds a queue has been missing, which it was again just now."""
        with self._lock:
            return time.monotonic() - self._since.setdefault(name, time.monotonic())

    def found(self, name: str) -> None:
        """Note that a queue is there."""
        if self._since:
            with self._lock:
                self._since.pop(name, None)


class RabbitMessage(amqpdriver.AMQPIncomingMessage):  # type: ignore[misc]
    """A message as its server sees it."""

    #: Since when at the earliest this process has had it, by the monotonic clock.
    taken: float

    def reply(self, reply: object = None, failure: Any = None) -> None:
        """Answer the caller; a cast has none. A queue for replies that is missing is waited for, within bounds."""
        if not self.orig_msg_id:
            return
        while not self._sent(reply, failure):
            missing = self._obsolete_reply_queues.missing(self.reply_q)
            if missing >= self.listener.driver.missing_destination_retry_timeout:
                LOG.warning("A caller is gone: its queue %s has been missing for %.0f s", self.reply_q, missing)
                return
            time.sleep(_REPLY_INTERVAL)

    def _sent(self, reply: object, failure: Any) -> bool:
        """Return whether a reply is done with; otherwise its queue is missing."""
        driver = self.listener.driver
        try:
            with driver._get_connection(rpc_common.PURPOSE_SEND) as connection:  # noqa: SLF001 - the base class does so
                self._send_reply(connection, reply, failure)
        except (oslo_messaging.MessageUndeliverable, amqp.AMQPDestinationNotFound):
            return False
        except oslo_messaging.MessageDeliveryFailure as fault:
            if not driver.given_up.is_set():
                raise
            LOG.warning("An answer was not sent before the stop: %s", broker.reason(fault))
            return True
        self._obsolete_reply_queues.found(self.reply_q)
        return True


class RabbitListener(amqpdriver.RpcAMQPListener):  # type: ignore[misc]
    """Takes a server's messages from the broker, and notes since when at the earliest it has had each."""

    message_cls = RabbitMessage

    def __init__(self, driver: "RabbitDriver", connection: rpc_common.ConnectionContext) -> None:
        super().__init__(driver, connection)
        self._obsolete_reply_queues = _ReplyQueues()

    @property
    def _current_timeout(self) -> float:
        """How long the library waits for a message in one go; it doubles it each time."""
        return self._poll_seconds

    @_current_timeout.setter
    def _current_timeout(self, seconds: float) -> None:
        self._poll_seconds = min(seconds, _LONGEST_POLL)

    def __call__(self, message: Any) -> None:
        """Take one message that has been read from the socket."""
        taken = self._earliest()
        known = len(self.incoming)
        super().__call__(message)
        for incoming in self.incoming[known:]:
            incoming.taken = taken

    def _earliest(self) -> float:
        """Return since when at the earliest a message just read may have lain in the socket."""
        since, until, now = self.conn.waits_since, self.conn.waited_until, time.monotonic()
        if since - until > _STANDSTILL:
            return float(until)
        return float(since) if now - since > _LONGEST_POLL + _STANDSTILL else now


class RabbitDriver(impl_rabbit.RabbitDriver):  # type: ignore[misc]
    """The library's driver, with connections, messages and listeners of ours."""

    def __init__(self, conf: cfg.ConfigOpts, url: oslo_messaging.TransportURL, **settings: Any) -> None:
        super().__init__(conf, url, **settings)
        #: Set when nobody is to wait any more for a broker that is away.
        self.given_up = threading.Event()
        made: pool.ConnectionPool = self._connection_pool
        made.connection_cls = functools.partial(Connection, given_up=self.given_up)

    def listen(
        self, target: oslo_messaging.Target, batch_size: int, batch_timeout: float | None
    ) -> base.PollStyleListenerAdapter:
        """Return a listener to the topic and to the server's own queue; nobody sends to all servers of a topic."""
        connection = self._get_connection(rpc_common.PURPOSE_LISTEN)
        listener = RabbitListener(self, connection)
        for name in (target.topic, f"{target.topic}.{target.server}"):
            connection.declare_topic_consumer(exchange_name=self._get_exchange(target), topic=name, callback=listener)
        return base.PollStyleListenerAdapter(listener, batch_size, batch_timeout)

    def cleanup(self) -> None:
        """Close all connections, and wait for no broker."""
        self.given_up.set()
        super().cleanup()
