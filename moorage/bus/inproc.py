"""An oslo.messaging driver with a broker inside this process: the guarantees of RabbitMQ without a network.

``inproc://name/`` names a broker, which exists as long as it has a connection. Messages, replies and errors are encoded
as JSON and decoded, as on RabbitMQ. Nothing polls: the publishing thread hands a message to a server's executor, and
the caller sleeps until its reply is in its reply box.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from oslo_config import cfg

from moorage.bus import message_json
from moorage.config import messaging  # noqa: F401 - first, because it chooses the threading backend

import oslo_messaging
from oslo_messaging._drivers import base
from oslo_messaging._drivers import common as rpc_common

# The most messages that are kept for a stopped server; then the oldest is dropped. RabbitMQ has no such bound, but here
# the messages use this process's memory. Arbitrary: far more than arrive while a service restarts.
_MAX_BACKLOG = 10_000

Key = tuple[str, str]  # exchange and queue
Box = queue.SimpleQueue[str]


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message in transit, which is already a copy of the sender's message."""

    ctxt: dict[str, Any]
    message: dict[str, Any]
    box: Box | None
    expires: float | None

    def expired(self) -> bool:
        """Return whether its sender's time-out has passed."""
        return self.expires is not None and self.expires <= time.monotonic()


class InprocMessage(base.RpcIncomingMessage):  # type: ignore[misc]
    """An incoming message of the in-process bus."""

    def __init__(self, envelope: Envelope) -> None:
        super().__init__(envelope.ctxt, envelope.message)
        self._box = envelope.box
        #: The caller's deadline; within one process it is known exactly.
        self.expires = envelope.expires

    def reply(self, reply: object = None, failure: Any = None) -> None:
        """Send the answer to the caller; a cast has none."""
        if self._box is not None:
            text = rpc_common.serialize_remote_exception(failure) if failure else None
            self._box.put(message_json.dumps({"result": reply, "failure": text}))

    def acknowledge(self) -> None:
        """Do nothing: as on RabbitMQ, a taken request is not delivered again; and its server is always reachable."""

    requeue = heartbeat = acknowledge


@dataclass(slots=True)
class _Queue:
    """A queue: its listeners, which get messages in turn, and the messages that no listener has taken yet."""

    takers: deque["InprocListener"] = field(default_factory=deque)
    backlog: deque[Envelope] = field(default_factory=lambda: deque(maxlen=_MAX_BACKLOG))

    def put(self, envelope: Envelope) -> None:
        """Give a message to the next listener, or keep it if there is none."""
        if not self.takers:
            while self.backlog and self.backlog[0].expired():
                self.backlog.popleft()
            self.backlog.append(envelope)
            return
        self.takers.rotate(-1)
        self.takers[-1].take(envelope)

    def subscribe(self, listener: "InprocListener") -> None:
        """Add a listener, and give it the waiting messages."""
        self.takers.append(listener)
        while self.backlog:
            envelope = self.backlog.popleft()
            if not envelope.expired():
                listener.take(envelope)


class Broker:
    """The queues of one broker name. The first listener or call creates a queue, which keeps messages from then on."""

    def __init__(self) -> None:
        # Held while a message is handed over, so that no listener gets a message after it has unsubscribed.
        self._lock = threading.RLock()
        self._queues: dict[Key, _Queue] = {}

    def declare(self, keys: Sequence[Key]) -> None:
        """Create these queues if they do not exist."""
        with self._lock:
            for key in keys:
                self._queues.setdefault(key, _Queue())

    def takers(self, key: Key) -> int:
        """Return the number of listeners of a queue; 0 if it does not exist."""
        with self._lock:
            found = self._queues.get(key)
            return len(found.takers) if found else 0

    def publish(self, key: Key, envelope: Envelope) -> None:
        """Put a message into a queue; without the queue, the message is lost."""
        with self._lock:
            if key in self._queues:
                self._queues[key].put(envelope)

    def subscribe(self, keys: Sequence[Key], listener: "InprocListener") -> None:
        """Add a listener to these queues, and give it the messages that wait there."""
        with self._lock:
            for key in keys:
                self._queues.setdefault(key, _Queue()).subscribe(listener)

    def unsubscribe(self, keys: Sequence[Key], listener: "InprocListener") -> None:
        """Remove a listener from these queues; later messages wait or go to others."""
        with self._lock:
            for key in keys:
                if listener in self._queues[key].takers:
                    self._queues[key].takers.remove(listener)


