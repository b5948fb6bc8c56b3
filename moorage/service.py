"""A service of one process: started, kept until a signal, and stopped without losing what it is working on."""

import logging
import queue
import signal
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import tenacity

from moorage import errors

LOG = logging.getLogger(__name__)

T = TypeVar("T")


class Service(Protocol):
    """What can be started and stopped: a role of a process, or several of them in the harness."""

    def start(self) -> None:
        """Begin to serve; returns once messages are taken."""

    def stop(self) -> None:
        """Take no new work, end what is under way, and let go of connections."""


@runtime_checkable
class Reloadable(Protocol):
    """A service that takes over what is new in its configuration while it runs."""

    def reload(self) -> None:
        """Read the configuration anew; what is wrong with it is logged, and changes nothing."""


def run(service: Service) -> None:
    """Start ``service`` and stop it upon SIGTERM or SIGINT; upon SIGHUP reload it, if it can be."""
    # A queue, and not an event: a signal that comes while its own lock is held must not wait for that.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    reloadable = service if isinstance(service, Reloadable) else None
    for number in (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if reloadable else ())):
        signal.signal(number, lambda number, _frame: signals.put(number))
    service.start()
    LOG.info("Ready")
    while signals.get() == signal.SIGHUP:
        if reloadable:
            reloadable.reload()
    LOG.info("Stopping")
    service.stop()


class Periodic:
    """A thread that does one thing again and again; a round that fails is logged, and the next one comes in its turn.

    :param interval: seconds from the end of one round to the beginning of the next.
    """

    def __init__(self, name: str, work: Callable[[], object], interval: float) -> None:
        self._name = name
        self._work = work
        self._interval = interval
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Do the first round at once, in the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Wait for the round under way; no other follows."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._work()
            except errors.MoorageError as fault:
                LOG.warning("%s: %s", self._name, fault)
            except Exception:  # the thread must outlive whatever one round meets
                LOG.exception("%s: an unexpected fault; the next round comes in %s s", self._name, self._interval)
            self._ended.wait(self._interval)


def until_available(work: Callable[[], T], what: str, seconds: float = 60.0) -> T:
    """Return what ``work`` returns, repeating it while a part of the cloud is away, for ``seconds`` at most.

    :raises StoreRefused: the database does not let us in, which waiting would not change.
    :raises BusRefused: nor does the broker.
    """

    def tell(state: tenacity.RetryCallState) -> None:
        LOG.warning("Waiting for %s: %s", what, state.outcome.exception() if state.outcome else "")

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(
            lambda fault: (
                isinstance(fault, errors.Unavailable) and not isinstance(fault, errors.StoreRefused | errors.BusRefused)
            )
        ),
        stop=tenacity.stop_after_delay(seconds),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=2.0),
        before_sleep=tell,
        reraise=True,
    )(work)
