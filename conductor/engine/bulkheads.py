"""Keep one destination that does not answer from taking the threads that others need.

A destination is a cell, of the super conductor, or an agent, of a cell conductor. The steps that wait for one of them
hold a share of the worker's threads and no more; the others are postponed and hold none. Once a destination has let a
call time out, its circuit breaker opens: nobody waits for it any more, until it has answered a probe.
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

from oslo_config import cfg

from conductor.engine.steps import Backoff
from moorage import errors

LOG = logging.getLogger(__name__)

#: Seconds after which a silent destination is probed again at the latest; its operations go on when it answers.
_LONGEST_BACKOFF = 3.0
#: Probes under way at a time.
_PROBES_AT_ONCE = 8

Wake = Callable[[], None]


def worker_share(conf: cfg.ConfigOpts) -> int:
    """Return how many of a conductor's workers may wait for one destination: several may fall silent at once."""
    workers: int = conf.conductor.workers
    return max(1, workers // 4)


class CircuitOpen(Exception):
    """The destination has not answered for a while, and is not waited for."""


class Postponed(Exception):
    """The step is to be done once there is room for it, and holds no thread until then."""

    def __init__(self, register: Callable[[Wake], None]) -> None:
        super().__init__("there is no room for another call to it")
        #: Takes what is called when there is room; at once, where there is some by now.
        self.register = register


class StepScope:
    """One step that a worker does, and the destinations that it has called."""

    def __init__(self, tries: int) -> None:
        self.tries = tries
        self.entered: set[str] = set()


_STEP: contextvars.ContextVar[StepScope | None] = contextvars.ContextVar("step", default=None)


@contextmanager
def step(tries: int) -> Iterator[None]:
    """Mark what this thread calls as calls of one step, which can be postponed."""
    token = _STEP.set(StepScope(tries))
    try:
        yield
    finally:
        _STEP.reset(token)


@dataclass(slots=True)
class _Bulkhead:
    """The calls to one destination, and whether it answers."""

    name: str
    probe: Callable[[], None]
    #: When the calls under way began.
    begun: list[float] = field(default_factory=list)
    answered_at: float = float("-inf")
    #: Since when it has answered nothing, how many probes it has not answered, and when the next one is due.
    silent_since: float | None = None
    failures: int = 0
    probe_at: float = 0.0
    #: Steps that wait, those apart whose record names no reason yet.
    fresh: deque[Wake] = field(default_factory=deque)
    waiting: deque[Wake] = field(default_factory=deque)

    @property
    def is_suspected(self) -> bool:
        """Whether it has let a call time out, and a first probe is to show whether it answers."""
        return self.silent_since is not None and not self.failures

    def overdue(self, now: float, patience: float) -> bool:
        """Return whether a call has been under way for ``patience`` seconds, and nothing was answered since then."""
        return bool(self.begun) and max(min(self.begun), self.answered_at) + patience < now

    def due(self, share: int) -> list[Wake]:
        """Take the steps that may go on now from those that wait."""
        if self.is_suspected:
            return []
        if self.silent_since is not None:
            # One after the other, each records why it does not go on.
            return [self.fresh.popleft()] if self.fresh else []
        taken: list[Wake] = []
        while (self.fresh or self.waiting) and len(self.begun) + len(taken) < share:
            taken.append((self.waiting or self.fresh).popleft())
        return taken


class Bulkheads:
    """The bulkheads of one conductor, by destination.

    :param kind: what a destination is, for the log.
    :param share: the calls of steps to one destination that may be under way at a time.
    :param backoff: the seconds between two probes of a silent destination.
    :param opens_on: the errors that show that a destination is silent.
    :param patience: seconds after which a call that is no step's waits in vain, where the share is used up.
    :param postpones: whether a step waits until a silent destination answers, once its record says so. Otherwise it is
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
        self._ended = False
        self._prober = threading.Thread(target=self._run, name=f"probes of {kind}s", daemon=True)

    def start(self) -> None:
        """Begin to probe destinations that are silent."""
        self._prober.start()

    def stop(self) -> None:
        """End with the probes under way."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._prober.is_alive():
            self._prober.join()

    @contextmanager
    def passage(self, key: str, name: str, probe: Callable[[], None]) -> Iterator[None]:
        """Make one call to a destination.

        :param probe: raises an error unless the destination answers; it waits for a short time.
        :raises Silent: the destination has not answered for a while.
        :raises Postponed: its share is used up; of a step alone.
        """
        begun = time.monotonic()
        with self._changed:
            bulkhead = self._bulkheads.setdefault(key, _Bulkhead(name, probe))
            self._admit(key, bulkhead, begun)
            bulkhead.begun.append(begun)
        met: BaseException | None = None
        try:
            yield
        except BaseException as fault:
            met = fault
            raise
        finally:
            self._over(bulkhead, begun, met)

    def wake(self) -> None:
        """Let steps that wait go on, as far as there is room for them."""
        with self._changed:
            due = [wake for bulkhead in self._bulkheads.values() for wake in bulkhead.due(self._share)]
        for wake in due:
            wake()

    def _admit(self, key: str, bulkhead: _Bulkhead, now: float) -> None:
        scope = _STEP.get()
        if bulkhead.is_suspected:
            # One lost message is no silence: whoever asks again at once is answered. Steps can wait for the probe.
            if scope is not None:
                raise Postponed(lambda wake: self._wait(bulkhead, wake, fresh=not scope.tries))
        elif bulkhead.silent_since is not None:
            if scope is not None and scope.tries and self._postpones:
                raise Postponed(lambda wake: self._wait(bulkhead, wake, fresh=False))
            raise CircuitOpen(f"it has not answered for {now - bulkhead.silent_since:.0f} s")
        if len(bulkhead.begun) < self._share:
            pass
        elif scope is None:
            if bulkhead.overdue(now, self._patience):
                raise CircuitOpen(f"{len(bulkhead.begun)} calls wait for its answer")
        elif key not in scope.entered:
            # A step that has called it before goes on: done anew, it could not tell that its first call was sent.
            raise Postponed(lambda wake: self._wait(bulkhead, wake, fresh=not scope.tries))
        if scope is not None:
            scope.entered.add(key)

    def _wait(self, bulkhead: _Bulkhead, wake: Wake, *, fresh: bool) -> None:
        with self._changed:
            # One that is refused each time must go on, to be refused, when the destination falls silent.
            (bulkhead.fresh if fresh or not self._postpones else bulkhead.waiting).append(wake)
        # The room may have come meanwhile.
        self.wake()

    def _over(self, bulkhead: _Bulkhead, begun: float, met: BaseException | None) -> None:
        with self._changed:
            bulkhead.begun.remove(begun)
            if isinstance(met, self._opens_on):
                # What has answered since this call began is not silent.
                if begun > bulkhead.answered_at and bulkhead.silent_since is None:
                    self._open(bulkhead, begun, met)
            elif met is None or (isinstance(met, errors.MoorageError) and not isinstance(met, errors.BusUnavailable)):
                # A bus that is away says nothing of one destination of many; any other error is the destination's.
                self._close(bulkhead)
        self.wake()

    def _close(self, bulkhead: _Bulkhead) -> None:
        bulkhead.answered_at = time.monotonic()
        if bulkhead.failures:
            LOG.info("The %s %s answers again", self._kind, bulkhead.name)
        bulkhead.silent_since, bulkhead.failures = None, 0

    def _open(self, bulkhead: _Bulkhead, begun: float, met: BaseException) -> None:
        bulkhead.silent_since, bulkhead.probe_at = begun, begun
        if isinstance(met, errors.BusUnavailable):
            # That was a probe of its bus: there is nothing more to be found out.
            self._postpone_probe(bulkhead)
        self._changed.notify_all()

    def _postpone_probe(self, bulkhead: _Bulkhead) -> None:
        if bulkhead.is_suspected:
            LOG.warning("The %s %s does not answer; until it does, nothing waits for it", self._kind, bulkhead.name)
        bulkhead.failures += 1
        bulkhead.probe_at = time.monotonic() + self._backoff.seconds(bulkhead.failures)

    # --- Probes -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (due := self._due()) is not None:
            with ThreadPoolExecutor(min(len(due), _PROBES_AT_ONCE)) as threads:
                list(threads.map(self._probe, due))
            self.wake()

    def _due(self) -> list[_Bulkhead] | None:
        """Wait until probes are due, and return what is to be probed; nothing at the end."""
        with self._changed:
            while not self._ended:
                silent = [each for each in self._bulkheads.values() if each.silent_since is not None]
                now = time.monotonic()
                if due := [each for each in silent if each.probe_at <= now]:
                    return due
                self._changed.wait(min((each.probe_at for each in silent), default=now + 3600.0) - now)
        return None

    def _probe(self, bulkhead: _Bulkhead) -> None:
        answered = False
        try:
            bulkhead.probe()
            answered = True
        except errors.MoorageError as fault:
            LOG.debug("The %s %s does not answer yet: %s", self._kind, bulkhead.name, fault)
        except Exception:  # the thread must outlive whatever one destination's bus meets
            LOG.exception("The %s %s cannot be probed", self._kind, bulkhead.name)
        with self._changed:
            if answered:
                self._close(bulkhead)
            elif bulkhead.silent_since is not None:
                self._postpone_probe(bulkhead)
