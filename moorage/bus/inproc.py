"""An oslo.messaging driver whose broker is this process: what RabbitMQ promises, without a network.

``inproc://name/`` names a broker; it lives as long as somebody is connected to it. Messages, replies and errors make
the same round trip through JSON as on RabbitMQ. Nothing polls: a published message is handed to a server's executor by
the thread that publishes it, and a caller sleeps until its reply is put into its box.
"""

import copy
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from moorage.config import messaging  # noqa: F401 - first, because it chooses the threading backend

# isort: split
import oslo_messaging
from oslo_config import cfg
from oslo_messaging._drivers import base
from oslo_messaging._drivers import common as rpc_common

from moorage.bus.handlers import SECONDS_LEFT

# How many messages wait for a server that has stopped before the oldest is dropped; RabbitMQ has no such bound, but
# its memory is not ours. Arbitrary, and far more than any service leaves behind while it restarts.
_MAX_BACKLOG = 10_000

Key = tuple[str, str]  # exchange and queue
Box = queue.SimpleQueue[str]


@dataclass(frozen=True, slots=True)
class _Envelope:
    """A message on its way, already a copy of the sender's."""

    ctxt: dict[str, Any]
    message: dict[str, Any]
    box: Box | None
    expires: float | None

    def expired(self) -> bool:
        """Say whether its sender has stopped waiting."""
        return self.expires is not None and self.expires <= time.monotonic()


class InprocMessage(base.RpcIncomingMessage):  # type: ignore[misc]
    """A message as its server sees it."""

    def __init__(self, envelope: _Envelope) -> None:
        super().__init__(envelope.ctxt, envelope.message)
        self._box = envelope.box
        #: The end of the caller's time; within one process it is known exactly.
        self.expires = envelope.expires

    def reply(self, reply: object = None, failure: Any = None) -> None:
        """Answer the caller; a cast has none."""
        if self._box is not None:
            text = rpc_common.serialize_remote_exception(failure) if failure else None
            body: dict[str, str] = rpc_common.serialize_msg({"result": reply, "failure": text})
            self._box.put(body["oslo.message"])

    def acknowledge(self) -> None:
        """Do nothing: as on RabbitMQ, a request counts as taken before it is carried out."""

    def requeue(self) -> None:
        """Do nothing: a request that was taken is not given to anybody else."""

    def heartbeat(self) -> None:
        """Do nothing: a server in the caller's own process cannot be away."""


@dataclass(frozen=True)
class Delivery:
    """A message on its way to a queue, for a test or a drill that delivers it once more, or later."""

    topic: str
    method: str
    arguments: dict[str, Any]
    _broker: "Broker"
    _key: Key
    _envelope: _Envelope

    def deliver(self, timeout: float, seconds_left: float | None = None) -> dict[str, Any]:
        """Put a copy into the queue, which nobody has waited for until now; return what it is answered with.

        :param seconds_left: the rest of the caller's time. Without it, what the message names alone can protect
            against it.
        :raises queue.Empty: it is not answered in time.
        """
        box: Box = queue.SimpleQueue()
        ctxt = {name: value for name, value in self._envelope.ctxt.items() if name != SECONDS_LEFT}
        if seconds_left is not None:
            ctxt[SECONDS_LEFT] = seconds_left
        self._broker.publish(self._key, _Envelope(ctxt, copy.deepcopy(self._envelope.message), box, None))
        text = box.get(timeout=timeout)
        answer: dict[str, Any] = rpc_common.deserialize_msg({"oslo.version": "2.0", "oslo.message": text})
        return answer


#: Told of each call before it is delivered; true loses it, as a broker does that dies with the message.
Observer = Callable[[Delivery], bool]


@dataclass(slots=True)
class _Queue:
    """Messages for one address: those who take them, by turns, and those that nobody has taken yet."""

    takers: deque["InprocListener"] = field(default_factory=deque)
    backlog: deque[_Envelope] = field(default_factory=lambda: deque(maxlen=_MAX_BACKLOG))

    def put(self, envelope: _Envelope) -> None:
        """Give a message to the next in turn, or keep it."""
        if not self.takers:
            while self.backlog and self.backlog[0].expired():
                self.backlog.popleft()
            self.backlog.append(envelope)
            return
        self.takers.rotate(-1)
        self.takers[-1].take(envelope)

    def subscribe(self, listener: "InprocListener") -> None:
        """Let one more take part, and give it what waits."""
        self.takers.append(listener)
        while self.backlog:
            envelope = self.backlog.popleft()
            if not envelope.expired():
                listener.take(envelope)


