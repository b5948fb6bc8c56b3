"""Choose the best hosts of a ranking that have an allocation candidate, and alternates in the cell of each."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from moorage import errors
from moorage.model import AllocationRequest
from moorage.plugin import BoolArray
from scheduler.decide.host_candidates import HostCandidates
from scheduler.decide.ranking import Ranking
from scheduler.view.snapshot import Snapshot

#: The factor by which the search is widened when too few of the best hosts have a candidate.
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
    """Return the ``count`` best hosts that have an allocation candidate; only hosts in ``among``, if given.

    If the search is given up, return the hosts that were found until then.

    :raises SearchBoundReached: the search was given up before any host was found.
    """
    found: list[HostChoice] = []
    looked_at, wanted = 0, count
    while True:
        best = ranking.best(wanted, among)
        for row, weight in best[looked_at:]:
            try:
                candidate = host_candidates.first(view, row)
            except errors.SearchBoundReached:
                if found:
                    return found
                raise
            if candidate is not None:
                found.append(HostChoice(row, weight, candidate))
                if len(found) == count:
                    return found
        if len(best) < wanted:
            return found
        looked_at, wanted = wanted, _WIDEN * wanted


def alternates_of(
    view: Snapshot,
    ranking: Ranking,
    host_candidates: HostCandidates,
    offered: BoolArray,
    chosen: Sequence[HostChoice],
    count: int,
) -> list[list[HostChoice]]:
    """Return for each chosen host the ``count`` best other hosts of its cell, of those in ``offered``.

    The host chosen for one instance may be an alternate of another: it is feasible with all of them planned on it.
    If the search is given up, there are fewer alternates: the chosen hosts can still be claimed.
    """
    # Instances that go to the same cell share its alternates, so each cell is searched once.
    best_of_cell: dict[int, list[HostChoice]] = {}
    for choice in chosen:
        cell = int(view.cell_codes[choice.row])
        if cell not in best_of_cell:
            # Search for one more than is wanted: a chosen host may itself be among the best.
            among = offered & (view.cell_codes == cell)
            best_of_cell[cell] = []
            with suppress(errors.SearchBoundReached):
                best_of_cell[cell] = best_of(view, ranking, host_candidates, count + 1, among)
    return [
        [other for other in best_of_cell[int(view.cell_codes[choice.row])] if other.row != choice.row][:count]
        for choice in chosen
    ]
