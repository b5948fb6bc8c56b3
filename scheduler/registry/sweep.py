"""The sweep that marks hosts as down of which no heartbeat has come, while heartbeats could have come."""

import logging
import time
from collections.abc import Callable

from moorage import errors
from moorage.db.database import Database
from scheduler.registry import hosts

LOG = logging.getLogger(__name__)

#: How many times within the time-out of a heartbeat the sweep comes round.
_ROUNDS_PER_TIMEOUT = 6


class Sweep:
    """Marks hosts as down that have been silent for too long, if the silence is theirs.

    While the database or the broker is away no heartbeat arrives, and afterwards all hosts look dead for a moment. So a
    host is given the whole time-out from the moment on at which both were there.

    :param down_after: seconds without a heartbeat after which a host counts as down.
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
        """Look once.

        :raises Unavailable: the database or the broker is away, and no host is judged by that.
        """
        begun = self._clock()
        since = begun if self._reachable_since is None else self._reachable_since
        try:
            self._probe()
            if begun - since >= self._down_after:
                self._mark_silent_hosts()
            else:
                self._database.read(hosts.any_host)  # whether it answers is all that is asked
        except errors.Unavailable:
            self._reachable_since = None
            raise
        self._reachable_since = since

    def _mark_silent_hosts(self) -> None:
        silent = self._database.write(lambda connection: hosts.sweep(connection, self._down_after))
        if silent:
            LOG.warning("Down, for want of a heartbeat in %s s: %s", self._down_after, ", ".join(sorted(silent)))
