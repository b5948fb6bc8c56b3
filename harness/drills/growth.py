"""Decide of a series of figures, one for each part of a run, whether it grows.

Growth is estimated by the Theil-Sen slope, the median of the slopes of all pairs of figures: up to a quarter of the
figures may be far off, as those of a busy moment are, and it stays where it was. How steady it is, is Kendall's tau:
the share of the pairs in which the later figure is greater, less that of those in which it is smaller.
"""

from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

#: The least tau of figures that grow. Of nine figures without any trend one series in sixty has it by chance, and one
#: of those in several grows by more than is allowed as well. Dozens of series are judged together.
_STEADY = 0.6


class Allowance(NamedTuple):
    """The growth from the first to the last figure that counts as none: a share of the median, and an amount."""

    share: float
    amount: float


class Trend(NamedTuple):
    """The estimated growth from the first to the last figure, how steady it is, and the median of the figures."""

    growth: float
    tau: float
    median: float

    def exceeds(self, allowed: Allowance) -> bool:
        """Return whether the figures grow steadily, and by more than is allowed."""
        return self.tau >= _STEADY and self.growth > self.median * allowed.share + allowed.amount


def trend(figures: Sequence[float]) -> Trend:
    """Return the trend of figures that were taken at equal distances.

    :raises ValueError: there are fewer than two.
    """
    if len(figures) < 2:
        raise ValueError("a trend needs at least two figures")
    pairs = list(combinations(range(len(figures)), 2))
    slopes = [(figures[later] - figures[earlier]) / (later - earlier) for earlier, later in pairs]
    rising = sum((slope > 0) - (slope < 0) for slope in slopes)
    return Trend(median(slopes) * (len(figures) - 1), rising / len(pairs), median(figures))
