"""Clients for an operator's commands: for all topics of the main bus, and for cell conductors on their buses.

A service that waits for another one repeats its calls. A command fails within seconds if its topic is not served.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from oslo_config import cfg

from moorage import errors
from moorage.bus.bus import Bus, Client
from moorage.messages.wire import Message
from moorage.model import Cell

R = TypeVar("R")

#: Seconds to wait for a service that is being started, and between two checks. Arbitrary.
_GRACE = 3.0
_LOOK = 0.25
_STARTED_BY = {
    "placement": "`moorage scheduler`, or `moorage placement` where [scheduler] serve_placement is false",
    "scheduler": "`moorage scheduler`",
    "conductor": "`moorage conductor`",
}


class CheckedClient(Client):
    """A client that fails at once if its topic is not served.

    :param service: the command that starts its server, for the error.
    """

    def __init__(
        self, clients: "Clients", bus: Bus, topic: str, server: str | None, timeout: float, service: str
    ) -> None:
        super().__init__(bus, topic, server, timeout)
        self._require: Callable[[], None] = partial(clients.require, bus, topic, server, service)

    def call(self, message: Message[R], timeout: float | None = None) -> R:
        """Call as :meth:`Client.call`.

        :raises NotServed: the topic has no server.
        """
        self._require()
        return super().call(message, timeout)

    def ping(self, timeout: float | None = None) -> None:
        """Ping as :meth:`Client.ping`.

        :raises NotServed: the topic has no server.
        """
        self._require()
        super().ping(timeout)


class Clients:
    """Clients for all parts of a cloud; thread-safe. A bus is opened at its first use.

    :param seconds: the time-out of each client.
    """

    def __init__(self, conf: cfg.ConfigOpts, seconds: float) -> None:
        self._conf = conf
        self._seconds = seconds
        self._lock = threading.Lock()
        self._buses: dict[str | None, Bus] = {}
        self._served: dict[tuple[str, str, str | None], bool] = {}
        # The services of a cloud are started together: this grace time is waited once, and not for each of them.
        self._until = time.monotonic() + min(seconds, _GRACE)

    def close(self) -> None:
        """Close all connections."""
        for bus in self._buses.values():
            bus.close()
        self._buses.clear()

    def bus(self, transport_url: str | None = None) -> Bus:
        """Return the main bus, or the one of a URL.

        :raises ConfigurationError: the URL is not valid.
        """
        with self._lock:
            if transport_url not in self._buses:
                self._buses[transport_url] = Bus(self._conf, transport_url)
            return self._buses[transport_url]

    def topic(self, topic: str, server: str | None = None) -> Client:
        """Return a client of a topic of the main bus, or of one server of it."""
        return self._client(self.bus(), topic, server, _STARTED_BY.get(topic, "the service that serves it"))

    def cell(self, cell: Cell) -> Client:
        """Return a client of a cell's conductors."""
        topic, service = f"conductor.{cell.uuid}", f"`moorage conductor --cell {cell.name}`"
        return self._client(self.bus(cell.transport_url), topic, None, service)

    def require(self, bus: Bus, topic: str, server: str | None, service: str) -> None:
        """Check, once for each topic, that it is served.

        :raises NotServed: it has no server within some seconds from the command's start.
        :raises BusUnavailable: the broker cannot be reached.
        """
        key = (bus.url, topic, server)
        if key not in self._served:
            while bus.servers_of(topic, server) == 0:
                if time.monotonic() > self._until:
                    self._served[key] = False
                    break
                time.sleep(_LOOK)
            else:
                self._served[key] = True
        if not self._served[key]:
            raise errors.NotServed(topic=topic if server is None else f"{topic}.{server}", service=service)

    def _client(self, bus: Bus, topic: str, server: str | None, service: str) -> Client:
        return CheckedClient(self, bus, topic, server, self._seconds, service)
