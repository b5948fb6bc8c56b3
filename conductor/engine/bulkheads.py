"""Bulkheads and circuit breakers: a destination that does not answer must not use up the threads of the others.

A destination is a cell (for the super conductor), an agent (for a cell conductor), or the services of the main bus. The
steps that wait for one destination hold a limited share of the worker's threads; further steps are postponed and hold
no thread. Steps whose calls are made together by one thread hold only that thread. When a call to a cell or an agent
times out, its circuit breaker opens: no step waits for the destination until it has answered a probe.
"""

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from oslo_config import cfg

from conductor.engine.steps import Backoff
from conductor.engine.waiting_steps import KeptPlace, Postponed, PostponedSteps, Wake
from moorage import errors
from moorage.thread_pool import ThreadPool

LOG = logging.getLogger(__name__)

#: The longest back-off between two probes, in seconds; the operations of a destination go on when it answers.
_LONGEST_BACKOFF = 3.0
#: The most probes in progress at a time.
_PROBES_AT_ONCE = 8
#: Seconds without a call after which a silent destination is not probed any more: it may have been deleted. Arbitrary.
_UNCALLED_SECONDS = 3600.0
#: The errors that are not answers: an unavailable bus proves nothing about one of its many destinations, and the
#: deadline of a caller may pass before anything is sent.
_NO_ANSWERS = (errors.BusUnavailable, errors.DeadlineExceeded)