class Broker:
    """The queues of one name. A queue exists once somebody has listened to it, and keeps messages from then on."""

    def __init__(self) -> None:
        # Held while a message is handed over, so that no server is given one after it has stopped listening.
        self._lock = threading.RLock()
        self._queues: dict[Key, _Queue] = {}
        self.observers: list[Observer] = []

    def declare(self, keys: Sequence[Key]) -> None:
        """Make sure that these queues exist."""
        with self._lock:
            for key in keys:
                self._queues.setdefault(key, _Queue())

    def takers(self, key: Key) -> int:
        """Return how many listen to a queue, which may not exist."""
        with self._lock:
            found = self._queues.get(key)
            return len(found.takers) if found else 0

    def publish(self, key: Key, envelope: _Envelope) -> bool:
        """Put a message into a queue; without that queue it is lost, which the answer says."""
        with self._lock:
            found = self._queues.get(key)
            if found is not None:
                found.put(envelope)
            return found is not None

    def fan_out(self, key: Key, envelope: _Envelope) -> bool:
        """Give a message to everyone who listens right now."""
        with self._lock:
            found = self._queues.get(key)
            takers = list(found.takers) if found else []
            for listener in takers:
                listener.take(copy.deepcopy(envelope))  # fan-out is for casts: there is no box in it
            return bool(takers)

    def subscribe(self, keys: Sequence[Key], listener: "InprocListener") -> None:
        """Let ``listener`` take from these queues, beginning with what waits there."""
        with self._lock:
            for key in keys:
                self._queues.setdefault(key, _Queue()).subscribe(listener)

    def unsubscribe(self, keys: Sequence[Key], listener: "InprocListener") -> None:
        """Give nothing more to ``listener``; what is published from now on waits or goes to others."""
        with self._lock:
            for key in keys:
                if listener in self._queues[key].takers:
                    self._queues[key].takers.remove(listener)


class InprocListener(base.Listener):  # type: ignore[misc]
    """Hands the messages of a server's queues to its executor."""

    def __init__(self, home: Broker, keys: Sequence[Key]) -> None:
        super().__init__(batch_size=1, batch_timeout=None)
        self._broker = home
        self._keys = keys
        home.declare(keys)

    def start(self, on_incoming_callback: Callable[[list[InprocMessage]], None]) -> None:
        """Begin to take messages."""
        super().start(on_incoming_callback)
        self._broker.subscribe(self._keys, self)

    def take(self, envelope: _Envelope) -> None:
        """Hand one message to the executor."""
        self.on_incoming_callback([InprocMessage(envelope)])

    def stop(self) -> None:
        """Take nothing more."""
        self._broker.unsubscribe(self._keys, self)
        super().stop()

    def cleanup(self) -> None:
        """Do nothing: there is nothing left to give back."""


# A process has one set of brokers as a machine has one set of ports: whoever uses the same name meets there. A broker
# that nobody is connected to any more is gone.
_brokers: WeakValueDictionary[str, Broker] = WeakValueDictionary()
_brokers_lock = threading.Lock()


def _broker(url: oslo_messaging.TransportURL) -> Broker:
    """Return the broker of that name, a new one if nobody is connected to it."""
    name = ",".join(str(host.hostname) for host in url.hosts) + "/" + (url.virtual_host or "")
    with _brokers_lock:
        return _brokers.setdefault(name, Broker())


def takers(url: oslo_messaging.TransportURL, exchange: str, queue: str) -> int:
    """Return how many listen to a queue."""
    return _broker(url).takers((exchange, queue))


@contextmanager
def observed(conf: cfg.ConfigOpts, url: str, observer: Observer) -> Iterator[None]:
    """Tell ``observer`` of all calls over this in-process bus, until exit."""
    home = _broker(oslo_messaging.TransportURL.parse(conf, url))
    home.observers.append(observer)
    try:
        yield
    finally:
        home.observers.remove(observer)


