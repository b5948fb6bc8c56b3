"""Test planning on hosts that are trees: hosts without a candidate are skipped, and not every host is searched."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.moorage.executed_lines import executed_lines
from support.scheduler.builders import funnel, host_cache, host_row, provider, select, spec
from support.scheduler.trees import child, groups, host_cache_of, host_with, node, provider_uuid

from moorage import errors
from moorage.model import AllocationRequest, ResourceGroup
from moorage.testing.builders import inventory
from placement_store import candidates
from placement_store.candidates.search_budget import SearchBudget
from scheduler.decide.host_candidates import (
    MAX_REFUSALS_OF_A_HOST,
    MAX_UNDECIDED_HOSTS,
    NO_CANDIDATE,
    TOO_MANY_COMBINATIONS,
    FoundCandidates,
    HostCandidates,
    RefusedClaims,
)
from scheduler.decide.planner import DestinationPlan, NoHost, Planner
from scheduler.view.host_cache import HostCache
from scheduler.view.planned import PlannedView
from scheduler.view.provider_trees import FetchedProvider
from scheduler.view.provisional import AddedClaims
from scheduler.view.snapshot import Snapshot

BASE = {"VCPU": 16, "MEMORY_MB": 32768, "DISK_GB": 500}
#: The weighers prefer a host with more free VCPU.
LARGE = {**BASE, "VCPU": 99}
GPU = groups(g={"VGPU": 1})


def plan(
    shown: HostCache, subset: int = 1, refused_claims: RefusedClaims | None = None, **asked: Any
) -> DestinationPlan | NoHost:
    return Planner(funnel(), subset).plan(shown.snapshot(), select(**asked), refused_claims or RefusedClaims())


def hosts_of(planned: DestinationPlan | NoHost) -> list[str]:
    assert isinstance(planned, DestinationPlan)
    return [planned.view.hosts[choice.row].service_host for choice in planned.chosen]


def with_gpus(host: int, **gpu: Any) -> list[FetchedProvider]:
    """A host with two GPUs, of which only the first is as described."""
    return host_with(host, [{"VGPU": 2, **gpu}, {"VGPU": 2}], **BASE)


FAST = {"g": ResourceGroup(resources={"VGPU": 1}, required=("CUSTOM_FAST",))}


def without_candidate(host: int) -> list[FetchedProvider]:
    """A host that passes every filter for FAST, and has the most room: but trait and GPU are on different providers."""
    return host_with(host, [{"VGPU": 1}, {"traits": ["CUSTOM_FAST"]}], **LARGE)


def test_hosts_that_pass_every_filter_but_have_no_candidate_are_skipped() -> None:
    shown = host_cache_of(*without_candidate(0), *with_gpus(1, traits=["CUSTOM_FAST"]), hosts=2)
    assert hosts_of(plan(shown)) == ["host0"]
    assert hosts_of(plan(shown, groups=FAST)) == ["host1"]
    assert hosts_of(plan(shown, count=2, groups=FAST)) == ["host1", "host1"]
    short = plan(shown, count=3, groups=FAST)
    assert isinstance(short, NoHost)
    assert short.placed == 2
    assert [(stage.name, int(stage.left.sum())) for stage in short.filtered.stages][-2:] == [
        ("resources", 2),
        ("candidates", 0),
    ]


def test_the_pick_is_among_the_best_hosts_with_a_candidate() -> None:
    infeasible = [one for number in range(6) for one in without_candidate(number)]
    fit = [one for number in (6, 7) for one in with_gpus(number, traits=["CUSTOM_FAST"])]
    shown = host_cache_of(*infeasible, *fit, hosts=8)
    picked = {hosts_of(plan(shown, 2, request_id=f"r{number}", groups=FAST))[0] for number in range(20)}
    assert picked == {"host6", "host7"}


def test_a_refused_candidate_is_not_tried_again_and_a_host_has_a_limited_number_of_tries() -> None:
    shown = host_cache_of(*host_with(0, [{"VGPU": 1}] * 8, **BASE))
    refused_claims = RefusedClaims()
    seen = set()
    for _ in range(MAX_REFUSALS_OF_A_HOST):
        planned = plan(shown, refused_claims=refused_claims, groups=GPU)
        assert isinstance(planned, DestinationPlan)
        [choice] = planned.chosen
        seen.add(choice.allocation_request.mappings["g"])
        refused_claims.add(planned.node(choice), choice.allocation_request)
    assert len(seen) == MAX_REFUSALS_OF_A_HOST
    assert isinstance(plan(shown, refused_claims=refused_claims, groups=GPU), NoHost)
    refused_claims.try_all_again()
    assert isinstance(plan(shown, refused_claims=refused_claims, groups=GPU), DestinationPlan)


def test_a_refusal_by_a_provider_concerns_only_the_choices_that_use_it() -> None:
    shown = host_cache_of(*with_gpus(0), *with_gpus(1), hosts=2)
    planned = plan(shown, count=4, groups=groups(g={"VGPU": 2}))
    assert isinstance(planned, DestinationPlan)
    [refused] = planned.refused_by({provider_uuid(1)})
    assert refused.allocation_request.mappings["g"] == (provider_uuid(1),)
    assert len(planned.refused_by({provider_uuid(0)})) == 2


def test_an_unfinished_search_does_not_show_that_a_host_is_infeasible() -> None:
    asked = spec(groups=groups(**{f"g{number}": {"VGPU": 2} for number in range(4)}), group_policy="none")
    wide = [one for host in range(MAX_UNDECIDED_HOSTS) for one in host_with(host, [{"VGPU": 3}] * 5, **BASE)]
    view = host_cache_of(*wide, hosts=MAX_UNDECIDED_HOSTS).snapshot()
    hasty = HostCandidates(asked.resource_request, {}, steps=1)
    for row in range(MAX_UNDECIDED_HOSTS - 1):
        assert hasty.first(view, row) is None
    assert list(hasty.undecided) == list(range(MAX_UNDECIDED_HOSTS - 1))
    with pytest.raises(errors.SearchBoundReached):
        hasty.first(view, MAX_UNDECIDED_HOSTS - 1)
    assert HostCandidates(asked.resource_request, {}).first(view, 0) is not None


def test_a_host_without_a_candidate_is_not_searched_again_before_it_changes() -> None:
    planner = Planner(funnel(), 1)
    asked: dict[str, Any] = {"groups": groups(g1={"VGPU": 2}, g2={"VGPU": 2}, g3={"VGPU": 2}), "group_policy": "none"}
    broken_up = [{"VGPU": 3}, {"VGPU": 3}, {"VGPU": 1}]
    shown = host_cache_of(*host_with(0, broken_up, **BASE), *host_with(1, broken_up, **BASE), hosts=2)

    def planned(request_id: str, budget: SearchBudget | None = None) -> DestinationPlan | NoHost:
        refused_claims = RefusedClaims(budget or SearchBudget())
        return planner.plan(shown.snapshot(), select(request_id, **asked), refused_claims)

    def no_search() -> SearchBudget:
        return SearchBudget(steps=0)

    # A search that was not finished shows nothing.
    with pytest.raises(errors.SearchBoundReached):
        planned("r0", no_search())
    first = planned("r1")
    again = planned("r2", no_search())
    assert isinstance(first, NoHost)
    assert isinstance(again, NoHost)
    assert again.host_candidates.infeasible == first.host_candidates.infeasible == {0, 1}
    assert not again.host_candidates.undecided
    shown.update(providers=[child(0, 3, seq=1, VGPU=2)])
    assert hosts_of(planned("r3")) == ["host0"]


def test_a_host_is_not_searched_again_when_its_planned_claim_is_written() -> None:
    asked = spec(groups=GPU).resource_request
    shown, found = host_cache_of(*with_gpus(0)), FoundCandidates()

    def first(view: Snapshot, steps: int) -> AllocationRequest | None:
        found.valid.clear()  # as for each host that has changed
        host_candidates = HostCandidates(asked, {}, SearchBudget(steps=steps))
        host_candidates.remember_in(found)
        return host_candidates.first_in_time(view, 0)

    planned = PlannedView.of(shown.snapshot(), asked.totals(), 2)
    claimed = first(planned, 9)
    assert claimed is not None
    planned.claim(0, claimed)
    assert first(planned, 0) is None, "it must be searched, because its device has less room"
    second = first(planned, 9)
    amounts = [(uuid, part.resources) for uuid, part in claimed.allocations.items()]
    shown.apply_claims([AddedClaims(amounts, shown.versions([uuid for uuid, _ in amounts]))])
    assert first(shown.snapshot(), 0) == second is not None, "nothing that the search depends on has changed"
    shown.update(providers=[child(0, 1, seq=1, VGPU=5)])
    assert first(shown.snapshot(), 0) is None, "an inventory has changed"


def test_so_many_hosts_are_remembered_that_new_ones_always_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.decide.host_candidates._REMEMBERED", 2)
    asked, found = spec(groups=GPU).resource_request, FoundCandidates()
    view = host_cache_of(*(one for host in range(5) for one in with_gpus(host)), hosts=5).snapshot()
    for row in range(5):
        host_candidates = HostCandidates(asked, {})
        host_candidates.remember_in(found)
        assert host_candidates.first(view, row) is not None
        assert row in found.valid
        assert row in found.searched
        assert len(found.valid) <= 2
        assert len(found.searched) <= 2


def test_hosts_that_have_not_changed_are_not_searched_again_after_all_were_evaluated_again() -> None:
    shown, planner = (
        host_cache_of(*(one for host in range(9) for one in with_gpus(host)), hosts=9),
        Planner(funnel(), 9),
    )
    planner.plan(shown.snapshot(), select("r1", groups=GPU), RefusedClaims())
    changed = [provider_uuid(node(host).id) for host in range(8)]
    shown.apply_claims([AddedClaims([(uuid, {"VCPU": 16}) for uuid in changed], shown.versions(changed))])

    planned = planner.plan(shown.snapshot(), select("r2", groups=GPU), RefusedClaims(SearchBudget(steps=0)))

    assert hosts_of(planned) == ["host8"]


def test_an_unfinished_search_for_alternates_keeps_the_chosen_host() -> None:
    others = [one for host in range(1, 8) for one in host_with(host, [{"VGPU": 3}, {"VGPU": 3}, {"VGPU": 1}], **BASE)]
    shown = host_cache_of(*host_with(0, [{"VGPU": 2}] * 3, **LARGE), *others, hosts=8)
    asked: dict[str, Any] = {"groups": groups(g1={"VGPU": 2}, g2={"VGPU": 2}, g3={"VGPU": 2}), "group_policy": "none"}
    # Enough for the first host, and not for the others, which have no candidate.
    planned = plan(shown, refused_claims=RefusedClaims(SearchBudget(steps=5)), num_alternates=2, **asked)
    assert (hosts_of(planned), destinations(planned)) == (["host0"], destinations(plan(shown, **asked)))
    # The same where the host is picked among several of the best.
    picked = plan(shown, 3, refused_claims=RefusedClaims(SearchBudget(steps=5)), num_alternates=2, **asked)
    assert hosts_of(picked) == ["host0"]
    with pytest.raises(errors.SearchBoundReached):
        plan(shown, refused_claims=RefusedClaims(SearchBudget(steps=1)), **asked)


def test_a_host_whose_search_is_not_finished_is_explained_as_undecided() -> None:
    devices = [{"VGPU": 2}] * 3
    shown = host_cache_of(*host_with(0, devices, **LARGE), *host_with(1, devices, **BASE), hosts=2)
    asked = groups(g1={"VGPU": 2}, g2={"VGPU": 2}, g3={"VGPU": 2})
    message = structs.replace(select(groups=asked, group_policy="none"), explain=True)
    refused_claims = RefusedClaims(SearchBudget(steps=5))
    planned = Planner(funnel(), 1).plan(shown.snapshot(), message, refused_claims, named=("host1",))
    assert hosts_of(planned) == ["host0"]
    assert isinstance(planned, DestinationPlan)
    assert planned.explanations[0].named_hosts == {"host1": TOO_MANY_COMBINATIONS}


def test_a_host_that_a_filter_has_refused_is_not_explained_by_the_search_for_candidates() -> None:
    shown = host_cache_of(*without_candidate(0), *with_gpus(1, traits=["CUSTOM_FAST"]), *with_gpus(2), hosts=3)
    message = structs.replace(select(groups=FAST), explain=True)
    planned = Planner(funnel(), 1).plan(shown.snapshot(), message, RefusedClaims(), named=("host0", "host2"))
    assert isinstance(planned, DestinationPlan)
    explanation = planned.explanations[0]
    assert explanation.chosen == "host1"
    assert explanation.filters[-1].name == "candidates"
    assert explanation.named_hosts == {"host0": NO_CANDIDATE, "host2": "has not CUSTOM_FAST"}


def test_all_nodes_of_a_host_are_explained_together() -> None:
    rows = [replace(host_row(number), service_host="bare-metal") for number in range(3)]
    # The last node is the best; the first one is feasible as well.
    providers = [node(number, **{**BASE, "VCPU": 8 * (1 + number)}) for number in range(3)]
    refused_claims = RefusedClaims()
    for row in rows[:2]:
        refused_claims.lost[row.compute_node_uuid] += 1
    message = structs.replace(select(), explain=True)
    view = host_cache(rows, providers).snapshot()
    planned = Planner(funnel(), 1).plan(view, message, refused_claims, named=("bare-metal",))
    assert isinstance(planned, DestinationPlan)
    explanation = planned.explanations[0]
    assert explanation.named_hosts == {"bare-metal": "is the chosen host"}
    assert explanation.lost_races == {"bare-metal": 2}


def test_an_undecided_host_is_no_nearest_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = groups(**{f"g{number}": {"VGPU": 2} for number in range(4)})
    shown = host_cache_of(*host_with(0, [{"VGPU": 3}] * 5, **LARGE), *host_with(1, [{"VGPU": 8}], **BASE), hosts=2)
    search = candidates.search
    monkeypatch.setattr(
        candidates, "search", lambda tree, *given, **kept: search(tree, *given, **{**kept, "max_steps": 2})
    )
    message = structs.replace(select(groups=asked, group_policy="none"), explain=True)
    planned = Planner(funnel(), 1).plan(shown.snapshot(), message, RefusedClaims())
    assert hosts_of(planned) == ["host1"]
    assert isinstance(planned, DestinationPlan)
    explanation = planned.explanations[0]
    last = explanation.filters[-1]
    assert (last.name, last.reason, explanation.nearest_misses) == ("candidates", TOO_MANY_COMBINATIONS, ())


@pytest.fixture(scope="module")
def ten_thousand() -> HostCache:
    """Ten thousand hosts with a common trait; the last has a rare one too."""
    hosts = [host_row(number) for number in range(10_000)]
    shown = host_cache(hosts, [])
    shown.update(
        providers=[
            FetchedProvider(
                id=one.id,
                uuid=one.uuid,
                seq=0,
                root_id=one.id,
                parent_id=None,
                inventories=one.inventories,
                traits=frozenset({"HW_COMMON", "CUSTOM_RARE"} if one.id == 9_999 else {"HW_COMMON"}),
            )
            for one in map(provider, hosts)
        ]
    )
    return shown


def test_a_rare_trait_among_ten_thousand_hosts_needs_no_search(ten_thousand: HostCache) -> None:
    assert hosts_of(plan(ten_thousand, root_required=("CUSTOM_RARE",))) == ["host9999"]

    def plan_again() -> None:
        assert hosts_of(plan(ten_thousand, request_id="again", root_required=("CUSTOM_RARE",))) == ["host9999"]

    # A search of every host would execute many lines for each of them.
    assert executed_lines(plan_again) < 10_000
    nowhere = plan(ten_thousand, root_required=("CUSTOM_RARE",), root_forbidden=("HW_COMMON",))
    assert isinstance(nowhere, NoHost)
    assert not nowhere.host_candidates.infeasible


@given(st.integers(1, 8), st.integers(0, 20), st.integers(0, 8))
def test_a_flat_host_has_the_candidate_that_a_search_would_find(vcpus: int, gigabytes: int, used: int) -> None:
    held = {"VCPU": inventory(8, used=used, step_size=2), "MEMORY_MB": 4096, "DISK_GB": inventory(16, max_unit=12)}
    asked = spec(vcpus=vcpus, root_gb=gigabytes)
    view = host_cache_of(node(0, seq=0, **held)).snapshot()
    tree = view.host_tree(0, held)
    assert tree is not None
    found = next(candidates.search(tree, asked.resource_request), None)
    assert HostCandidates(asked.resource_request, {}).first(view, 0) == found


def destinations(planned: DestinationPlan | NoHost) -> list[tuple[int, AllocationRequest]] | None:
    """Return the hosts of a plan with their candidates, and then its alternates; null where it found no host."""
    if isinstance(planned, NoHost):
        return None
    choices = [*planned.chosen, *(choice for alternates in planned.alternates for choice in alternates)]
    return [(choice.row, choice.allocation_request) for choice in choices]


#: Requests; before each is planned, another request may claim devices of a host.
arrivals = st.lists(
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.none() | st.integers(0, 3)), min_size=1, max_size=12
)


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=4, max_size=4), arrivals)
def test_remembered_candidates_are_those_that_a_new_search_finds(
    gpus: list[int], asked: list[tuple[int, int, int | None]]
) -> None:
    providers = [one for host, count in enumerate(gpus) for one in host_with(host, [{"VGPU": 3}] * count, **BASE)]
    snapshot = host_cache_of(*providers, hosts=len(gpus)).snapshot()
    view = PlannedView.of(snapshot, snapshot.classes)
    kept = Planner(funnel(), 1)
    for number, (amount, instances, other) in enumerate(asked):
        wanted = groups(g={"VGPU": amount})
        if other is not None:
            taken = HostCandidates(spec(groups=wanted).resource_request, {}).first(view, other)
            if taken is not None:
                view.claim(other, taken)
        message = select(count=instances, request_id=f"r{number}", num_alternates=2, groups=wanted)
        planned = kept.plan(view, message, RefusedClaims())
        fresh = Planner(funnel(), 1).plan(view, message, RefusedClaims())
        assert destinations(planned) == destinations(fresh)


@pytest.mark.parametrize("order", [1, -1])
def test_a_miss_has_the_reason_of_the_provider_whose_free_amount_it_names(order: int) -> None:
    nodes = [{"VCPU": inventory(8, used=8)}, {"VCPU": inventory(32, max_unit=4)}][::order]
    shown, message = host_cache_of(*host_with(0, nodes, MEMORY_MB=32768, DISK_GB=500), hosts=1), select(vcpus=6)
    planner = Planner(funnel(), 1)
    refused = planner.plan(shown.snapshot(), message, RefusedClaims())
    assert isinstance(refused, NoHost)
    [miss] = planner.why_not(refused, message, RefusedClaims()).nearest_misses
    assert (miss.asked, miss.free, miss.reason) == (6, 32.0, "more than the largest unit, 4")
