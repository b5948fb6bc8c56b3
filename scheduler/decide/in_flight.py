"""Which decisions are under way in a scheduler, and waiting for those that are to end."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class InFlight:
    """Counts what is under way. Safe to use from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._present: set[int] = set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Be one of what is under way."""
        with self._changed:
            number = next(self._numbers)
            self._present.add(number)
        try:
            yield
        finally:
            with self._changed:
                self._present.discard(number)
                self._changed.notify_all()

    def wait(self, seconds: float) -> int:
        """Wait until all has ended that is under way now; return how much has not after so many seconds."""
        with self._changed:
            waited_for = frozenset(self._present)
            self._changed.wait_for(lambda: waited_for.isdisjoint(self._present), seconds)
            return len(waited_for & self._present)
