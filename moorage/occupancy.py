"""Count the busy threads of a pool, and measure how long all of them have been busy without a break."""

import time


class ThreadOccupancy:
    """Counts busy threads. The caller must hold the lock that it also holds when it gives work to a thread.

    :param threads: the number of threads.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.busy = 0
        #: The time when a thread last became free, or when the first thread became busy.
        self._moved_at = time.monotonic()

    def take(self) -> None:
        """Count one more busy thread; if the count exceeds the number of threads, work is waiting."""
        if not self.busy:
            self._moved_at = time.monotonic()
        self.busy += 1

    def free(self) -> None:
        """Count one busy thread less."""
        self.busy -= 1
        self._moved_at = time.monotonic()

    def seconds_stuck(self) -> float:
        """Return the seconds since a thread last became free, if all threads are busy; else 0."""
        return 0.0 if self.busy < self.threads else time.monotonic() - self._moved_at
