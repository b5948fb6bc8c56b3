"""Clients for a command of the operator: every topic of the main bus, and the conductors of cells on theirs.

A service that waits for another repeats its question. A command has somebody in front of it: where nobody serves what
it asks, it says so within seconds.
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

#: Seconds that a service which has just been started is waited for, and between two looks. Arbitrary.
_GRACE = 3.0
_LOOK = 0.25
_STARTED_BY = {
    "placement": "`moorage scheduler`, or `moorage placement` where [scheduler] serve_placement is false",
    "scheduler": "`moorage scheduler`",
    "conductor": "`moorage conductor`",
}


class CheckedClient(Client):
    """A client that sends nothing where nobody serves its topic.

    :param service: what serves it, as a command.
    """

    def __init__(
        self, clients: "Clients", bus: Bus, topic: str, server: str | None, timeout: float, service: str
    ) -> None:
        super().__init__(bus, topic, server, timeout)
        self._require: Callable[[], None] = partial(clients.require, bus, topic, server, service)

    def call(self, message: Message[R], timeout: float | None = None) -> R:
        """Do as a client does.

        :raises NotServed: nobody serves the topic.
        """
        self._require()
        return super().call(message, timeout)

    def ping(self, timeout: float | None = None) -> None:
        """Do as a client does.

        :raises NotServed: nobody serves the topic.
        """
        self._require()
        super().ping(timeout)


class Clients:
    """Clients for questions to all parts of a cloud, for several threads; a bus is opened when it is first needed.

    :param seconds: how long each of them waits for an answer.
    """

    def __init__(self, conf: cfg.ConfigOpts, seconds: float) -> None:
        self._conf = conf
        self._seconds = seconds
        self._lock = threading.Lock()
        self._buses: dict[str | None, Bus] = {}
        self._served: dict[tuple[str, str, str | None], bool] = {}
        # All services of a cloud are started together: those that come are waited for once, and not each in its turn.
        self._until = time.monotonic() + min(seconds, _GRACE)

    def close(self) -> None:
        """Let go of all connections."""
        for bus in self._buses.values():
            bus.close()
        self._buses.clear()

    def bus(self, transport_url: str | None = None) -> Bus:
        """Return the main bus, or the one of an address.

        :raises ConfigurationError: that is none.
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
        """Return once somebody serves a topic, which is looked up once.

        :raises NotServed: nobody does, and nobody has come within some seconds of the command's beginning.
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
