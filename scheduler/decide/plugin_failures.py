"""What is done about plug-ins that break: the request fails, or is decided without them; the service lives on."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeVar

from moorage import errors
from moorage.plugin import BadValue
from scheduler.plugins.watch import PluginWatchdog

LOG = logging.getLogger(__name__)

#: What a plug-in can raise. What is there to end a process comes from outside to its main thread alone, which does not
#: decide.
PLUGIN_EXCEPTIONS: Final = (Exception, SystemExit, KeyboardInterrupt, GeneratorExit)
#: With ``broken_plugin = skip`` a plug-in is named in the log no more often than this, in seconds.
_LOG_INTERVAL = 60.0
_UNWATCHED: AbstractContextManager[None] = nullcontext()

T = TypeVar("T")


class FailureCounts:
    """How often each plug-in has been broken since the scheduler was started, for several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._since_sound: set[str] = set()
        self._said: dict[str, tuple[float, int]] = {}

    def counts(self) -> dict[str, int]:
        """Return how often each has been, as ``filter rack``."""
        with self._lock:
            return dict(sorted(self._counts.items()))

    def count(self, plugin: str) -> None:
        """Note that a plug-in was broken."""
        with self._lock:
            self._counts[plugin] += 1
            self._since_sound.add(plugin)

    def sound(self) -> None:
        """Note that a request has been decided."""
        if self._since_sound:
            with self._lock:
                self._since_sound.clear()

    def breaking(self) -> tuple[str, ...]:
        """Return the plug-ins that have been broken since a request was decided last."""
        with self._lock:
            return tuple(sorted(self._since_sound))

    def is_to_be_said(self, plugin: str) -> int:
        """Return how often a plug-in was broken since that was said last, if it is time to say so again; else 0."""
        with self._lock:
            now, count = self._clock(), self._counts[plugin]
            said_at, said = self._said.get(plugin, (-_LOG_INTERVAL, 0))
            if now - said_at < _LOG_INTERVAL and plugin in self._said:
                return 0
            self._said[plugin] = now, count
            return count - said


class PluginFailures:
    """What plug-ins have met with; of one request, where they are skipped.

    :param skip: whether a plug-in that breaks is left out of the request, which otherwise fails.
    :param watch: what limits the time of plug-ins; without it, each may take as long as it likes.
    """

    def __init__(
        self, failure_counts: FailureCounts | None = None, *, skip: bool = False, watch: PluginWatchdog | None = None
    ) -> None:
        self._failure_counts = failure_counts or FailureCounts()
        self._watch = watch
        self.skip = skip
        self._skipped: dict[str, str] = {}

    def for_request(self) -> "PluginFailures":
        """Return the same for a request in which nothing has been skipped yet."""
        return PluginFailures(self._failure_counts, skip=True, watch=self._watch) if self.skip else self

    def run_watched(self, work: Callable[[], T]) -> T:
        """Return what some work returns that asks plug-ins, where those are watched in a thread that can be given up.

        :raises SlowPlugin: a plug-in has not come to an end, and the request is to fail.
        """
        return work() if self._watch is None else self._watch.run(work, skip=self.skip)

    def asking(self, what: str, name: str) -> AbstractContextManager[None]:
        """Ask a plug-in one question; see :meth:`scheduler.plugins.watch.PluginWatchdog.asking`."""
        return _UNWATCHED if self._watch is None else self._watch.asking(f"{what} {name}")

    def pausing(self) -> AbstractContextManager[None]:
        """Do for a plug-in what it cannot be blamed for."""
        return _UNWATCHED if self._watch is None else self._watch.pausing()

    @property
    def skipped(self) -> Mapping[str, str]:
        """The plug-ins that were left out, as ``filter rack``, and why."""
        return self._skipped

    def is_skipped(self, what: str, name: str) -> bool:
        """Tell whether a plug-in is left out of this request."""
        return bool(self._skipped) and f"{what} {name}" in self._skipped

    def met(self, what: str, name: str, fault: BaseException) -> None:
        """Leave a plug-in out of the request that it has broken in.

        :param what: what kind of plug-in it is: ``filter``, ``weigher`` or ``request filter``.
        :raises BrokenPlugin: the request is to fail.
        """
        plugin = f"{what} {name}"
        self._failure_counts.count(plugin)
        error = _error(what, name, fault)
        if not self.skip:
            LOG.error("The %s is broken", plugin, exc_info=fault)
            raise error from fault
        if times := self._failure_counts.is_to_be_said(plugin):
            LOG.error("The %s is broken, and was left out of %s request(s)", plugin, times, exc_info=fault)
        self._skipped[plugin] = str(error)


def _error(what: str, name: str, fault: BaseException) -> errors.BrokenPlugin:
    if isinstance(fault, errors.SlowPlugin):
        return fault
    if isinstance(fault, BadValue):
        return errors.BadPluginValue(plugin=what, name=name, reason=str(fault))
    return errors.BrokenPlugin(plugin=what, name=name, kind=type(fault).__name__)
