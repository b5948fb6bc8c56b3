"""Handle plug-ins that break: fail the request, or decide it without them, as configured; the service keeps running."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeVar

from moorage import errors, metrics
from moorage.plugin import BadValue
from scheduler.plugins.watch import PluginWatchdog

LOG = logging.getLogger(__name__)

#: All exceptions that a plug-in can raise, also those that end a process: if they are meant for the scheduler, they are
#: raised in the main thread, which makes no decisions.
PLUGIN_EXCEPTIONS: Final = (Exception, SystemExit, KeyboardInterrupt, GeneratorExit)
#: Seconds between two log lines about one broken plug-in, with ``broken_plugin = skip``.
_LOG_INTERVAL = 60.0
_UNWATCHED: AbstractContextManager[None] = nullcontext()

T = TypeVar("T")


class FailureCounts:
    """Count the failures of each plug-in since the scheduler was started. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._since_decided: set[str] = set()
        self._logged: dict[str, tuple[float, int]] = {}

    def counts(self) -> dict[str, int]:
        """Return the number of failures by plug-in, as ``filter rack``."""
        with self._lock:
            return dict(sorted(self._counts.items()))

    def count(self, plugin: str) -> None:
        """Count one failure of a plug-in, here and in the metric.

        :param plugin: its kind and name, as ``filter rack``.
        """
        kind, _, name = plugin.rpartition(" ")
        metrics.PLUGIN_FAILURES.labels(kind, name).inc()
        with self._lock:
            self._counts[plugin] += 1
            self._since_decided.add(plugin)

    def request_decided(self) -> None:
        """Note that a request has been decided: plug-ins that broke before it no longer prevent decisions."""
        if self._since_decided:
            with self._lock:
                self._since_decided.clear()

    def breaking(self) -> tuple[str, ...]:
        """Return the plug-ins that have failed since the last request that was decided."""
        with self._lock:
            return tuple(sorted(self._since_decided))

    def count_to_log(self, plugin: str) -> int:
        """Return the failures of a plug-in since its last log line, if it is time for another line; else 0."""
        with self._lock:
            now, count = self._clock(), self._counts[plugin]
            logged_at, logged = self._logged.get(plugin, (-_LOG_INTERVAL, 0))
            if now - logged_at < _LOG_INTERVAL and plugin in self._logged:
                return 0
            self._logged[plugin] = now, count
            return count - logged


class PluginFailures:
    """Handle the failures of plug-ins: fail the request, or skip the plug-in for the rest of it.

    :param skip: whether a plug-in that breaks is skipped; else the request fails.
    :param watch: limits the time of each call of a plug-in; without it there is no limit.
    """

    def __init__(
        self, failure_counts: FailureCounts | None = None, *, skip: bool = False, watch: PluginWatchdog | None = None
    ) -> None:
        self._failure_counts = failure_counts or FailureCounts()
        self._watch = watch
        self.skip = skip
        self._skipped: dict[str, str] = {}

    def for_request(self) -> "PluginFailures":
        """Return the failures of a new request, in which nothing is skipped yet, with the same counts and limits."""
        return PluginFailures(self._failure_counts, skip=True, watch=self._watch) if self.skip else self

    @property
    def is_watched(self) -> bool:
        """True if the calls of plug-ins are timed."""
        return self._watch is not None

    def run_watched(self, decide: Callable[[], T]) -> T:
        """Return the result of a decision; if plug-ins are timed, it runs in a thread that can be abandoned.

        :raises SlowPlugin: a plug-in has not returned in time, and the request must fail.
        """
        return decide() if self._watch is None else self._watch.run(decide, skip=self.skip)

    def timed(self, kind: str, name: str) -> AbstractContextManager[None]:
        """Time one call of a plug-in; see :meth:`scheduler.plugins.watch.PluginWatchdog.timed`."""
        return _UNWATCHED if self._watch is None else self._watch.timed(f"{kind} {name}")

    def pausing(self) -> AbstractContextManager[None]:
        """Stop the clock of a call while the scheduler itself works for the plug-in."""
        return _UNWATCHED if self._watch is None else self._watch.pausing()

    @property
    def skipped(self) -> Mapping[str, str]:
        """The plug-ins that were skipped, as ``filter rack``, and why."""
        return self._skipped

    def is_skipped(self, kind: str, name: str) -> bool:
        """Tell whether a plug-in is skipped for the rest of this request."""
        return bool(self._skipped) and f"{kind} {name}" in self._skipped

    def handle(self, kind: str, name: str, fault: BaseException) -> None:
        """Count a failure, and skip the plug-in for the rest of the request or fail the request.

        A decision that runs again without a plug-in does not count its time-out again.

        :param kind: ``filter``, ``weigher`` or ``request filter``.
        :raises BrokenPlugin: the request must fail.
        """
        plugin = f"{kind} {name}"
        if self._watch is None or not self._watch.is_left_out(plugin):
            self._failure_counts.count(plugin)
        error = _error(kind, name, fault)
        if not self.skip:
            LOG.error("The %s is broken", plugin, exc_info=fault)
            raise error from fault
        if times := self._failure_counts.count_to_log(plugin):
            LOG.error("The %s is broken, and was left out of %s request(s)", plugin, times, exc_info=fault)
        self._skipped[plugin] = str(error)


def require_texts(fault: errors.InvalidRequest) -> None:
    """Check that the error by which a plug-in refuses a request has a path and a reason.

    :raises TypeError: it has not.
    """
    path, reason = fault.data.get("path"), fault.data.get("reason")
    if not (isinstance(path, str) and isinstance(reason, str)):
        raise TypeError(f"it finds the request invalid at {path!r:.60}: {reason!r:.60}") from fault


def _error(kind: str, name: str, fault: BaseException) -> errors.BrokenPlugin:
    if isinstance(fault, errors.SlowPlugin):
        return fault
    if isinstance(fault, BadValue):
        return errors.BadPluginValue(plugin=kind, name=name, reason=str(fault))
    return errors.BrokenPlugin(plugin=kind, name=name, kind=type(fault).__name__)
