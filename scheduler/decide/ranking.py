"""Rank feasible hosts by weight, keep what each weigher contributed, and order equal weights by the request's seed."""

import hashlib
import math
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moorage.model import WeigherScore
from moorage.plugin import BadValue, BoolArray, FloatArray, Weigher
from scheduler.view.snapshot import TieArray

RowArray = NDArray[np.intp]


@dataclass(slots=True, eq=False)
class Contribution:
    """Hold what one weigher contributes to the weights: a score for each feasible host, their range, a multiplier."""

    name: str
    plugin: Weigher
    scores: FloatArray
    low: float
    high: float
    #: One multiplier for all hosts, or one for each host.
    multiplier: float | FloatArray
    #: The places of hosts that had the lowest and the highest score when these were last looked for.
    _lowest: int = 0
    _highest: int = 0

    def weights(self) -> FloatArray | None:
        """Return the weight of each feasible host, normalised to 0..1 and multiplied; null if all are equal.

        :raises BadValue: the scores are too far apart to be compared.
        """
        if not self.high > self.low:
            return None
        if not math.isfinite(self.high - self.low):
            raise BadValue(f"its scores, from {self.low} to {self.high}, are too far apart to be compared")
        return self.multiplier * ((self.scores - self.low) / (self.high - self.low))

    def weight_at(self, place: int) -> float:
        """Return the weight of the feasible host at one place, the same as in :meth:`weights`."""
        score = (self.scores.item(place) - self.low) / (self.high - self.low)
        return float(self._multiplier_at(place) * score)

    def at(self, place: int) -> WeigherScore:
        """Return the score of the feasible host at one place, normalised, with its multiplier."""
        score, scale = self.scores.item(place), self.high - self.low
        return WeigherScore(
            weigher=self.name,
            score=score,
            normalised=(score - self.low) / scale if scale > 0 else 0.0,
            multiplier=float(self._multiplier_at(place)),
        )

    def put(self, place: int, score: float) -> bool:
        """Replace the score of one host; return whether this has changed the range."""
        before, self.scores[place] = self.scores.item(place), score
        return before != score and self._fit_range(before, score)

    def insert(self, place: int, score: float) -> bool:
        """Add one host, with the common multiplier; return whether this has changed the range."""
        self.scores = np.insert(self.scores, place, score)
        low, high = self.low, self.high
        self.low, self.high = min(low, score), max(high, score)
        return self.low != low or self.high != high

    def remove(self, place: int) -> bool:
        """Remove one host; return whether this has changed the range."""
        before = self.scores.item(place)
        self.scores = np.delete(self.scores, place)
        if isinstance(self.multiplier, np.ndarray):
            self.multiplier = np.delete(self.multiplier, place)
        return bool(len(self.scores)) and self._fit_range(before, before)

    def without(self, removed: RowArray, kept: BoolArray) -> "Contribution | None":
        """Return the contribution to the kept hosts alone; null if the range of their scores is that of all.

        :param removed: the places of the other hosts: these are few, so usually only their scores have to be read.
        """
        if not self.high > self.low:
            return None
        gone = self.scores[removed].tolist()
        if min(gone) > self.low and max(gone) < self.high:
            return None
        scores = self.scores[kept]
        low, high = scores.min().item(), scores.max().item()
        if (low, high) == (self.low, self.high):
            return None
        multiplier = self.multiplier[kept] if isinstance(self.multiplier, np.ndarray) else self.multiplier
        return Contribution(self.name, self.plugin, scores, low, high, multiplier)

    def _fit_range(self, before: float, now: float) -> bool:
        """Fit the range to the scores after one of them has changed; return whether it has changed.

        All scores are scanned only if the host that is known to have the lowest or the highest score has lost it.
        Usually many hosts share that score: without the known host, each claim on one of them would scan all scores.
        """
        low, high = self.low, self.high
        if now < low:
            self.low = now
        elif before == low and not self._has(self._lowest, low):
            self._lowest = int(self.scores.argmin())
            self.low = self.scores.item(self._lowest)
        if now > high:
            self.high = now
        elif before == high and not self._has(self._highest, high):
            self._highest = int(self.scores.argmax())
            self.high = self.scores.item(self._highest)
        return self.low != low or self.high != high

    def _has(self, place: int, score: float) -> bool:
        return place < len(self.scores) and self.scores.item(place) == score

    def _multiplier_at(self, place: int) -> float:
        return self.multiplier[place] if isinstance(self.multiplier, np.ndarray) else self.multiplier


