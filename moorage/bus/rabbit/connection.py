"""A connection to RabbitMQ: the library's, with Moorage's limits on the time in a queue and on a stop.

How long a message has waited in a queue cannot be measured without comparing the clocks of two machines. Instead the
time is limited: a message expires in the queue after a part of its caller's time-out, and the server has another part
from the time when it takes the message (ADR 2).
"""

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from amqp.exceptions import AMQPError, MessageNacked
from oslo_config import cfg

from moorage import context
from moorage.addresses import address
from moorage.bus.calling import seconds_for_queue
from moorage.bus.rabbit import alarms, tls
from moorage.config import messaging  # noqa: F401 - first, because it chooses the threading backend

import oslo_messaging
from oslo_messaging._drivers import amqp, impl_rabbit
from oslo_messaging._drivers import common as rpc_common

LOG = logging.getLogger(__name__)

R = TypeVar("R")

#: The options that make the broker return a call whose queue does not exist. The library then raises
#: ``MessageUndeliverable``.
RETURNED: Final = oslo_messaging.TransportOptions(at_least_once=True)
#: Seconds between two tries to send a call that was returned. Arbitrary.
_RETURNED_INTERVAL = 0.1
#: Seconds between two tries to receive messages while the broker refuses to deliver any. Arbitrary.
_REFUSED_INTERVAL = 1.0
#: Seconds between two tries of a connection to bind a queue again. Arbitrary.
_BIND_INTERVAL = 1.0
#: The least time-out of a socket, in seconds: a publisher's confirm may take longer than a call with little time left.
_SHORTEST_SOCKET_TIMEOUT = 1.0
#: Seconds between two heartbeats while a blocked connection waits. Arbitrary.
_BLOCKED_INTERVAL = 1.0
#: Seconds that a message without a time-out waits on a blocked connection, before another one is tried. Arbitrary.
_BLOCKED_SECONDS = 60.0
#: Seconds, for each host of the broker, within which a connection that receives must be made and its first queue
#: declared. Arbitrary: twice as long as the library waits for a host.
_FIRST_SECONDS = 10.0
#: The errors after which the library does not retry.
_FINAL = (amqp.AMQPDestinationNotFound, oslo_messaging.MessageUndeliverable, rpc_common.Timeout)


class NotSentInTime(rpc_common.Timeout):  # type: ignore[misc]  # the library lets this class through, unlike others
    """A message could not be sent within the part of its caller's time-out that is for the queue."""


