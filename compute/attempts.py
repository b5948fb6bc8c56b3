"""The attempts in progress on an agent: each starts at most once, and never after it was destroyed."""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from moorage import errors
from moorage.messages import BuildFailedInCell, BuildFinished, DestroyOnHost
from moorage.model import EndedAttempt, Guest

Report = BuildFinished | BuildFailedInCell
EndNotice = DestroyOnHost | EndedAttempt

# The number of ended attempts that are kept, so that a repeated message finds the report. An attempt that was dropped
# is carried out again. That is harmless, because the driver is idempotent: the number only saves work. Arbitrary.
_REMEMBERED = 10_000


class AgentAttempt:
    """An attempt at one build on one host, as the agent keeps it in memory."""

    def __init__(self, attempt_id: str) -> None:
        self.attempt_id = attempt_id
        #: Its guest; None if only a destroy or orders have arrived for this attempt.
        self.guest: Guest | None = None
        #: Held during each destroy, so that two destroys of one attempt never overlap.
        self.ending = threading.Lock()
        #: Held during each spawn and each order; ``at_rest`` is set while none is in progress.
        self._alone = threading.Lock()
        self.at_rest = threading.Event()
        self.at_rest.set()
        #: Set when the attempt must not wait for answers any more: it is destroyed, or the agent stops.
        self.interrupt = threading.Event()
        #: The message or record that has ended the attempt: its guest is no longer wanted. Never reset.
        self.ended: EndNotice | None = None
        #: Why its host refused it or its spawn failed, with the error. Reported only when nothing of the guest is left.
        self.failure: tuple[str, Exception] | None = None
        #: Its report, once its result is known.
        self.report: Report | None = None
        self.building = False
        #: It was left as it is, because its host did not answer or was still spawning its guest, or its driver failed.
        self.unanswered = False
        self.users = 0

    @property
    def destroyed(self) -> bool:
        """True once its guest is no longer wanted."""
        return self.ended is not None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Hold the guest for a spawn or an order; only a destroy may run beside it."""
        with self._alone:
            self.at_rest.clear()
            try:
                yield
            finally:
                self.at_rest.set()

    @property
    def may_have_a_guest(self) -> bool:
        """True while it is in progress, and neither destroyed nor failed."""
        return self.building and not self.destroyed and not isinstance(self.report, BuildFailedInCell)


class Attempts:
    """The attempts in progress, and the attempts that have ended most recently; thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._attempts: OrderedDict[str, AgentAttempt] = OrderedDict()
        self._counted: list[frozenset[str]] = []
        self._stopping = False

    def take_up(self, guest: Guest) -> AgentAttempt | None:
        """Begin the attempt at ``guest`` and return it, or None if it is already in progress or was destroyed.

        The caller ends it by :meth:`let_go`.
        """
        with self._changed:
            attempt = self._get_or_create(guest.attempt_id)
            if attempt.building or attempt.destroyed:
                return None
            return self._begin(attempt, guest)

    def inherit(self, guest: Guest) -> AgentAttempt | None:
        """Begin the attempt of a guest that this process has not begun, or whose host has died before its result.

        :return: null if the attempt is in progress, was destroyed, or has its result.
        """
        with self._changed:
            known = self._attempts.get(guest.attempt_id)
            if known is not None and (known.building or known.destroyed or known.report is not None):
                return None
            return self._begin(self._get_or_create(guest.attempt_id), guest)

    def unanswered(self) -> list[Guest]:
        """Return the guests of the attempts that were left as they are, because their hosts did not answer."""
        with self._changed:
            left = [attempt for attempt in self._attempts.values() if attempt.unanswered and not attempt.building]
            return [attempt.guest for attempt in left if attempt.guest is not None and not attempt.destroyed]

    def take_order(self, attempt_id: str, request_id: str) -> AgentAttempt:
        """Return the attempt for an order to its guest, created if unknown; the caller ends it by :meth:`release`.

        :raises RequestInProgress: the attempt is in progress, and its result is not known yet.
        """
        with self._changed:
            attempt = self._get_or_create(attempt_id)
            if attempt.building and attempt.report is None:
                raise errors.RequestInProgress(request_id=request_id)
            attempt.users += 1
            return attempt

    def mark_destroyed(self, ended: EndNotice) -> AgentAttempt:
        """Mark an attempt, created if unknown, as destroyed, so that it never starts; return it.

        The caller ends the use of it by :meth:`release`.
        """
        with self._changed:
            attempt = self._get_or_create(ended.attempt_id)
            attempt.ended = ended
            attempt.users += 1
            attempt.interrupt.set()
            self._changed.notify_all()
            return attempt

    def release(self, attempt: AgentAttempt) -> None:
        """Note that an order to ``attempt``'s guest, or its destroy, has ended."""
        with self._changed:
            self._leave(attempt)

    def let_go(self, attempt: AgentAttempt) -> None:
        """Note that ``attempt`` is no longer in progress."""
        with self._changed:
            attempt.building = False
            self._leave(attempt)

    @contextmanager
    def counting(self, hosts: Collection[str]) -> Iterator[list[Guest]]:
        """Yield the guests in progress on ``hosts``, and let no other guest begin there until exit."""
        counted = frozenset(hosts)
        with self._changed:
            self._counted.append(counted)
            in_hand = [
                attempt.guest
                for attempt in self._attempts.values()
                if attempt.guest is not None and attempt.guest.host in counted and attempt.may_have_a_guest
            ]
        try:
            yield in_hand
        finally:
            with self._changed:
                self._counted.remove(counted)
                self._changed.notify_all()

    def wait_for_count(self, attempt: AgentAttempt, host: str) -> None:
        """Wait while the guests of ``host`` are counted, or until the attempt is interrupted."""
        with self._changed:
            self._changed.wait_for(
                lambda: attempt.interrupt.is_set() or not any(host in counted for counted in self._counted)
            )

    def stop(self) -> None:
        """Interrupt all attempts that wait for an answer."""
        with self._changed:
            self._stopping = True
            for attempt in self._attempts.values():
                attempt.interrupt.set()
            self._changed.notify_all()

    def _begin(self, attempt: AgentAttempt, guest: Guest) -> AgentAttempt:
        attempt.guest = guest
        attempt.building = True
        attempt.unanswered = False
        attempt.users += 1
        return attempt

    def _get_or_create(self, attempt_id: str) -> AgentAttempt:
        attempt = self._attempts.get(attempt_id)
        if attempt is None:
            attempt = self._attempts[attempt_id] = AgentAttempt(attempt_id)
            if self._stopping:
                attempt.interrupt.set()
        self._attempts.move_to_end(attempt_id)
        return attempt

    def _leave(self, attempt: AgentAttempt) -> None:
        """End one use of an attempt, and drop the oldest attempts beyond the number to keep."""
        attempt.users -= 1
        # Attempts in use are skipped; they are few, and near the end.
        surplus = len(self._attempts) - _REMEMBERED
        if surplus > 0:
            idle = (name for name, attempt in self._attempts.items() if not attempt.users)
            for name in [name for name, _ in zip(idle, range(surplus), strict=False)]:
                del self._attempts[name]
