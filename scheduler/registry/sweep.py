"""The failure detector of hosts: a periodic sweep that marks hosts as down after missed heartbeats."""

import logging
import time
from collections.abc import Callable

from moorage import errors
from moorage.db.database import Database
from scheduler.registry import hosts

LOG = logging.getLogger(__name__)

#: Sweeps within one heartbeat time-out.
_ROUNDS_PER_TIMEOUT = 6


class Sweep:
    """Marks hosts as down that have missed heartbeats for too long, if these heartbeats could have arrived.

    While the database or the broker is away no heartbeat arrives, and afterwards all hosts look dead for a moment. So
    each host has the whole time-out from the time on at which both were reachable.

    :param down_after: seconds without a heartbeat after which a host is down.
    :param probe: raises :class:`~moorage.errors.Unavailable` if there is no broker.
    """

    def __init__(
        self,
        database: Database,
        down_after: float,
        probe: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._down_after = down_after
        self._probe = probe
        self._clock = clock
        self._reachable_since: float | None = None

    @property
    def interval(self) -> float:
        """Seconds between two rounds."""
        return self._down_after / _ROUNDS_PER_TIMEOUT

    def run(self) -> None:
        """Sweep once.

        :raises Unavailable: the database or the broker is away: no host is marked, and the time-out begins anew.
        """
        begun = self._clock()
        since = begun if self._reachable_since is None else self._reachable_since
        try:
            self._probe()
            if begun - since >= self._down_after:
                silent = self._database.write(lambda connection: hosts.mark_down(connection, self._down_after))
                if silent:
                    names = ", ".join(sorted(silent))
                    LOG.warning("Down, for want of a heartbeat in %s s: %s", self._down_after, names)
            else:
                self._database.read(hosts.any_host)  # only to see that the database answers
        except errors.Unavailable:
            self._reachable_since = None
            raise
        self._reachable_since = since
