"""The time since which the hosts of a cell could report: a host is not silent if no conductor could hear it."""

import logging
import time
from collections.abc import Callable

from moorage import errors

LOG = logging.getLogger(__name__)


class HostReach:
    """Keeps the time since which reports of hosts could arrive at this conductor and be recorded.

    :param down_after: the seconds without a report after which a host counts as silent.
    """

    def __init__(self, down_after: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._down_after = down_after
        self._monotonic = monotonic
        self._since = monotonic()
        self._is_interrupted = False
        #: The last known time of the database's clock, and when it was read, by the monotonic clock.
        self._clock: tuple[float, float] | None = None

    def has_lasted(self, seconds: float | None = None) -> bool:
        """Return whether reports could arrive for so long: by default, until a host that has not reported is silent."""
        return self._monotonic() - self._since > (self._down_after if seconds is None else seconds)

    def note(self, check: Callable[[], float]) -> None:
        """Check whether reports can arrive and be recorded; if not, restart the time-out of every host.

        :param check: returns the time of the database's clock; fails if reports cannot arrive or be recorded.
        """
        try:
            self.note_clock(check())
        except errors.MoorageError as fault:
            if not self._is_interrupted:
                LOG.warning("Hosts cannot report: the time-out of each host begins again when they can: %s", fault)
            self._is_interrupted = True
            self._since = self._monotonic()
        else:
            self._is_interrupted = False

    def note_clock(self, clock: float) -> None:
        """Note the database's clock; if it was set forward since the last time, restart the time-out of every host.

        A suspension of this process looks the same.
        """
        present = self._monotonic()
        before, self._clock = self._clock, (clock, present)
        if before is not None and clock - before[0] - (present - before[1]) >= self._down_after / 2:
            LOG.warning("The database's clock was set forward: the time-out of each host begins again")
            self._since = present