def worker_share(conf: cfg.ConfigOpts) -> int:
    """Return how many of a conductor's threads may wait for one destination; several destinations may fail together."""
    workers: int = conf.conductor.workers
    return max(1, workers // 4)


class CircuitOpen(Exception):
    """The circuit breaker of the destination is open: it has not answered for a while, and no call waits for it."""

    def refusal(self, method: str, name: str) -> errors.Overloaded:
        """Return the error for the caller of a service whose message was not sent."""
        return errors.Overloaded(reason=f"{method} was not sent to {name}: {self}")


@dataclass(eq=False)
class StepScope:
    """One step in a worker's thread; in its ``with`` block the calls of this context are its calls."""

    tries: int
    #: The place that is kept for the step; given back if the step ends without its call.
    place: KeptPlace | None = None
    #: The same value for steps whose calls are made together by one thread.
    group: object = field(default_factory=object)
    #: The operation; while its step waits, a step of the same operation takes its place.
    key: object = field(default_factory=object)
    #: The kind of the operation; the kinds of the steps that wait take turns.
    kind: str = ""
    #: The destinations that it has called.
    entered: set[str] = field(default_factory=set)

    def __enter__(self) -> None:
        self._token = _CURRENT_SCOPE.set(self)

    def __exit__(self, *_raised: object) -> None:
        _CURRENT_SCOPE.reset(self._token)
        if self.place is not None:
            self.place.give_back()


_CURRENT_SCOPE: contextvars.ContextVar[StepScope | None] = contextvars.ContextVar("step", default=None)


@dataclass(frozen=True, slots=True, eq=False)
class _CallUnderWay:
    """A call, made by a step or outside of steps."""

    #: By the monotonic clock.
    begun: float
    #: As in :class:`StepScope`; all calls of a group hold one thread.
    group: object


@dataclass(slots=True, eq=False)
class _Bulkhead:
    """The calls to one destination, and the state of its circuit breaker."""

    name: str
    probe: Callable[[], object]
    #: The calls in progress.
    begun: list["_CallUnderWay"] = field(default_factory=list)
    #: The places kept for steps that were woken and have not made their calls yet.
    kept: int = 0
    answered_at: float = float("-inf")
    #: When the breaker opened (null while it is closed), the number of failed probes, the time of the next one.
    open_since: float | None = None
    failures: int = 0
    probe_at: float = 0.0
    #: A probe is in progress.
    is_probed: bool = False
    #: When a call was last to be made, whether it was admitted or not.
    called_at: float = float("-inf")
    #: The postponed steps. With ``postpones``, the record of a step in ``fresh`` does not yet show the reason of the
    #: wait; without it, all are there.
    fresh: PostponedSteps = field(default_factory=PostponedSteps)
    waiting: PostponedSteps = field(default_factory=PostponedSteps)

    @property
    def is_suspected(self) -> bool:
        """True if a call has timed out and the first probe has not been made yet."""
        return self.open_since is not None and not self.failures

    @property
    def is_uncalled(self) -> bool:
        """True if nothing waits for it, and nothing has called it for a long time."""
        waits = self.begun or self.fresh or self.waiting
        return not waits and self.called_at + _UNCALLED_SECONDS < time.monotonic()

    def overdue(self, now: float, patience: float) -> bool:
        """Return whether a call has waited for ``patience`` seconds, without an answer to any call in that time."""
        return bool(self.begun) and max(min(call.begun for call in self.begun), self.answered_at) + patience < now

    def gives_kept_place(self, scope: StepScope | None) -> bool:
        """Use the place that is kept here for a step, if there is one, for its call; return whether there was one."""
        if scope is None or scope.place is None or scope.place.bulkhead is not self:
            return False
        self.kept -= 1
        scope.place = None
        return True

    def has_room(self, share: int, group: object = None) -> bool:
        """Return whether another call may be made now, by a further thread or by the thread of this group."""
        groups = {call.group for call in self.begun}
        return group in groups or len(groups) + self.kept < share

    def due(self, share: int, keep: Callable[["_Bulkhead", str], KeptPlace]) -> list[Callable[[], None]]:
        """Remove the steps that may continue now from the queues; return their callbacks, each with its place."""
        if self.is_suspected:
            return []
        if self.open_since is not None:
            # Continue them one at a time: each records why it waits, and is then postponed again.
            return [partial(self.fresh.take()[1], None)] if self.fresh else []
        due: list[Callable[[], None]] = []
        while (self.fresh or self.waiting) and self.has_room(share):
            self.kept += 1
            kind, wake = (self.waiting or self.fresh).take()
            due.append(partial(wake, keep(self, kind)))
        return due


class Bulkheads:
    """The bulkheads of one conductor, by destination.

    :param kind: the noun for a destination, for the log.
    :param share: the number of threads that may wait for one destination at a time.
    :param backoff: the seconds between two probes of a destination whose breaker is open.
    :param opens_on: the errors that open the breaker.
    :param patience: seconds after which a call in progress counts as unanswered; used for calls outside of steps when
        the share is used up and no call has timed out since the last answer.
    :param postpones: whether a step waits until the breaker closes, once its record shows the reason, or is refused.
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
        # The bulkheads with postponed steps, and those with open breakers, in the order in which they were added. There
        # may be thousands of other bulkheads (one agent for each host), which a call must not search.
        self._awaited: dict[_Bulkhead, None] = {}
        self._open: dict[_Bulkhead, None] = {}
        #: The number of probes in progress.
        self._probes = 0
        self._ended = False
        self._prober = threading.Thread(target=self._run, name=f"probes of {kind}s", daemon=True)

    def start(self) -> None:
        """Start to probe the destinations whose breakers are open."""
        self._prober.start()

    def stop(self) -> None:
        """Finish the probes in progress, and stop."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._prober.is_alive():
            self._prober.join()

    @contextmanager
    def admit(self, key: str, name: str, probe: Callable[[], object], *, may_postpone: bool = True) -> Iterator[None]:
        """Admit one call to a destination, made in the ``with`` block.

        :param probe: raises an error unless the destination answers within a short time; ``NotFound`` if it was
            deleted.
        :param may_postpone: false if the step may have called another destination before: it cannot restart.
        :raises CircuitOpen: the destination has not answered for a while.
        :raises Postponed: its share is used up; raised only within a step.
        """
        scope = _CURRENT_SCOPE.get() if may_postpone else None
        call = _CallUnderWay(time.monotonic(), object() if scope is None else scope.group)
        with self._changed:
            bulkhead = self._bulkheads.setdefault(key, _Bulkhead(name, probe))
            bulkhead.called_at = call.begun
            self._check_admission(scope, key, bulkhead, call.begun)
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
            due = [wake for bulkhead in self._awaited for wake in bulkhead.due(self._share, self._place)]
            if due:
                self._awaited = {each: None for each in self._awaited if each.fresh or each.waiting}
        for wake in due:
            wake()

    def _place(self, bulkhead: _Bulkhead, kind: str) -> KeptPlace:
        """Return the handle of a place that is kept for a step of a kind."""
        return KeptPlace(bulkhead, partial(self._give_back, bulkhead), partial(self._take_along, bulkhead, kind))

    def _give_back(self, bulkhead: _Bulkhead) -> None:
        with self._changed:
            bulkhead.kept -= 1
        self.wake()

    def _take_along(self, bulkhead: _Bulkhead, kind: str, may_join: Callable[[Wake], bool], most: int) -> list[Wake]:
        with self._changed:
            if bulkhead.open_since is not None:  # each step continues alone
                return []
            taken = bulkhead.waiting.take_along(kind, may_join, most)
            return taken + bulkhead.fresh.take_along(kind, may_join, most - len(taken))

    def _check_admission(self, scope: StepScope | None, key: str, bulkhead: _Bulkhead, now: float) -> None:
        if bulkhead.is_suspected:
            # One lost message proves little: a call outside of a step is still made, but a step can wait for the probe.
            if scope is not None:
                raise Postponed(lambda wake: self._wait(bulkhead, scope, wake, fresh=not scope.tries))
        elif bulkhead.open_since is not None:
            if scope is not None and scope.tries and self._postpones:
                raise Postponed(lambda wake: self._wait(bulkhead, scope, wake, fresh=False))
            raise CircuitOpen(f"it has not answered for {now - bulkhead.open_since:.0f} s")
        if bulkhead.gives_kept_place(scope) or bulkhead.has_room(self._share, scope and scope.group):
            pass
        elif scope is None:
            # A destination that may be silent gets no threads beyond its share: they would wait until their time-out.
            if bulkhead.is_suspected or bulkhead.overdue(now, self._patience):
                raise CircuitOpen(f"{len(bulkhead.begun)} calls wait for its answer")
        elif key not in scope.entered:
            # A step that has called this destination before is not postponed: it would lose its first answer.
            raise Postponed(lambda wake: self._wait(bulkhead, scope, wake, fresh=not scope.tries))
        if scope is not None:
            scope.entered.add(key)

    def _wait(self, bulkhead: _Bulkhead, scope: StepScope, wake: Wake, *, fresh: bool) -> None:
        with self._changed:
            queue, other = bulkhead.waiting, bulkhead.fresh
            # Without ``postpones``, a waiting step must continue when the breaker opens: it is refused, and records it.
            if fresh or not self._postpones:
                queue, other = other, queue
            elsewhere = other.remove(scope.kind, scope.key)
            former = queue.put(scope.kind, scope.key, wake) or elsewhere
            self._awaited[bulkhead] = None
        if former is not None:
            # A message has begun the step anew, and the worker lets go of the older one.
            former(None)
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
        self._close_breaker(bulkhead)

    def _close_breaker(self, bulkhead: _Bulkhead) -> None:
        bulkhead.open_since, bulkhead.failures = None, 0
        self._open.pop(bulkhead, None)

    def _open_breaker(self, bulkhead: _Bulkhead, begun: float, raised: BaseException) -> None:
        bulkhead.open_since, bulkhead.probe_at = begun, begun
        self._open[bulkhead] = None
        if isinstance(raised, errors.BusUnavailable):
            # The bus is unavailable, so a probe would fail too: count this call as one.
            self._postpone_probe(bulkhead)
        self._changed.notify_all()

    def _postpone_probe(self, bulkhead: _Bulkhead) -> None:
        if bulkhead.is_suspected:
            LOG.warning("The %s %s does not answer; until it does, nothing waits for it", self._kind, bulkhead.name)
        bulkhead.failures += 1
        bulkhead.probe_at = time.monotonic() + self._backoff.seconds(bulkhead.failures)

    # --- Probes -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with ThreadPool(_PROBES_AT_ONCE) as threads:
            while (bulkhead := self._next_due()) is not None:
                threads.submit_or_do(self._probe, bulkhead)

    def _next_due(self) -> _Bulkhead | None:
        """Wait until a probe is due and a thread is free for it, and return its bulkhead; null when stopped."""
        with self._changed:
            while not self._ended:
                now = time.monotonic()
                idle = [each for each in self._open if not each.is_probed]
                due = [each for each in idle if each.probe_at <= now]
                if due and self._probes < _PROBES_AT_ONCE:
                    # First the destinations with one lost call: all their steps wait for this probe, which is usually
                    # answered. After the probes of hundreds of dead destinations, they would wait for minutes.
                    first = min(due, key=lambda each: (not each.is_suspected, each.probe_at))
                    first.is_probed = True
                    self._probes += 1
                    return first
                later = min((each.probe_at for each in idle), default=now + 3600.0)
                self._changed.wait(None if due else later - now)
        return None

    def _probe(self, bulkhead: _Bulkhead) -> None:
        answered = is_gone = False
        try:
            bulkhead.probe()
            answered = True
        except errors.NotFound as fault:
            # It was deleted: the steps that wait for it must go on, and find this out.
            is_gone = True
            LOG.info("The %s %s is not probed any more: %s", self._kind, bulkhead.name, fault)
        except errors.MoorageError as fault:
            LOG.debug("The %s %s does not answer yet: %s", self._kind, bulkhead.name, fault)
        except Exception:  # the thread must survive any error of one destination's bus
            LOG.exception("The %s %s cannot be probed", self._kind, bulkhead.name)
        with self._changed:
            bulkhead.is_probed = False
            self._probes -= 1
            if answered:
                self._close(bulkhead)
            elif is_gone:
                self._close_breaker(bulkhead)
            elif bulkhead.is_uncalled:
                LOG.info("The %s %s does not answer, and nothing calls it: it is not probed", self._kind, bulkhead.name)
                self._close_breaker(bulkhead)
            elif bulkhead.open_since is not None:
                self._postpone_probe(bulkhead)
            self._changed.notify_all()
        self.wake()
