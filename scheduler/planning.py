"""Planning: a host for each instance of a request and its alternates, on one snapshot, before anything is claimed."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from moorage.messages import SelectDestinations
from moorage.model import AllocationRequest, RequestSpec, ResourceRequest
from moorage.plugin import BoolArray
from scheduler.funnel import Filtered, Funnel, Ranking, Stage, pick, seed_of
from scheduler.serving import Refusals, Serving
from scheduler.view import Snapshot

#: What the hosts that no filter refused lacked, as a stage after the filters.
CANDIDATES = "candidates"
_NO_CANDIDATE = "has no providers that can serve all groups of the request together"

#: How many more hosts are looked at each time those before them could not serve the request.
_WIDEN = 4


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A host, by its row in the view, and which of its providers serve the request."""

    row: int
    weight: float
    allocation_request: AllocationRequest


@dataclass(frozen=True, slots=True)
class Plan:
    """For each instance, in order, the host to claim and the alternates after it."""

    view: Snapshot
    chosen: list[Choice]
    alternates: list[list[Choice]]

    def node(self, choice: Choice) -> str:
        """Return the compute node of a chosen host."""
        return self.view.hosts[choice.row].compute_node_uuid

    def refused_by(self, provider_uuids: Collection[str]) -> list[Choice]:
        """Return the choices that would have claimed some of these providers."""
        return [one for one in self.chosen if not one.allocation_request.allocations.keys().isdisjoint(provider_uuids)]


@dataclass(frozen=True, slots=True)
class Shortfall:
    """For the instance after the first ``placed`` ones there was no host."""

    view: Snapshot
    filtered: Filtered
    placed: int
    serving: Serving


class Planner:
    """Plans requests.

    :param subset_size: the host is picked at random, by the request's seed, among this many of the best.
    """

    def __init__(self, funnel: Funnel, subset_size: int) -> None:
        self._funnel = funnel
        self._subset_size = subset_size

    def plan(self, snapshot: Snapshot, message: SelectDestinations, refusals: Refusals) -> Plan | Shortfall:
        """Return hosts for all instances of a request, each seeing what is planned for those before it.

        :raises BrokenPlugin: a filter or weigher is broken.
        """
        request, count = message.request_spec, len(message.instance_uuids)
        seed = seed_of(message.request_id)
        serving = Serving(request.resource_request, refusals.tried)
        # A single instance has nobody whose claim it would have to see.
        planned = snapshot.planned(_classes(serving.request)) if count > 1 else None
        view = snapshot if planned is None else planned
        everyone = np.ones(len(view), dtype=np.bool_)
        chosen: list[Choice] = []
        for number in range(count):
            ranking = self._rank(view, request, _without(everyone, serving.barren), seed)
            best = _best(view, ranking, serving, self._subset_size)
            if not best:
                return self._shortfall(view, request, serving, number)
            chosen.append(best[pick(seed, number, len(best))])
            if planned is not None:
                planned.claim(chosen[-1].row, chosen[-1].allocation_request)
        if not message.num_alternates or _is_forced(request):
            return Plan(view, chosen, [[] for _ in chosen])
        offered = _without(everyone, serving.barren | _rows_of(snapshot, refusals.nodes))
        if planned is not None:
            # What was feasible before the last of these claims may not be so after it.
            ranking = self._rank(view, request, offered, seed)
        alternates = _Alternates(view, ranking, serving, offered, message.num_alternates)
        return Plan(view, chosen, [alternates.of(choice) for choice in chosen])

    def _rank(self, view: Snapshot, request: RequestSpec, entering: BoolArray, seed: int) -> Ranking:
        return self._funnel.rank(view, request, self._funnel.filter(view, request, entering).left, seed)

    def _shortfall(self, view: Snapshot, request: RequestSpec, serving: Serving, placed: int) -> Shortfall:
        """Say how all hosts fell out, those included that were not asked again."""
        filtered = self._funnel.filter(view, request, np.ones(len(view), dtype=np.bool_))
        if filtered.left.any():
            left = _without(filtered.left, serving.barren)
            filtered = replace(filtered, stages=[*filtered.stages, Stage(CANDIDATES, _NO_CANDIDATE, left)])
        return Shortfall(view, filtered, placed, serving)


def _best(
    view: Snapshot, ranking: Ranking, serving: Serving, count: int, among: BoolArray | None = None
) -> list[Choice]:
    """Return the ``count`` best hosts that can serve the request; of those in ``among``, where given."""
    found: list[Choice] = []
    looked_at, wanted = 0, count
    while True:
        best = ranking.best(wanted, among)
        for row, weight in best[looked_at:]:
            way = serving.first(view, row)
            if way is not None:
                found.append(Choice(row, weight, way))
                if len(found) == count:
                    return found
        if len(best) < wanted:
            return found
        looked_at, wanted = wanted, _WIDEN * wanted


class _Alternates:
    """The best hosts of each cell, which the instances that go there share."""

    def __init__(self, view: Snapshot, ranking: Ranking, serving: Serving, offered: BoolArray, count: int) -> None:
        self._view = view
        self._ranking = ranking
        self._serving = serving
        self._offered = offered
        self._count = count
        self._pools: dict[int, list[Choice]] = {}

    def of(self, chosen: Choice) -> list[Choice]:
        """Return the best hosts that are in the chosen one's cell and not itself.

        What is chosen for one instance may be an alternate of another, since it is feasible with all of them on it.
        """
        cell = int(self._view.cell_codes[chosen.row])
        if cell not in self._pools:
            among = self._offered & (self._view.cell_codes == cell)
            # One more than is wanted: a chosen host may itself be among the best.
            self._pools[cell] = _best(self._view, self._ranking, self._serving, self._count + 1, among)
        return [choice for choice in self._pools[cell] if choice.row != chosen.row][: self._count]


def _classes(request: ResourceRequest) -> set[str]:
    return {name for group in request.groups.values() for name in group.resources}


def _without(rows: BoolArray, taken_out: Collection[int]) -> BoolArray:
    if not taken_out:
        return rows
    left = rows.copy()
    left[list(taken_out)] = False
    return left


def _rows_of(view: Snapshot, node_uuids: Collection[str]) -> set[int]:
    if not node_uuids:
        return set()
    return {row for row, host in enumerate(view.hosts) if host.compute_node_uuid in node_uuids}


def _is_forced(request: RequestSpec) -> bool:
    """Tell whether the request insists on hosts, so that another one will not do."""
    return bool(request.force_hosts or request.force_nodes)
