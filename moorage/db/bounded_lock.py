"""A lock that nobody waits for without end."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from moorage import context, errors

#: Seconds after which a thread gives up, as long as for a connection of a pool. A thread that asks a silent database
#: holds its lock for longer than that. Arbitrary.
PATIENCE = 10.0


class BoundedLock:
    """A lock that is held across a question to a database, and waited for a limited time: at most the caller's.

    :param fault: called with the seconds that were waited in vain; returns the error to raise.
    """

    def __init__(self, fault: Callable[[float], errors.MoorageError], patience: float = PATIENCE) -> None:
        self._lock = threading.Lock()
        self._fault = fault
        self._patience = patience

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock.

        :raises MoorageError: the error of ``fault``; it did not come free in time.
        """
        left = context.seconds_left()
        seconds = self._patience if left is None else max(0.0, min(self._patience, left))
        if not self._lock.acquire(timeout=seconds):
            raise self._fault(seconds)
        try:
            yield
        finally:
            self._lock.release()
