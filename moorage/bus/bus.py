"""The message bus over oslo.messaging: clients and servers of typed messages; errors keep their types over the wire.

A call is carried out at most once per sending. After :class:`~moorage.errors.NoReply` its outcome is unknown, and the
caller repeats the message with the same request id. A server that starts while the broker is unreachable raises
:class:`~moorage.errors.BusUnavailable`; a running server tries to reconnect without end.
"""

import contextvars
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

from oslo_config import cfg

from moorage import context, errors, failpoints, logs
from moorage.addresses import mask_url
from moorage.batches import BatchItem
from moorage.bus.broker import CONNECTION_FAULTS, close_transport, parsed
from moorage.bus.bus_server import BusServer as BusServer
from moorage.bus.calling import HOUSEKEEPING, Caller, Exchange, Wake, ended_exchange, outgoing, plain_error, reason
from moorage.bus.handlers import Endpoint, many_handlers
from moorage.bus.handlers import LaterCalls as LaterCalls
from moorage.bus.handlers import handlers as handlers
from moorage.bus.handlers import serves as serves
from moorage.bus.handlers import serves_many as serves_many
from moorage.bus.inproc import InprocDriver
from moorage.bus.rabbit.broker_hosts import BrokerHosts
from moorage.bus.rabbit.connection import NotSentInTime
from moorage.bus.rabbit.driver import BATCHED, RabbitDriver
from moorage.bus.rabbit.message_batches import LibraryCall
from moorage.config import options
from moorage.messages.wire import Message, R, encode, prepare
from moorage.model.basis import fault_of_name

import oslo_messaging
from oslo_messaging.rpc import dispatcher as rpc_dispatcher

_EXPECTED_REMOTELY = [errors.__name__, rpc_dispatcher.__name__]
#: The most clients that are kept for their next use. Arbitrary.
_MOST_CLIENTS = 1000
#: The most bytes of a service's name. A queue's name has at most 255; it begins with the topic, perhaps with a uuid.
_LONGEST_NAME = 200
#: The schemes of RabbitMQ in the URL of a broker.
_RABBIT = frozenset({"rabbit", "kombu"})

# --- The calling side -----------------------------------------------------------------------------------------------


class _BegunCall(NamedTuple):
    """A call that has been begun, one of several in the same thread."""

    item: BatchItem[Message[Any], Any]
    own: contextvars.Context
    exchange: Exchange[Any]

    def end(self, sent: BatchItem[LibraryCall, Any]) -> BatchItem[Message[Any], Any]:
        """Set the outcome of the call."""
        self.item.do(lambda _message: self.own.run(ended_exchange, self.exchange, sent.outcome))
        return self.item