class InprocDriver(base.BaseDriver):  # type: ignore[misc]
    """The driver of ``inproc://`` URLs."""

    def __init__(
        self,
        conf: Any,
        url: oslo_messaging.TransportURL,
        default_exchange: str | None = None,
        allowed_remote_exmods: Sequence[str] | None = None,
    ) -> None:
        super().__init__(conf, url, default_exchange, allowed_remote_exmods)
        self._broker = _broker(url)

    def send(
        self,
        target: oslo_messaging.Target,
        ctxt: dict[str, Any],
        message: dict[str, Any],
        wait_for_reply: bool | None = None,
        timeout: float | None = None,
        call_monitor_timeout: float | None = None,  # noqa: ARG002 - a server in this process cannot be away
        retry: int | None = None,  # noqa: ARG002 - nothing here can fail and then succeed
        transport_options: oslo_messaging.TransportOptions | None = None,
    ) -> Any:
        """Publish a message, and with ``wait_for_reply`` sleep until it is answered."""
        box: Box | None = queue.SimpleQueue() if wait_for_reply else None
        expires = None if timeout is None else time.monotonic() + timeout
        sent = rpc_common.deserialize_msg(rpc_common.serialize_msg({"ctxt": ctxt, "message": message}))
        key = self._keys(target)[-1]
        envelope = _Envelope(sent["ctxt"], sent["message"], box, expires)
        if box is not None and self._is_lost(key, envelope):
            raise oslo_messaging.MessagingTimeout(f"No reply on topic {target.topic}")
        deliver = self._broker.fan_out if target.fanout else self._broker.publish
        arrived = deliver(key, envelope)
        if not arrived and transport_options is not None and transport_options.at_least_once:
            raise oslo_messaging.MessageUndeliverable("no such queue", *key, message)
        return None if box is None else self._wait(box, target, timeout)

    def _is_lost(self, key: Key, envelope: _Envelope) -> bool:
        """Tell the observers of a call; return whether it is lost."""
        message = envelope.message
        if message.get("namespace") is not None:
            return False
        delivery = Delivery(key[1], message["method"], message["args"], self._broker, key, envelope)
        lost = [observer(delivery) for observer in list(self._broker.observers)]
        return any(lost)

    def _wait(self, box: Box, target: oslo_messaging.Target, timeout: float | None) -> Any:
        """Sleep until the reply is in its box, and unpack it."""
        try:
            text = box.get(timeout=timeout)
        except queue.Empty:
            raise oslo_messaging.MessagingTimeout(f"No reply on topic {target.topic}") from None
        body = rpc_common.deserialize_msg({"oslo.version": "2.0", "oslo.message": text})
        if body["failure"]:
            raise rpc_common.deserialize_remote_exception(body["failure"], self._allowed_remote_exmods)
        return body["result"]

    def _keys(self, target: oslo_messaging.Target) -> list[Key]:
        """Return the queue of a target's topic and, if it names a server, that server's own."""
        exchange = str(target.exchange or self._default_exchange)
        if not target.server or target.fanout:
            return [(exchange, target.topic)]
        return [(exchange, target.topic), (exchange, f"{target.topic}.{target.server}")]  # named as on RabbitMQ

    def listen(
        self,
        target: oslo_messaging.Target,
        batch_size: int,  # noqa: ARG002 - no batches
        batch_timeout: float | None,  # noqa: ARG002 - no batches
    ) -> InprocListener:
        """Return a listener to the topic and to the server's own queue."""
        return InprocListener(self._broker, self._keys(target))

    def send_notification(self, *_args: object, **_kwargs: object) -> None:
        """Refuse: Moorage sends no notifications."""
        raise NotImplementedError("inproc carries calls and casts alone")

    def listen_for_notifications(self, *_args: object, **_kwargs: object) -> None:
        """Refuse: Moorage sends no notifications."""
        raise NotImplementedError("inproc carries calls and casts alone")

    def cleanup(self) -> None:
        """Do nothing: the broker goes with its last connection."""
