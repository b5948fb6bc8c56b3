"""Readiness of a process to do its work now: checks with bounded time, whose results are cached for a short time."""

import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar, runtime_checkable

from moorage import errors, metrics
from moorage.metrics import GaugeSample
from moorage.service.bounded_call import BoundedCall, Waiting

LOG = logging.getLogger(__name__)

T = TypeVar("T")

#: A check raises an error with the reason if the service cannot do its work.
Check = Callable[[], object]
#: A sampler reads all its samples before it returns; if it fails, its samples are left out.
Sampler = Callable[[], Iterable[GaugeSample]]


@runtime_checkable
class Observed(Protocol):
    """A service with checks of its readiness and samplers of its metrics. They are used once it has started."""

    def checks(self) -> Mapping[str, Check]:
        """Return the checks by name. They take no connection from the service's pools, and may hang."""

    def samplers(self) -> Mapping[str, Sampler]:
        """Return the samplers by name. They may hang."""


class Phase(enum.Enum):
    """The phases of a process."""

    STARTING = "not started yet"
    RUNNING = "running"
    STOPPING = "stopping"


class NotReady(Exception):
    """A check has not passed; the text of the exception is the reason."""


class Readiness:
    """The checks and samplers of one process, by phase.

    :param patience: seconds for all checks of one request together.
    :param kept: seconds for which a result is returned again.
    """

    def __init__(self, patience: float = 2.0, kept: float = 1.0, waiting: Waiting | None = None) -> None:
        self._patience = patience
        self._kept = kept
        self._waiting = waiting or Waiting()
        self.phase = Phase.STARTING
        self._checks: Mapping[str, BoundedCall[object]] = {}
        self._samplers: Mapping[str, BoundedCall[Iterable[GaugeSample]]] = {}

    def begin(self, service: object) -> None:
        """Use the checks and samplers of a started service from now on, if it has any."""
        if isinstance(service, Observed):
            self._checks = self._bounded(service.checks())
            self._samplers = self._bounded(service.samplers())
        self.phase = Phase.RUNNING

    def end(self) -> None:
        """Record that the process stops: from now on it is not ready, and no check or sampler is called."""
        self.phase = Phase.STOPPING
        self._checks, self._samplers = {}, {}

    def reasons(self) -> dict[str, str]:
        """Return the reasons why the process cannot do its work now, by check; empty if it can."""
        if self.phase is not Phase.RUNNING:
            return {"started": self.phase.value}
        return {name: reason for name, call in _begun(self._checks).items() if (reason := _reason(call))}

    def samples(self) -> list[GaugeSample]:
        """Return the current samples of the process, including its readiness."""
        found = [metrics.READY.sample(float(self.phase is Phase.RUNNING), "started")]
        calls = _begun(self._samplers)
        for name, check in _begun(self._checks).items():
            found.append(metrics.READY.sample(float(not _reason(check)), name))
        for name, call in calls.items():
            try:
                found.extend(call.result())
            except Exception as fault:  # noqa: BLE001 - the other samples are still returned
                LOG.warning("The metrics of %s could not be read: %s", name, fault)
        return found

    def _bounded(self, works: Mapping[str, Callable[[], T]]) -> dict[str, BoundedCall[T]]:
        return {
            name: BoundedCall(f"check of {name}", work, self._patience, self._kept, self._waiting)
            for name, work in works.items()
        }


def _begun(calls: Mapping[str, BoundedCall[T]]) -> Mapping[str, BoundedCall[T]]:
    """Begin all calls, so that they run at the same time."""
    for call in calls.values():
        call.begin()
    return calls


def _reason(check: BoundedCall[object]) -> str | None:
    """Return why a check does not pass; None if it passes."""
    try:
        check.result()
    except (errors.MoorageError, NotReady, TimeoutError) as fault:
        return str(fault)
    except Exception as fault:
        LOG.exception("A check of readiness has failed")
        return f"an unexpected fault ({type(fault).__name__}), see the log"
    return None