class InprocListener(base.Listener):  # type: ignore[misc]
    """A listener that hands the messages of a server's queues to its executor."""

    def __init__(self, home: Broker, keys: Sequence[Key]) -> None:
        super().__init__(batch_size=1, batch_timeout=None)
        self._broker = home
        self._keys = keys
        home.declare(keys)

    def start(self, on_incoming_callback: Callable[[list[InprocMessage]], None]) -> None:
        """Begin to take messages."""
        super().start(on_incoming_callback)
        self._broker.subscribe(self._keys, self)

    def take(self, envelope: Envelope) -> None:
        """Hand one message to the executor."""
        self.on_incoming_callback([InprocMessage(envelope)])

    def stop(self) -> None:
        """Take no more messages."""
        self._broker.unsubscribe(self._keys, self)
        super().stop()

    def cleanup(self) -> None:
        """Do nothing: the listener holds no resources."""


# Brokers are global to the process: equal names are the same broker. A broker ends with its last connection.
_brokers: WeakValueDictionary[str, Broker] = WeakValueDictionary()
_brokers_lock = threading.Lock()


def broker_of(url: oslo_messaging.TransportURL) -> Broker:
    """Return the broker of a URL; create it if it has no connection yet."""
    name = ",".join(str(host.hostname) for host in url.hosts) + "/" + (url.virtual_host or "")
    with _brokers_lock:
        return _brokers.setdefault(name, Broker())


class InprocDriver(base.BaseDriver):  # type: ignore[misc]
    """The oslo.messaging driver of ``inproc://`` URLs."""

    def __init__(self, conf: cfg.ConfigOpts, url: oslo_messaging.TransportURL, **settings: Any) -> None:
        super().__init__(conf, url, **settings)
        self._broker = broker_of(url)

    def takers(self, queue: str) -> int:
        """Return the number of listeners of a queue."""
        return self._broker.takers((str(self._default_exchange), queue))

    def send(
        self,
        target: oslo_messaging.Target,
        ctxt: dict[str, Any],
        message: dict[str, Any],
        wait_for_reply: bool | None = None,
        timeout: float | None = None,
        **_settings: object,  # for a broker that can be unreachable
    ) -> Any:
        """Publish a message; with ``wait_for_reply`` wait for its answer and return it."""
        box: Box | None = queue.SimpleQueue() if wait_for_reply else None
        expires = None if timeout is None else time.monotonic() + timeout
        sent = message_json.loads(message_json.dumps({"ctxt": ctxt, "message": message}))
        key = self._keys(target)[-1]
        envelope = Envelope(sent["ctxt"], sent["message"], box, expires)
        if box is not None:
            self._broker.declare([key])  # on RabbitMQ, a call is sent again until its queue exists
        self._broker.publish(key, envelope)
        return None if box is None else self._wait(box, target, timeout)

    def _wait(self, box: Box, target: oslo_messaging.Target, timeout: float | None) -> Any:
        """Wait for the reply in its box and decode it."""
        try:
            text = box.get(timeout=timeout)
        except queue.Empty:
            raise oslo_messaging.MessagingTimeout(f"No reply on topic {target.topic}") from None
        body = message_json.loads(text)
        if body["failure"]:
            raise rpc_common.deserialize_remote_exception(body["failure"], self._allowed_remote_exmods)
        return body["result"]

    def _keys(self, target: oslo_messaging.Target) -> list[Key]:
        """Return the queue of a target's topic and, if the target names a server, that server's own queue."""
        exchange = str(target.exchange or self._default_exchange)
        if not target.server:
            return [(exchange, target.topic)]
        return [(exchange, target.topic), (exchange, f"{target.topic}.{target.server}")]  # named as on RabbitMQ

    def listen(self, target: oslo_messaging.Target, *_batching: object) -> InprocListener:
        """Return a listener to the topic and to the server's own queue."""
        return InprocListener(self._broker, self._keys(target))

    def send_notification(self, *_args: object, **_kwargs: object) -> None:
        """Refuse: Moorage sends no notifications."""
        raise NotImplementedError("inproc carries calls and casts alone")

    listen_for_notifications = send_notification

    def cleanup(self) -> None:
        """Do nothing: the broker ends with its last connection."""
