"""The library's RabbitMQ driver, with the time that a message may spend on its way.

The broker cannot tell how long a message has waited in a queue without two clocks being compared, so that wait is
limited instead: a message expires in the queue after a part of its caller's time, and the server that takes it has
another part, counted from then. The rest is for the answer's way back (ADR 92).
"""

from typing import Any

from oslo_config import cfg

from moorage import broker, context  # noqa: F401 - first, because `broker` chooses the threading backend

# isort: split
import oslo_messaging
from oslo_messaging._drivers import impl_rabbit, pool

#: Parts of a caller's time: for the queue, and for the server that has taken the message. What is left of it covers the
#: answer's way back, and the half second in which a server does not know when a message arrived.
QUEUE_PART = 0.4
SERVER_PART = 0.5

#: Socket time-outs shorter than this are those of calls with little time; a publisher's confirm may take longer.
_SHORTEST_SOCKET_TIMEOUT = 1.0


class Connection(impl_rabbit.Connection):  # type: ignore[misc]
    """One connection to the broker."""

    def set_transport_socket_timeout(self, timeout: float | None = None) -> None:
        """Limit reads and writes on the socket; a call with little time does not cut off its publisher's confirm."""
        super().set_transport_socket_timeout(None if timeout is None else max(timeout, _SHORTEST_SOCKET_TIMEOUT))

    def _publish(
        self,
        exchange: Any,
        msg: Any,
        routing_key: str | None = None,
        timeout: float | None = None,
        transport_options: Any = None,
    ) -> None:
        """Publish a message that expires in time; also repeated after a loss of the connection.

        :raises MessagingTimeout: so much of the caller's time is over that the server's part of it has begun.
        """
        super()._publish(exchange, msg, routing_key, _time_to_live(timeout), transport_options)


def _time_to_live(timeout: float | None) -> float | None:
    """Return the seconds that a message of a call with this time-out may spend in a queue, if it is limited."""
    if timeout is None:
        return None
    left = context.seconds_left()
    lost = 0.0 if left is None else max(0.0, timeout - left)
    if lost >= timeout * QUEUE_PART:
        raise oslo_messaging.MessagingTimeout("The message could not be sent in time")
    return timeout * QUEUE_PART - lost


class RabbitDriver(impl_rabbit.RabbitDriver):  # type: ignore[misc]
    """The library's driver, with connections of ours."""

    def __init__(self, conf: cfg.ConfigOpts, url: oslo_messaging.TransportURL, **settings: Any) -> None:
        super().__init__(conf, url, **settings)
        made: pool.ConnectionPool = self._connection_pool
        made.connection_cls = Connection
