"""What an operator's plug-in is written against: the host view, filters and weighers; and request filters.

A plug-in answers one question about one host. It does no I/O, keeps no state between questions, and gets its settings
through its constructor. Answering for all hosts at once is optional: it is faster, never different.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from oslo_config import cfg

from moorage.model import RequestSpec
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

#: Yes or no: of one host, or of each of all hosts.
Answer = bool | np.bool_ | BoolArray
#: A number: of one host, or of each of all hosts.
Amount = int | float | IntArray | FloatArray


class Filter(ABC):
    """Says of a host whether it may serve a request.

    ``options`` are registered in the group ``[filters]``; their values reach the constructor by name.
    """

    options: ClassVar[Sequence[cfg.Opt]] = ()
    #: Keys of aggregates' metadata that it reads as numbers: whoever sets one to something else is refused.
    numeric_metadata: ClassVar[Sequence[str]] = ()
    #: Why a host is refused, in words that follow the host's name.
    reason: ClassVar[str] = "was refused"
    #: Whether it is about room: an explanation tells the hosts that it removes apart by what they are short of.
    about_room: ClassVar[bool] = False

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def concerns(self, request: RequestSpec) -> bool:  # noqa: ARG002
        """Tell whether it has anything to say about ``request``; where not, all hosts pass without being asked."""
        return True

    def check(self, request: RequestSpec) -> None:  # noqa: B027
        """Refuse what is wrong with ``request``, whatever hosts there are; done once, before anything else.

        Where a filter does so, it may rely on it afterwards.

        :raises InvalidRequest: the request says something to this filter that it cannot mean; with the path of that.
        """

    def why(self, host: Host, request: RequestSpec) -> str:  # noqa: ARG002
        """Return why ``host``, which it refuses, is refused, in words that follow the host's name.

        Asked for a few hosts of an explanation alone: those that are named, and the nearest ones.
        """
        return self.reason

    @abstractmethod
    def passes(self, host: Host, request: RequestSpec) -> bool:
        """Tell whether ``host`` may serve ``request``."""

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        """Tell for each row whether it passes; overridden where all hosts can be answered for at once."""
        return np.fromiter((self.passes(view.host(row), request) for row in range(len(view))), dtype=np.bool_)


class ConditionsFilter(Filter):
    """A filter that is a number of conditions, which are put to one host and to all hosts in the same words."""

    @abstractmethod
    def conditions(self, asked: Host | HostView, request: RequestSpec) -> Iterable[Answer]:
        """Yield what must all be true: an answer of one host, or of each of all, as ``asked`` gives them.

        They are combined with ``np.logical_not`` and its like, which take either.
        """

    def passes(self, host: Host, request: RequestSpec) -> bool:
        """Tell whether all conditions are true of ``host``."""
        return all(bool(answer) for answer in self.conditions(host, request))

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        """Tell the same of all hosts."""
        passes = np.ones(len(view), dtype=np.bool_)
        for answer in self.conditions(view, request):
            passes &= answer
        return passes


def any_of(answers: Iterable[Answer]) -> Answer:
    """Return whether one of these is true at least; of none it is not."""
    found: Answer = False
    for answer in answers:
        found = np.logical_or(found, answer)
    return found


class Weigher(ABC):
    """Says how good a host is for a request; more is better.

    Weights are brought to 0..1 over the feasible hosts and multiplied by the option ``<name>_weight_multiplier`` of the
    group ``[weighers]``, so a weigher's own scale does not matter; a negative multiplier turns it round. For the hosts
    of an aggregate that has metadata of that name, the multiplier is that; of several, the smallest.
    """

    options: ClassVar[Sequence[cfg.Opt]] = ()
    #: Keys of aggregates' metadata that it reads as numbers; that of its multiplier is one by itself.
    numeric_metadata: ClassVar[Sequence[str]] = ()
    default_multiplier: ClassVar[float] = 1.0

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def concerns(self, request: RequestSpec) -> bool:  # noqa: ARG002
        """Tell whether it has anything to say about ``request``; where not, to it all hosts weigh the same."""
        return True

    @abstractmethod
    def weigh(self, host: Host, request: RequestSpec) -> float:
        """Return the weight of ``host``."""

    def scores(self, view: HostView, request: RequestSpec) -> FloatArray:
        """Return the weight of each row; overridden where all hosts can be answered for at once."""
        return np.fromiter((self.weigh(view.host(row), request) for row in range(len(view))), dtype=np.float64)
