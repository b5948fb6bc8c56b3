"""Checks of the broker: connect, have a message confirmed, count consumers; parse a URL, close a transport."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import amqp
import kombu.exceptions
from kombu.connection import Connection
from oslo_config import cfg

from moorage import errors, ids
from moorage.bus import alarms, tls
from moorage.bus.calling import mask_url as mask_url
from moorage.bus.calling import reason as reason
from moorage.bus.calling import unreadable
from moorage.config import messaging  # noqa: F401 - first, because it chooses the threading backend

# isort: split
import oslo_messaging

LOG = logging.getLogger(__name__)

#: The exceptions that the library raises when the broker is away or goes away.
CONNECTION_FAULTS: tuple[type[Exception], ...] = (
    oslo_messaging.MessageDeliveryFailure,
    oslo_messaging.MessageUndeliverable,
    kombu.exceptions.KombuError,
    amqp.exceptions.AMQPError,
    OSError,
)
_PORT = 5672
_CLEAN_UP_SECONDS = 10.0  # an idle connection notices within five that it is to close
#: The hosts that were away when this process asked them last: the others are asked before them. One that is silent
#: takes seconds each time, and a cluster goes on without it.
_AWAY: set[tuple[str, int]] = set()


def parsed(conf: cfg.ConfigOpts, url: str) -> oslo_messaging.TransportURL:
    """Parse the URL of a broker.

    :raises ConfigurationError: it is not valid.
    """
    try:
        return oslo_messaging.TransportURL.parse(conf, url)
    except ValueError:
        raise unreadable(url) from None
    except oslo_messaging.InvalidTransportURL as fault:
        raise errors.ConfigurationError(reason=f"transport_url {mask_url(url)}: {reason(fault)}") from fault


def probe(url: oslo_messaging.TransportURL, timeout: float) -> None:
    """Connect to the broker once, within ``timeout`` seconds; one of several hosts is enough.

    :raises BusRefused: the broker does not admit this user to this virtual host.
    :raises BusUnavailable: the broker cannot be reached.
    """
    if url.transport not in {"rabbit", "kombu"}:
        return
    deadline = time.monotonic() + timeout
    reasons: list[str] = []
    refused = 0
    for host in _in_order(url):
        left = max(deadline - time.monotonic(), 0.1)
        try:
            with _noted(host):
                _connect(url, host, left)
        except CONNECTION_FAULTS as fault:
            reasons.append(reason(fault))
            refused += tls.is_refusal(fault)
        else:
            return
    kind = errors.BusRefused if refused == len(reasons) else errors.BusUnavailable
    raise kind(reason=f"{mask_url(str(url))}: {'; '.join(reasons)}")


def check_alarms(url: oslo_messaging.TransportURL, timeout: float) -> None:
    """Send messages that no queue takes, and return when the broker has confirmed them; for a reachable broker.

    Two, one after the other: while an alarm is on, RabbitMQ 3.10 confirms the first message of some three in ten
    thousand connections before it blocks them, and never the second.

    :raises BusUnavailable: an alarm is on, or nothing was confirmed in time.
    """
    if url.transport not in {"rabbit", "kombu"}:
        return

    def refuse(kind: str) -> None:
        raise errors.BusUnavailable(reason=f"{mask_url(str(url))}: {alarms.reason_of(kind)}")

    for host in _in_order(url):
        connection: Any = None
        try:
            with _noted(host):
                connection = _opened(url, host, timeout, capabilities={"connection.blocked": True})
                connection.ensure_connection(max_retries=0)
                alarms.listen(connection.connection, refuse)
                channel = connection.default_channel
                for _ in range(2):
                    channel.basic_publish_confirm(
                        amqp.Message(""), routing_key=f"nobody-{ids.fresh()}", confirm_timeout=timeout
                    )
        except amqp.exceptions.AccessRefused:
            return  # this user may send nothing without an exchange's name
        except CONNECTION_FAULTS:
            continue  # another host of the URL may take it
        else:
            return
        finally:
            if connection is not None:
                tls.drop(connection)  # while the alarm is on, a farewell would not be answered
    raise errors.BusUnavailable(reason=f"{mask_url(str(url))}: it has not confirmed a message within {timeout:g} s")


def servers_of(url: oslo_messaging.TransportURL, exchange: str, queue: str, timeout: float) -> int | None:
    """Return the number of a queue's consumers; None where the broker does not give it.

    :raises BusUnavailable: the broker cannot be reached.
    """
    if url.transport == "inproc":
        from moorage.bus import inproc  # it stands on this module

        return inproc.takers(url, exchange, queue)
    if url.transport not in {"rabbit", "kombu"}:
        return None
    for host in _in_order(url):
        try:
            with _noted(host), _opened(url, host, timeout) as connection:
                connection.ensure_connection(max_retries=0)
                return int(connection.default_channel.queue_declare(queue, passive=True).consumer_count)
        except amqp.exceptions.NotFound:
            return 0
        except amqp.exceptions.AccessRefused:
            return None
        except CONNECTION_FAULTS:
            continue  # another host of the URL may answer
    probe(url, timeout)
    return None


def _in_order(url: oslo_messaging.TransportURL) -> list[oslo_messaging.TransportHost]:
    """Return the hosts of a URL, those last that were away when they were last asked."""
    hosts = url.hosts or [oslo_messaging.TransportHost("localhost")]
    return sorted(hosts, key=lambda host: _address(host) in _AWAY)


@contextmanager
def _noted(host: oslo_messaging.TransportHost) -> Iterator[None]:
    """Note whether a host is away, for the order in which they are asked."""
    try:
        yield
    except (amqp.exceptions.NotFound, amqp.exceptions.AccessRefused, amqp.exceptions.NotAllowed):
        _AWAY.discard(_address(host))
        raise
    except CONNECTION_FAULTS:
        _AWAY.add(_address(host))
        raise
    _AWAY.discard(_address(host))


def _address(host: oslo_messaging.TransportHost) -> tuple[str, int]:
    return host.hostname or "localhost", host.port or _PORT


def _connect(url: oslo_messaging.TransportURL, host: oslo_messaging.TransportHost, timeout: float) -> None:
    with _opened(url, host, timeout) as connection:
        connection.ensure_connection(max_retries=0)


def _opened(
    url: oslo_messaging.TransportURL, host: oslo_messaging.TransportHost, timeout: float, **properties: object
) -> Connection:
    name = host.hostname or "localhost"
    return Connection(  # type: ignore[no-untyped-call]
        hostname=name,
        port=host.port or _PORT,
        userid=host.username or "guest",
        password=host.password or "guest",
        virtual_host=url.virtual_host or "/",
        transport="pyamqp",
        connect_timeout=timeout,
        transport_options={"read_timeout": timeout, "write_timeout": timeout, "client_properties": properties},
        **tls.arguments(url.conf.oslo_messaging_rabbit, url.query, name),
    )


@contextmanager
def declaring(url: str, transport: oslo_messaging.Transport) -> Iterator[None]:
    """Translate a broker's refusal of a server's queues, and close the server's connections then.

    :param url: with its passwords hidden.
    :raises BusRefused: the broker refuses them for good: by its permissions, or as those that it has are of another
        kind. The library says that it cannot connect.
    :raises BusUnavailable: it has been lost meanwhile.
    """
    try:
        yield
    except CONNECTION_FAULTS as fault:
        let_go(transport)
        cause = fault.__context__ if isinstance(fault.__context__, amqp.exceptions.AMQPError) else fault
        kind = errors.BusRefused if tls.is_refusal(cause) else errors.BusUnavailable
        raise kind(reason=f"{url}: {reason(cause)}") from fault


@contextmanager
def farewell() -> Iterator[None]:
    """Ignore the faults of a connection that is being closed: the broker may be gone already."""
    try:
        yield
    except CONNECTION_FAULTS as fault:
        LOG.warning("The broker was left without a farewell: %s", reason(fault))


def let_go(transport: oslo_messaging.Transport) -> None:
    """Close a transport's connections; those that wait for an absent broker are left to end with the process."""

    def clean_up() -> None:
        with farewell():
            transport.cleanup()

    cleaning = threading.Thread(target=clean_up, name="bus-clean-up", daemon=True)
    cleaning.start()
    cleaning.join(_CLEAN_UP_SECONDS)
    if cleaning.is_alive():
        LOG.warning("The connections to the broker could not be closed within %s seconds", _CLEAN_UP_SECONDS)
