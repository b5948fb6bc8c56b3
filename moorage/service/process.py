"""The life of a service process: start, run until a signal, and stop without losing work in progress."""

import gc
import logging
import math
import os
import queue
import select
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar, runtime_checkable

import tenacity

from moorage import errors
from moorage.service import liveness, supervision
from moorage.service.readiness import Check, Readiness, Sampler

if TYPE_CHECKING:
    from moorage.service.listener import Listener

LOG = logging.getLogger(__name__)
#: Equal lines of this logger are not repeated; see :mod:`moorage.logs`.
_TASKS_LOG = logging.getLogger(f"{__name__}.tasks")

T = TypeVar("T")

#: Seconds that a process may take to stop, whatever the broker or the database do.
STOP_SECONDS = 10.0
#: Seconds between two log lines of one wait.
_LOG_SECONDS = 5.0
#: Seconds that a process ended by force waits for its last log line. Arbitrary.
_LAST_LINE_SECONDS = 1.0
_STOPS = (signal.SIGTERM, signal.SIGINT)
#: The number of new objects after which the garbage collector runs. With Python's 700 it ran once per claim or two and
#: took a twelfth of a busy scheduler's time. It found almost nothing, because nearly all objects were already freed.
_MADE_BETWEEN_COLLECTIONS = 20_000


class Service(Protocol):
    """A service that can be started and stopped: one role of a process, or several of them in the harness."""

    def start(self) -> None:
        """Begin to serve; return once messages are taken."""

    def stop(self) -> None:
        """Take no new work, finish the work in progress, and close connections."""


@runtime_checkable
class Reloadable(Protocol):
    """A service that can reload its configuration while it runs."""

    def reload(self) -> None:
        """Reload the configuration; an invalid one is logged and changes nothing."""


class ComposedService(ABC):
    """A service that opens its parts one by one; if one cannot be opened, or at the stop, the last is closed first."""

    def __init__(self) -> None:
        self._closing = ExitStack()
        self._checks: Mapping[str, Check] = {}
        self._samplers: Mapping[str, Sampler] = {}

    @abstractmethod
    def _open(self, opened: ExitStack) -> None:
        """Open and start the parts, and set the checks and samplers; ``opened`` closes the parts."""

    def start(self) -> None:
        """Open all parts, or none: the errors are those of the parts."""
        with ExitStack() as opened:
            self._open(opened)
            self._closing = opened.pop_all()

    def stop(self) -> None:
        """Take no new work, finish the work in progress, and close all parts."""
        self._closing.close()

    def checks(self) -> Mapping[str, Check]:
        """Return the checks of its readiness; empty until it has started."""
        return self._checks

    def samplers(self) -> Mapping[str, Sampler]:
        """Return the samplers of its metrics; empty until it has started."""
        return self._samplers


class Stopping(Exception):
    """The process got a signal to stop during a wait."""


#: Set by the first SIGTERM or SIGINT. It is global because signals are global to the process.
_STOPPING = threading.Event()


class _Signals:
    """Handles the signals of this process in a separate thread, because the main thread may be busy in a library.

    The first SIGTERM or SIGINT starts the stop, and ends the process by force if it has not ended within
    ``stop_seconds``. The second one ends it at once.

    :param passed_on: the descriptor to which the parent process writes the numbers of signals; None if this process
        gets signals itself.
    """

    def __init__(self, stop_seconds: float, passed_on: int | None) -> None:
        self.is_worker = passed_on is not None
        self._stop_seconds = stop_seconds
        self._arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._read = _own_signals() if passed_on is None else passed_on
        # A daemon thread that never ends: it also ends a process that hangs at the interpreter's exit.
        threading.Thread(target=self._watch, name="signals", daemon=True).start()

    def next(self) -> int:
        """Wait for a signal and return its number."""
        return self._arrived.get()

    def _watch(self) -> None:
        end: float | None = None
        sources = [self._read]
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select(sources, [], [], left)[0]:
                _end_by_force(self._stop_seconds)
            numbers = os.read(self._read, 64)
            if not numbers:
                sources = []
                # The parent process has ended.
                numbers = bytes([signal.SIGTERM]) if end is None else b""
            for number in numbers:
                if number in _STOPS:
                    if end is not None:
                        os._exit(1)
                    end = time.monotonic() + self._stop_seconds
                    _STOPPING.set()
                if number in (*_STOPS, signal.SIGHUP):
                    self._arrived.put(number)


