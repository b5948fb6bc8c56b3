"""Choose the best hosts of a ranking that have an allocation candidate, and alternates in the cell of each."""

from dataclasses import dataclass

from moorage.model import AllocationRequest
from moorage.plugin import BoolArray
from scheduler.decide.host_candidates import HostCandidates
from scheduler.decide.ranking import Ranking
from scheduler.view.snapshot import Snapshot

#: The factor by which more hosts are looked at when too few of the best ones have a candidate.
_WIDEN = 4


@dataclass(frozen=True, slots=True, eq=False)
class HostChoice:
    """Hold a host, by its row in the view, its weight, and the allocation candidate that was found on it."""

    row: int
    weight: float
    allocation_request: AllocationRequest


def best_of(
    view: Snapshot, ranking: Ranking, host_candidates: HostCandidates, count: int, among: BoolArray | None = None
) -> list[HostChoice]:
    """Return the ``count`` best hosts that have an allocation candidate; of those in ``among``, where given."""
    found: list[HostChoice] = []
    looked_at, wanted = 0, count
    while True:
        best = ranking.best(wanted, among)
        for row, weight in best[looked_at:]:
            candidate = host_candidates.first(view, row)
            if candidate is not None:
                found.append(HostChoice(row, weight, candidate))
                if len(found) == count:
                    return found
        if len(best) < wanted:
            return found
        looked_at, wanted = wanted, _WIDEN * wanted


class Alternates:
    """Find the best hosts of each cell: the instances that go to a cell share its alternates."""

    def __init__(
        self, view: Snapshot, ranking: Ranking, host_candidates: HostCandidates, offered: BoolArray, count: int
    ) -> None:
        self._view = view
        self._ranking = ranking
        self._host_candidates = host_candidates
        self._offered = offered
        self._count = count
        self._pools: dict[int, list[HostChoice]] = {}

    def of(self, chosen: HostChoice) -> list[HostChoice]:
        """Return the best hosts in the cell of a chosen host, without itself.

        The host chosen for one instance may be an alternate of another: it is feasible with all of them planned on it.
        """
        cell = int(self._view.cell_codes[chosen.row])
        if cell not in self._pools:
            among = self._offered & (self._view.cell_codes == cell)
            # One more than is wanted: a chosen host may itself be among the best.
            self._pools[cell] = best_of(self._view, self._ranking, self._host_candidates, self._count + 1, among)
        return [choice for choice in self._pools[cell] if choice.row != chosen.row][: self._count]
