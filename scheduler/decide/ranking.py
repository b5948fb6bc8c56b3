"""Rank feasible hosts by weight, keep what each weigher contributed, and order equal weights by the request's seed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moorage.model import WeigherScore
from moorage.plugin import BoolArray, FloatArray
from scheduler.view.snapshot import TieArray

RowArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Contribution:
    """Hold what one weigher contributes to the weights: a score for each feasible host, their range, a multiplier."""

    name: str
    scores: FloatArray
    low: float
    high: float
    #: One for all hosts, or one for each.
    multiplier: float | FloatArray

    def at(self, place: int) -> WeigherScore:
        """Return the score of the feasible host at one place, normalised, with its multiplier."""
        score, scale = float(self.scores[place]), float(self.high - self.low)
        multiplier = self.multiplier[place] if isinstance(self.multiplier, np.ndarray) else self.multiplier
        return WeigherScore(
            weigher=self.name,
            score=score,
            normalised=(score - float(self.low)) / scale if scale > 0 else 0.0,
            multiplier=float(multiplier),
        )


class Ranking:
    """Hold the feasible hosts with their weights; equal weights are ordered by the request's seed."""

    def __init__(
        self, rows: RowArray, weights: FloatArray, ties: TieArray, contributions: Sequence[Contribution] = ()
    ) -> None:
        self.rows = rows
        self.weights = weights
        self.contributions = contributions
        self._ties = ties

    def rank_of(self, place: int) -> int:
        """Return the rank of the feasible host at one place; the best has rank 1."""
        weight = self.weights[place]
        ahead = (self.weights == weight) & (self._ties < self._ties[place])
        return int(np.count_nonzero(self.weights > weight) + np.count_nonzero(ahead)) + 1

    def best(self, count: int, among: BoolArray | None = None) -> list[tuple[int, float]]:
        """Return the ``count`` best rows with their weights, best first; of the hosts in ``among``, where given.

        Only those are sorted: among 10,000 hosts they are nearly always less than a hundredth.
        """
        # Without ``among``, the places are found in the weights themselves, without a copy.
        few = None if among is None else np.flatnonzero(among[self.rows])
        weights = self.weights if few is None else self.weights[few]
        ties = self._ties if few is None else self._ties[few]
        places = best_places(weights, ties, count)
        places = places[np.lexsort((ties[places], -weights[places]))]
        rows = self.rows[places if few is None else few[places]]
        return list(zip(rows.tolist(), weights[places].tolist(), strict=True))


def best_places(weights: FloatArray, ties: TieArray, count: int) -> RowArray:
    """Return the places of the ``count`` best, in no order."""
    if count >= len(weights):
        return np.arange(len(weights))
    highest = np.flatnonzero(weights == weights.max())
    if len(highest) >= count:
        # Usually many hosts share the highest weight: then only their ties have to be sorted.
        return highest[lowest(ties[highest], count)]
    last = np.partition(weights, len(weights) - count)[len(weights) - count]
    better, equal = np.flatnonzero(weights > last), np.flatnonzero(weights == last)
    missing = count - len(better)
    equal = equal[lowest(ties[equal], missing)]
    return np.concatenate([better, equal])


def lowest(ties: TieArray, count: int) -> RowArray:
    """Return the places of the ``count`` lowest ties, in no order."""
    if count >= len(ties):
        return np.arange(len(ties))
    return np.array([ties.argmin()]) if count == 1 else np.argpartition(ties, count)[:count]


# --- Seeds ----------------------------------------------------------------------------------------------------------

_WORD = 2**64
# The constants of splitmix64: every bit of the input reaches every bit of the result.
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def seed_of(request_id: str) -> int:
    """Return the seed of a request: the same in every scheduler, so that a decision can be repeated."""
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest())


def pick(seed: int, number: int, count: int) -> int:
    """Return which of the ``count`` best hosts the ``number``-th instance of a request goes to."""
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % count


def seeded_ties(ties: TieArray, seed: int) -> TieArray:
    """Return a hash of each host's tie number with the seed: the order of the hashes is the order of equal hosts."""
    numbers = ties ^ np.uint64(seed % _WORD)
    for shift, factor in _STEPS:
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
