"""The hosts of a RabbitMQ cluster; connections to them with the AMQP library alone; checks of the broker.

Commands send their calls over such connections (:mod:`moorage.bus.rabbit.direct`). Services check the broker over them
before they use the bus library, which would wait for an unreachable broker without end.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import amqp
from oslo_config import cfg

from moorage import errors, ids
from moorage.addresses import address, check_host, mask_url
from moorage.bus.calling import REPLIES_OF_CONNECTION, reason, seconds_for_queue, unreadable
from moorage.bus.rabbit import alarms, tls

T = TypeVar("T")

FAULTS: tuple[type[Exception], ...] = (amqp.exceptions.AMQPError, OSError)
#: Seconds to wait for a connection, as many as oslo.messaging waits. A slower broker is of no use to a caller.
_CONNECT_SECONDS = 5.0
#: The least time for a host, in seconds, when the hosts before it have used up the time. Arbitrary.
_LEAST_SECONDS = 0.1
#: Seconds to wait on a blocked connection for the end of an alarm, which the broker has reported if it is over.
_UNBLOCKED_SECONDS = 0.1
_PORT = 5672
#: The hosts that this process could not reach at its last try; it tries them after all others. A host that does not
#: answer costs seconds each time, and the cluster works without it.
_AWAY: set[str] = set()


class _BlockedByAlarm(OSError):
    """The broker takes no messages from this connection while one of its alarms is on."""


class DirectConnection:
    """One connection to the broker, for one thread at a time; the first call creates its queue for answers."""

    def __init__(self, connected: amqp.Connection, seconds: float) -> None:
        self._amqp = connected
        self._seconds = seconds
        self._channel: Any = None
        self._queue = ""
        self._answers: list[dict[str, Any]] = []
        #: Why the broker takes no messages from this connection.
        self._alarm: str | None = None
        alarms.listen(self._amqp, self._blocked)
        self._amqp.on_unblocked = self._unblocked

    def consumers(self, queue: str) -> int | None:
        """Return the number of a queue's consumers; None if this user has no permission to read it."""
        try:
            with self._amqp.channel() as channel:
                return int(channel.queue_declare(queue, passive=True).consumer_count)
        except amqp.exceptions.NotFound:
            return 0
        except amqp.exceptions.AccessRefused:
            return None

    def confirm(self) -> None:
        """Send two unroutable messages, one after the other, and return when the broker has confirmed both.

        One is not enough: during an alarm, RabbitMQ 3.10 blocks a connection only after confirming its first message,
        in about three of ten thousand connections. It never confirms the second.
        """
        channel = self._amqp.channel()
        try:
            for _ in range(2):
                unroutable = f"nobody-{ids.fresh()}"
                channel.basic_publish_confirm(amqp.Message(""), routing_key=unroutable, confirm_timeout=self._seconds)
        except amqp.exceptions.AccessRefused:
            pass  # this user may not send to the default exchange
        except TimeoutError:
            raise TimeoutError(f"it has not confirmed a message within {self._seconds:g} s") from None

    def is_blocked(self) -> bool:
        """Return whether the broker still takes no messages from this connection; if the connection is lost, false."""
        while True:
            try:
                self._amqp.drain_events(timeout=_UNBLOCKED_SECONDS)
            except _BlockedByAlarm:
                continue  # by a further alarm, or by the same one again
            except TimeoutError:
                return self._alarm is not None
            except FAULTS:
                return False

    def call(self, exchange: str, topic: str, content: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """Send a call, and return the body of its answer; None if no answer comes in time."""
        end = time.monotonic() + seconds
        if self._channel is None:
            self._open()
        message_id = ids.fresh()
        own = {"_msg_id": message_id, "_reply_q": self._queue, "_timeout": None, "_unique_id": ids.fresh()}
        body = json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps({**content, **own})})
        # The broker drops the message when its caller can no longer get an answer in time.
        expires = str(int(seconds_for_queue(seconds) * 1000))
        message = amqp.Message(body, content_type="application/json", content_encoding="utf-8", expiration=expires)
        self._channel.basic_publish(message, exchange=exchange, routing_key=topic)
        while (left := end - time.monotonic()) > 0:
            while self._answers:
                answer = self._answers.pop(0)
                if answer.get("_msg_id") == message_id:  # other answers belong to calls that have timed out
                    return answer
            try:
                self._amqp.drain_events(timeout=left)
            except TimeoutError:
                break
        return None

    def close(self) -> None:
        """Close the connection; a broker that does not answer delays this only briefly."""
        with suppress(*FAULTS, RecursionError):
            if self._amqp.connected:
                self._amqp.transport.sock.settimeout(1.0)
                self._amqp.close()
        self._amqp.collect()

    def drop(self) -> None:
        """Close the connection without AMQP's closing hand-shake, which a broker with an alarm does not answer."""
        with suppress(AttributeError, OSError):  # it is closed already
            self._amqp._transport.sock.settimeout(0)  # noqa: SLF001 - the public property would connect again
        self._amqp.collect()

    def _open(self) -> None:
        """Create the queue for answers, which the broker deletes when the connection ends."""
        self._channel = self._amqp.channel()
        self._queue = f"{REPLIES_OF_CONNECTION}{ids.fresh().replace('-', '')}"
        self._channel.queue_declare(self._queue, exclusive=True, auto_delete=True)
        self._channel.basic_consume(self._queue, no_ack=True, callback=self._arrived)

    def _blocked(self, kind: str) -> None:
        # Fail at once instead of at the time-out. The broker reads the message when the alarm ends. As after the loss
        # of a connection, it is unknown whether the message will be carried out.
        self._alarm = alarms.reason_of(kind)
        raise _BlockedByAlarm(self._alarm)

    def _unblocked(self) -> None:
        self._alarm = None

    def _arrived(self, message: amqp.Message) -> None:
        self._answers.append(json.loads(json.loads(message.body)["oslo.message"]))


