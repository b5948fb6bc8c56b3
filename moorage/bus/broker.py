"""The broker itself: which library speaks to it and how it is set up, whether it is there, how its address is shown."""

import logging
import os
import re
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import amqp
import kombu.exceptions
from kombu.connection import Connection
from oslo_config import cfg

# Of what some of these import where it is installed, eventlet's resolver alone takes longer than all the rest.
os.environ.setdefault("EVENTLET_NO_GREENDNS", "yes")

with warnings.catch_warnings():
    # Some of these import eventlet where it is installed, which says at length that nobody should. Nothing here runs
    # on it, and the operator who reads the warning could do nothing about it.
    warnings.simplefilter("ignore")

    from oslo_service import backend

    # At its own import oslo.messaging settles for eventlet unless the choice has been made, and it cannot be made
    # twice. Every module of ours that imports the library imports this one first.
    backend.init_backend(backend.BackendType.THREADING)

    import oslo_messaging
    from oslo_messaging import opts as oslo_messaging_opts
    from oslo_messaging._drivers import impl_rabbit  # noqa: F401 - loaded by name later, and would warn then
    from oslo_messaging._metrics import client as oslo_messaging_metrics
    from oslo_messaging._tracing import client as oslo_messaging_tracing

from moorage import errors

LOG = logging.getLogger(__name__)

EXCHANGE = "moorage"

#: Where our needs differ from the library's defaults: a caller hears within seconds that the broker is away; a reply to
#: a caller that is gone keeps no server thread for longer than that caller would have waited; and a server that has not
#: taken its last message in is sent no other. The library takes messages in as soon as they come, so the last bounds
#: what is lost in a process that is stopped, and not how many messages are worked on.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "DEFAULT": {
        "control_exchange": EXCHANGE,
        # The library's own default is a broker on this machine, with everybody's password.
        "transport_url": None,
    },
    "oslo_messaging_rabbit": {
        "rabbit_retry_backoff": 1,
        "rabbit_interval_max": 3,
        "kombu_reconnect_delay": 0.2,
        "kombu_missing_consumer_retry_timeout": 15,
        # A connection that has gone silent is found out after twice as long.
        "heartbeat_timeout_threshold": 10,
        "rabbit_qos_prefetch_count": 1,
    },
}
#: What the library lets through when the broker is away or goes away.
CONNECTION_FAULTS: tuple[type[Exception], ...] = (
    oslo_messaging.MessageDeliveryFailure,
    oslo_messaging.MessageUndeliverable,
    kombu.exceptions.KombuError,
    amqp.exceptions.AMQPError,
    OSError,
)
#: A broker's word on a user, password or virtual host, which will be the same the next time.
_REFUSALS = (amqp.exceptions.AccessRefused, amqp.exceptions.NotAllowed)
_PORT = 5672
_LONGEST_REASON = 300
_CLEAN_UP_SECONDS = 10.0  # an idle connection notices within five that it is to close


#: The options of oslo.messaging by group: its own objects, not the copies that it lists. It registers them again for
#: each connection, and refuses copies in which it has noted meanwhile that their use is deprecated.
_LIBRARY_OPTIONS: Sequence[tuple[str | None, Sequence[cfg.Opt]]] = oslo_messaging_opts._opts  # noqa: SLF001


def register_options(conf: cfg.ConfigOpts) -> None:
    """Register on a private configuration all that oslo.messaging expects of the global one, with our defaults.

    The library registers metrics and tracing on the global object alone and does not list them; without them every
    call fails.
    """
    for group, options in _LIBRARY_OPTIONS:
        conf.register_opts(options, group=group)
    conf.register_opts(oslo_messaging_metrics.oslo_messaging_metrics, group="oslo_messaging_metrics")
    conf.register_opts(oslo_messaging_tracing.oslo_messaging_tracing, group="oslo_messaging_tracing")
    for group, defaults in _DEFAULTS.items():
        for name, value in defaults.items():
            conf.set_default(name, value, group=None if group == "DEFAULT" else group)


def set_library_defaults() -> None:
    """Put our defaults in the place of the library's own, for the whole process: for the sample configuration."""
    for group, options in _LIBRARY_OPTIONS:
        cfg.set_defaults(options, **_DEFAULTS.get(group or "DEFAULT", {}))


def probe(transport_url: str, timeout: float) -> None:
    """Connect to the broker once, within ``timeout`` seconds; any one of several hosts will do.

    :raises BusRefused: it does not let this user into this virtual host.
    :raises BusUnavailable: it cannot be reached.
    """
    probe_url(oslo_messaging.TransportURL.parse(cfg.ConfigOpts(), transport_url), timeout)


