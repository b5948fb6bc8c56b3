"""Explain why a host was chosen, or why there was none: counts per filter, nearest misses, and the parts of weights.

An explanation is built for each refusal, and otherwise on request. It is built from the trace of the decision: no
filter and no weigher runs on all hosts again.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import islice

import numpy as np
from msgspec import structs

from moorage.model import Destination, Explanation, FilterCount, Miss, RankedHost, RequestSpec
from moorage.plugin import Host
from scheduler.decide.explain.nearest_misses import NearestMisses
from scheduler.decide.funnel import FilterResult, Funnel
from scheduler.decide.host_candidates import HostCandidates, RefusedClaims
from scheduler.decide.ranking import Ranking
from scheduler.view.snapshot import Snapshot

#: The maximum number of named hosts that are described: a request may name thousands.
_NAMED_HOSTS = 20
#: The maximum number of nearest misses: a request may have thousands of amounts, and each host may lack all of them.
_MOST_MISSES = 100
#: The number of best hosts, by weight, whose scores are listed.
_TOP_HOSTS = 5


@dataclass(frozen=True, slots=True)
class DecisionTrace:
    """Hold the intermediate results of the decision about one instance."""

    view: Snapshot
    filtered: FilterResult
    host_candidates: HostCandidates
    #: None if no host was left to be weighed.
    ranking: Ranking | None = None
    #: The row of the host that was chosen.
    chosen: int | None = None


class Explainer:
    """Explain the decision about one request.

    :param named: hosts to describe by name, in addition to those that the request forces or requests.
    """

    def __init__(
        self,
        funnel: Funnel,
        trace: DecisionTrace,
        request: RequestSpec,
        refused_claims: RefusedClaims,
        named: Collection[str] = (),
    ) -> None:
        self._funnel = funnel
        self._trace = trace
        self._request = request
        self._refused_claims = refused_claims
        self._named = named
        self._view = trace.view
        self._host: Callable[[int], Host] = cache(trace.view.host)

    def explain(self) -> Explanation:
        """Return the explanation.

        :raises BrokenPlugin: a filter has raised.
        """
        view, filtered, host_candidates = self._view, self._trace.filtered, self._trace.host_candidates
        nearest = NearestMisses(view, filtered, host_candidates)
        found = (miss for row, number in nearest.nearest_rows(lacking=True) for miss in nearest.misses_of(row, number))
        misses = tuple(islice(found, _MOST_MISSES))
        chosen = self._trace.chosen
        named, lost = self._rows_named(), self._lost_races()
        return Explanation(
            hosts=len(view),
            filters=tuple(self._filters(nearest)),
            nearest_misses=misses,
            nearest_hosts=self._nearest_hosts(nearest, misses),
            named_hosts={name: self._describe(rows) for name, rows in named.items()},
            refused_claims=tuple(sorted(lost)),
            lost_races=dict(sorted(lost.items())),
            feasible=int(np.count_nonzero(filtered.left)),
            chosen=None if chosen is None else view.hosts[chosen].service_host,
            top_hosts=self._top_hosts(),
            named_scores=self._scores_of(row for rows in named.values() for row in rows),
        )

    def _filters(self, nearest: NearestMisses) -> Iterable[FilterCount]:
        """Yield how many hosts each filter removed; for a filter about room, with the shortages by resource class."""
        for number, stage in enumerate(self._trace.filtered.stages):
            count = nearest.counts[number]
            if count.removed and stage.plugin is not None and stage.plugin.about_room:
                count = structs.replace(count, shortages=tuple(nearest.removed(number).shortages()))
            yield count

    def _lost_races(self) -> Counter[str]:
        """Return how many claims were refused on each service host, on all of its nodes together."""
        by_node, found = self._refused_claims.lost, Counter[str]()
        for host in self._view.hosts if by_node else ():
            if host.compute_node_uuid in by_node:
                found[host.service_host] += by_node[host.compute_node_uuid]
        return found

    # --- Single hosts -----------------------------------------------------------------------------------------------

    def _nearest_hosts(self, nearest: NearestMisses, misses: Collection[Miss]) -> dict[str, str]:
        """Return the reason against each of the hosts that passed most filters, without those listed as misses."""
        listed = {miss.host for miss in misses}
        found = {}
        view, filtered = self._view, self._trace.filtered
        for row, number in nearest.nearest_rows(lacking=False):
            name = view.hosts[row].service_host
            if name not in listed:
                stage = filtered.stages[number]
                found[name] = stage.reason
                if stage.plugin is not None:
                    found[name] = self._funnel.why(stage.name, stage.plugin, self._host(row), self._request)
        return found

    def _rows_named(self) -> dict[str, list[int]]:
        """Return the rows of each host to describe, by the service host or node name under which it was named."""
        names, spec = self._view.names, self._request
        hosts, nodes = list(self._named), []
        if self._trace.chosen is None:
            wanted = spec.requested_destination or Destination()
            hosts += [*spec.force_hosts, *((wanted.host,) if wanted.host else ())]
            nodes = [*spec.force_nodes, *(node for node in (wanted.node, wanted.node_uuid) if node)]
        rows = {name: names.by_host.get(name.casefold(), []) for name in hosts}
        rows |= {name: names.by_node.get(name.casefold(), []) for name in nodes if name not in rows}
        return dict(list(rows.items())[:_NAMED_HOSTS])

    def _describe(self, rows: list[int]) -> str:
        """Return why none of a host's nodes was chosen, or how the first of them that is feasible compares."""
        if not rows:
            return "is not known"
        if self._trace.chosen in rows:
            return "is the chosen host"
        filtered, host_candidates = self._trace.filtered, self._trace.host_candidates
        left = [row for row in rows if filtered.left[row]]
        for row in left:
            if host_candidates.first_in_time(self._view, row) is not None:
                return self._rank(row)
        if left:
            return host_candidates.reason(left[0])
        row = rows[0]
        # The counts include the host under the first filter that refuses it. List the others as well: they would refuse
        # the host once the first reason is gone.
        refused_by = next((stage for stage in filtered.stages if not stage.left[row]), None)
        reasons = [refused_by.reason] if refused_by is not None and refused_by.plugin is None else []
        reasons += self._funnel.reasons_against(self._host(row), self._request)
        return "; ".join(dict.fromkeys(reasons)) or "was not looked at"

    def _rank(self, row: int) -> str:
        ranking = self._trace.ranking
        if ranking is None:
            return "could serve the request"
        rank = ranking.rank_of(int(np.searchsorted(ranking.rows, row)))
        return f"could serve the request: number {rank:,} of {len(ranking.rows):,} by weight"

    # --- Weights ----------------------------------------------------------------------------------------------------

    def _top_hosts(self) -> tuple[RankedHost, ...]:
        """Return the best hosts by weight, without those found to be infeasible."""
        ranking, infeasible = self._trace.ranking, self._trace.host_candidates.infeasible
        if ranking is None:
            return ()
        best = [row for row, _ in ranking.best(_TOP_HOSTS + len(infeasible))]
        ranked = (self._ranked(ranking, row, rank) for rank, row in enumerate(best, start=1) if row not in infeasible)
        return tuple(ranked)[:_TOP_HOSTS]

    def _scores_of(self, rows: Iterable[int]) -> tuple[RankedHost, ...]:
        ranking = self._trace.ranking
        if ranking is None:
            return ()
        left, infeasible = self._trace.filtered.left, self._trace.host_candidates.infeasible
        return tuple(self._ranked(ranking, row) for row in rows if left[row] and row not in infeasible)

    def _ranked(self, ranking: Ranking, row: int, rank: int | None = None) -> RankedHost:
        place = int(np.searchsorted(ranking.rows, row))
        host = self._view.hosts[row]
        return RankedHost(
            host=host.service_host,
            cell_uuid=host.cell_uuid,
            rank=ranking.rank_of(place) if rank is None else rank,
            weight=float(ranking.weights[place]),
            scores=tuple(each.at(place) for each in ranking.contributions),
        )
