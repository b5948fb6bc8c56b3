"""Whom a command of the operator can ask: every topic of the main bus, and the conductors of cells on theirs."""

import threading

from oslo_config import cfg

from moorage.bus import Bus, Client
from moorage.model import Cell


class Reach:
    """Clients for questions to all parts of a cloud, for several threads; a bus is opened when it is first needed.

    :param seconds: how long each of them waits for an answer.
    """

    def __init__(self, conf: cfg.ConfigOpts, seconds: float) -> None:
        self._conf = conf
        self._seconds = seconds
        self._lock = threading.Lock()
        self._buses: dict[str | None, Bus] = {}

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
        return self.bus().client(topic, server, timeout=self._seconds)

    def cell(self, cell: Cell) -> Client:
        """Return a client of a cell's conductors."""
        return self.bus(cell.transport_url).client(f"conductor.{cell.uuid}", timeout=self._seconds)
