"""Bulkheads and circuit breakers: a destination that does not answer must not use up the threads of the others.

A destination is a cell (of the super conductor) or an agent (of a cell conductor). The steps that wait for one
destination hold a limited share of the worker's threads; further steps are postponed and hold none. Steps whose calls
one thread makes together hold that one. When a call to a destination times out, its circuit breaker opens: no step
waits for it until it has answered a probe.
"""

import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from oslo_config import cfg

from conductor.engine.steps import Backoff
from moorage import errors

LOG = logging.getLogger(__name__)

#: The longest back-off between two probes, in seconds; the operations of a destination go on when it answers.
_LONGEST_BACKOFF = 3.0
#: The number of probes under way at a time.
_PROBES_AT_ONCE = 8
#: The errors that are no answers: a bus that is away proves nothing about one of its many destinations, and a caller's
#: time may be over before anything is sent.
_NO_ANSWERS = (errors.BusUnavailable, errors.DeadlineExceeded)


def worker_share(conf: cfg.ConfigOpts) -> int:
    """Return how many of a conductor's workers may wait for one destination: several may fail at the same time."""
    workers: int = conf.conductor.workers
    return max(1, workers // 4)


class CircuitOpen(Exception):
    """The circuit breaker of the destination is open: it has not answered for a while, and no call waits for it."""


class KeptPlace:
    """A place in a bulkhead, kept for a step that has waited for it: no step that comes later takes it."""

    def __init__(self, bulkhead: "_Bulkhead", give_back: Callable[["KeptPlace"], None]) -> None:
        self.bulkhead = bulkhead
        self._give_back = give_back

    def give_back(self) -> None:
        """Give the place to the next step that waits."""
        self._give_back(self)


#: Lets a postponed step go on, with the place that is kept for it, if any.
Wake = Callable[[KeptPlace | None], None]


class Postponed(Exception):
    """The step must wait for room in its bulkhead, and holds no thread until then."""

    def __init__(self, register: Callable[[Wake], None]) -> None:
        super().__init__("there is no room for another call to it")
        #: Registers the callback for when there is room; it is called at once if there is room by now.
        self.register = register


class StepScope:
    """One step in a worker's thread, the place that is kept for it, and the destinations that it has called.

    :param group: the same for steps whose calls one thread makes together.
    """

    def __init__(self, tries: int, place: KeptPlace | None, group: object) -> None:
        self.tries = tries
        self.place = place
        self.group = group
        self.entered: set[str] = set()


_STEP: contextvars.ContextVar[StepScope | None] = contextvars.ContextVar("step", default=None)


@contextmanager
def step(tries: int, place: KeptPlace | None = None, group: object = None) -> Iterator[None]:
    """Mark the calls of this context as calls of one step, which can be postponed.

    :param place: the place that is kept for the step; given back if the step ends without its call.
    :param group: the same for steps whose calls one thread makes together; null for a step by itself.
    """
    scope = StepScope(tries, place, object() if group is None else group)
    token = _STEP.set(scope)
    try:
        yield
    finally:
        _STEP.reset(token)
        if scope.place is not None:
            scope.place.give_back()


@dataclass(frozen=True, slots=True, eq=False)
class _CallUnderWay:
    """A call of a step, or of a thread that does none."""

    #: By the monotonic clock.
    begun: float
    #: That of :class:`StepScope`; the calls of a group hold one thread.
    group: object


@dataclass(slots=True, eq=False)
class _Bulkhead:
    """The calls to one destination, and the state of its circuit breaker."""

    name: str
    probe: Callable[[], object]
    #: The calls under way.
    begun: list["_CallUnderWay"] = field(default_factory=list)
    #: The places kept for steps that were woken and have not made their calls yet.
    kept: int = 0
    answered_at: float = float("-inf")
    #: When the breaker opened (null while it is closed), the number of failed probes, the time of the next probe.
    open_since: float | None = None
    failures: int = 0
    probe_at: float = 0.0
    #: A probe is under way.
    is_probed: bool = False
    #: Postponed steps: in ``fresh`` those whose record names no reason for the wait yet.
    fresh: deque[Wake] = field(default_factory=deque)
    waiting: deque[Wake] = field(default_factory=deque)

    @property
    def is_suspected(self) -> bool:
        """Tell whether a call has timed out and the first probe has not been made yet."""
        return self.open_since is not None and not self.failures

    def overdue(self, now: float, patience: float) -> bool:
        """Return whether a call has been under way for ``patience`` seconds without any answer since it began."""
        return bool(self.begun) and max(min(call.begun for call in self.begun), self.answered_at) + patience < now

    def gives_kept_place(self, scope: StepScope | None) -> bool:
        """Return whether a place is kept here for a step, which has none any more then: its call uses it."""
        if scope is None or scope.place is None or scope.place.bulkhead is not self:
            return False
        self.kept -= 1
        scope.place = None
        return True

    def has_room(self, share: int, group: object = None) -> bool:
        """Return whether another call may be made now, by a thread of its own or by that of a group of steps."""
        groups = {call.group for call in self.begun}
        return group in groups or len(groups) + self.kept < share

    def due(self, share: int, give_back: Callable[[KeptPlace], None]) -> list[Callable[[], None]]:
        """Remove the steps that may go on now from the queues, and return their callbacks, each with its place."""
        if self.is_suspected:
            return []
        if self.open_since is not None:
            # They go on one after the other: each records why it waits, and is then postponed again.
            return [partial(self.fresh.popleft(), None)] if self.fresh else []
        due: list[Callable[[], None]] = []
        while (self.fresh or self.waiting) and self.has_room(share):
            self.kept += 1
            due.append(partial((self.waiting or self.fresh).popleft(), KeptPlace(self, give_back)))
        return due


class Bulkheads:
    """The bulkheads of one conductor, by destination.

    :param kind: the noun for a destination, for the log.
    :param share: the number of threads that may wait for one destination at a time.
    :param backoff: the seconds between two probes of a destination whose breaker is open.
    :param opens_on: the errors that open the breaker.
    :param patience: seconds after which a call under way counts as unanswered, for calls outside of steps when the
        share is used up.
    :param postpones: whether a step waits until the breaker closes, once its record shows the reason. Otherwise it is
        refused each time.
    """

    def __init__(
        self,
        kind: str,
        share: int,
        backoff: Backoff,
        opens_on: tuple[type[errors.MoorageError], ...],
        patience: float,
        *,
        postpones: bool,
    ) -> None:
        self._kind = kind
        self._share = share
        self._backoff = Backoff(backoff.first, min(backoff.longest, _LONGEST_BACKOFF))
        self._opens_on = opens_on
        self._patience = patience
        self._postpones = postpones
        self._changed = threading.Condition()
        self._bulkheads: dict[str, _Bulkhead] = {}
        # Those with postponed steps, and those whose breaker is open, in the order in which they became so. With an
        # agent for each host there are thousands of others, and each call would look at all of them.
        self._awaited: dict[_Bulkhead, None] = {}
        self._open: dict[_Bulkhead, None] = {}
        #: The number of probes under way.
        self._probes = 0
        self._ended = False
        self._prober = threading.Thread(target=self._run, name=f"probes of {kind}s", daemon=True)

    def start(self) -> None:
        """Start to probe the destinations whose breakers are open."""
        self._prober.start()

    def stop(self) -> None:
        """Finish the probes under way, and stop."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._prober.is_alive():
            self._prober.join()

    @contextmanager
    def admit(self, key: str, name: str, probe: Callable[[], object]) -> Iterator[None]:
        """Admit one call to a destination, made in the ``with`` block.

        :param probe: raises an error unless the destination answers within a short time.
        :raises CircuitOpen: the destination has not answered for a while.
        :raises Postponed: its share is used up; raised only within a step.
        """
        scope = _STEP.get()
        call = _CallUnderWay(time.monotonic(), object() if scope is None else scope.group)
        with self._changed:
            bulkhead = self._bulkheads.setdefault(key, _Bulkhead(name, probe))
            self._check_admission(key, bulkhead, call.begun)
            bulkhead.begun.append(call)
        raised: BaseException | None = None
        try:
            yield
        except BaseException as fault:
            raised = fault
            raise
        finally:
            self._over(bulkhead, call, raised)

    def wake(self) -> None:
        """Wake the postponed steps for which there is room now."""
        with self._changed:
            due = [wake for bulkhead in self._awaited for wake in bulkhead.due(self._share, self._give_back)]
            if due:
                self._awaited = {each: None for each in self._awaited if each.fresh or each.waiting}
        for wake in due:
            wake()

    def _give_back(self, place: KeptPlace) -> None:
        with self._changed:
            place.bulkhead.kept -= 1
        self.wake()

    def _check_admission(self, key: str, bulkhead: _Bulkhead, now: float) -> None:
        scope = _STEP.get()
        if bulkhead.is_suspected:
            # One lost message proves little, so a call outside of a step is still made. A step can wait for the probe.
            if scope is not None:
                raise Postponed(lambda wake: self._wait(bulkhead, wake, fresh=not scope.tries))
        elif bulkhead.open_since is not None:
            if scope is not None and scope.tries and self._postpones:
                raise Postponed(lambda wake: self._wait(bulkhead, wake, fresh=False))
            raise CircuitOpen(f"it has not answered for {now - bulkhead.open_since:.0f} s")
        if bulkhead.gives_kept_place(scope) or bulkhead.has_room(self._share, scope and scope.group):
            pass
        elif scope is None:
            if bulkhead.overdue(now, self._patience):
                raise CircuitOpen(f"{len(bulkhead.begun)} calls wait for its answer")
        elif key not in scope.entered:
            # A step that has called it before must go on: repeated from its start, it could not know of its first call.
            raise Postponed(lambda wake: self._wait(bulkhead, wake, fresh=not scope.tries))
        if scope is not None:
            scope.entered.add(key)

    def _wait(self, bulkhead: _Bulkhead, wake: Wake, *, fresh: bool) -> None:
        with self._changed:
            # Without ``postpones``, a waiting step must go on when the breaker opens: it is refused, and records that.
            (bulkhead.fresh if fresh or not self._postpones else bulkhead.waiting).append(wake)
            self._awaited[bulkhead] = None
        # There may be room by now.
        self.wake()

    def _over(self, bulkhead: _Bulkhead, call: _CallUnderWay, raised: BaseException | None) -> None:
        begun = call.begun
        with self._changed:
            bulkhead.begun.remove(call)
            if isinstance(raised, self._opens_on):
                # A destination that has answered another call since this one began is alive.
                if begun > bulkhead.answered_at and bulkhead.open_since is None:
                    self._open_breaker(bulkhead, begun, raised)
            elif raised is None or (isinstance(raised, errors.MoorageError) and not isinstance(raised, _NO_ANSWERS)):
                self._close(bulkhead)
        self.wake()

    def _close(self, bulkhead: _Bulkhead) -> None:
        bulkhead.answered_at = time.monotonic()
        if bulkhead.failures:
            LOG.info("The %s %s answers again", self._kind, bulkhead.name)
        bulkhead.open_since, bulkhead.failures = None, 0
        self._open.pop(bulkhead, None)

    def _open_breaker(self, bulkhead: _Bulkhead, begun: float, raised: BaseException) -> None:
        bulkhead.open_since, bulkhead.probe_at = begun, begun
        self._open[bulkhead] = None
        if isinstance(raised, errors.BusUnavailable):
            # The failed call was as good as a probe: its bus is away.
            self._postpone_probe(bulkhead)
        self._changed.notify_all()

    def _postpone_probe(self, bulkhead: _Bulkhead) -> None:
        if bulkhead.is_suspected:
            LOG.warning("The %s %s does not answer; until it does, nothing waits for it", self._kind, bulkhead.name)
        bulkhead.failures += 1
        bulkhead.probe_at = time.monotonic() + self._backoff.seconds(bulkhead.failures)

    # --- Probes -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with ThreadPoolExecutor(_PROBES_AT_ONCE) as threads:
            while (bulkhead := self._next_due()) is not None:
                threads.submit(self._probe, bulkhead)

    def _next_due(self) -> _Bulkhead | None:
        """Wait until a probe is due and a thread is free for it, and return its bulkhead; null when stopped."""
        with self._changed:
            while not self._ended:
                now = time.monotonic()
                idle = [each for each in self._open if not each.is_probed]
                due = [each for each in idle if each.probe_at <= now]
                if due and self._probes < _PROBES_AT_ONCE:
                    # First where one call has been lost: all steps there wait for this probe, and it is mostly
                    # answered. Behind the probes of hundreds of dead ones they would wait for minutes.
                    first = min(due, key=lambda each: (not each.is_suspected, each.probe_at))
                    first.is_probed = True
                    self._probes += 1
                    return first
                later = min((each.probe_at for each in idle), default=now + 3600.0)
                self._changed.wait(None if due else later - now)
        return None

    def _probe(self, bulkhead: _Bulkhead) -> None:
        answered = False
        try:
            bulkhead.probe()
            answered = True
        except errors.MoorageError as fault:
            LOG.debug("The %s %s does not answer yet: %s", self._kind, bulkhead.name, fault)
        except Exception:  # the thread must survive any error of one destination's bus
            LOG.exception("The %s %s cannot be probed", self._kind, bulkhead.name)
        with self._changed:
            bulkhead.is_probed = False
            self._probes -= 1
            if answered:
                self._close(bulkhead)
            elif bulkhead.open_since is not None:
                self._postpone_probe(bulkhead)
            self._changed.notify_all()
        self.wake()
