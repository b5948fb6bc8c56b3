"""Planning: a host for each instance of a request and its alternates, on one snapshot, before anything is claimed."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from moorage.messages import SelectDestinations
from moorage.model import RequestSpec
from moorage.plugin import BoolArray
from scheduler.funnel import Filtered, Funnel, Ranking, pick, seed_of
from scheduler.view import Snapshot

#: A row of the view and the host's weight.
Choice = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Plan:
    """For each instance, in order, the host to claim and the alternates after it."""

    view: Snapshot
    chosen: list[Choice]
    alternates: list[list[Choice]]

    def chosen_nodes(self) -> list[str]:
        """Return the compute node of each instance's host."""
        return [self.view.hosts[row].compute_node_uuid for row, _ in self.chosen]


@dataclass(frozen=True, slots=True)
class Shortfall:
    """For the instance after the first ``placed`` ones there was no host."""

    view: Snapshot
    filtered: Filtered
    placed: int


class Planner:
    """Plans requests.

    :param subset_size: the host is picked at random, by the request's seed, among this many of the best.
    """

    def __init__(self, funnel: Funnel, subset_size: int) -> None:
        self._funnel = funnel
        self._subset_size = subset_size

    def plan(
        self, snapshot: Snapshot, message: SelectDestinations, dropped: Collection[str], refused: Collection[str]
    ) -> Plan | Shortfall:
        """Return hosts for all instances of a request, each seeing what is planned for those before it.

        :param dropped: compute nodes that are not to be chosen.
        :param refused: compute nodes that are not to be offered as alternates.
        :raises BrokenPlugin: a filter or weigher is broken.
        """
        request = message.request_spec
        seed = seed_of(message.request_id)
        entering = ~_rows_of(snapshot, dropped)
        count = len(message.instance_uuids)
        # A single instance has nobody whose claim it would have to see.
        planned = snapshot.planned(request.resources) if count > 1 else None
        view = snapshot if planned is None else planned
        chosen: list[Choice] = []
        for number in range(count):
            filtered = self._funnel.filter(view, request, entering)
            if not filtered.left.any():
                return Shortfall(view, filtered, number)
            ranking = self._funnel.rank(view, request, filtered.left, seed)
            best = ranking.best(self._subset_size)
            chosen.append(best[pick(seed, number, len(best))])
            if planned is not None:
                planned.claim(chosen[-1][0], request.resources)
        if not message.num_alternates or _is_forced(request):
            return Plan(view, chosen, [[] for _ in chosen])
        offered = entering & ~_rows_of(snapshot, refused)
        if planned is not None:
            # What was feasible before the last of these claims may not be so after it.
            filtered = self._funnel.filter(view, request, offered)
            ranking = self._funnel.rank(view, request, filtered.left, seed)
        return Plan(view, chosen, _alternates(view, ranking, offered, chosen, message.num_alternates))


def _alternates(
    view: Snapshot, ranking: Ranking, offered: BoolArray, chosen: list[Choice], count: int
) -> list[list[Choice]]:
    """Return the best hosts for each chosen one that are in its cell and not itself.

    What is chosen for one instance may be an alternate of another, since it is feasible with all of them on it.
    """
    pools: dict[int, list[Choice]] = {}
    for row, _ in chosen:
        cell = int(view.cell_codes[row])
        if cell not in pools:
            # One more than is wanted: a chosen host may itself be among the best.
            pools[cell] = ranking.best(count + 1, among=offered & (view.cell_codes == cell))
    return [[choice for choice in pools[int(view.cell_codes[row])] if choice[0] != row][:count] for row, _ in chosen]


def _rows_of(view: Snapshot, node_uuids: Collection[str]) -> BoolArray:
    rows = np.zeros(len(view), dtype=np.bool_)
    if node_uuids:
        rows[[row for row, host in enumerate(view.hosts) if host.compute_node_uuid in node_uuids]] = True
    return rows


def _is_forced(request: RequestSpec) -> bool:
    """Tell whether the request insists on hosts, so that another one will not do."""
    return bool(request.force_hosts or request.force_nodes)