class _Host(NamedTuple):
    name: str
    port: int
    user: str
    password: str

    @property
    def address(self) -> str:
        """The address in the form that the AMQP library expects."""
        return address(self.name, self.port)


class BrokerHosts:
    """The hosts of a RabbitMQ cluster; the first one that accepts a connection is used.

    :param url: ``rabbit://user:password@host:port,user:password@host:port/virtual host``.
    :param conf: the bus library's options for TLS and the login; options in the URL replace them.
    :raises ConfigurationError: the URL cannot be parsed.
    """

    def __init__(self, url: str, conf: cfg.ConfigOpts) -> None:
        #: The URL with passwords hidden.
        self.url = mask_url(url)
        self._options, self._query = conf.oslo_messaging_rabbit, query_of(url)
        self._hosts = list(_hosts(url))
        self._virtual_host = unquote(split(url).path[1:]) or "/"
        #: The connections of checks that have found an alarm, each with its error.
        self._blocked: list[tuple[DirectConnection, _BlockedByAlarm]] = []
        self._lock = threading.Lock()

    def probe(self) -> None:
        """Check within some seconds that the broker can be reached, as :meth:`.Bus.probe` describes."""
        self.connect(DirectConnection.close, within=_CONNECT_SECONDS)

    def check_alarms(self) -> None:
        """Check that the broker takes messages; during an alarm it takes none.

        :raises BusUnavailable: the broker takes no messages, or cannot be reached.
        """
        # The broker does not notice that a blocked connection is closed. So it is kept for the next check: with a new
        # one for each check, the broker would have them all until the alarm ends.
        with self._lock:
            while self._blocked:
                connection, fault = self._blocked[-1]
                if connection.is_blocked():
                    raise errors.BusUnavailable(reason=f"{self.url}: {fault}")
                self._blocked.pop()
                connection.close()

        def confirm(connection: DirectConnection) -> _BlockedByAlarm | None:
            try:
                connection.confirm()
            except _BlockedByAlarm as fault:
                with self._lock:
                    self._blocked.append((connection, fault))
                return fault
            connection.close()
            return None

        if (found := self.connect(confirm)) is not None:
            raise errors.BusUnavailable(reason=f"{self.url}: {found}")

    def close(self) -> None:
        """Drop the connections that checks have kept."""
        with self._lock:
            blocked, self._blocked = self._blocked, []
        for connection, _fault in blocked:
            connection.drop()

    def consumers(self, queue: str) -> int | None:
        """Return the number of a queue's consumers; None if the broker does not report it.

        :raises BusUnavailable: the broker cannot be reached.
        """

        def count(connection: DirectConnection) -> int | None:
            with closing(connection):
                return connection.consumers(queue)

        return self.connect(count)

    def connect(self, use: Callable[[DirectConnection], T], within: float = math.inf) -> T:
        """Call ``use`` with a connection to each host in turn until it succeeds, and return its result.

        :param use: closes the connection or keeps it; if it raises an exception, the connection is dropped.
        :param within: the seconds for all hosts together.
        :raises BusRefused: no host admits this user to this virtual host.
        :raises BusUnavailable: ``use`` succeeded with no host.
        """
        end = time.monotonic() + within
        reasons: dict[str, None] = {}
        is_refused = True
        for host in sorted(self._hosts, key=lambda host: host.address in _AWAY):
            seconds = max(end - time.monotonic(), _LEAST_SECONDS)
            try:
                connection = self._connected(host, min(seconds, _CONNECT_SECONDS))
                _AWAY.discard(host.address)
                return _used(connection, use)
            except FAULTS as fault:
                if not isinstance(fault, amqp.exceptions.IrrecoverableChannelError | amqp.exceptions.NotAllowed):
                    _AWAY.add(host.address)
                reasons[reason(fault)] = None
                is_refused &= tls.is_refusal(fault)
        kind = errors.BusRefused if is_refused else errors.BusUnavailable
        raise kind(reason=f"{self.url}: {'; '.join(reasons)}")

    def _connected(self, host: _Host, seconds: float) -> DirectConnection:
        connection = amqp.Connection(
            host=host.address,
            userid=host.user,
            password=host.password,
            virtual_host=self._virtual_host,
            connect_timeout=seconds,
            read_timeout=seconds,
            write_timeout=seconds,
            client_properties={"capabilities": {"connection.blocked": True}},
            **tls.arguments(self._options, self._query, host.name),
        )
        try:
            connection.connect()
        except BaseException:
            connection.collect()
            raise
        return DirectConnection(connection, seconds)


def _used(connection: DirectConnection, use: Callable[[DirectConnection], T]) -> T:
    try:
        return use(connection)
    except BaseException:
        connection.drop()
        raise


def query_of(url: str) -> dict[str, str]:
    """Return the options at the end of a URL."""
    return dict(parse_qsl(split(url).query))


def split(url: str) -> SplitResult:
    """Split a URL into its parts.

    :raises ConfigurationError: the URL cannot be parsed.
    """
    try:
        return urlsplit(url)
    except ValueError:
        raise unreadable(url) from None


def _hosts(url: str) -> Iterator[_Host]:
    """Yield the hosts of a transport URL.

    :raises ConfigurationError: a port is not a number, or no host can have such a name.
    """
    for part in [part for part in split(url).netloc.split(",") if part] or [""]:
        account, _, address = part.rpartition("@")
        user, _, password = account.partition(":")
        try:
            parsed = urlsplit(f"//{address}")
            port = parsed.port or _PORT
            check_host(parsed.hostname or "")
        except ValueError:
            raise unreadable(url) from None
        yield _Host(parsed.hostname or "localhost", port, unquote(user) or "guest", unquote(password) or "guest")
