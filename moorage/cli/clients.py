"""Clients for an operator's commands: for all topics of the main bus, and for cell conductors on their buses.

A service that waits for another one repeats its calls. A command fails within seconds if its topic is not served.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from oslo_config import cfg

from moorage import errors
from moorage.bus.calling import Caller
from moorage.bus.rabbit.direct import DirectBus, DirectClient, is_plain
from moorage.config import calls
from moorage.config.options import required
from moorage.messages.wire import Message
from moorage.model import Cell

if TYPE_CHECKING:
    from moorage.bus.bus import Bus

R = TypeVar("R")

#: Seconds to wait for a service that is starting, and seconds between two checks. Arbitrary.
_GRACE = 3.0
_LOOK = 0.25
_STARTED_BY = {
    "placement": "`moorage scheduler`, or `moorage placement` where [scheduler] serve_placement is false",
    "scheduler": "`moorage scheduler`",
    "conductor": "`moorage conductor`",
}


class CheckedClient:
    """A client that fails at once if its topic is not served: ``require`` then raises ``NotServed``."""

    def __init__(self, caller: Caller, require: Callable[[], None]) -> None:
        self._caller = caller
        self.require = require

    def call(self, message: Message[R], timeout: float | None = None) -> R:
        """Send a message and return its answer, as :meth:`Caller.call` does.

        :raises NotServed: the topic has no server.
        """
        self.require()
        return self._caller.call(message, timeout)

    def ping(self, timeout: float | None = None) -> None:
        """Ping a server, as :meth:`Caller.ping` does.

        :raises NotServed: the topic has no server.
        """
        self.require()
        self._caller.ping(timeout)


class Clients:
    """Clients for all parts of a cloud; thread-safe. A bus is opened at its first use.

    RabbitMQ is called directly, or through the bus library if the configuration requires it.

    :param conf: the whole configuration, or the result of :func:`moorage.config.calls.read`.
    :param whole: returns the whole configuration; by default it is ``conf``.
    """

    def __init__(self, conf: cfg.ConfigOpts, seconds: float, whole: Callable[[], cfg.ConfigOpts] | None = None) -> None:
        self._conf = conf
        self._whole = whole or (lambda: conf)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._buses: dict[str | None, Bus] = {}
        self._direct: dict[str | None, DirectBus] = {}
        self._served: set[tuple[str, str, str | None]] = set()
        # The services of a cloud are started together, so the grace time applies once, and not to each of them.
        self._until = time.monotonic() + min(seconds, _GRACE)

    def close(self) -> None:
        """Close all connections."""
        for bus in self._buses.values():
            bus.close()
        for direct in self._direct.values():
            direct.close()
        self._buses.clear()
        self._direct.clear()

    def bus(self, transport_url: str | None = None) -> "Bus":
        """Return the main bus, or the one of a URL.

        :raises ConfigurationError: the URL is not valid.
        """
        from moorage.bus.bus import Bus  # here, because few commands need the bus library

        with self._lock:
            if transport_url not in self._buses:
                self._buses[transport_url] = Bus(self._whole(), transport_url)
            return self._buses[transport_url]

    def topic(self, topic: str, server: str | None = None) -> CheckedClient:
        """Return a client of a topic of the main bus, or of one server of it."""
        return self._client(None, topic, server, _STARTED_BY.get(topic, "the service that serves it"))

    def cell(self, cell: Cell) -> CheckedClient:
        """Return a client of a cell's conductors."""
        topic, service = f"conductor.{cell.uuid}", f"`moorage conductor --cell {cell.name}`"
        return self._client(cell.transport_url, topic, None, service)

    def require(self, bus: "Bus | DirectBus", topic: str, server: str | None, service: str) -> None:
        """Check that a topic is served; after a successful check it is not checked again.

        :raises NotServed: the topic has had no server for some seconds after the command's start.
        :raises BusUnavailable: the broker cannot be reached.
        """
        key = (bus.url, topic, server)
        if key in self._served:
            return
        while bus.servers_of(topic, server) == 0:
            # Do not cache this result: a command that watches a list asks again, when the service may have started.
            if time.monotonic() > self._until:
                raise errors.NotServed(topic=topic if server is None else f"{topic}.{server}", service=service)
            time.sleep(_LOOK)
        self._served.add(key)

    def _client(self, transport_url: str | None, topic: str, server: str | None, service: str) -> CheckedClient:
        direct = self._called_directly(transport_url)
        if direct is not None:
            caller: Caller = DirectClient(direct, topic, server, self._seconds)
            return CheckedClient(caller, partial(self.require, direct, topic, server, service))
        bus = self.bus(transport_url)
        caller = bus.client(topic, server, self._seconds)
        return CheckedClient(caller, partial(self.require, bus, topic, server, service))

    def _called_directly(self, transport_url: str | None) -> DirectBus | None:
        """Return the connections to a broker without the bus library; None if the bus library is needed."""
        url = required(self._conf, "DEFAULT", "transport_url") if transport_url is None else transport_url
        if not is_plain(url) or not calls.is_direct(self._conf):
            return None
        with self._lock:
            if transport_url not in self._direct:
                self._direct[transport_url] = DirectBus(url, self._conf)
            return self._direct[transport_url]
