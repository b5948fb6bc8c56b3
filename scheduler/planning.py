"""Planning: a host for each instance of a request and its alternates, on one snapshot, before anything is claimed."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from moorage.messages import SelectDestinations
from moorage.model import AllocationRequest, RequestSpec, ResourceRequest
from moorage.plugin import BoolArray
from scheduler.circumstances import NONE, Circumstances
from scheduler.funnel import Filtered, Funnel, Ranking, Stage, pick, seed_of
from scheduler.serving import Refusals, Serving
from scheduler.view import PlannedView, Snapshot

#: What the hosts that no filter refused lacked, as a stage after the filters.
CANDIDATES = "candidates"
_NO_CANDIDATE = "has no providers that can serve all groups of the request together"
#: Stages before the filters: the host that a moving server leaves, and those too small for a group that stays together.
LEAVING, _LEFT = "leaving", "is the host that the server is to leave"
TOGETHER, _NO_ROOM_FOR_ALL = "together", "has not enough room for all members of the server group together"

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
        """Return the choices that would have claimed some of these providers, or have gone to the host of one."""
        return [
            one
            for one in self.chosen
            if not {self.node(one), *one.allocation_request.allocations}.isdisjoint(provider_uuids)
        ]


@dataclass(frozen=True, slots=True)
class Shortfall:
    """For the instance after the first ``placed`` ones there was no host."""

    view: Snapshot
    filtered: Filtered
    placed: int
    serving: Serving
    #: The row of the host that the first of those was to go to, if there were any.
    home: int | None


class Planner:
    """Plans requests.

    :param subset_size: the host is picked at random, by the request's seed, among this many of the best.
    """

    def __init__(self, funnel: Funnel, subset_size: int) -> None:
        self._funnel = funnel
        self._subset_size = subset_size

    def plan(
        self,
        snapshot: Snapshot,
        message: SelectDestinations,
        refusals: Refusals,
        circumstances: Circumstances = NONE,
    ) -> Plan | Shortfall:
        """Return hosts for all instances of a request, each seeing what is planned for those before it.

        :raises BrokenPlugin: a filter or weigher is broken.
        """
        task = _Task(snapshot, message, refusals, circumstances)
        before = []
        if circumstances.leaving is not None:
            before.append(Stage(LEAVING, _LEFT, _without(_all(snapshot), _rows_of(snapshot, {circumstances.leaving}))))
        if not _finds_a_home(message, circumstances):
            return self._plan(task, before)
        # All go where the first goes. Had that one room for some of them only, it would not be true that there is none.
        entering = _entering(snapshot, before) & _has_room_for_all(snapshot, message)
        first: Shortfall | None = None
        while True:
            outcome = self._plan(task, [*before, Stage(TOGETHER, _NO_ROOM_FOR_ALL, entering)])
            if isinstance(outcome, Plan):
                return outcome
            first = first or outcome
            if outcome.home is None:
                return first
            entering = _without(entering, [outcome.home])

    def _plan(self, task: "_Task", before: Sequence[Stage]) -> Plan | Shortfall:
        """Plan with those hosts alone that have come through some stages before the filters."""
        message, refusals, request = task.message, task.refusals, task.message.request_spec
        count, seed = len(message.instance_uuids), seed_of(message.request_id)
        serving = Serving(request.resource_request, refusals.tried)
        view, planned = task.views(_classes(serving.request))
        entering = _entering(view, before)
        chosen: list[Choice] = []
        for number in range(count):
            ranking = self._rank(view, request, _without(entering, serving.barren), seed)
            best = _best(view, ranking, serving, self._subset_size)
            if not best:
                filtered = self._fallen_out(view, request, serving, before)
                return Shortfall(view, filtered, number, serving, chosen[0].row if chosen else None)
            chosen.append(best[pick(seed, number, len(best))])
            if planned is not None:
                planned.claim(chosen[-1].row, chosen[-1].allocation_request)
        if not message.num_alternates or _is_forced(request):
            return Plan(view, chosen, [[] for _ in chosen])
        offered = _without(entering, serving.barren | _rows_of(view, refusals.nodes))
        if planned is not None:
            # What was feasible before the last of these claims may not be so after it.
            ranking = self._rank(view, request, offered, seed)
        alternates = _Alternates(view, ranking, serving, offered, message.num_alternates)
        return Plan(view, chosen, [alternates.of(choice) for choice in chosen])

    def _rank(self, view: Snapshot, request: RequestSpec, entering: BoolArray, seed: int) -> Ranking:
        return self._funnel.rank(view, request, self._funnel.filter(view, request, entering).left, seed)

    def _fallen_out(self, view: Snapshot, request: RequestSpec, serving: Serving, before: Sequence[Stage]) -> Filtered:
        """Say how all hosts fell out, those included that were not asked again."""
        filtered = self._funnel.filter(view, request, _entering(view, before))
        stages = [*before, *filtered.stages]
        if filtered.left.any():
            stages.append(Stage(CANDIDATES, _NO_CANDIDATE, _without(filtered.left, serving.barren)))
        return Filtered(_all(view), stages)


@dataclass(frozen=True, slots=True)
class _Task:
    """What is to be planned, on which hosts."""

    snapshot: Snapshot
    message: SelectDestinations
    refusals: Refusals
    circumstances: Circumstances

    def views(self, resource_classes: Collection[str]) -> tuple[Snapshot, PlannedView | None]:
        """Return the hosts as this request sees them; twice, where several instances are to see each other's claims.

        A single instance has nobody whose claim it would have to see.
        """
        members, pooled = self.circumstances.members, self.circumstances.pooled
        view = self.snapshot if members is None else self.snapshot.with_members(members)
        if len(self.message.instance_uuids) > 1:
            planned = view.planned(resource_classes)
            return planned, planned
        if pooled:
            credited = view.planned(resource_classes)
            for uuid, resources in pooled.items():
                credited.credit(uuid, resources)
            return credited, None
        return view, None


def _finds_a_home(message: SelectDestinations, circumstances: Circumstances) -> bool:
    """Tell whether several first members of an affinity group are to go to one host that is still to be found."""
    group, members = message.request_spec.server_group, circumstances.members or {}
    return (
        len(message.instance_uuids) > 1
        and group is not None
        and group.policy == "affinity"
        and all(root.forced_down for root in members.values())
    )


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
