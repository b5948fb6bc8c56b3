"""The arguments of a drill, and its report."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

#: Reports what a drill does and sees.
Say = Callable[[str], None]


class Arguments(NamedTuple):
    """The seed of all random choices, the seconds of work, and the number of clients.

    ``former`` is the Python interpreter of an environment with another release.
    """

    seed: int
    seconds: float
    clients: int
    former: str | None = None


class Report(NamedTuple):
    """The figures of a drill, and its findings: events that must not happen.

    A series has a figure for each part of the drill's time.
    """

    figures: Mapping[str, Any]
    findings: Sequence[str]
    series: Mapping[str, Sequence[float]] = MappingProxyType({})
