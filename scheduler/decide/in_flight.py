"""The decisions in flight."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class InFlight:
    """Count the decisions in flight, and wait until they have ended. Safe to use from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._present: set[int] = set()

    @contextmanager
    def counted(self, decisions: int = 1) -> Iterator[None]:
        """Count this number of decisions as in flight while the context lasts."""
        with self._changed:
            numbers = set(itertools.islice(self._numbers, decisions))
            self._present |= numbers
        try:
            yield
        finally:
            with self._changed:
                self._present -= numbers
                self._changed.notify_all()

    def count(self) -> int:
        """Return how many decisions are in flight."""
        with self._changed:
            return len(self._present)

    def wait(self, seconds: float) -> int:
        """Wait until all decisions that are in flight now have ended, at most ``seconds``; return how many have not."""
        with self._changed:
            waited_for = frozenset(self._present)
            self._changed.wait_for(lambda: waited_for.isdisjoint(self._present), seconds)
            return len(waited_for & self._present)
