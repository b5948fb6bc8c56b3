"""Planning: a host for each instance of a request and its alternates, on one snapshot, before anything is claimed."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec import structs

from moorage.messages import SelectDestinations
from moorage.model import Explanation, RequestSpec, ResourceRequest, WhatIf
from moorage.plugin import BoolArray
from scheduler.decide.choosing import Alternates, HostChoice, best_of
from scheduler.decide.explain.explainer import DecisionTrace, Explainer
from scheduler.decide.explain.how_many_more import InstanceCounter
from scheduler.decide.funnel import FilterResult, Funnel, Stage
from scheduler.decide.host_candidates import HostCandidates, RefusedClaims
from scheduler.decide.plugin_failures import PluginFailures
from scheduler.decide.ranking import Ranking, pick, seed_of
from scheduler.decide.request_context import NO_CONTEXT, RequestContext
from scheduler.view.planned import PlannedView
from scheduler.view.snapshot import Snapshot

#: What the hosts that no filter refused lacked, as a stage after the filters.
CANDIDATES = "candidates"
_NO_CANDIDATE = "has no providers that can serve all groups of the request together"
#: Stages before the filters: the host that a moving server leaves, and those too small for a group that stays together.
LEAVING, _LEFT = "leaving", "is the host that the server is to leave"
TOGETHER, _NO_ROOM_FOR_ALL = "together", "has not enough room for all members of the server group together"


@dataclass(frozen=True, slots=True)
class DestinationPlan:
    """For each instance, in order, the host to claim and the alternates after it."""

    view: Snapshot
    chosen: list[HostChoice]
    alternates: list[list[HostChoice]]
    #: For each instance why it is this host, where the request wants that explained.
    explanations: list[Explanation] = field(default_factory=list)
    #: Whether no two suffixed groups of the request may share a provider.
    is_isolated: bool = False

    def node(self, choice: HostChoice) -> str:
        """Return the compute node of a chosen host."""
        return self.view.hosts[choice.row].compute_node_uuid

    def refused_by(self, provider_uuids: Collection[str]) -> list[HostChoice]:
        """Return the choices that would have claimed some of these providers, or have gone to the host of one."""
        return [
            one
            for one in self.chosen
            if not {self.node(one), *one.allocation_request.allocations}.isdisjoint(provider_uuids)
        ]


@dataclass(frozen=True, slots=True)
class NoHost:
    """For the instance after the first ``placed`` ones there was no host."""

    view: Snapshot
    filtered: FilterResult
    placed: int
    host_candidates: HostCandidates
    #: The row of the host that the first of those was to go to, if there were any.
    home: int | None
    #: What was asked of the hosts: in the request's own words, or what they mean on this cloud.
    request: RequestSpec

    @classmethod
    def before_all(cls, view: Snapshot, request: RequestSpec, name: str, reason: str) -> "NoHost":
        """Return that a request has been refused, by what goes by this name, before any host was asked."""
        everywhere = _all(view)
        filtered = FilterResult(everywhere, [Stage(name, reason, ~everywhere)])
        return cls(view, filtered, 0, HostCandidates(request.resource_request, {}), None, request)


class Planner:
    """Plans requests.

    :param subset_size: the host is picked at random, by the request's seed, among this many of the best.
    """

    def __init__(self, funnel: Funnel, subset_size: int) -> None:
        self._funnel = funnel
        self._subset_size = subset_size

    @property
    def plugin_failures(self) -> PluginFailures:
        """What is done about filters and weighers that break, and which of them a request has been decided without."""
        return self._funnel.plugin_failures

    def check(self, request: RequestSpec) -> None:
        """Refuse what a filter says is wrong with a request, whatever hosts there are.

        :raises InvalidRequest: the request says something to a filter that it cannot mean.
        :raises BrokenPlugin: a filter has raised anything else.
        """
        self._funnel.check(request)

    def plan(
        self,
        snapshot: Snapshot,
        message: SelectDestinations,
        refused_claims: RefusedClaims,
        context: RequestContext = NO_CONTEXT,
        named: Collection[str] = (),
    ) -> DestinationPlan | NoHost:
        """Return hosts for all instances of a request, each seeing what is planned for those before it.

        :param named: hosts that an explanation shall tell of by name.
        :raises BrokenPlugin: a filter or weigher is broken.
        """
        task = _PlanInput(snapshot, message, refused_claims, context, named)
        before = _leaving(snapshot, context)
        if not _finds_a_home(message, context):
            return self._plan(task, before)
        # All go where the first goes. Had that one room for some of them only, it would not be true that there is none.
        entering = _entering(snapshot, before) & _has_room_for_all(snapshot, message)
        first: NoHost | None = None
        while True:
            outcome = self._plan(task, [*before, Stage(TOGETHER, _NO_ROOM_FOR_ALL, entering)])
            if isinstance(outcome, DestinationPlan):
                return outcome
            first = first or outcome
            if outcome.home is None:
                return first
            entering = _without(entering, [outcome.home])

    def _plan(self, task: "_PlanInput", before: Sequence[Stage]) -> DestinationPlan | NoHost:
        """Plan with those hosts alone that have come through some stages before the filters."""
        message, refused_claims, request = task.message, task.refused_claims, task.message.request_spec
        count, seed = len(message.instance_uuids), seed_of(message.request_id)
        host_candidates = HostCandidates(request.resource_request, refused_claims.tried, refused_claims.budget)
        view, planned = task.views(_classes(host_candidates.request))
        entering = _entering(view, before)
        chosen: list[HostChoice] = []
        explanations: list[Explanation] = []
        for number in range(count):
            known_infeasible = frozenset(host_candidates.infeasible)
            filtered = self._funnel.filter(view, request, _without(entering, known_infeasible))
            ranking = self._funnel.rank(view, request, filtered.left, seed)
            best = best_of(view, ranking, host_candidates, self._subset_size)
            if not best:
                fallen_out = self._fallen_out(view, request, host_candidates, before)
                return NoHost(view, fallen_out, number, host_candidates, chosen[0].row if chosen else None, request)
            chosen.append(best[pick(seed, number, len(best))])
            if message.explain:
                stages = _stages(view, before, known_infeasible, filtered, host_candidates)
                considered = DecisionTrace(
                    view, FilterResult(_all(view), stages), host_candidates, ranking, chosen[-1].row
                )
                explanations.append(self._explained(task, considered, placed=count))
            if planned is not None:
                planned.claim(chosen[-1].row, chosen[-1].allocation_request)
        is_isolated = request.resource_request.group_policy == "isolate"
        if not message.num_alternates or _is_forced(request):
            return DestinationPlan(view, chosen, [[] for _ in chosen], explanations, is_isolated)
        offered = _without(entering, host_candidates.infeasible | _rows_of(view, refused_claims.nodes))
        if planned is not None:
            # What was feasible before the last of these claims may not be so after it.
            ranking = self._rank(view, request, offered, seed)
        alternates = Alternates(view, ranking, host_candidates, offered, message.num_alternates)
        return DestinationPlan(view, chosen, [alternates.of(choice) for choice in chosen], explanations, is_isolated)

    def why_not(
        self, no_host: NoHost, message: SelectDestinations, refused_claims: RefusedClaims, named: Collection[str] = ()
    ) -> Explanation:
        """Return why the hosts of a view did not do."""
        asked = structs.replace(message, request_spec=no_host.request)
        task = _PlanInput(no_host.view, asked, refused_claims, NO_CONTEXT, named)
        considered = DecisionTrace(no_host.view, no_host.filtered, no_host.host_candidates)
        return self._explained(task, considered, placed=no_host.placed)

    def how_many(
        self, snapshot: Snapshot, message: SelectDestinations, context: RequestContext, seconds: float
    ) -> WhatIf:
        """Return how many more instances like the first of a request would fit.

        :param seconds: how long a search for that may take.
        :raises BrokenPlugin: a filter is broken.
        """
        request = message.request_spec
        first = structs.replace(message, instance_uuids=message.instance_uuids[:1])
        view, _ = _PlanInput(snapshot, first, RefusedClaims(), context).views(_classes(request.resource_request))
        entering = _entering(view, _leaving(view, context))
        feasible = self._funnel.filter(view, request, entering).left
        return InstanceCounter(self._funnel, view, request, feasible, seconds).count()

    def _explained(self, task: "_PlanInput", considered: DecisionTrace, *, placed: int) -> Explanation:
        message = task.message
        explainer = Explainer(self._funnel, considered, message.request_spec, task.refused_claims, task.named)
        explanation = explainer.explain()
        return structs.replace(
            explanation,
            instances=len(message.instance_uuids),
            placed=placed,
            skipped_plugins=dict(self.plugin_failures.skipped),
        )

    def _rank(self, view: Snapshot, request: RequestSpec, entering: BoolArray, seed: int) -> Ranking:
        return self._funnel.rank(view, request, self._funnel.filter(view, request, entering).left, seed)

    def _fallen_out(
        self, view: Snapshot, request: RequestSpec, host_candidates: HostCandidates, before: Sequence[Stage]
    ) -> FilterResult:
        """Say how all hosts fell out, those included that were not asked again."""
        filtered = self._funnel.filter(view, request, _entering(view, before))
        stages = [*before, *filtered.stages]
        if filtered.left.any():
            stages.append(Stage(CANDIDATES, _NO_CANDIDATE, _without(filtered.left, host_candidates.infeasible)))
        return FilterResult(_all(view), stages)


@dataclass(frozen=True, slots=True)
class _PlanInput:
    """What is to be planned, on which hosts."""

    snapshot: Snapshot
    message: SelectDestinations
    refused_claims: RefusedClaims
    context: RequestContext
    named: Collection[str] = ()

    def views(self, resource_classes: Collection[str]) -> tuple[Snapshot, PlannedView | None]:
        """Return the hosts as this request sees them; twice, where several instances are to see each other's claims.

        A single instance has nobody whose claim it would have to see.
        """
        members, pooled = self.context.members, self.context.pooled
        view = self.snapshot if members is None else self.snapshot.with_members(members)
        if self.context.neighbours:
            view = view.with_neighbours(self.context.neighbours)
        if len(self.message.instance_uuids) > 1:
            planned = PlannedView.of(view, resource_classes)
            return planned, planned
        if pooled:
            credited = PlannedView.of(view, resource_classes)
            for uuid, resources in pooled.items():
                credited.credit(uuid, resources)
            return credited, None
        return view, None


def _finds_a_home(message: SelectDestinations, context: RequestContext) -> bool:
    """Tell whether several first members of an affinity group are to go to one host that is still to be found."""
    group, members = message.request_spec.server_group, context.members or {}
    return (
        len(message.instance_uuids) > 1
        and group is not None
        and group.policy == "affinity"
        and all(root.forced_down for root in members.values())
    )


def _leaving(view: Snapshot, context: RequestContext) -> list[Stage]:
    """Return the stage before all others of a server that leaves its host."""
    if context.leaving is None:
        return []
    return [Stage(LEAVING, _LEFT, _without(_all(view), _rows_of(view, {context.leaving})))]


def _has_room_for_all(view: Snapshot, message: SelectDestinations) -> BoolArray:
    """Tell which hosts may have room for all instances of a request together."""
    amounts: Counter[str] = Counter()
    for group in message.request_spec.resource_request.groups.values():
        amounts.update(group.resources)
    has_room = _all(view)
    for name, amount in amounts.items():
        has_room &= view.room(name) >= amount * len(message.instance_uuids)
    return has_room


def _all(view: Snapshot) -> BoolArray:
    return np.ones(len(view), dtype=np.bool_)


def _entering(view: Snapshot, before: Sequence[Stage]) -> BoolArray:
    return before[-1].left if before else _all(view)


def _stages(
    view: Snapshot,
    before: Sequence[Stage],
    known_infeasible: Collection[int],
    filtered: FilterResult,
    host_candidates: HostCandidates,
) -> list[Stage]:
    """Return how the hosts fell out on the way to a choice, those included that were looked at and could not serve."""
    stages = list(before)
    if known_infeasible:
        stages.append(Stage(CANDIDATES, _NO_CANDIDATE, _without(_entering(view, before), known_infeasible)))
    stages.extend(filtered.stages)
    if len(host_candidates.infeasible) > len(known_infeasible):
        stages.append(Stage(CANDIDATES, _NO_CANDIDATE, _without(filtered.left, host_candidates.infeasible)))
    return stages


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