def _own_signals() -> int:
    """Return the descriptor from which the numbers of this process's signals can be read."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    for number in (*_STOPS, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    # The interpreter itself writes to it, even while the main thread is busy.
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def _end_by_force(stop_seconds: float) -> NoReturn:
    """Log what is at work, and end the process; the log may hang as well, for instance if nobody reads its pipe."""
    line = "Not stopped within %s s, and ended by force; at work: %s"
    try:
        last = threading.Thread(target=LOG.error, args=(line, stop_seconds, _at_work()), daemon=True)
        last.start()
        last.join(_LAST_LINE_SECONDS)
    finally:
        os._exit(1)


def _at_work() -> str:
    return ", ".join(thread.name for thread in threading.enumerate() if thread is not threading.current_thread())


def run(
    service: Service, stop_seconds: float = STOP_SECONDS, signals: int | None = None, listener: "Listener | None" = None
) -> None:
    """Start ``service`` and stop it at SIGTERM or SIGINT; at SIGHUP reload it if it is :class:`Reloadable`.

    While a part of the cloud is unavailable, the start is repeated. Before each repetition the service is stopped, so
    its ``stop`` must undo an incomplete ``start``.

    :param stop_seconds: seconds from the first signal until the process is ended by force; the second ends it at once.
    :param signals: the descriptor of a worker's signals; see :class:`moorage.service.workers.WorkerProcess`.
    :param listener: serves metrics and health checks of the process.
    :raises ConfigurationError: the listener cannot listen on its address, or the service refuses its options.
    """
    arriving = _Signals(stop_seconds, signals)
    if listener is None:
        _serve(service, arriving, Readiness())
        return
    listener.start()
    try:
        _serve(service, arriving, listener.readiness)
    finally:
        listener.stop()


def _serve(service: Service, arriving: _Signals, readiness: Readiness) -> None:
    try:
        until_available(lambda: _start(service), "what it starts with", seconds=math.inf)
    except Stopping:
        LOG.info("Stopped before it was ready")
        return
    readiness.begin(service)
    LOG.info("Ready")
    interval = supervision.sign_interval()
    alive = partial(supervision.alive, is_worker=arriving.is_worker)
    signs = Periodic("signs of life", alive, interval) if interval else None
    if signs:
        signs.start()
    supervision.ready()
    while arriving.next() == signal.SIGHUP:
        if isinstance(service, Reloadable):
            supervision.reloading()
            service.reload()
            supervision.ready()
    LOG.info("Stopping")
    supervision.stopping()
    readiness.end()
    service.stop()
    if signs:
        signs.stop()
    LOG.info("Stopped")


def collect_garbage_seldom() -> None:
    """Make the garbage collector ignore all existing objects, and run less often for new ones."""
    gc.freeze()
    gc.set_threshold(_MADE_BETWEEN_COLLECTIONS)


@contextmanager
def long_lived() -> Iterator[None]:
    """Make the garbage collector permanently ignore all objects that exist at exit.

    A service keeps what it reads at its start. To examine a hundred thousand hosts repeatedly, while they are read and
    afterwards, would take longer than to read them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    collect_garbage_seldom()


def _start(service: Service) -> None:
    try:
        with long_lived():
            service.start()
    except (errors.MoorageError, Stopping):
        service.stop()
        raise


#: The event that asks the periodic task of a thread to stop.
_STOP_REQUESTED: ContextVar[threading.Event | None] = ContextVar("stop_requested", default=None)


def is_stopping() -> bool:
    """Return whether the periodic task that runs here is to stop: a long round then ends before its next part."""
    ended = _STOP_REQUESTED.get()
    return ended is not None and ended.is_set()


class Periodic:
    """A thread that repeats a task; a failed round is logged, and the next round follows as usual.

    :param interval: seconds from the end of one round to the beginning of the next.
    """

    def __init__(self, name: str, work: Callable[[], object], interval: float) -> None:
        self._name = name
        self._work = work
        self._interval = interval
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin the first round at once, in the thread."""
        self._thread.start()
        liveness.watch(self._thread)

    def stop(self) -> None:
        """Wait for the round in progress, and begin no further round."""
        # First: the thread ends at once.
        liveness.forget(self._thread)
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        _STOP_REQUESTED.set(self._ended)
        while not self._ended.is_set():
            try:
                self._work()
            except errors.MoorageError as fault:
                _TASKS_LOG.warning("%s: %s", self._name, fault)
            except Exception:  # noqa: BLE001 - the thread must survive any failure of one round
                _TASKS_LOG.exception(
                    "%s: an unexpected fault; the next round comes in %s s", self._name, self._interval
                )
            self._ended.wait(self._interval)


def until_available(work: Callable[[], T], what: str, seconds: float = 60.0) -> T:
    """Return the result of ``work``; while a part of the cloud is unavailable, repeat it for at most ``seconds``.

    :raises Stopping: the process got a signal to stop meanwhile.
    :raises StoreRefused: the database refuses the user; waiting would not change that.
    :raises BusRefused: the broker refuses the user.
    """
    logged = -math.inf

    def log_wait(state: tenacity.RetryCallState) -> None:
        nonlocal logged
        if (now := time.monotonic()) - logged >= _LOG_SECONDS:
            logged = now
            LOG.warning("Waiting for %s: %s", what, state.outcome.exception() if state.outcome else "")

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(errors.Unavailable)
        & tenacity.retry_if_not_exception_type((errors.StoreRefused, errors.BusRefused)),
        stop=tenacity.stop_after_delay(seconds),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=2.0),
        sleep=_sleep,
        before_sleep=log_wait,
        reraise=True,
    )(work)


def _sleep(seconds: float) -> None:
    if _STOPPING.wait(seconds):
        raise Stopping