class Connection(impl_rabbit.Connection):  # type: ignore[misc]
    """One connection to the broker.

    A connection that receives waits for the broker without end, but not before it has received for the first time: the
    threads that need its queue have deadlines.

    :param given_up: once it is set, only receiving still waits for an unreachable broker.
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
        self._hosts = url.hosts
        is_new = purpose == rpc_common.PURPOSE_LISTEN
        #: The time after which the broker is waited for no longer, by the monotonic clock.
        self._end = time.monotonic() + _FIRST_SECONDS * len(self._hosts) if is_new else math.inf
        #: The time from which a queue may be bound again, by the monotonic clock.
        self._bind_after = 0.0
        #: True while an alarm of the broker blocks this connection.
        self._is_blocked = False
        #: True if the confirm of a message is overdue because of an alarm; the next message would take it for its own.
        self._lacks_confirm = False
        self._heartbeat_thread: threading.Thread | None = None  # set by the library, after it connects
        #: The start and end of the last wait for messages, by the monotonic clock.
        self.waits_since = self.waited_until = time.monotonic()
        super().__init__(conf, url, purpose, retry)

    def consume(self, timeout: float | None = None) -> None:
        """Wait for messages, and record the start and end of the wait.

        :raises Timeout: no message has come, or the broker refuses to deliver any.
        """
        self.waits_since, self._end = time.monotonic(), math.inf
        if not self.connection.connected:
            # Otherwise the library finds that the connection is lost, and so do both it and kombu, which each switch to
            # another host: of three hosts, the one that was lost would be tried again and again.
            self._set_current_channel(None)
        try:
            super().consume(timeout)
        except oslo_messaging.MessageDeliveryFailure as fault:
            # The library does not pause if the broker refuses the login or a queue, and each try is a login.
            LOG.warning("Messages cannot be received: %s", fault)
            self._given_up.wait(_REFUSED_INTERVAL)
            raise rpc_common.Timeout from fault
        finally:
            self.waited_until = time.monotonic()

    def stop_consuming(self) -> None:
        """End the wait for messages now; the broker redelivers unread messages once the connection is closed."""
        super().stop_consuming()
        with suppress(AttributeError, OSError):  # there is no connection
            # Not by the TLS socket's own method: after it, the waiting thread would read the next bytes as plain text.
            socket.socket.shutdown(self.connection._connection._transport.sock, socket.SHUT_RD)  # noqa: SLF001

    def topic_send(self, *arguments: Any, **settings: Any) -> None:
        """Send a message to a topic; if the broker returns the message, bind the topic's queue again.

        :raises MessageUndeliverable: the broker has returned the message.
        """
        try:
            super().topic_send(*arguments, **settings)
        except oslo_messaging.MessageUndeliverable as fault:
            self._bind_again(fault.exchange, fault.routing_key)
            raise

    def _bind_again(self, exchange: str, queue: str) -> None:
        """Bind the queue that has the topic's name, if it exists.

        A cluster may lose bindings in a network partition, and a consumer of the queue cannot detect it.
        """
        if time.monotonic() < self._bind_after:
            return
        self._bind_after = time.monotonic() + _BIND_INTERVAL
        # On a separate channel, because a missing queue or a missing permission closes the channel.
        with self._connection_lock, suppress(AMQPError, OSError), self.connection.channel() as channel:
            channel.queue_bind(queue, exchange, routing_key=queue)
            LOG.warning("Queue %s was not bound to exchange %s, and has been bound", queue, exchange)

    def ensure_connection(self) -> None:
        """Reconnect, within the number of retries of this connection.

        The heartbeat thread makes only one try at a time, because it holds the lock that senders wait for.
        """
        tries = 0 if threading.current_thread() is self._heartbeat_thread else self.max_retries
        # Close the former connection here: the library leaves its socket to the garbage collector.
        tls.drop(self.connection)
        self._verify_next_host()
        self._set_current_channel(None)
        try:
            self.connection.ensure_connection(
                errback=self._connection_failed,
                max_retries=tries,
                interval_start=self.interval_start,
                interval_step=self.interval_stepping,
                interval_max=self.interval_max,
            )
        except Exception:
            if tries == 0:
                # Kombu switches to the next host only before it repeats a try.
                self.connection.maybe_switch_next()
                self._verify_next_host()
            raise
        self._set_current_channel(self.connection.channel())
        self.set_transport_socket_timeout()

    def _heartbeat_check(self) -> None:
        """Exchange heartbeats.

        :raises OSError: the connection is lost. The library itself would open another one beside it.
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
        """Run ``method``; repeat it after a loss of the connection, until ``given_up`` is set."""
        faults: list[Exception] = []
        if self.channel is not None and self._initial_pid == os.getpid():
            # The fast path: the library's preparations for a failure take longer than sending or receiving a message.
            try:
                return method()
            except _FINAL:
                raise
            except Exception as fault:  # noqa: BLE001 - the library's own handling follows
                if self._consume_loop_stopped:  # stop_consuming has shut the socket down
                    return None
                faults.append(fault)

        def repeated() -> object:
            if faults:
                raise faults.pop()
            return method()

        # When the library receives, it passes its own callback, which ends the wait in time.
        ended = recoverable_error_callback or self._stop_if_given_up

        def callback(fault: Exception) -> None:
            self._verify_next_host()
            ended(fault)

        self._verify_next_host()
        return super().ensure(repeated, retry, callback, **settings)

    def set_transport_socket_timeout(self, timeout: float | None = None) -> None:
        """Set the socket's time-out to at least the time that a publisher's confirm may take."""
        super().set_transport_socket_timeout(None if timeout is None else max(timeout, _SHORTEST_SOCKET_TIMEOUT))

    def close(self) -> None:
        """Close the connection without a long wait for a silent broker."""
        self.set_transport_socket_timeout(_SHORTEST_SOCKET_TIMEOUT)
        super().close()

    def _transform_transport_url(self, *arguments: Any, **settings: Any) -> str:
        """Return the URL of one host for kombu, with slashes in its user and password encoded.

        Kombu would read such a slash as the end of the host.
        """
        account, at, address = str(super()._transform_transport_url(*arguments, **settings)).partition("@")
        scheme, mark, quoted = account.partition("://")
        return scheme + mark + quoted.replace("/", "%2F") + at + address

    def _set_current_channel(self, new_channel: Any) -> None:
        """Use another channel, and listen for the broker's alarms on its connection."""
        # The library sets the current channel again at each message. A new channel may already be closed.
        if new_channel not in (None, self.channel) and new_channel.connection is not None:
            self._is_blocked = self._lacks_confirm = False
            alarms.listen(new_channel.connection, self._on_blocked_for)
        super()._set_current_channel(new_channel)

    def _on_blocked_for(self, kind: str) -> None:
        self._is_blocked = True
        alarms.LOGGED.began(self._broker(), kind)

    def _on_connection_unblocked(self) -> None:
        self._is_blocked = False
        alarms.LOGGED.ended(self._broker())

    def _wait_while_blocked(self, expires: float | None) -> None:
        """Wait until the broker takes messages from this connection again.

        The broker reads nothing more from a blocked connection, and so does not notice that it is closed: if the
        library closed it and opened another one, the broker would keep both until the alarm ends.

        :param expires: the end of the message's time in the queue, by the monotonic clock; None if it has no time-out.
        :raises NotSentInTime: the time is over, and the alarm is still on.
        :raises OSError: the library must open another connection and repeat the sending.
        """
        end = time.monotonic() + _BLOCKED_SECONDS if expires is None else expires
        while self._is_blocked:
            if (left := end - time.monotonic()) <= 0:
                raise TimeoutError("an alarm of the broker is on") if expires is None else NotSentInTime
            self._stop_if_given_up(TimeoutError("an alarm of the broker is on"))
            try:
                self.connection.drain_events(timeout=min(left, _BLOCKED_INTERVAL))
            except TimeoutError:
                self._heartbeat_check()
        if self._lacks_confirm:
            raise ConnectionResetError("the connection was blocked by an alarm of the broker, which is over")

    def _broker(self) -> str:
        """Return the address of the connected broker."""
        return address(self.connection.hostname, self.connection.port)

    def _verify_next_host(self) -> None:
        """Make TLS verify that the certificate names the next host to connect to.

        With several hosts, kombu would keep the name of the first host that it has tried.
        """
        if len(self._hosts) > 1 and isinstance(settings := self.connection.ssl, dict) and "server_hostname" in settings:
            settings["server_hostname"] = None  # kombu then uses the name of the host

    def _connection_failed(self, fault: Exception, _interval: float) -> None:
        self._verify_next_host()
        LOG.warning("The broker cannot be reached: %s", fault)
        self._stop_if_given_up(fault)

    def _stop_if_given_up(self, fault: Exception) -> None:
        if self._given_up.is_set() or time.monotonic() > self._end:
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

        :raises NotSentInTime: the part of the caller's time-out that is for the queue is over.
        """
        time_to_live = None if timeout is None else seconds_in_queue(timeout, context.seconds_left())
        if time_to_live is not None and time_to_live <= 0:
            raise NotSentInTime
        expires = None if time_to_live is None else time.monotonic() + time_to_live
        self._wait_while_blocked(expires)
        try:
            super()._publish(exchange, msg, routing_key, time_to_live, transport_options)
        except TimeoutError:
            if self._is_blocked:
                self._lacks_confirm = True
                self._wait_while_blocked(expires)
            raise
        except MessageNacked as fault:
            # The exception has no text. The library retries after this one as after a loss of the connection.
            raise MessageNacked("it refuses the message, as its queue is full or has no leader") from fault


def send_once_there_is_a_queue(send: Callable[[oslo_messaging.TransportOptions | None], R], timeout: float) -> R:
    """Send a call; repeat it while the broker returns it and it has time left for waiting in a queue.

    The first server of a queue creates it. After a restart of the broker it is missing until one of its servers has
    reconnected. Without repeats, the broker would drop the call, and the caller would wait for nothing.

    :param send: sends the call with the given options.
    :param timeout: the caller's time-out, in seconds.
    """
    end = time.monotonic() + seconds_for_queue(timeout)
    while True:
        try:
            return send(RETURNED)
        except oslo_messaging.MessageUndeliverable:
            # A try takes time as well, and the last try must be in time.
            if time.monotonic() + 2 * _RETURNED_INTERVAL > end:
                # The last try lets the broker drop the call, so that the caller waits for its whole time-out, as for a
                # server that does not answer. Callers that repeat a call several times would otherwise give up sooner.
                return send(None)
            time.sleep(_RETURNED_INTERVAL)


def seconds_in_queue(timeout: float, left: float | None) -> float:
    """Return the seconds that a message of a call may spend in a queue; 0 or less if it is too late to send it.

    :param timeout: the time-out of the call, in seconds.
    :param left: the seconds until the caller's deadline, if there is one.
    """
    lost = 0.0 if left is None else max(0.0, timeout - left)
    return seconds_for_queue(timeout) - lost
