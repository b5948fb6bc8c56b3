"""The durations of spawns, rebuilds and outages of fake hosts."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# The longest wait of the standard library.
_LONGEST_WAIT = threading.TIMEOUT_MAX


@dataclass
class Work:
    """Work on the guest of one attempt: its spawn, or an order."""

    host: str
    stubborn: bool = False
    cut: bool = False
    host_died: bool = False
    is_over: bool = False


class Timeline:
    """The work in progress, and the hosts that are dead."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._work: dict[tuple[str, str], Work] = {}
        self._dead_until: dict[str, float] = {}
        self._closed = False

    def close(self) -> None:
        """Cut all work short, even stubborn work."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def die(self, host: str, seconds: float) -> None:
        """Make a host dead for some seconds; its work in progress fails."""
        with self._changed:
            self._dead_until[host] = time.monotonic() + seconds
            for work in self._work.values():
                work.host_died = work.host_died or work.host == host
            self._changed.notify_all()

    def come_to_end(self, host: str) -> None:
        """End the work in progress on a host now, as if its time had passed."""
        with self._changed:
            for work in self._work.values():
                work.is_over = work.is_over or work.host == host
            self._changed.notify_all()

    def is_dead(self, host: str) -> bool:
        """Return whether a host is dead now."""
        with self._changed:
            return self._left(host) > 0

    @contextmanager
    def at_work(self, host: str, attempt_id: str) -> Iterator[Work]:
        """Register work until exit; an attempt has at most one."""
        work = Work(host)
        with self._changed:
            self._work[host, attempt_id] = work
        try:
            yield work
        finally:
            with self._changed:
                del self._work[host, attempt_id]

    def pass_time(self, work: Work, seconds: float, *, stubborn: bool) -> str | None:
        """Wait for some seconds, and for the host's return if it dies; return the reason of a failure, or None.

        :param stubborn: whether it cannot be cut short from now on.
        """
        end = time.monotonic() + seconds
        with self._changed:
            work.stubborn = stubborn
            while True:
                dead = self._left(work.host)
                if self._closed:
                    return "the agent ended in the middle of it"
                if dead <= 0 and (ended := _verdict(work)) is not None:
                    return ended
                left = dead if dead > 0 else end - time.monotonic()
                if left <= 0 or (dead <= 0 and work.is_over):
                    return None
                self._changed.wait(None if math.isinf(left) else min(left, _LONGEST_WAIT))

    def is_stubborn(self, host: str, attempt_id: str) -> bool:
        """Return whether work is in progress that cannot be cut short."""
        with self._changed:
            work = self._work.get((host, attempt_id))
            return work is not None and work.stubborn

    def cut_short(self, host: str, attempt_id: str) -> None:
        """End the work on a guest, if there is any."""
        with self._changed:
            if (work := self._work.get((host, attempt_id))) is not None:
                work.cut = True
                self._changed.notify_all()

    def _left(self, host: str) -> float:
        return self._dead_until.get(host, 0.0) - time.monotonic()


def _verdict(work: Work) -> str | None:
    if work.host_died:
        return "the host died in the middle of it"
    return "it was destroyed meanwhile" if work.cut else None