class Ranking:
    """Hold the feasible hosts with their weights; equal weights are ordered by the request's seed.

    The best hosts stay sorted while :meth:`put` changes single weights, as each claim of a plan does.

    :param ties: the order of equal hosts.
    :param look_ahead: the number of best hosts that are sorted at once, even if fewer are wanted.
    """

    def __init__(
        self,
        rows: RowArray,
        weights: FloatArray,
        ties: "SeededTies",
        contributions: Sequence[Contribution] = (),
        look_ahead: int = 1,
    ) -> None:
        self.rows = rows
        self.weights = weights
        self.contributions = contributions
        self.ties = ties
        self.look_ahead = look_ahead
        #: The best hosts, best first: the negative weight, the tie and the row of each.
        self._head: list[tuple[float, int, int]] = []

    def rank_of(self, place: int) -> int:
        """Return the rank of the feasible host at one place; the best has rank 1."""
        weight = self.weights[place]
        equal = np.flatnonzero(self.weights == weight)
        ahead = self._ties_at(equal) < self._ties_at(np.array([place]))
        return int(np.count_nonzero(self.weights > weight) + np.count_nonzero(ahead)) + 1

    def best(self, count: int, among: BoolArray | None = None) -> list[tuple[int, float]]:
        """Return the ``count`` best rows with their weights, best first; only hosts in ``among``, if given.

        Only these are sorted: of 10,000 hosts, they are nearly always less than one percent.
        """
        if count <= self.look_ahead:
            # One pass over all hosts is enough for the best one and, nearly always, for its alternates.
            if len(self._head) < min(count, len(self.rows)):
                self._head = self._sorted(best_places(self.weights, self._ties_at, self.look_ahead))
            wanted = self._head if among is None else [each for each in self._head if among[each[2]]]
            if among is None or len(wanted) >= count:
                return _with_weights(wanted[:count])
        if among is None:
            return _with_weights(self._sorted(best_places(self.weights, self._ties_at, count)))
        few = np.flatnonzero(among[self.rows])
        best = few[best_places(self.weights[few], lambda places: self._ties_at(few[places]), count)]
        return _with_weights(self._sorted(best))

    def put(self, row: int, weight: float | None) -> None:
        """Apply the new weight of one host, which :attr:`weights` already has; null for a host that was removed."""
        head = self._head
        tie: int | None = None
        for number, each in enumerate(head):
            if each[2] == row:
                tie = head.pop(number)[1]
                break
        if weight is not None and head:
            changed = (-weight, self.ties.at(np.array([row])).item() if tie is None else tie, row)
            # Do not add it after the last one: other hosts, which are not sorted, may be better.
            if changed < head[-1]:
                insort(head, changed)

    def _sorted(self, places: RowArray) -> list[tuple[float, int, int]]:
        """Return the negative weights, ties and rows at some places, best first."""
        weights, ties = -self.weights[places], self._ties_at(places)
        order = np.lexsort((ties, weights))
        rows = self.rows[places[order]]
        return list(zip(weights[order].tolist(), ties[order].tolist(), rows.tolist(), strict=True))

    def _ties_at(self, places: RowArray) -> TieArray:
        return self.ties.at(self.rows[places])


def _with_weights(best: Sequence[tuple[float, int, int]]) -> list[tuple[int, float]]:
    return [(row, -weight) for weight, _, row in best]


def best_places(weights: FloatArray, ties_at: Callable[[RowArray], TieArray], count: int) -> RowArray:
    """Return the places of the ``count`` best, in any order.

    :param ties_at: returns the numbers that order equal weights at some places.
    """
    if count >= len(weights):
        return np.arange(len(weights))
    highest = np.flatnonzero(weights == weights.max())
    if len(highest) >= count:
        # Usually many hosts share the highest weight: then only their ties have to be sorted.
        return highest[lowest(ties_at(highest), count)]
    last = np.partition(weights, len(weights) - count)[len(weights) - count]
    better, equal = np.flatnonzero(weights > last), np.flatnonzero(weights == last)
    missing = count - len(better)
    equal = equal[lowest(ties_at(equal), missing)]
    return np.concatenate([better, equal])


def lowest(ties: TieArray, count: int) -> RowArray:
    """Return the places of the ``count`` lowest ties, in any order."""
    if count >= len(ties):
        return np.arange(len(ties))
    if count == 1:
        return np.array([ties.argmin()])
    # Hashes are spread evenly: nearly always, a few more than the wanted ones are below this bound.
    few = np.flatnonzero(ties < np.uint64(min(_WORD - 1, 4 * (count + 4) * _WORD // len(ties))))
    if len(few) < count:
        few = np.arange(len(ties))
    return few[np.argpartition(ties[few], count - 1)[:count]]


# --- Seeds ----------------------------------------------------------------------------------------------------------

_WORD = 2**64


def seed_of(request_id: str) -> int:
    """Return the seed of a request: the same in every scheduler, so that a decision can be repeated."""
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest())


def pick(seed: int, number: int, count: int) -> int:
    """Return which of the ``count`` best hosts the ``number``-th instance of a request goes to."""
    if count == 1:
        return 0
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % count


class SeededTies:
    """The order of equal hosts for one request, computed on demand.

    :param ties: the tie number of every host of the view.
    """

    def __init__(self, ties: TieArray, seed: int) -> None:
        self._ties = ties
        self._seed = seed
        self._every: TieArray | None = None

    def at(self, rows: RowArray) -> TieArray:
        """Return the numbers that order some rows."""
        if self._every is None and 4 * len(rows) < len(self._ties):
            return seeded_ties(self._ties[rows], self._seed)
        if self._every is None:
            # Many hosts are equal: compute the numbers of all, since the next instance needs most of them again.
            self._every = seeded_ties(self._ties, self._seed)
        return self._every[rows]


def seeded_ties(ties: TieArray, seed: int) -> TieArray:
    """Return a hash of each host's tie number with the seed: the order of the hashes is the order of equal hosts.

    The numbers are hashes already, so their products with a random odd number are spread evenly; one operation for all.
    """
    return ties * np.uint64(seed % _WORD | 1)
