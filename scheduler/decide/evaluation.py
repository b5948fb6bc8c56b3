"""Evaluate the hosts for a request once, and single hosts again as claims change them.

A filter or weigher answers for each host from that host alone, so that a planned claim can only change the answers for
the hosts that its providers serve. The result is the same as if all hosts were filtered and weighed again.
"""

from collections.abc import Collection

import numpy as np

from moorage.model import RequestSpec
from moorage.plugin import BoolArray, Host
from scheduler.decide.funnel import FilterResult, Funnel
from scheduler.decide.plugin_failures import PLUGIN_EXCEPTIONS
from scheduler.decide.ranking import Ranking, SeededTies
from scheduler.view.planned import PlannedView
from scheduler.view.snapshot import Snapshot

#: Evaluations of one view that are kept for requests with the same wishes. Arbitrary.
_KEPT = 8


class Evaluation:
    """The hosts that pass the filters for a request, with their weights; for one thread.

    :raises BrokenPlugin: a filter or weigher is broken.
    """

    def __init__(self, funnel: Funnel, view: Snapshot, request: RequestSpec, entering: BoolArray) -> None:
        self.filtered: FilterResult = funnel.filter(view, request, entering)
        ranking = funnel.rank(view, request, self.filtered.left, seed=0)
        self._funnel, self._request = funnel, request
        self._rows, self._weights = ranking.rows, ranking.weights
        self._contributions = list(ranking.contributions)
        #: What each contributes to the weights, null for one that contributes nothing to any.
        self._parts = [each.weights() for each in self._contributions]

    def ranking(self, ties: SeededTies, look_ahead: int = 1) -> Ranking:
        """Return the hosts as they are ranked now; valid until the next change."""
        return Ranking(self._rows, self._weights, ties, self._contributions, look_ahead)

    def is_for(self, funnel: Funnel, request: RequestSpec) -> bool:
        """Return whether it is what these plug-ins make of a request."""
        return (
            self._funnel.filters is funnel.filters
            and self._funnel.weighers is funnel.weighers
            and not self._funnel.plugin_failures.skipped
            and self._request == request
        )

    def update(self, view: Snapshot, rows: Collection[int]) -> None:
        """Evaluate hosts again which have less room than before: one that was refused still is.

        :raises Exception: what a plug-in raises for one of them; the evaluation is useless then.
        """
        for row in dict.fromkeys(rows):
            if (place := self._place(row)) is None:
                continue
            host = view.host(row)
            if self._funnel.passes(host, self._request, self.filtered.stages):
                self._weigh(place, host)
            else:
                self._remove(place)

    def remove(self, rows: Collection[int]) -> None:
        """Leave hosts out from now on."""
        for row in rows:
            if (place := self._place(row)) is not None:
                self._remove(place)

    def _place(self, row: int) -> int | None:
        place = int(np.searchsorted(self._rows, row))
        return place if place < len(self._rows) and self._rows[place] == row else None

    def _weigh(self, place: int, host: Host) -> None:
        rescaled = False
        for number, contribution in enumerate(self._contributions):
            if contribution.put(place, self._funnel.score(host, self._request, contribution)):
                self._parts[number], rescaled = contribution.weights(), True
            elif (part := self._parts[number]) is not None:
                part[place] = contribution.weight_at(place)
        if rescaled:
            self._sum()
        else:
            # In the order in which all weights are summed, so that equal hosts have equal weights.
            self._weights[place] = sum((part[place] for part in self._parts if part is not None), start=0.0)

    def _remove(self, place: int) -> None:
        self._rows = np.delete(self._rows, place)
        rescaled = False
        for number, contribution in enumerate(self._contributions):
            if contribution.remove(place):
                self._parts[number], rescaled = contribution.weights(), True
            elif (part := self._parts[number]) is not None:
                self._parts[number] = np.delete(part, place)
        self._weights = np.delete(self._weights, place)
        if rescaled:
            self._sum()

    def _sum(self) -> None:
        self._weights = np.zeros(len(self._rows))
        for part in self._parts:
            if part is not None:
                self._weights += part


class Evaluations:
    """Evaluations of the hosts of one growing plan, kept for requests with the same wishes; for one thread.

    :param kept: how many are kept.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        self._most = kept
        self._kept: list[tuple[Evaluation, int]] = []

    def of(
        self, funnel: Funnel, view: Snapshot, request: RequestSpec, entering: BoolArray, left_out: Collection[int]
    ) -> Evaluation:
        """Return the evaluation of a request on a view as it is now.

        :param entering: the hosts that enter the filters, the same for each evaluation of a request.
        :param left_out: hosts among them that are known to be infeasible.
        :raises BrokenPlugin: a filter or weigher is broken.
        """
        if not isinstance(view, PlannedView) or view.members is not None:
            return Evaluation(funnel, view, request, without(entering, left_out))
        changed = view.changed_rows
        for number, (kept, seen) in enumerate(self._kept):
            if kept.is_for(funnel, request):
                del self._kept[number]
                try:
                    kept.remove(left_out)
                    kept.update(view, changed[seen:])
                except PLUGIN_EXCEPTIONS:
                    break  # all hosts are evaluated again, and the fault is handled there
                return self._keep(kept, len(changed))
        return self._keep(Evaluation(funnel, view, request, without(entering, left_out)), len(changed))

    def _keep(self, evaluation: Evaluation, seen: int) -> Evaluation:
        self._kept = [(evaluation, seen), *self._kept][: self._most]
        return evaluation


def without(rows: BoolArray, left_out: Collection[int]) -> BoolArray:
    """Return a mask of hosts with some rows left out."""
    if not left_out:
        return rows
    left = rows.copy()
    left[list(left_out)] = False
    return left
