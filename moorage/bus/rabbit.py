"""The library's RabbitMQ driver with limits of ours on the time in a queue, on undeliverable replies, and on a stop.

The time that a message has waited in a queue cannot be measured without comparing two machines' clocks. It is limited
instead: a message expires in the queue after a part of its caller's time-out, and the server that takes it has another
part, counted from then (ADR 2).
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

#: Parts of a caller's time-out: for the queue, and for the server that has taken the message. The rest covers the
#: answer's way back, and the half second by which a server's time of arrival is uncertain.
QUEUE_PART = 0.4
SERVER_PART = 0.5

#: The least time-out of a socket, in seconds: a publisher's confirm may take longer than a call with little time left.
_SHORTEST_SOCKET_TIMEOUT = 1.0
#: The longest single wait for a message, in seconds. A process that was stopped detects it by a longer wait.
_LONGEST_POLL = 0.5
#: Seconds by which a wait or pause is longer than intended where the process was stopped or busy. Arbitrary.
_STANDSTILL = 0.1
#: Seconds between two tries to send a reply to a missing queue. Arbitrary.
_REPLY_INTERVAL = 0.25


class NotSentInTime(rpc_common.Timeout):  # type: ignore[misc]  # the library lets this class through, unlike others
    """A message could not be sent within the queue's part of its caller's time-out."""


class Connection(impl_rabbit.Connection):  # type: ignore[misc]
    """One connection to the broker.

    :param given_up: once it is set, nothing but receiving waits for an absent broker.
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
        self._heartbeat_thread: threading.Thread | None = None  # set by the library, after it connects
        #: The start and end of the last wait for messages, by the monotonic clock.
        self.waits_since = self.waited_until = time.monotonic()
        super().__init__(conf, url, purpose, retry)

    def consume(self, timeout: float | None = None) -> None:
        """Wait for messages, and record the start and end of the wait."""
        self.waits_since = time.monotonic()
        try:
            super().consume(timeout)
        finally:
            self.waited_until = time.monotonic()

    def ensure_connection(self) -> None:
        """Reconnect, within the retries of this connection.

        The heartbeat thread tries once at a time: it holds the lock that senders wait for.
        """
        tries = 0 if threading.current_thread() is self._heartbeat_thread else self.max_retries
        # Closed here: the library leaves the socket of the former connection to the garbage collector.
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

        :raises OSError: the connection is lost; the library would open another one beside it.
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
        """Run ``method``, again after a loss of the connection, until ``given_up`` is set."""
        # Receiving passes a callback of its own, which ends it in time.
        callback = recoverable_error_callback or self._stop_if_given_up
        return super().ensure(method, retry, callback, **settings)

    def set_transport_socket_timeout(self, timeout: float | None = None) -> None:
        """Set the socket's time-out, at least so long that a publisher's confirm arrives."""
        super().set_transport_socket_timeout(None if timeout is None else max(timeout, _SHORTEST_SOCKET_TIMEOUT))

    def close(self) -> None:
        """Close the connection without a long wait for a silent broker."""
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
        """Publish a message with an expiry; the library repeats this after a loss of the connection.

        :raises NotSentInTime: the queue's part of the caller's time-out is over.
        """
        super()._publish(exchange, msg, routing_key, _time_to_live(timeout), transport_options)


def _time_to_live(timeout: float | None) -> float | None:
    """Return the seconds that a message of a call with this time-out may spend in a queue; None without a limit."""
    if timeout is None:
        return None
    left = context.seconds_left()
    lost = 0.0 if left is None else max(0.0, timeout - left)
    if lost >= timeout * QUEUE_PART:
        raise NotSentInTime
    return timeout * QUEUE_PART - lost


class _ReplyQueues:
    """The reply queues that are missing, each with the time since when.

    The library drops all replies to a queue for a minute once it was missing for a while, the broker's own absence
    included. Here the time begins when the broker reports the queue missing, each reply is tried at least once, and
    the first delivered reply ends it.
    """

    _MOST = 1000
    _KEPT_SECONDS = 60.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: cachetools.TTLCache[str, float] = cachetools.TTLCache(self._MOST, self._KEPT_SECONDS)

    def reply_q_valid(self, _name: str, _msg_id: str) -> bool:
        """Return True: each reply is tried. The library calls this before each."""
        return True

    def missing(self, name: str) -> float:
        """Return the seconds since which a queue is missing; called when it was found missing."""
        with self._lock:
            return time.monotonic() - self._since.setdefault(name, time.monotonic())

    def found(self, name: str) -> None:
        """Note that a queue exists."""
        if self._since:
            with self._lock:
                self._since.pop(name, None)


class RabbitMessage(amqpdriver.AMQPIncomingMessage):  # type: ignore[misc]
    """An incoming message from RabbitMQ."""

    #: The earliest time at which this process may have had it, by the monotonic clock.
    taken: float

    def reply(self, reply: object = None, failure: Any = None) -> None:
        """Send the answer to the caller; a cast has none. A missing reply queue is waited for, within bounds."""
        if not self.orig_msg_id:
            return
        while not self._sent(reply, failure):
            missing = self._obsolete_reply_queues.missing(self.reply_q)
            if missing >= self.listener.driver.missing_destination_retry_timeout:
                LOG.warning("A caller is gone: its queue %s has been missing for %.0f s", self.reply_q, missing)
                return
            time.sleep(_REPLY_INTERVAL)

    def _sent(self, reply: object, failure: Any) -> bool:
        """Send a reply; return False if its queue is missing."""
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
    """A listener that notes for each message the earliest time at which this process may have had it."""

    message_cls = RabbitMessage

    def __init__(self, driver: "RabbitDriver", connection: rpc_common.ConnectionContext) -> None:
        super().__init__(driver, connection)
        self._obsolete_reply_queues = _ReplyQueues()

    @property
    def _current_timeout(self) -> float:
        """The seconds of the library's next single wait for a message; it doubles them each time."""
        return self._poll_seconds

    @_current_timeout.setter
    def _current_timeout(self, seconds: float) -> None:
        self._poll_seconds = min(seconds, _LONGEST_POLL)

    def __call__(self, message: Any) -> None:
        """Add one message that was read from the socket."""
        taken = self._earliest()
        known = len(self.incoming)
        super().__call__(message)
        for incoming in self.incoming[known:]:
            incoming.taken = taken

    def _earliest(self) -> float:
        """Return the earliest time at which a message just read may have reached the socket."""
        since, until, now = self.conn.waits_since, self.conn.waited_until, time.monotonic()
        if since - until > _STANDSTILL:
            return float(until)
        return float(since) if now - since > _LONGEST_POLL + _STANDSTILL else now


class RabbitDriver(impl_rabbit.RabbitDriver):  # type: ignore[misc]
    """The library's RabbitMQ driver with connections, messages and listeners of this module."""

    def __init__(self, conf: cfg.ConfigOpts, url: oslo_messaging.TransportURL, **settings: Any) -> None:
        super().__init__(conf, url, **settings)
        #: Set when nothing is to wait any more for an absent broker.
        self.given_up = threading.Event()
        made: pool.ConnectionPool = self._connection_pool
        made.connection_cls = functools.partial(Connection, given_up=self.given_up)

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
        """Close all connections without waiting for an absent broker."""
        self.given_up.set()
        super().cleanup()