class Client(Caller):
    """Sends messages to one topic, or to one server of it; each method may raise :class:`.BusUnavailable`."""

    too_new = (rpc_dispatcher.UnsupportedVersion,)

    def __init__(self, bus: "Bus", topic: str, server: str | None, timeout: float) -> None:
        super().__init__(topic, server, timeout)
        self._bus = bus
        self._client = bus.library_client(oslo_messaging.Target(topic=topic, server=server))

    def ask(self, message: Message[Any], seconds: float) -> Any:
        """Send a message, and return the encoded answer."""
        options = BATCHED if message.may_be_batched else None
        prepared = self._client.prepare(timeout=seconds, version=message.lowest_version(), transport_options=options)
        return prepared.call(outgoing(message, seconds), message.method, **encode(message))

    @property
    def takes_many(self) -> bool:
        """True if the messages of :meth:`call_many` travel together."""
        # The failpoints of a drill act on single calls.
        return self._bus.rabbit is not None and not failpoints.are_armed()

    def call_many(self, items: Sequence[BatchItem[Message[Any], Any]]) -> Iterator[list[BatchItem[Message[Any], Any]]]:
        """Send messages, in batches where possible, and set the answer or error of each as :meth:`call` would.

        The in-process bus sends them one after another.

        :return: yields items as soon as they have an outcome, so that a slow one does not delay the others. Items that
            get their outcomes at the same time are yielded together.
        """
        if (rabbit := self._bus.rabbit) is None:
            for item in items:
                item.do(self.call)
                yield [item]
            return
        begun: dict[BatchItem[LibraryCall, Any], _BegunCall] = {}
        for item in items:
            # Each call begins and ends in its own context, because several calls are in progress in this thread.
            own = contextvars.copy_context()
            own.run(context.adopt, item.context)
            exchange = self.exchange(item.value)
            try:
                begun[own.run(self._begin, item.value, exchange)] = _BegunCall(item, own, exchange)
            except Exception as fault:  # noqa: BLE001 - it is this call's outcome
                item.fail(fault)
        if failed := [item for item in items if item.is_done]:
            yield failed
        if not begun:
            return  # without a broker, the library would wait for one
        try:
            for portion in rabbit.send_many(self._client.target, list(begun), self._client.retry):
                yield [begun[sent].end(sent) for sent in portion]
        except Exception as fault:  # noqa: BLE001 - it is the outcome of the calls that were not sent
            unsent = [sent for sent in begun if not sent.is_done]
            for sent in unsent:
                sent.fail(fault)
            yield [begun[sent].end(sent) for sent in unsent]

    @staticmethod
    def _begin(message: Message[Any], exchange: Exchange[Any]) -> BatchItem[LibraryCall, Any]:
        seconds = next(exchange)
        try:
            content = {"method": message.method, "args": encode(message), "version": message.lowest_version()}
            return BatchItem(LibraryCall(outgoing(message, seconds), content, seconds))
        except Exception as fault:
            exchange.throw(fault)
            raise

    def reach(self) -> None:
        """Check the broker, until a first reply has shown that the reply queue exists; see :meth:`Bus.probe`."""
        if not self._bus.has_replied:
            self._bus.probe()

    def note_reply(self) -> None:
        """Note that the reply queue exists."""
        self._bus.has_replied = True

    def ping(self, timeout: float | None = None) -> str | None:
        """Ping a server, as :meth:`Caller.ping` describes."""
        seconds = self.seconds(timeout)
        prepared = self._client.prepare(timeout=seconds, namespace=HOUSEKEEPING, version="1.0")
        with self.faults(Wake(), seconds):
            self.reach()
            answer: str | None = prepared.call({}, Wake.method)
        return answer

    def wake(self) -> None:
        """Send a message that wakes a server of this topic; the server does nothing else and does not answer."""
        with self.faults(Wake(), self._timeout):
            self._client.prepare(namespace=HOUSEKEEPING, version="1.0").cast({}, Wake.method)

    def cast(self, message: Message[R]) -> None:
        """Send ``message`` without waiting for a server to take it."""
        with self.faults(message, self._timeout), suppress(failpoints.Dropped):
            failpoints.reached("send", message.topic, message.method)
            prepared = self._client.prepare(version=message.lowest_version())
            prepared.cast(outgoing(message), message.method, **encode(message))

    @contextmanager
    def faults(self, message: Message[Any], seconds: float) -> Iterator[None]:
        """Translate the library's exceptions into Moorage's errors, without the server's traceback."""
        try:
            yield
        except errors.MoorageError as remote:
            raise plain_error(remote) from None
        except (oslo_messaging.MessagingTimeout, NotSentInTime, failpoints.Dropped):
            raise errors.NoReply(topic=self._address, method=message.method, seconds=seconds) from None
        except (rpc_dispatcher.NoSuchMethod, rpc_dispatcher.UnsupportedVersion):
            raise self.not_served(message) from None
        except oslo_messaging.RemoteError as remote:
            raise errors.InternalError(kind=str(remote.exc_type)) from None
        except CONNECTION_FAULTS as fault:
            raise errors.BusUnavailable(reason=f"{self._bus.url}: {reason(fault)}") from None


