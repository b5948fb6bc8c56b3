"""The number of busy threads among a fixed number, and since when all of them have been busy without a break."""

import time


class ThreadOccupancy:
    """Counts busy threads; used under the lock under which they are given work.

    :param threads: how many there are.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.busy = 0
        #: When one last became free, or the first of them busy.
        self._moved_at = time.monotonic()

    def take(self) -> None:
        """Count one thread more as busy; more than there are means that work waits."""
        if not self.busy:
            self._moved_at = time.monotonic()
        self.busy += 1

    def free(self) -> None:
        """Count one thread less."""
        self.busy -= 1
        self._moved_at = time.monotonic()

    def seconds_stuck(self) -> float:
        """Return for how long all threads have been busy without one becoming free; 0 while one is free."""
        return 0.0 if self.busy < self.threads else time.monotonic() - self._moved_at