def probe_url(url: oslo_messaging.TransportURL, timeout: float) -> None:
    """Do as :func:`probe` does, with an address that the library has parsed, and its configuration."""
    if url.transport not in {"rabbit", "kombu"}:
        return
    deadline = time.monotonic() + timeout
    reasons: list[str] = []
    refused = 0
    for host in url.hosts or [oslo_messaging.TransportHost("localhost")]:
        left = max(deadline - time.monotonic(), 0.1)
        try:
            _connect(url, host, left)
        except CONNECTION_FAULTS as fault:
            reasons.append(reason(fault))
            refused += isinstance(fault, _REFUSALS)
        else:
            return
    kind = errors.BusRefused if refused == len(reasons) else errors.BusUnavailable
    raise kind(reason=f"{mask_url(str(url))}: {'; '.join(reasons)}")


def servers_of(url: oslo_messaging.TransportURL, exchange: str, queue: str, timeout: float) -> int | None:
    """Return how many servers take messages from a queue; null where the broker does not say so.

    :raises BusUnavailable: it cannot be reached.
    """
    if url.transport == "inproc":
        from moorage.bus import inproc  # it stands on this module

        return inproc.takers(url, exchange, queue)
    if url.transport not in {"rabbit", "kombu"} or _has_tls(url):
        return None
    try:
        host = url.hosts[0] if url.hosts else oslo_messaging.TransportHost("localhost")
        with _opened(url, host, timeout) as connection:
            connection.ensure_connection(max_retries=0)
            return int(connection.default_channel.queue_declare(queue, passive=True).consumer_count)
    except amqp.exceptions.NotFound:
        return 0
    except amqp.exceptions.AccessRefused:
        return None
    except CONNECTION_FAULTS:
        # Another host of the address may do.
        probe_url(url, timeout)
        return None


def _has_tls(url: oslo_messaging.TransportURL) -> bool:
    group = getattr(url.conf, "oslo_messaging_rabbit", None)
    return url.query.get("ssl", "").lower() == "true" or (group is not None and bool(group.ssl))


def _connect(url: oslo_messaging.TransportURL, host: oslo_messaging.TransportHost, timeout: float) -> None:
    """Connect to one host of a broker, and leave."""
    if _has_tls(url):
        # The library alone knows how TLS is set up; that somebody listens is all that is asked here.
        socket.create_connection((host.hostname, host.port or _PORT), timeout=timeout).close()
        return
    with _opened(url, host, timeout) as connection:
        connection.ensure_connection(max_retries=0)


def _opened(url: oslo_messaging.TransportURL, host: oslo_messaging.TransportHost, timeout: float) -> Connection:
    """Return a connection to one host of a broker, which is made when it is first used."""
    return Connection(  # type: ignore[no-untyped-call]
        hostname=host.hostname or "localhost",
        port=host.port or _PORT,
        userid=host.username or "guest",
        password=host.password or "guest",
        virtual_host=url.virtual_host or "/",
        transport="pyamqp",
        connect_timeout=timeout,
        transport_options={"read_timeout": timeout, "write_timeout": timeout},
    )


_HOST = r"(?:[^:@/,?]*(?::[^:@/,?]*)?@)?[^@/,?]*"
_REGULAR = re.compile(rf"{_HOST}(?:,{_HOST})*(?:[/?][^@]*)?")


def mask_url(url: str) -> str:
    """Return ``url`` with every password hidden, for logs and errors.

    Where a password holds characters that it should not, it cannot be told where it ends: then all is hidden between
    the first user and the last host.
    """
    scheme, mark, rest = url.partition("://")
    if not mark or "@" not in rest:
        return url
    if _REGULAR.fullmatch(rest):
        return scheme + mark + re.sub(r"((?:^|,)[^:@/,?]*):[^:@/,?]*@", r"\1:***@", rest)
    hidden, _, host = rest.rpartition("@")
    return f"{scheme}{mark}{hidden.partition(':')[0]}:***@{host}"


def reason(fault: BaseException) -> str:
    """Return a fault's text, at a length fit for an error of ours."""
    return (str(fault) or type(fault).__name__)[:_LONGEST_REASON]


@contextmanager
def farewell() -> Iterator[None]:
    """Leave the broker, and do not mind if it is gone already."""
    try:
        yield
    except CONNECTION_FAULTS as fault:
        LOG.warning("The broker was left without a farewell: %s", reason(fault))


def let_go(transport: oslo_messaging.Transport) -> None:
    """Close a transport's connections; those that wait for a broker that is away are left to end with the process."""

    def clean_up() -> None:
        with farewell():
            transport.cleanup()

    cleaning = threading.Thread(target=clean_up, name="bus-clean-up", daemon=True)
    cleaning.start()
    cleaning.join(_CLEAN_UP_SECONDS)
    if cleaning.is_alive():
        LOG.warning("The connections to the broker could not be closed within %s seconds", _CLEAN_UP_SECONDS)
