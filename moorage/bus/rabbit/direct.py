"""Calls over RabbitMQ with the AMQP library alone, for the commands of operators.

To import oslo.messaging takes longer than everything else that a command does. The format on the wire is the same
(docs/rpc.md). Each call in progress has its own connection, which later calls use again.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from oslo_config import cfg

from moorage import errors, failpoints
from moorage.bus.calling import HOUSEKEEPING, Caller, Wake, outgoing, plain_error, reason
from moorage.bus.rabbit import tls
from moorage.bus.rabbit.broker_hosts import FAULTS, BrokerHosts, DirectConnection, query_of, split
from moorage.messages.wire import Message, encode, prepare

#: Errors of the server's library for a message that the server does not support, or not at this version.
_UNSERVED = ("NoSuchMethod", "UnsupportedVersion")


class UnservedMethod(Exception):
    """A server does not support a method, or not at the message's version."""


class _TooNew(UnservedMethod):
    """A server has refused a message because it is too new."""


class DirectBus:
    """The connections of a command to one broker, by the arguments of :class:`.BrokerHosts`; thread-safe.

    ``conf`` also has the exchange for calls.
    """

    def __init__(self, url: str, conf: cfg.ConfigOpts) -> None:
        prepare()
        self.exchange = conf.control_exchange
        self._hosts = BrokerHosts(url, conf)
        self.url = self._hosts.url
        self._lock = threading.Lock()
        self._free: list[DirectConnection] = []
        self._closed = False

    def servers_of(self, topic: str, server: str | None = None) -> int | None:
        """Return the number of servers, as :meth:`.Bus.servers_of` describes."""
        with self.connection() as connection:
            return connection.consumers(topic if server is None else f"{topic}.{server}")

    def close(self) -> None:
        """Close all connections that are not in use."""
        with self._lock:
            self._closed, free = True, self._free
            self._free = []
        for connection in free:
            connection.close()

    @contextmanager
    def connection(self) -> Iterator[DirectConnection]:
        """Lend a connection; after an exception it is not used again.

        :raises BusRefused: the broker does not admit this user to this virtual host.
        :raises BusUnavailable: the broker cannot be reached, or the connection was lost.
        """
        with self._lock:
            known = self._free.pop() if self._free else None
        connection = known or self._hosts.connect(lambda made: made)
        try:
            yield connection
        except BaseException as fault:
            connection.close()
            if isinstance(fault, FAULTS):
                raise errors.BusUnavailable(reason=f"{self.url}: {reason(fault)}") from None
            raise
        with self._lock:
            if not self._closed:
                self._free.append(connection)
                return
        connection.close()


class DirectClient(Caller):
    """Sends calls to one topic, or to one server of it, over the bus of a command."""

    too_new = (_TooNew,)

    def __init__(self, bus: DirectBus, topic: str, server: str | None, timeout: float) -> None:
        super().__init__(topic, server, timeout)
        self._bus = bus

    def ask(self, message: Message[Any], seconds: float) -> Any:
        """Send a message, and return the encoded answer."""
        content = {"method": message.method, "version": message.lowest_version(), "args": encode(message)}
        beside = {f"_context_{name}": value for name, value in outgoing(message, seconds).items()}
        return self._asked(content | beside, seconds)

    def ping(self, timeout: float | None = None) -> str | None:
        """Ping a server, as :meth:`Caller.ping` describes."""
        seconds = self.seconds(timeout)
        ping = {"method": Wake.method, "namespace": HOUSEKEEPING, "version": "1.0", "args": {}}
        with self.faults(Wake(), seconds):
            answer: str | None = self._asked(ping, seconds)
        return answer

    @contextmanager
    def faults(self, message: Message[Any], seconds: float) -> Iterator[None]:
        """Translate a missing answer and a missing method into Moorage's errors."""
        try:
            yield
        except (TimeoutError, failpoints.Dropped):
            raise errors.NoReply(topic=self._address, method=message.method, seconds=seconds) from None
        except UnservedMethod:
            raise self.not_served(message) from None

    def _asked(self, content: Mapping[str, Any], seconds: float) -> Any:
        with self._bus.connection() as connection:
            answer = connection.call(self._bus.exchange, self._address, content, seconds)
        if answer is None:
            raise TimeoutError
        if failure := answer.get("failure"):
            raise _fault(json.loads(failure))
        return answer.get("result")


def is_plain(url: str) -> bool:
    """Return whether a URL is of a RabbitMQ that can be called directly: its only options are for TLS and the login.

    :raises ConfigurationError: the URL cannot be parsed.
    """
    return split(url).scheme == "rabbit" and query_of(url).keys() <= tls.OPTIONS


def _fault(failure: Mapping[str, Any]) -> Exception:
    """Return the exception for a failure that a server has sent as its answer."""
    name = str(failure.get("class"))
    kind = getattr(errors, name, None) if failure.get("module") == errors.__name__ else None
    if isinstance(kind, type) and issubclass(kind, errors.MoorageError):
        return plain_error(kind(**failure.get("kwargs", {})))
    if name in _UNSERVED:
        return _TooNew() if name == "UnsupportedVersion" else UnservedMethod()
    return errors.InternalError(kind=name)
