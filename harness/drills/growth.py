"""Decide whether a series of figures, one for each part of a run, grows.

Growth is estimated by the Theil-Sen slope, the median of the slopes of all pairs of figures. It stays the same even if
up to a quarter of the figures are far off, for instance because the machine was busy. Steadiness is measured by
Kendall's tau: the share of pairs in which the later figure is greater, minus the share in which it is smaller.
"""

from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

#: The minimum tau of growing figures. Of nine figures without a trend, one series in sixty reaches it by chance, and
#: only one of several such series also grows by more than is allowed. Dozens of series are judged together.
_STEADY = 0.6


class Allowance(NamedTuple):
    """The allowed growth from the first to the last figure: a share of the median, plus an amount."""

    share: float
    amount: float


class Trend(NamedTuple):
    """The estimated growth from the first to the last figure, its tau, and the median of the figures."""

    growth: float
    tau: float
    median: float

    def exceeds(self, allowed: Allowance) -> bool:
        """Return whether the figures grow steadily and by more than is allowed."""
        return self.tau >= _STEADY and self.growth > self.median * allowed.share + allowed.amount


def trend(figures: Sequence[float]) -> Trend:
    """Return the trend of figures that were taken at equal intervals.

    :raises ValueError: there are fewer than two figures.
    """
    if len(figures) < 2:
        raise ValueError("a trend needs at least two figures")
    pairs = list(combinations(range(len(figures)), 2))
    slopes = [(figures[later] - figures[earlier]) / (later - earlier) for earlier, later in pairs]
    rising = sum((slope > 0) - (slope < 0) for slope in slopes)
    return Trend(median(slopes) * (len(figures) - 1), rising / len(pairs), median(figures))
