"""Calls over RabbitMQ with the AMQP library alone, for the commands of operators.

oslo.messaging takes longer to import than all that a command does takes otherwise. What travels is the same
(docs/rpc.md): each call waits on a connection of its own for its answer, and connections are used again.
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import amqp
from oslo_config import cfg

from moorage import errors, failpoints, ids
from moorage.bus import alarms, tls
from moorage.bus.calling import (
    HOUSEKEEPING,
    QUEUE_PART,
    Caller,
    Wake,
    mask_url,
    outgoing,
    plain_type,
    reason,
    unreadable,
)
from moorage.messages.wire import Message, encode, prepare

_FAULTS: tuple[type[Exception], ...] = (amqp.exceptions.AMQPError, OSError)
#: As long as oslo.messaging's connection waits; a broker that needs longer is of no use to a caller.
_CONNECT_SECONDS = 5.0
_PORT = 5672
#: Errors of the server's library, for a message that the server does not have or that is too new.
_UNSERVED = ("NoSuchMethod", "UnsupportedVersion")


class UnservedMethod(Exception):
    """A server does not have a method, or not at the version of the message."""


class _BlockedByAlarm(OSError):
    """The broker takes no messages from this connection while one of its alarms is on."""


class _TooNew(UnservedMethod):
    """A server has refused a message because it is too new."""


class DirectBus:
    """The connections of a command to one broker; thread-safe.

    :param url: ``rabbit://user:password@host:port,user:password@host:port/virtual host``.
    :param conf: has the exchange to which calls go, and the bus library's options for TLS and the login, where the
        URL has none of its own.
    """

    def __init__(self, url: str, conf: cfg.ConfigOpts) -> None:
        prepare()
        self.exchange = conf.control_exchange
        self._options, self._query = conf.oslo_messaging_rabbit, _query(url)
        self.url = mask_url(url)
        self._hosts = list(_hosts(url))
        self._virtual_host = unquote(urlsplit(url).path[1:]) or "/"
        self._lock = threading.Lock()
        self._free: list[_Connection] = []
        self._closed = False

    def servers_of(self, topic: str, server: str | None = None) -> int | None:
        """Return the number of servers of a topic, or of one name on it; None where it is unknown.

        :raises BusUnavailable: the broker cannot be reached.
        """
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
    def connection(self) -> Iterator["_Connection"]:
        """Lend a connection; after a fault it is not used again.

        :raises BusRefused: the broker does not admit this user to this virtual host.
        :raises BusUnavailable: it cannot be reached, or the connection was lost.
        """
        with self._lock:
            known = self._free.pop() if self._free else None
        connection = known or self._connect()
        try:
            yield connection
        except BaseException as fault:
            connection.close()
            if isinstance(fault, _FAULTS):
                raise errors.BusUnavailable(reason=f"{self.url}: {reason(fault)}") from None
            raise
        with self._lock:
            if not self._closed:
                self._free.append(connection)
                return
        connection.close()

    def _connect(self) -> "_Connection":
        reasons: list[str] = []
        refused = 0
        for host in self._hosts:
            try:
                security = tls.arguments(self._options, self._query, host["host"])
                return _Connection(**host, virtual_host=self._virtual_host, security=security)
            except _FAULTS as fault:
                reasons.append(reason(fault))
                refused += tls.is_refusal(fault)
        kind = errors.BusRefused if refused == len(reasons) else errors.BusUnavailable
        raise kind(reason=f"{self.url}: {'; '.join(reasons)}")


class DirectClient(Caller):
    """Sends calls to one topic, or to one server of it, over a bus of its command."""

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
        """Ping as :meth:`Caller.ping`."""
        seconds = self.seconds(timeout)
        ping = {"method": Wake.method, "namespace": HOUSEKEEPING, "version": "1.0", "args": {}}
        with self.faults(Wake(), seconds):
            answer: str | None = self._asked(ping, seconds)
        return answer

    def reach(self) -> None:
        """Do nothing: connecting fails within seconds where there is no broker."""

    def has_replied(self) -> None:
        """Do nothing: each connection has its reply queue from its first call on."""

    @contextmanager
    def faults(self, message: Message[Any], seconds: float) -> Iterator[None]:
        """Translate a missing answer and a missing method into errors of ours."""
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


class _Connection:
    """One connection to the broker, with a queue for answers from its first call on; for one thread at a time."""

    def __init__(
        self, host: str, port: int, user: str, password: str, virtual_host: str, security: Mapping[str, Any]
    ) -> None:
        self._amqp = amqp.Connection(
            host=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            userid=user,
            password=password,
            virtual_host=virtual_host,
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_CONNECT_SECONDS,
            write_timeout=_CONNECT_SECONDS,
            client_properties={"capabilities": {"connection.blocked": True}},
            **security,
        )
        try:
            self._amqp.connect()
        except BaseException:
            self._amqp.collect()
            raise
        self._channel: Any = None
        self._queue = ""
        self._answers: list[dict[str, Any]] = []
        alarms.listen(self._amqp, self._blocked)

    def consumers(self, queue: str) -> int | None:
        """Return the number of a queue's consumers; None where this user may not know it."""
        try:
            with self._amqp.channel() as channel:
                return int(channel.queue_declare(queue, passive=True).consumer_count)
        except amqp.exceptions.NotFound:
            return 0
        except amqp.exceptions.AccessRefused:
            return None

    def call(self, exchange: str, topic: str, content: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """Send a call, and return the body of its answer; None where none comes in time."""
        end = time.monotonic() + seconds
        if self._channel is None:
            self._open()
        message_id = ids.fresh()
        own = {"_msg_id": message_id, "_reply_q": self._queue, "_timeout": None, "_unique_id": ids.fresh()}
        body = json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps({**content, **own})})
        # It expires in the queue when nobody waits for it any more.
        expires = str(int(seconds * QUEUE_PART * 1000))
        message = amqp.Message(body, content_type="application/json", content_encoding="utf-8", expiration=expires)
        self._channel.basic_publish(message, exchange=exchange, routing_key=topic)
        while (left := end - time.monotonic()) > 0:
            while self._answers:
                answer = self._answers.pop(0)
                if answer.get("_msg_id") == message_id:  # another one is of a call that was given up
                    return answer
            try:
                self._amqp.drain_events(timeout=left)
            except TimeoutError:
                break
        return None

    def close(self) -> None:
        """Close the connection, which a broker that does not answer does not delay for long."""
        with suppress(*_FAULTS, RecursionError):
            if self._amqp.connected:
                self._amqp.transport.sock.settimeout(1.0)
                self._amqp.close()
        self._amqp.collect()

    def _open(self) -> None:
        """Open the queue for answers, which ends with the connection."""
        self._channel = self._amqp.channel()
        self._queue = f"reply_{ids.fresh().replace('-', '')}"
        self._channel.queue_declare(self._queue, exclusive=True, auto_delete=True)
        self._channel.basic_consume(self._queue, no_ack=True, callback=self._arrived)

    def _blocked(self, kind: str) -> None:
        # At once instead of when the time is over. What was sent is read when the alarm ends: as after the loss of a
        # connection, it is unknown whether it will be carried out.
        raise _BlockedByAlarm(alarms.reason_of(kind))

    def _arrived(self, message: amqp.Message) -> None:
        self._answers.append(json.loads(json.loads(message.body)["oslo.message"]))


