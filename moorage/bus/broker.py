"""Translate the bus library's exceptions, parse broker URLs, and close transports."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import amqp
import kombu.exceptions
from oslo_config import cfg

from moorage import errors
from moorage.addresses import mask_url
from moorage.bus.calling import reason, unreadable
from moorage.bus.rabbit import tls
from moorage.config import messaging  # noqa: F401 - first, because it chooses the threading backend

import oslo_messaging

LOG = logging.getLogger(__name__)

#: The exceptions that the library raises when the broker is unreachable or the connection to it is lost.
CONNECTION_FAULTS: tuple[type[Exception], ...] = (
    oslo_messaging.MessageDeliveryFailure,
    oslo_messaging.MessageUndeliverable,
    kombu.exceptions.KombuError,
    amqp.exceptions.AMQPError,
    OSError,
)
_CLEAN_UP_SECONDS = 10.0  # an idle connection notices a request to close within five seconds


def parsed(conf: cfg.ConfigOpts, url: str) -> oslo_messaging.TransportURL:
    """Parse the URL of a broker.

    :raises ConfigurationError: the URL is not valid.
    """
    try:
        return oslo_messaging.TransportURL.parse(conf, url)
    except ValueError:
        raise unreadable(url) from None
    except oslo_messaging.InvalidTransportURL as fault:
        raise errors.ConfigurationError(reason=f"transport_url {mask_url(url)}: {reason(fault)}") from fault


@contextmanager
def declaration(url: str, transport: oslo_messaging.Transport) -> Iterator[None]:
    """Translate the exceptions of declaring a server's queues, and close the server's connections after one.

    :param url: the broker's URL, with its passwords hidden.
    :raises BusRefused: the broker refuses the queues permanently: the user lacks the permission, or queues of these
        names exist with other properties. The library reports this as a failure to connect.
    :raises BusUnavailable: the connection to the broker was lost meanwhile.
    """
    try:
        yield
    except CONNECTION_FAULTS as fault:
        close_transport(transport)
        cause = fault.__context__ if isinstance(fault.__context__, amqp.exceptions.AMQPError) else fault
        kind = errors.BusRefused if tls.is_refusal(cause) else errors.BusUnavailable
        raise kind(reason=f"{url}: {reason(cause)}") from fault


@contextmanager
def closing_faults_ignored() -> Iterator[None]:
    """Log and ignore the exceptions of closing a connection: the broker may already be unreachable."""
    try:
        yield
    except CONNECTION_FAULTS as fault:
        LOG.warning("A connection to the broker was not closed in order: %s", reason(fault))


def close_transport(transport: oslo_messaging.Transport) -> None:
    """Close a transport's connections; one that waits for an unreachable broker stays open until the process ends."""

    def clean_up() -> None:
        with closing_faults_ignored():
            transport.cleanup()

    cleaning = threading.Thread(target=clean_up, name="bus-clean-up", daemon=True)
    cleaning.start()
    cleaning.join(_CLEAN_UP_SECONDS)
    if cleaning.is_alive():
        LOG.warning("The connections to the broker could not be closed within %s seconds", _CLEAN_UP_SECONDS)
