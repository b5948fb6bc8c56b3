"""The attempts an agent has in hand, so that each is started once and none after it was destroyed."""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from moorage import errors
from moorage.messages import BuildFailedInCell, BuildFinished, DestroyOnHost
from moorage.model import EndedAttempt, Guest

Report = BuildFinished | BuildFailedInCell
Ended = DestroyOnHost | EndedAttempt

# Attempts that are over and still known, so that a repeated message finds its report again. One that was forgotten is
# carried out anew, which the driver makes harmless; so the number is only about work saved. Arbitrary.
_REMEMBERED = 10_000


class AgentAttempt:
    """One attempt as the agent has it in hand."""

    def __init__(self, attempt_id: str) -> None:
        self.attempt_id = attempt_id
        #: What it makes, or has made; unknown of one that was only ever destroyed.
        self.guest: Guest | None = None
        #: Held around each destroy: two of one attempt never cross.
        self.ending = threading.Lock()
        #: Set while nothing is under way that is done to its guest; held around each such thing but a destroy.
        self._alone = threading.Lock()
        self.at_rest = threading.Event()
        self.at_rest.set()
        #: Set when waiting for an answer has lost its point: the attempt is destroyed, or the agent stops.
        self.interrupt = threading.Event()
        #: By which words its guest is not wanted any more; never unset.
        self.ended: Ended | None = None
        #: How it ended, once that is known.
        self.report: Report | None = None
        self.building = False
        self.users = 0

    @property
    def destroyed(self) -> bool:
        """Whether its guest is not wanted any more."""
        return self.ended is not None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Do something to its guest that nothing else may cross but a destroy: its spawn, or an order."""
        with self._alone:
            self.at_rest.clear()
            try:
                yield
            finally:
                self.at_rest.set()

    @property
    def may_have_a_guest(self) -> bool:
        """Whether it is in hand, and neither destroyed nor failed."""
        return self.building and not self.destroyed and not isinstance(self.report, BuildFailedInCell)


class Attempts:
    """All attempts in hand, and the latest of those that are over."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._attempts: OrderedDict[str, AgentAttempt] = OrderedDict()
        self._counted: list[frozenset[str]] = []
        self._stopping = False

    def take_up(self, guest: Guest) -> AgentAttempt | None:
        """Return the attempt at ``guest`` for whoever asks first; None while it is in hand already, or was destroyed.

        Each one that is taken up is to be let go.
        """
        with self._changed:
            attempt = self._known(guest.attempt_id)
            if attempt.building or attempt.destroyed:
                return None
            return self._begin(attempt, guest)

    def inherit(self, guest: Guest) -> AgentAttempt | None:
        """Take up the attempt of a guest that an earlier life of the agent has left; None if this one knows of it."""
        with self._changed:
            known = self._attempts.get(guest.attempt_id)
            # One that was only ever given orders is not one of this life: it may be half made.
            if known is not None and (known.guest is not None or known.destroyed):
                return None
            return self._begin(self._known(guest.attempt_id), guest)

    def take_order(self, attempt_id: str, request_id: str) -> AgentAttempt:
        """Return an attempt, known or not, to whose guest something is to be done; see :meth:`drop_order`.

        :raises RequestInProgress: it is in hand, and how it ends is not known yet.
        """
        with self._changed:
            attempt = self._known(attempt_id)
            if attempt.building and attempt.report is None:
                raise errors.RequestInProgress(request_id=request_id)
            attempt.users += 1
            return attempt

    def drop_order(self, attempt: AgentAttempt) -> None:
        """Note that an order to ``attempt``'s guest is over."""
        with self._changed:
            attempt.users -= 1
            self._forget_oldest()

    def let_go(self, attempt: AgentAttempt) -> None:
        """Note that nobody works on ``attempt`` any more."""
        with self._changed:
            attempt.building = False
            attempt.users -= 1
            self._forget_oldest()

    @contextmanager
    def destroying(self, ended: Ended) -> Iterator[AgentAttempt]:
        """Mark an attempt, known or not, as destroyed: from now on it is not started."""
        with self._changed:
            attempt = self._known(ended.attempt_id)
            attempt.ended = ended
            attempt.users += 1
            attempt.interrupt.set()
            self._changed.notify_all()
        try:
            yield attempt
        finally:
            with self._changed:
                attempt.users -= 1
                self._forget_oldest()

    @contextmanager
    def counting(self, hosts: Collection[str]) -> Iterator[list[Guest]]:
        """Return the guests being made on ``hosts``, and let no other be begun there until the block is left."""
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
        """Wait while the guests of ``host`` are being counted, unless the attempt is interrupted."""
        with self._changed:
            self._changed.wait_for(
                lambda: attempt.interrupt.is_set() or not any(host in counted for counted in self._counted)
            )

    def stop(self) -> None:
        """Interrupt whoever waits for an answer."""
        with self._changed:
            self._stopping = True
            for attempt in self._attempts.values():
                attempt.interrupt.set()
            self._changed.notify_all()

    def _begin(self, attempt: AgentAttempt, guest: Guest) -> AgentAttempt:
        attempt.guest = guest
        attempt.building = True
        attempt.users += 1
        return attempt

    def _known(self, attempt_id: str) -> AgentAttempt:
        attempt = self._attempts.get(attempt_id)
        if attempt is None:
            attempt = self._attempts[attempt_id] = AgentAttempt(attempt_id)
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
