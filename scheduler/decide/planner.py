"""Plan a request on one snapshot: filter, weigh and choose a host for each instance, and its alternates.

Nothing is claimed here. If the store refuses a plan, the request is planned again on a newer snapshot.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import structs

from moorage import errors
from moorage.messages import SelectDestinations
from moorage.model import Explanation, RequestSpec, WhatIf
from moorage.plugin import BoolArray
from scheduler.decide.choosing import HostChoice, alternates_of, best_of
from scheduler.decide.evaluation import AddedByGroup, EvaluationPool, Evaluations, without
from scheduler.decide.explain.explainer import DecisionTrace, Explainer
from scheduler.decide.explain.how_many_more import InstanceCounter
from scheduler.decide.funnel import FilterResult, Funnel, Stage
from scheduler.decide.host_candidates import NO_CANDIDATE, CandidateFilters, HostCandidates, RefusedClaims
from scheduler.decide.plugin_failures import PLUGIN_EXCEPTIONS
from scheduler.decide.ranking import SeededTies, pick, seed_of
from scheduler.decide.request_context import NO_CONTEXT, RequestContext
from scheduler.view.planned import PlannedView, filled_up, without_instance
from scheduler.view.snapshot import Snapshot

#: The stage after the filters: it removes the hosts without an allocation candidate.
CANDIDATES = "candidates"
#: Stages before the filters: they remove the host that a moving server leaves, and the hosts that are too small for all
#: new members of an affinity group.
LEAVING, _LEFT = "leaving", "is the host that the server is to leave"
TOGETHER, _NO_ROOM_FOR_ALL = "together", "has not enough room for all members of the server group together"
_NOT_FOR_ALL = "cannot take all members of the server group together"

#: The object of the search for these members, and the advice if the search takes too long.
_HOME = "a host for all members of the server group together"
_FEWER = "ask for fewer of them at once, or for one of them first"

#: The maximum number of best hosts that are sorted at once for the instances of one request. Arbitrary.
_SORTED = 64


@dataclass(frozen=True, slots=True)
class DestinationPlan:
    """Hold the host to claim for each instance, in order, and the alternates after it."""

    view: Snapshot
    chosen: list[HostChoice]
    alternates: list[list[HostChoice]]
    #: For each instance, why this host was chosen, if the request wants explanations.
    explanations: list[Explanation] = field(default_factory=list)
    #: Whether no two suffixed groups of the request may share a provider.
    is_isolated: bool = False
    #: Whether the search for candidates was given up, so that there may be better hosts, or more alternates.
    is_given_up: bool = False

    def node(self, choice: HostChoice) -> str:
        """Return the compute node of a chosen host."""
        return self.view.hosts[choice.row].compute_node_uuid

    def refused_by(self, provider_uuids: Collection[str]) -> list[HostChoice]:
        """Return the chosen hosts whose claims would name any of these providers, or whose compute node is one."""
        return [
            choice
            for choice in self.chosen
            if not {self.node(choice), *choice.allocation_request.allocations}.isdisjoint(provider_uuids)
        ]


@dataclass(frozen=True, slots=True)
class NoHost:
    """Report that there is no host for the instance after the first ``placed`` ones, and how each host was removed."""

    view: Snapshot
    filtered: FilterResult
    placed: int
    host_candidates: HostCandidates
    #: The row of the host that was chosen for the first instance, if one was.
    first_chosen: int | None
    #: The request that was planned: as the request filters resolved it, or as sent, if one of them refused it.
    request: RequestSpec

    @classmethod
    def by_request_filter(cls, view: Snapshot, request: RequestSpec, name: str, reason: str) -> "NoHost":
        """Return the result for a request that a request filter of this name has refused: it removes every host."""
        entered = _all(view)
        filtered = FilterResult(entered, [Stage(name, reason, ~entered)])
        return cls(view, filtered, 0, HostCandidates(request.resource_request, {}), None, request)

    @property
    def unfinished_search(self) -> errors.SearchBoundReached | None:
        """The error of a host on which the search was not finished, and which may be valid after all."""
        return next(iter(self.host_candidates.undecided.values()), None)


class Planner:
    """Plan requests with the configured filters and weighers; for the parameters see :class:`.DecisionPolicy`."""

    def __init__(self, funnel: Funnel, subset_size: int, evaluations: EvaluationPool | None = None) -> None:
        self.funnel = funnel
        self._subset_size = subset_size
        self._evaluations = evaluations or EvaluationPool()

    def plan(
        self,
        snapshot: Snapshot,
        message: SelectDestinations,
        refused_claims: RefusedClaims,
        context: RequestContext = NO_CONTEXT,
        named: Collection[str] = (),
    ) -> DestinationPlan | NoHost:
        """Choose a host for each instance of a request, with the claims planned before it taken into account.

        :raises BrokenPlugin: a filter or weigher is broken.
        :raises SearchBoundReached: a search was not finished: for candidates, or for a host that all of an affinity
            group's members go to.
        """
        task = _PlanInput(snapshot, message, refused_claims, context, named)
        before = _leaving(snapshot, context)
        if not _chooses_affinity_host(message, context):
            return self._plan(task, before)
        # All new members of an affinity group must go to one host. The best host for the first one may have no room for
        # all, while another host has. So each host that fails is left out, and all members are planned again.
        entering = _entering(snapshot, before) & _has_room_for_all(snapshot, message)
        before.append(Stage(TOGETHER, _NO_ROOM_FOR_ALL, entering))
        outcome = self._plan(task, before)
        if isinstance(outcome, DestinationPlan) or outcome.first_chosen is None:
            return outcome
        # The first failure explains most: no host was left out yet.
        first = outcome
        # Remove at once the hosts on which the filters do not allow all members.
        entering = entering & self._may_take_all(task)
        tries = 1
        try:
            # The budget includes the whole time of these plans, and not only that of their candidate searches.
            with refused_claims.budget.running():
                while isinstance(outcome, NoHost):
                    # If a search was not finished, it is not known that there is no host.
                    first.host_candidates.undecided.update(outcome.host_candidates.undecided)
                    if outcome.first_chosen is None:
                        return first
                    refused_claims.budget.take_step()
                    entering = without(entering, [outcome.first_chosen])
                    outcome = self._plan(task, [*before, Stage(TOGETHER, _NOT_FOR_ALL, entering)])
                    tries += 1
        except errors.SearchBoundReached as fault:
            raise errors.SearchBoundReached(what=_HOME, steps=tries, narrow=_FEWER) from fault
        return outcome

    def _may_take_all(self, task: "_PlanInput") -> BoolArray:
        """Return the hosts without those that pass the filters, but not as if they had all instances but one."""
        request, others = task.message.request_spec, len(task.message.instance_uuids) - 1
        view, _ = task.views(())
        filled = filled_up(view, request.resource_request.totals(), np.full(len(view), others))
        filled = replace(filled, io_op_counts=filled.io_op_counts + others)
        passing = self.funnel.filter(view, request, _all(view)).left
        return ~passing | self.funnel.filter(filled, request, passing).left

    def _plan(self, task: "_PlanInput", before: Sequence[Stage]) -> DestinationPlan | NoHost:
        """Plan on the hosts that are left by the stages before the filters."""
        message, context, request = task.message, task.context, task.message.request_spec
        has_members, group = context.members is not None, None
        if message.explain or before or replace(context, members=None, group=None) != NO_CONTEXT:
            # An explanation shows each stage of the filters, and each planned member of a group affects all hosts.
            return self._choose(task, before, Evaluations(anew=message.explain or has_members))
        if has_members:
            group = self._added_by_group(request)
            if group is None:
                return self._choose(task, before, Evaluations(anew=True))
            request = group.without_group
        # The evaluation depends only on the hosts and the request: reuse that of an equal request, and keep this one.
        evaluations = Evaluations(self._evaluations.take(self.funnel, request), group=group)
        try:
            return self._choose(task, before, evaluations)
        except errors.BrokenPlugin:
            if group is None:
                raise
            # It may be broken only for hosts that the group's rule removes; for a single host, no weigher is run.
            return self._choose(task, before, Evaluations(anew=True))
        finally:
            if evaluations.last is not None:
                self._evaluations.keep(evaluations.last)

    def _added_by_group(self, request: RequestSpec) -> AddedByGroup | None:
        """Return what the server group of a request adds; null if plug-ins may depend on the group in other ways."""
        if not self._evaluations.keeps_any:
            return None
        without_group = structs.replace(request, server_group=None)
        try:
            filters = self.funnel.added_by_group(request, without_group)
        except PLUGIN_EXCEPTIONS:
            return None  # the evaluation of all hosts handles the exception
        return None if filters is None else AddedByGroup(filters, without_group)

    def _choose(
        self, task: "_PlanInput", before: Sequence[Stage], evaluations: Evaluations
    ) -> DestinationPlan | NoHost:
        message, refused_claims, request = task.message, task.refused_claims, task.message.request_spec
        seed = seed_of(message.request_id)
        host_candidates = HostCandidates(
            request.resource_request,
            refused_claims.tried,
            refused_claims.budget,
            filters=CandidateFilters(self.funnel, request),
        )
        view, planned = task.views(host_candidates.request.totals())
        entering = _entering(view, before)
        ties = SeededTies(view.ties, seed)
        # The alternates of a single instance are taken from the same ranking; so are the hosts of further instances.
        further = message.num_alternates + 1 if planned is None else min(len(message.instance_uuids), _SORTED)
        look_ahead = self._subset_size + further
        chosen: list[HostChoice] = []
        explanations: list[Explanation] = []
        for number in range(len(message.instance_uuids)):
            # A host without a candidate has none for the next instance, either: its free amounts only decrease.
            known_infeasible = frozenset(host_candidates.infeasible)
            # Filter and weigh: all hosts for the first instance, then those that the claims before it have changed.
            evaluation, ranking = evaluations.ranked(
                self.funnel, view, request, entering, known_infeasible, ties, look_ahead
            )
            host_candidates.remember_in(evaluation.candidates)
            # Choose. The search for candidates is expensive, so it is done here, host by host, beginning with the best.
            best = best_of(view, ranking, host_candidates, self._subset_size)
            if not best:
                removed = self._all_removed(view, request, host_candidates, before)
                return NoHost(view, removed, number, host_candidates, chosen[0].row if chosen else None, request)
            chosen.append(best[pick(seed, number, len(best))])
            if message.explain:
                stages = _stages(view, before, known_infeasible, evaluation.filtered, host_candidates)
                trace = DecisionTrace(view, FilterResult(_all(view), stages), host_candidates, ranking, chosen[-1].row)
                explanations.append(self._explained(task, trace, placed=len(message.instance_uuids)))
            if planned is not None:
                # The next instance sees this claim: the amounts, the instance and the member of the server group.
                planned.claim(chosen[-1].row, chosen[-1].allocation_request)
        alternates: list[list[HostChoice]] = [[] for _ in chosen]
        # A request that forces hosts has no use for alternates.
        if message.num_alternates and not request.force_hosts and not request.force_nodes:
            # Hosts that have refused a claim of this request would probably refuse it again.
            offered = without(entering, host_candidates.infeasible | _rows_of(view, refused_claims.lost))
            if planned is not None:
                # A host that was feasible before the last of these claims may not be feasible after it.
                infeasible = host_candidates.infeasible
                evaluation, ranking = evaluations.ranked(self.funnel, view, request, entering, infeasible, ties)
                host_candidates.remember_in(evaluation.candidates)
            alternates = alternates_of(view, ranking, host_candidates, offered, chosen, message.num_alternates)
        is_isolated = request.group_policy == "isolate"
        return DestinationPlan(view, chosen, alternates, explanations, is_isolated, host_candidates.is_given_up)

    def why_not(
        self, no_host: NoHost, message: SelectDestinations, refused_claims: RefusedClaims, named: Collection[str] = ()
    ) -> Explanation:
        """Return why there was no host."""
        planned = structs.replace(message, request_spec=no_host.request)
        task = _PlanInput(no_host.view, planned, refused_claims, NO_CONTEXT, named)
        trace = DecisionTrace(no_host.view, no_host.filtered, no_host.host_candidates)
        return self._explained(task, trace, placed=no_host.placed)

    def how_many(
        self, snapshot: Snapshot, message: SelectDestinations, context: RequestContext, seconds: float
    ) -> WhatIf:
        """Return how many more instances like the first of a request would fit.

        :param seconds: the time limit of the search for candidates.
        :raises BrokenPlugin: a filter is broken.
        """
        request = message.request_spec
        first = structs.replace(message, instance_uuids=message.instance_uuids[:1])
        view, _ = _PlanInput(snapshot, first, RefusedClaims(), context).views(request.resource_request.totals())
        entering = _entering(view, _leaving(view, context))
        feasible = self.funnel.filter(view, request, entering).left
        return InstanceCounter(self.funnel, view, request, feasible, seconds).count()

    def _explained(self, task: "_PlanInput", trace: DecisionTrace, *, placed: int) -> Explanation:
        message = task.message
        explainer = Explainer(self.funnel, trace, message.request_spec, task.refused_claims, task.named)
        return structs.replace(
            explainer.explain(),
            instances=len(message.instance_uuids),
            placed=placed,
            skipped_plugins=dict(self.funnel.plugin_failures.skipped),
        )

    def _all_removed(
        self, view: Snapshot, request: RequestSpec, host_candidates: HostCandidates, before: Sequence[Stage]
    ) -> FilterResult:
        """Return the stages that removed all hosts; hosts that were left out as infeasible enter the filters again."""
        filtered = self.funnel.filter(view, request, _entering(view, before))
        stages = [*before, *filtered.stages]
        if filtered.left.any():
            stages += _candidate_stages(filtered.left, host_candidates, host_candidates.infeasible)
        return FilterResult(_all(view), stages)


@dataclass(frozen=True, slots=True)
class _PlanInput:
    """Hold a request to plan, and the hosts to plan it on."""

    snapshot: Snapshot
    message: SelectDestinations
    refused_claims: RefusedClaims
    context: RequestContext
    named: Collection[str] = ()

    def views(self, resource_classes: Collection[str]) -> tuple[Snapshot, PlannedView | None]:
        """Return the view of this request, and the same view again if the plan must add its claims to it; else None.

        A plan for several instances adds its claims, so that each instance sees the claims before it. For a single
        instance, the snapshot is not copied for this purpose.
        """
        context = self.context
        view = self.snapshot if context.members is None else self.snapshot.with_members(context.members)
        if context.neighbours:
            view = view.with_neighbours(context.neighbours)
        if context.source is not None:
            image_properties = self.message.request_spec.image.properties
            view = without_instance(view, context.source, image_properties, under_way=context.under_way)
        if (instances := len(self.message.instance_uuids)) > 1:
            planned = PlannedView.of(view, resource_classes, instances)
            return planned, planned
        if context.pooled:
            # What an instance holds of pools is free for its own claim.
            credited = PlannedView.of(view, resource_classes)
            for uuid, resources in context.pooled.items():
                credited.credit(uuid, resources)
            return credited, None
        return view, None


def _chooses_affinity_host(message: SelectDestinations, context: RequestContext) -> bool:
    """Tell whether the request has several first members of an affinity group, whose host is not fixed yet.

    Members on hosts that are forced down do not fix it: no guest runs there any more.
    """
    group, members = message.request_spec.server_group, context.members or {}
    return (
        len(message.instance_uuids) > 1
        and group is not None
        and group.policy == "affinity"
        and all(root.forced_down for root in members.values())
    )


def _leaving(view: Snapshot, context: RequestContext) -> list[Stage]:
    """Return the stage that removes the host which a moving server leaves, if it must leave it."""
    if context.leaving is None:
        return []
    return [Stage(LEAVING, _LEFT, without(_all(view), _rows_of(view, {context.leaving})))]


def _has_room_for_all(view: Snapshot, message: SelectDestinations) -> BoolArray:
    """Return which hosts may have room for all instances of a request together, judged by the sums of each class."""
    has_room = _all(view)
    for name, amount in message.request_spec.resource_request.totals().items():
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
    """Return the stages that removed hosts before a choice, the search for candidates included."""
    stages = list(before)
    if known_infeasible:
        stages += _candidate_stages(_entering(view, before), host_candidates, known_infeasible)
    stages.extend(filtered.stages)
    if len(host_candidates.infeasible) > len(known_infeasible):
        stages += _candidate_stages(filtered.left, host_candidates, host_candidates.infeasible)
    return stages


def _candidate_stages(left: BoolArray, host_candidates: HostCandidates, infeasible: Collection[int]) -> Iterator[Stage]:
    """Yield the stages that removed infeasible hosts, one for each reason."""
    by_reason: dict[str, set[int]] = {NO_CANDIDATE: set()}
    for row in infeasible:
        by_reason.setdefault(host_candidates.reason(row), set()).add(row)
    for reason, rows in by_reason.items():
        if rows or len(by_reason) == 1:
            left = without(left, rows)
            yield Stage(CANDIDATES, reason, left)


def _rows_of(view: Snapshot, node_uuids: Collection[str]) -> set[int]:
    row_of_node = view.names.by_compute_node if node_uuids else {}
    return {row_of_node[uuid] for uuid in node_uuids if uuid in row_of_node}
