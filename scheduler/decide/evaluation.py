"""Evaluate the hosts for a request once, and single hosts again as claims change them.

A filter or weigher answers for each host from that host alone, so that a planned claim can only change the answers for
the hosts that its providers serve. The result is the same as if all hosts were filtered and weighed again.
"""

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from moorage.model import AllocationRequest, RequestSpec
from moorage.plugin import BoolArray, Host
from scheduler.decide.funnel import FilterResult, Funnel
from scheduler.decide.plugin_failures import PLUGIN_EXCEPTIONS
from scheduler.decide.ranking import Ranking, SeededTies
from scheduler.plugins.loading import multiplier_key
from scheduler.view.snapshot import Snapshot

#: Evaluations that are kept for requests with the same wishes. Arbitrary.
_KEPT = 8
#: Weighers are run where there are so many hosts to compare.
_WEIGHED = 2
#: The most hosts that are evaluated one by one, at least and as a share of all: for more it is cheaper to evaluate all.
_FEW, _SHARE_OF_ALL = 16, 500


class Evaluation:
    """The hosts that pass the filters for a request, with their weights; for one thread.

    :param left_out: hosts that are known to be infeasible, among those that are ``entering``.
    :raises BrokenPlugin: a filter or weigher is broken.
    """

    def __init__(
        self,
        funnel: Funnel,
        view: Snapshot,
        request: RequestSpec,
        entering: BoolArray,
        left_out: Collection[int] = (),
    ) -> None:
        self.filtered: FilterResult = funnel.filter(view, request, without(entering, left_out))
        ranking = funnel.rank(view, request, self.filtered.left, seed=0)
        self.funnel, self._request = funnel, request
        self._rows, self._weights = ranking.rows, ranking.weights
        self._contributions = list(ranking.contributions)
        #: What each contributes to the weights, null for one that contributes nothing to any.
        self._parts = [each.weights() for each in self._contributions]
        keys = view.host_attributes.metadata_keys
        #: Whether no host has a multiplier of its own: such are not worked out for single hosts.
        self._is_uniform = not any(multiplier_key(weigher.name) in keys for weigher in funnel.weighers)
        self._ranking: Ranking | None = None
        self._entering, self._left_out = entering, frozenset(left_out)
        #: The first candidates that were found, by row: those of hosts that have not changed since.
        self.candidates: dict[int, AllocationRequest] = {}
        self._note(view)

    def ranking(self, ties: SeededTies, look_ahead: int = 1) -> Ranking:
        """Return the hosts as they are ranked now; valid until the next change."""
        ranking = self._ranking
        # Two requests never have the same object: this is the next instance of the same one.
        if ranking is None or ranking.ties is not ties or ranking.look_ahead != look_ahead:
            ranking = self._ranking = Ranking(self._rows, self._weights, ties, self._contributions, look_ahead)
        return ranking

    def is_for(self, funnel: Funnel, request: RequestSpec) -> bool:
        """Return whether it is what these plug-ins make of a request."""
        return (
            self.funnel.filters is funnel.filters
            and self.funnel.weighers is funnel.weighers
            and not self.funnel.plugin_failures.skipped
            and not funnel.plugin_failures.skipped
            and self._request == request
        )

    def follow(self, view: Snapshot, left_out: Collection[int]) -> bool:
        """Evaluate the hosts again in which a view differs from the last one; return whether this could be done.

        :raises Exception: what a plug-in raises for one of them; the evaluation is useless then, as it is where this
            could not be done.
        """
        out = frozenset(left_out)
        changed = self._changed(view)
        if changed is None:
            return False
        for row in changed:
            self.candidates.pop(row, None)
        rows = [row for row in changed.union(self._left_out) - out if self._entering[row]]
        if len(rows) > max(_FEW, len(view) // _SHARE_OF_ALL):
            return False
        for row in out - self._left_out:
            if (place := self._place(row)) is not None:
                self._remove(place)
        self._left_out = out
        self._note(view)
        return all(self._update(view, row) for row in rows)

    def _note(self, view: Snapshot) -> None:
        self._changes, self._position = view.changes, view.position
        self._planned, self._seen = view.changed_rows, len(view.changed_rows)

    def _changed(self, view: Snapshot) -> set[int] | None:
        """Return the rows in which a view differs from the last one; null if they are not known."""
        if view.changes is not self._changes:
            return None
        if view.changed_rows is self._planned and view.position == self._position:
            # The same view, in which claims may have been planned since.
            return set(view.changed_rows[self._seen :])
        between = view.changes.between(self._position, view.position)
        return None if between is None else between.union(self._planned, view.changed_rows)

    def _update(self, view: Snapshot, row: int) -> bool:
        """Evaluate a host again; return False if that could not be done."""
        place, host = self._place(row), view.host(row)
        if not self.funnel.passes(host, self._request, self.filtered.stages):
            if place is not None:
                self._remove(place)
        elif place is not None:
            self._weigh(place, host)
        elif self._is_uniform and len(self._rows) >= _WEIGHED:
            self._insert(row, host)
        else:
            # Not all filters and weighers were run.
            return False
        return True

    def _place(self, row: int) -> int | None:
        place = int(np.searchsorted(self._rows, row))
        return place if place < len(self._rows) and self._rows[place] == row else None

    def _weigh(self, place: int, host: Host) -> None:
        rescaled = False
        for number, contribution in enumerate(self._contributions):
            if contribution.put(place, self.funnel.score(host, self._request, contribution)):
                self._parts[number], rescaled = contribution.weights(), True
            elif (part := self._parts[number]) is not None:
                part[place] = contribution.weight_at(place)
        self._sum(None if rescaled else place)

    def _insert(self, row: int, host: Host) -> None:
        place, rescaled = int(np.searchsorted(self._rows, row)), False
        self._rows = np.insert(self._rows, place, row)
        self._weights = np.insert(self._weights, place, 0.0)
        for number, contribution in enumerate(self._contributions):
            if contribution.insert(place, self.funnel.score(host, self._request, contribution)):
                self._parts[number], rescaled = contribution.weights(), True
            elif (part := self._parts[number]) is not None:
                self._parts[number] = np.insert(part, place, contribution.weight_at(place))
        self._sum(None if rescaled else place)

    def _remove(self, place: int) -> None:
        rescaled = False
        for number, contribution in enumerate(self._contributions):
            if contribution.remove(place):
                self._parts[number], rescaled = contribution.weights(), True
            elif (part := self._parts[number]) is not None:
                self._parts[number] = np.delete(part, place)
        row = int(self._rows[place])
        self._rows, self._weights = np.delete(self._rows, place), np.delete(self._weights, place)
        if rescaled:
            self._sum()
        else:
            self._follow_ranking(row, None)

    def _sum(self, place: int | None = None) -> None:
        """Sum the weights of all hosts, or of that at one place."""
        if place is not None:
            # In the order in which all weights are summed, so that equal hosts have equal weights.
            weight = sum((part.item(place) for part in self._parts if part is not None), start=0.0)
            self._weights[place] = weight
            self._follow_ranking(int(self._rows[place]), weight)
            return
        self._ranking = None
        self._weights = np.zeros(len(self._rows))
        for part in self._parts:
            if part is not None:
                self._weights += part

    def _follow_ranking(self, row: int, weight: float | None) -> None:
        if self._ranking is not None:
            self._ranking.rows, self._ranking.weights = self._rows, self._weights
            self._ranking.put(row, weight)


class Evaluations:
    """Evaluations of the hosts for requests with the same wishes, each brought up to date at its next use.

    For one thread; :meth:`take` and :meth:`keep` for any.

    :param kept: how many are kept.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        self._most = kept
        self._lock = threading.Lock()
        self._kept: list[Evaluation] = []
        self._lender: Evaluations | None = None

    def of(
        self, funnel: Funnel, view: Snapshot, request: RequestSpec, entering: BoolArray, left_out: Collection[int]
    ) -> Evaluation:
        """Return the evaluation of a request on a view as it is now.

        :param entering: the hosts that enter the filters, the same for each evaluation of a request.
        :param left_out: hosts among them that are known to be infeasible.
        :raises BrokenPlugin: a filter or weigher is broken.
        """
        if not self._most or view.members is not None:
            return Evaluation(funnel, view, request, entering, left_out)
        evaluation = self.take(funnel, request)
        if evaluation is None and self._lender is not None:
            evaluation = self._lender.take(funnel, request)
        if evaluation is None or not _follows(evaluation, funnel, view, left_out):
            evaluation = Evaluation(funnel, view, request, entering, left_out)
        self.keep([evaluation])
        return evaluation

    @contextmanager
    def borrowing(self, lender: "Evaluations") -> Iterator[None]:
        """Use those of a lender, which any number of threads share; in the end it gets them back."""
        self._lender = lender
        try:
            yield
        finally:
            self._lender = None
            lender.keep(self._kept)
            self._kept = []

    def take(self, funnel: Funnel, request: RequestSpec) -> Evaluation | None:
        """Take out the evaluation of a request, so that nobody else changes it; null, where there is none."""
        with self._lock:
            for number, kept in enumerate(self._kept):
                if kept.is_for(funnel, request):
                    return self._kept.pop(number)
        return None

    def keep(self, evaluations: Sequence[Evaluation]) -> None:
        """Keep evaluations, and forget those that were not used for the longest time."""
        with self._lock:
            self._kept = [*evaluations, *self._kept][: self._most]


def _follows(evaluation: Evaluation, funnel: Funnel, view: Snapshot, left_out: Collection[int]) -> bool:
    """Bring an evaluation up to date; return False where all hosts are to be evaluated again."""
    # Failures of plug-ins are those of the present request.
    evaluation.funnel = funnel
    try:
        return evaluation.follow(view, left_out)
    except PLUGIN_EXCEPTIONS:
        return False  # the fault is handled there


def without(rows: BoolArray, left_out: Collection[int]) -> BoolArray:
    """Return a mask of hosts with some rows left out."""
    if not left_out:
        return rows
    left = rows.copy()
    left[list(left_out)] = False
    return left
