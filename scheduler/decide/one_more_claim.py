"""Evaluate each host as if it had one more claim of a request, all hosts at once.

If many claims of equal amounts are expected, this saves evaluating each claimed host by itself: the columns of ten
thousand hosts take no longer than a few hosts one by one.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from moorage.model import RequestSpec
from scheduler.decide.funnel import FilterResult, Funnel
from scheduler.decide.ranking import Contribution
from scheduler.view.planned import filled_up
from scheduler.view.snapshot import ChangedHosts, Snapshot

#: The score of a host by each weigher that contributes to the weights; null if a filter refuses the host.
HostScores = Sequence[float] | None


class OneMoreClaim:
    """Hold the answers of the filters and weighers for each host as if it had one more claim of a request.

    They are valid for hosts with a single provider.

    :param view: the hosts, with the claims that are planned already.
    :raises Exception: what a plug-in raises.
    """

    def __init__(
        self,
        funnel: Funnel,
        view: Snapshot,
        request: RequestSpec,
        filtered: FilterResult,
        contributions: Sequence[Contribution],
    ) -> None:
        self._amounts = request.resource_request.totals()
        one = np.ones(len(view), dtype=np.int64)
        more = replace(filled_up(view, self._amounts, one), io_op_counts=view.io_op_counts + one)
        self._passing = funnel.all_passing(more, request, filtered.stages)
        self._rows = np.flatnonzero(self._passing)
        self._scores = [funnel.scores(more, request, self._rows, each) for each in contributions]
        #: The rows of the hosts that have changed since this was computed.
        self._changed: set[int] = set()

    def answers(self, changes: Sequence[ChangedHosts]) -> dict[int, HostScores]:
        """Return the answers for the changed hosts whose only change is one such claim."""
        known: dict[int, HostScores] = {}
        for rows, amounts in changes:
            for row in rows:
                if row in self._changed:
                    known.pop(row, None)
                elif amounts == self._amounts:
                    known[row] = self._answer(row)
                self._changed.add(row)
        return known

    def _answer(self, row: int) -> HostScores:
        if not self._passing[row]:
            return None
        place = np.searchsorted(self._rows, row)
        return [scores.item(place) for scores in self._scores]