def is_plain(url: str) -> bool:
    """Return whether a URL is of a RabbitMQ that can be called directly: of the library's options, TLS's alone.

    :raises ConfigurationError: it cannot be parsed.
    """
    return _split(url).scheme == "rabbit" and _query(url).keys() <= tls.OPTIONS


def _query(url: str) -> dict[str, str]:
    return dict(parse_qsl(_split(url).query))


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise unreadable(url) from None


def _hosts(url: str) -> Iterator[dict[str, Any]]:
    """Yield the hosts of a transport URL, each with its port and its user.

    :raises ConfigurationError: a port is no number.
    """
    for part in _split(url).netloc.split(","):
        account, _, address = part.rpartition("@")
        user, _, password = account.partition(":")
        try:
            parsed = urlsplit(f"//{address}")
            port = parsed.port or _PORT
        except ValueError:
            raise unreadable(url) from None
        yield {
            "host": parsed.hostname or "localhost",
            "port": port,
            "user": unquote(user) or "guest",
            "password": unquote(password) or "guest",
        }


def _fault(failure: Mapping[str, Any]) -> Exception:
    """Return the exception of a failure that a server has answered with."""
    name = str(failure.get("class"))
    kind = getattr(errors, name, None) if failure.get("module") == errors.__name__ else None
    if isinstance(kind, type) and issubclass(kind, errors.MoorageError):
        return plain_type(kind)(**failure.get("kwargs", {}))
    if name in _UNSERVED:
        return _TooNew() if name == "UnsupportedVersion" else UnservedMethod()
    return errors.InternalError(kind=name)
