"""The attempts an agent has in hand, so that each is started once and none after it was destroyed."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from moorage.messages import BuildFailedInCell, BuildFinished

Report = BuildFinished | BuildFailedInCell

# Attempts that are over and still known, so that a repeated message finds its report again. One that was forgotten is
# carried out anew, which the driver makes harmless; so the number is only about work saved. Arbitrary.
_REMEMBERED = 10_000


class Attempt:
    """One attempt as the agent has it in hand."""

    def __init__(self, attempt_id: str) -> None:
        self.attempt_id = attempt_id
        #: Held around every word to the driver about this attempt: a spawn and a destroy never cross.
        self.driving = threading.Lock()
        #: Set when waiting for an answer has lost its point: the attempt is destroyed, or the agent stops.
        self.interrupt = threading.Event()
        #: Its guest is not wanted any more; it is never unset.
        self.destroyed = False
        #: How it ended, once that is known.
        self.report: Report | None = None
        self.building = False
        self.users = 0


class Attempts:
    """All attempts in hand, and the latest of those that are over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: OrderedDict[str, Attempt] = OrderedDict()
        self._stopping = False

    def take_up(self, attempt_id: str) -> Attempt | None:
        """Return the attempt for whoever asks first; None while it is in hand already, or was destroyed.

        Each one that is taken up is to be let go.
        """
        with self._lock:
            attempt = self._known(attempt_id)
            if attempt.building or attempt.destroyed:
                return None
            attempt.building = True
            attempt.users += 1
            return attempt

    def let_go(self, attempt: Attempt) -> None:
        """Note that nobody works on ``attempt`` any more."""
        with self._lock:
            attempt.building = False
            attempt.users -= 1
            self._forget_oldest()

    @contextmanager
    def destroying(self, attempt_id: str) -> Iterator[Attempt]:
        """Mark an attempt, known or not, as destroyed: from now on it is not started."""
        with self._lock:
            attempt = self._known(attempt_id)
            attempt.destroyed = True
            attempt.users += 1
            attempt.interrupt.set()
        try:
            yield attempt
        finally:
            with self._lock:
                attempt.users -= 1
                self._forget_oldest()

    def stop(self) -> None:
        """Interrupt whoever waits for an answer."""
        with self._lock:
            self._stopping = True
            for attempt in self._attempts.values():
                attempt.interrupt.set()

    def _known(self, attempt_id: str) -> Attempt:
        attempt = self._attempts.get(attempt_id)
        if attempt is None:
            attempt = self._attempts[attempt_id] = Attempt(attempt_id)
            if self._stopping:
                attempt.interrupt.set()
        self._attempts.move_to_end(attempt_id)
        return attempt

    def _forget_oldest(self) -> None:
        # Those in hand are passed over; they are few, and stand near the end.
        surplus = len(self._attempts) - _REMEMBERED
        if surplus > 0:
            idle = (name for name, attempt in self._attempts.items() if not attempt.users)
            for name in [name for name, _ in zip(idle, range(surplus), strict=False)]:
                del self._attempts[name]
