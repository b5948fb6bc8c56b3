"""The failure detector of hosts: a periodic sweep that marks hosts as down after missed heartbeats."""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import select

from moorage import errors
from moorage.db.columns import now
from moorage.db.database import Database
from scheduler.registry import hosts

LOG = logging.getLogger(__name__)

#: Sweeps within one heartbeat time-out.
_ROUNDS_PER_TIMEOUT = 6
#: The most hosts that one line of the log names. Arbitrary.
_LISTED = 50


class Sweep:
    """Marks hosts as down that have missed heartbeats for too long, if these heartbeats could have arrived.

    While the database or the broker is unreachable, no heartbeat arrives, and afterwards all hosts look dead for a
    moment. The same happens after a step of the database's clock, and after this process or its machine was suspended.
    So the time-out of all hosts starts again when both are reachable again, and after the clocks have diverged.

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
        #: The time of the last round by both clocks.
        self._last_round: _Round | None = None

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
            now_there = self._database.read(lambda connection: connection.scalars(select(now())).one())
            since = self._since_clocks_agree(since, _Round(begun, now_there))
            if begun - since >= self._down_after:
                silent = self._database.write(lambda connection: hosts.mark_down(connection, self._down_after))
                if silent:
                    named = hosts.in_short(silent, _LISTED)
                    LOG.warning("Down, without a heartbeat for %s s: %s", self._down_after, named)
        except errors.Unavailable:
            self._reachable_since = None
            raise
        self._reachable_since = since

    def _since_clocks_agree(self, since: float, this: "_Round") -> float:
        """Return when the time-out of the hosts starts: as before, or with this round if the clocks have diverged.

        They have diverged if the database's clock has advanced by half of the time-out or more since the last round: it
        was set, or no round was run.
        """
        last, self._last_round = self._last_round, this
        if last is None or this.there - last.there < self._down_after / 2:
            return since
        LOG.warning("Hosts were not looked at for %.0f s: the time-out of each begins again", this.there - last.there)
        return this.here


class _Round(NamedTuple):
    """The time of a round by the monotonic clock of this process, and by the database's clock."""

    here: float
    there: float
