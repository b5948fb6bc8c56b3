"""The funnel: all hosts go in, filters let the feasible ones through, weighers rank them.

A filter that refuses a host and a filter that breaks are two different things: whatever a plug-in raises becomes
:class:`~moorage.errors.BrokenPlugin`, which nobody takes for "no valid host".
"""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moorage import errors
from moorage.model import FilterCount, RequestSpec
from moorage.plugin import BoolArray, Filter, FloatArray, HostView, Weigher
from scheduler.plugins import Named, Weighted
from scheduler.view import Snapshot, TieArray

LOG = logging.getLogger(__name__)

RowArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Stage:
    """One filter's word: the hosts that were still in after it."""

    name: str
    reason: str
    left: BoolArray


@dataclass(frozen=True, slots=True)
class Filtered:
    """What filtering has left, and how it came to it: one stage a filter, until none was left."""

    entered: BoolArray
    stages: Sequence[Stage]

    @property
    def left(self) -> BoolArray:
        """The feasible hosts."""
        return self.stages[-1].left if self.stages else self.entered

    def counts(self) -> tuple[FilterCount, ...]:
        """Return how many hosts entered each filter, and how many it removed."""
        counts = []
        entered = int(self.entered.sum())
        for stage in self.stages:
            left = int(stage.left.sum())
            counts.append(FilterCount(name=stage.name, hosts=entered, removed=entered - left))
            entered = left
        return tuple(counts)


class Ranking:
    """Feasible hosts with their weights; equal weights are ordered by the request's seed."""

    def __init__(self, rows: RowArray, weights: FloatArray, ties: TieArray) -> None:
        self.rows = rows
        self.weights = weights
        self._ties = ties

    def best(self, count: int, among: BoolArray | None = None) -> list[tuple[int, float]]:
        """Return the ``count`` best rows with their weights, best first; of the hosts in ``among``, where given.

        Only what is asked for is sorted: among 10,000 hosts that is nearly always less than a hundredth.
        """
        candidates = np.arange(len(self.rows)) if among is None else np.flatnonzero(among[self.rows])
        weights = self.weights[candidates]
        if count == 1 < len(candidates):
            equal = candidates[weights == weights.max()]
            candidates = equal[[self._ties[equal].argmin()]]
        elif count < len(candidates):
            last = np.partition(weights, len(weights) - count)[len(weights) - count]
            better = candidates[weights > last]
            equal = candidates[weights == last]
            missing = count - len(better)
            if missing < len(equal):
                equal = equal[np.argpartition(self._ties[equal], missing)[:missing]]
            candidates = np.concatenate([better, equal])
        order = np.lexsort((self._ties[candidates], -self.weights[candidates]))
        return [(int(self.rows[place]), float(self.weights[place])) for place in candidates[order]]


class Funnel:
    """The configured filters and weighers."""

    def __init__(self, filters: Sequence[Named[Filter]], weighers: Sequence[Weighted]) -> None:
        self._filters = filters
        # A multiplier of 0 takes a weigher out, so it need not be asked.
        self._weighers = [weigher for weigher in weighers if weigher.multiplier]

    def filter(self, view: HostView, request: RequestSpec, entering: BoolArray) -> Filtered:
        """Return what the filters leave of the hosts that are ``entering``.

        :raises BrokenPlugin: a filter has raised, or has answered something else than a mask.
        """
        stages: list[Stage] = []
        left = entering
        for name, plugin in self._filters:
            if not _concerns(Filter, name, plugin, request):
                continue
            if not left.any():
                break
            left = left & self._mask(name, plugin, view, request, left)
            stages.append(Stage(name, plugin.reason, left))
        return Filtered(entering, stages)

    def rank(self, view: Snapshot, request: RequestSpec, feasible: BoolArray, seed: int) -> Ranking:
        """Return the feasible hosts with their weights.

        Each weigher's scores are brought to 0..1 over the feasible hosts, 0 where all are equal, and multiplied.

        :raises BrokenPlugin: a weigher has raised, or has answered something else than a number for each host.
        """
        rows = np.flatnonzero(feasible)
        weights = np.zeros(len(rows))
        if len(rows) > 1:
            for name, plugin, multiplier in self._weighers:
                if not _concerns(Weigher, name, plugin, request):
                    continue
                scores = self._scores(name, plugin, view, request, rows)
                low, high = scores.min(), scores.max()
                if high > low:
                    weights += multiplier * ((scores - low) / (high - low))
        return Ranking(rows, weights, _mixed(view.ties[rows], seed))

    def _mask(self, name: str, plugin: Filter, view: HostView, request: RequestSpec, left: BoolArray) -> BoolArray:
        with _watched("filter", name):
            if type(plugin).mask is Filter.mask:
                # It answers for one host only: those that are out need no answer.
                mask = np.zeros(len(view), dtype=np.bool_)
                for row in np.flatnonzero(left).tolist():
                    mask[row] = plugin.passes(view.host(row), request)
                return mask
            mask = plugin.mask(view, request)
            if mask.shape != (len(view),) or mask.dtype != np.bool_:
                raise TypeError(f"its mask is {mask.dtype}{mask.shape} and not bool({len(view)},)")
            return mask

    def _scores(self, name: str, plugin: Weigher, view: HostView, request: RequestSpec, rows: RowArray) -> FloatArray:
        with _watched("weigher", name):
            if type(plugin).scores is Weigher.scores:
                scores = np.array([plugin.weigh(view.host(row), request) for row in rows.tolist()], dtype=np.float64)
            else:
                every = plugin.scores(view, request)
                if every.shape != (len(view),):
                    raise TypeError(f"its scores are of shape {every.shape} and not ({len(view)},)")
                scores = every[rows]
            if not np.isfinite(scores).all():
                raise ValueError("a score is not a finite number")
            return scores


def _concerns(kind: type[Filter | Weigher], name: str, plugin: Filter | Weigher, request: RequestSpec) -> bool:
    """Tell whether a plug-in has anything to say about a request; most do not say, and then it has."""
    if type(plugin).concerns is kind.concerns:
        return True
    try:
        return plugin.concerns(request)
    except Exception as fault:
        raise _broken("filter" if kind is Filter else "weigher", name, fault) from fault


@contextmanager
def _watched(what: str, name: str) -> Iterator[None]:
    """Turn whatever a plug-in raises into an error that names it."""
    try:
        yield
    except Exception as fault:
        raise _broken(what, name, fault) from fault


def _broken(what: str, name: str, fault: Exception) -> errors.BrokenPlugin:
    """Log the fault that is being handled, and return the error that names its plug-in."""
    LOG.error("The %s %s is broken", what, name, exc_info=fault)
    return errors.BrokenPlugin(plugin=what, name=name, kind=type(fault).__name__)


# --- Seeds ----------------------------------------------------------------------------------------------------------

_WORD = 2**64
# The constants of splitmix64: every bit of the input reaches every bit of the result.
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def seed_of(request_id: str) -> int:
    """Return the seed of a request: the same in every scheduler, so that a decision can be repeated."""
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest())


def pick(seed: int, number: int, count: int) -> int:
    """Return which of ``count`` is taken for the ``number``-th instance of a request."""
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % count


def _mixed(ties: TieArray, seed: int) -> TieArray:
    """Return the hosts' own numbers in the order that this seed gives them."""
    mixed = ties ^ np.uint64(seed % _WORD)
    for shift, factor in _STEPS:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
