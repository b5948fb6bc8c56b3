"""The plug-in interface for operators: filters, weighers, request filters, and the host view.

A filter or weigher computes its result for one host. It does no I/O, keeps no state between calls, and gets its options
by its constructor. Computing all hosts at once is optional: it is faster, with the same results.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from oslo_config import cfg

from moorage.model import AllocationRequest, RequestSpec
from moorage.plugin.attributes import BadValue as BadValue
from moorage.plugin.attributes import measured as measured
from moorage.plugin.host import Host as Host
from moorage.plugin.host import HostInventory as HostInventory
from moorage.plugin.host_view import BoolArray as BoolArray
from moorage.plugin.host_view import FloatArray as FloatArray
from moorage.plugin.host_view import HostView as HostView
from moorage.plugin.host_view import IntArray as IntArray
from moorage.plugin.request_filter import Aggregate as Aggregate
from moorage.plugin.request_filter import Cloud as Cloud
from moorage.plugin.request_filter import RequestFilter as RequestFilter
from moorage.plugin.request_filter import RequestRefused as RequestRefused

#: A boolean: of one host, or of each host.
Answer = bool | np.bool_ | BoolArray
#: A number: of one host, or of each host.
Amount = int | float | IntArray | FloatArray


class Filter(ABC):
    """A filter: decides whether a host may serve a request.

    ``options`` are registered in the group ``[filters]``; their values are passed to the constructor by name.
    """

    options: ClassVar[Sequence[cfg.Opt]] = ()
    #: Keys of aggregates' metadata that it reads as numbers: setting one to something else is refused.
    numeric_metadata: ClassVar[Sequence[str]] = ()
    #: The reason for a refusal, as text that follows the host's name.
    reason: ClassVar[str] = "was refused"
    #: Whether it is about free resources: then an explanation counts the hosts that it removes by their shortages.
    about_room: ClassVar[bool] = False

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def concerns(self, request: RequestSpec) -> bool:  # noqa: ARG002
        """Return whether the filter applies to ``request``; if not, all hosts pass."""
        return True

    def check(self, request: RequestSpec) -> None:  # noqa: B027
        """Validate ``request`` for this filter; called once, before all else, so that the other methods can rely on it.

        :raises InvalidRequest: the request is not valid for this filter; with the path of the fault.
        """

    def why(self, host: Host, request: RequestSpec) -> str:  # noqa: ARG002
        """Return the reason why the filter refuses ``host``, as text that follows the host's name.

        Called only for a few hosts of an explanation: the named ones and the nearest ones.
        """
        return self.reason

    @abstractmethod
    def passes(self, host: Host, request: RequestSpec) -> bool:
        """Return whether ``host`` may serve ``request``."""

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        """Return for each row whether its host passes; override it if all hosts can be computed at once."""
        return np.fromiter((self.passes(view.host(row), request) for row in range(len(view))), dtype=np.bool_)

    def passes_candidate(self, host: Host, candidate: AllocationRequest, request: RequestSpec) -> bool:  # noqa: ARG002
        """Return whether a host that passes may serve ``request`` by this allocation candidate of its providers.

        Override it in a filter that refuses some of a host's candidates; otherwise it costs nothing. It is called only
        for the best hosts, candidate by candidate, until one passes. If none passes, the host is left out, with the
        filter's ``reason``. The answer must depend only on the host, the candidate and the request; a candidate that
        was refused must not pass when the host is fuller. A host may have thousands of candidates: the calls count
        against the budget of the request's searches.
        """
        return True


class ConditionsFilter(Filter):
    """A filter by conditions that are written once for one host and for all hosts."""

    @abstractmethod
    def conditions(self, hosts: Host | HostView, request: RequestSpec) -> Iterable[Answer]:
        """Yield the conditions that must all be true.

        Combine them with ``np.logical_not`` and similar functions, which accept both forms.

        :param hosts: one host, or the view of all hosts.
        """

    def passes(self, host: Host, request: RequestSpec) -> bool:
        """Return whether all conditions are true of ``host``."""
        return all(bool(answer) for answer in self.conditions(host, request))

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        """Return for each row whether all conditions are true of its host."""
        passes = np.ones(len(view), dtype=np.bool_)
        for answer in self.conditions(view, request):
            passes &= answer
        return passes


def any_of(answers: Iterable[Answer]) -> Answer:
    """Return whether at least one of these is true; False if there are none."""
    found: Answer = False
    for answer in answers:
        found = np.logical_or(found, answer)
    return found


class Weigher(ABC):
    """A weigher: scores a host for a request; more is better.

    Scores are normalised to 0..1 over the feasible hosts and multiplied by the option ``<name>_weight_multiplier`` of
    the group ``[weighers]``, so that a weigher's own scale does not matter; a negative multiplier reverses it. Metadata
    of that name on an aggregate is the multiplier for the aggregate's hosts; of several, the smallest.
    """

    options: ClassVar[Sequence[cfg.Opt]] = ()
    #: Keys of aggregates' metadata that it reads as numbers; that of its multiplier need not be listed.
    numeric_metadata: ClassVar[Sequence[str]] = ()
    default_multiplier: ClassVar[float] = 1.0

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def concerns(self, request: RequestSpec) -> bool:  # noqa: ARG002
        """Return whether the weigher applies to ``request``; if not, all hosts score the same."""
        return True

    @abstractmethod
    def weigh(self, host: Host, request: RequestSpec) -> float:
        """Return the score of ``host``."""

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:
        """Return the score of each row; override it if all hosts can be computed at once."""
        return np.fromiter((self.weigh(view.host(row), request) for row in range(len(view))), dtype=np.float64)