class Bus:
    """The connections of one service to one broker.

    :param transport_url: used instead of the configured one.
    :raises ConfigurationError: the URL is not valid, or none is configured.
    """

    #: Seconds to wait for an answer from another server of the same name, which may be busy.
    namesake_seconds: ClassVar[float] = 10.0

    def __init__(self, conf: cfg.ConfigOpts, transport_url: str | None = None) -> None:
        prepare()
        self._conf = conf
        self._url = options.required(conf, "DEFAULT", "transport_url") if transport_url is None else transport_url
        # Every message to an agent needs a client; clients can be shared because they have no state.
        self._clients = lru_cache(_MOST_CLIENTS)(partial(Client, self))
        self._transport = self.new_transport()
        #: None for the in-process bus, whose broker is always available.
        self._hosts = BrokerHosts(self._url, conf) if self.rabbit else None
        #: True once a reply has shown that the reply queue exists.
        self.has_replied = False
        self._lock = threading.Lock()
        self._servers: list[BusServer] = []

    @property
    def url(self) -> str:
        """The broker's URL with passwords hidden."""
        return mask_url(self._url)

    def client(self, topic: str, server: str | None = None, timeout: float | None = None) -> Client:
        """Return a client of ``topic``, or of one ``server`` of it; ``timeout`` is the default of its calls."""
        return self._clients(topic, server, self._conf.rpc.call_timeout if timeout is None else timeout)

    def server(self, topic: str, server: str, services: Sequence[object], threads: int = 8) -> BusServer:
        """Return a server, not yet started, for all messages of ``services``; see :func:`.handlers.handlers`.

        :raises ConfigurationError: the name of the server is not one that a queue and the list of services can have.
        """
        if not server or fault_of_name(server) or len(server.encode()) > _LONGEST_NAME:
            raise errors.ConfigurationError(
                reason=f"{server!r:.40} is no name of a service: it has 1 to {_LONGEST_NAME} bytes without control "
                "characters, and does not end with a blank. See --name; for an agent, --agent and [compute] agent"
            )
        name = logs.service_name(self._conf)
        endpoints: dict[str, Endpoint] = {}
        many = many_handlers(services)
        for message_type, handler in handlers(services):
            if message_type.method in endpoints:
                raise TypeError(f"{message_type.method} is served twice on {topic}")
            endpoints[message_type.method] = Endpoint(message_type, handler, name, many.get(message_type))
        built = BusServer(self, topic, server, list(endpoints.values()), threads)
        with self._lock:
            self._servers.append(built)
        return built

    def close(self) -> None:
        """Stop the running servers and close all connections. With RabbitMQ this may take some seconds."""
        for server in list(self._servers):
            server.stop()
        if self._hosts:
            self._hosts.close()
        close_transport(self._transport)

    # The rest is for clients and servers of this package.

    def new_transport(self) -> oslo_messaging.Transport:
        """Return a transport that has its own connections."""
        url = parsed(self._conf, self._url)
        # The library has more drivers. They lose messages, do not leave the process, or cannot be counted here.
        if url.transport not in {*_RABBIT, "inproc"}:
            fault = "begins with rabbit:// or, only for services in one process, with inproc://"
            raise errors.ConfigurationError(reason=f"transport_url {self.url}: the URL of a message bus {fault}")
        try:
            if url.transport in _RABBIT:
                exchange = self._conf.control_exchange
                return oslo_messaging.transport.RPCTransport(
                    RabbitDriver(self._conf, url, default_exchange=exchange, allowed_remote_exmods=_EXPECTED_REMOTELY)
                )
            return oslo_messaging.get_rpc_transport(self._conf, url=url, allowed_remote_exmods=_EXPECTED_REMOTELY)
        except (oslo_messaging.DriverLoadFailure, cfg.Error, RuntimeError, ValueError) as fault:  # also a wrong option
            raise errors.ConfigurationError(reason=f"transport_url {self.url}: {reason(fault)}") from fault

    @property
    def rabbit(self) -> RabbitDriver | None:
        """The driver of a bus over RabbitMQ; None for the in-process bus."""
        driver = self._transport._driver  # noqa: SLF001 - the library has no public access to it
        return driver if isinstance(driver, RabbitDriver) else None

    def library_client(self, target: oslo_messaging.Target) -> oslo_messaging.RPCClient:
        """Return the library's client for a target; the client retries a failed sending a bounded number of times."""
        return oslo_messaging.get_rpc_client(self._transport, target, retry=self._conf.rpc.send_retries)

    def probe(self) -> None:
        """Check that the broker can be reached.

        The library declares a server's queues and the reply queue with endless retries. Without this check, the start
        of a server or a first call would hang for as long as the broker is unreachable.

        :raises BusRefused: the broker does not admit this user to this virtual host.
        :raises BusUnavailable: the broker cannot be reached.
        """
        if self._hosts:
            self._hosts.probe()

    def check_alarms(self) -> None:
        """Check that the broker takes messages, as :meth:`.BrokerHosts.check_alarms` describes."""
        if self._hosts:
            self._hosts.check_alarms()

    def servers_of(self, topic: str, server: str | None = None) -> int | None:
        """Return the number of servers of a topic, or of one name on it; None if it is unknown.

        :raises BusUnavailable: the broker cannot be reached.
        """
        queue = topic if server is None else f"{topic}.{server}"
        if self._hosts:
            return self._hosts.consumers(queue)
        driver = self._transport._driver  # noqa: SLF001 - the library has no public access to it
        return driver.takers(queue) if isinstance(driver, InprocDriver) else None

    def forget(self, server: BusServer) -> None:
        """Remove a stopped server from the list of servers that :meth:`close` stops."""
        with self._lock, suppress(ValueError):
            self._servers.remove(server)
