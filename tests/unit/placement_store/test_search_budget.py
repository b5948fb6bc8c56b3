"""Test the budget for the searches of one request: which searches it ends, and when."""

import time
from collections.abc import Callable

import pytest
from support.placement_store import hard_searches
from support.scheduler.builders import spec
from support.scheduler.trees import groups, host_cache_of, host_with

from moorage import errors
from moorage.model import ResourceGroup, ResourceRequest
from placement_store.candidates import CandidateProvider, HostTree, search
from placement_store.candidates.search_budget import CELLS, SearchBudget
from placement_store.providers.rows import InventoryRow
from placement_store.reshapes.distribution import Bin, DistributionProblem, Item
from placement_store.reshapes.distribution_search import distribute
from scheduler.decide.host_candidates import HostCandidates, RefusedClaims

#: Seconds within which a search must notice that its budget is used up.
SLACK = 0.25


def ticking(seconds: float = 1.0) -> Callable[[], float]:
    """Return a clock on which this time passes each time that it is read."""
    now = [0.0]

    def read() -> float:
        now[0] += seconds
        return now[0]

    return read


def wide(devices: int) -> HostTree:
    root = CandidateProvider("host", "host", None, {})
    rows = [InventoryRow(20 + n, 0, 1, 20 + n, 1, 1.0, 0) for n in range(devices)]
    traits = [frozenset(hard_searches.traits_of(number)) for number in range(devices)]
    return HostTree(
        [root, *(CandidateProvider(f"d{n}", "host", "host", {"VGPU": rows[n]}, traits[n]) for n in range(devices))]
    )


def test_a_search_that_costs_too_much_ends_when_its_processor_time_is_used_up() -> None:
    budget = SearchBudget(seconds=0.3)

    with pytest.raises(errors.SearchBoundReached, match="fewer suffixed groups"):
        list(search(wide(16), hard_searches.REQUEST, budget=budget))

    # By a real clock: the time of a thread grows also while its virtual processor waits for a real one.
    assert 0.3 <= budget.seconds < 10.0
    assert budget.is_spent


def test_a_search_ends_within_one_position_that_takes_long() -> None:
    # Each provider is compared with each group before the first position: a bound of steps would not end that.
    budget = SearchBudget(seconds=100, clock=ticking())

    with pytest.raises(errors.SearchBoundReached) as caught:
        list(search(wide(1000), hard_searches.REQUEST, budget=budget))

    assert caught.value.steps == 0


def test_the_time_between_two_candidates_is_not_charged_to_the_budget() -> None:
    between, ticks = 0.0, ticking(0.001)
    budget = SearchBudget(clock=lambda: ticks() + between)
    candidates = search(wide(3), ResourceRequest(groups={"": ResourceGroup(resources={"VGPU": 1})}), budget=budget)

    next(candidates)
    used = budget.seconds
    between = 100.0

    assert budget.seconds == used
    assert next(candidates) is not None
    assert used < budget.seconds < used + 1.0


def test_a_slice_ends_alone_and_is_charged_to_the_whole_budget() -> None:
    budget = SearchBudget(seconds=0.4, clock=ticking(0.001))
    part = budget.slice(1 / 4)

    with pytest.raises(errors.SearchBoundReached):
        list(search(wide(16), hard_searches.REQUEST, budget=part))

    assert part.is_spent
    assert not budget.is_spent
    assert 0.1 <= budget.seconds < 0.1 + SLACK


def test_slices_together_cost_no_more_than_the_whole() -> None:
    budget = SearchBudget(seconds=0.2, clock=ticking(0.001))
    part, other = budget.slice(1), budget.slice(1)
    with pytest.raises(errors.SearchBoundReached):
        list(search(wide(16), hard_searches.REQUEST, budget=part))

    with pytest.raises(errors.SearchBoundReached):
        list(search(wide(16), hard_searches.REQUEST, budget=other))

    assert budget.seconds < 0.2 + SLACK
    assert other.seconds < SLACK


def test_a_request_remembers_a_bounded_number_of_positions() -> None:
    budget = SearchBudget()
    part = budget.slice(1)

    assert part.may_remember(CELLS)
    assert not budget.may_remember(1)
    assert not budget.slice(1).may_remember(1)


def test_all_hosts_and_all_plans_of_one_decision_share_one_budget() -> None:
    problem = spec(groups=groups(**{f"g{number}": {"VGPU": 2} for number in range(4)}), group_policy="none")
    room = {"VCPU": 16, "MEMORY_MB": 32768, "DISK_GB": 500}
    hosts = [one for host in range(3) for one in host_with(host, [{"VGPU": 3}] * 5, **room)]
    view = host_cache_of(*hosts, hosts=3).snapshot()
    whole = SearchBudget(seconds=1_000_000, clock=ticking())
    assert HostCandidates(problem.resource_request, {}, whole).first(view, 0) is not None
    refused_claims = RefusedClaims(SearchBudget(seconds=1.5 * whole.seconds, clock=ticking()))

    assert HostCandidates(problem.resource_request, {}, refused_claims.budget).first(view, 0) is not None
    # The next plan of the same request goes on with what is left, which is too little for a second host.
    with pytest.raises(errors.SearchBoundReached):
        HostCandidates(problem.resource_request, {}, refused_claims.budget).first(view, 1)


def test_the_search_for_a_distribution_ends_when_its_processor_time_is_used_up() -> None:
    # All consumers and all places are different, so that the search can treat none of them as equal.
    places = tuple(f"gpu{number}" for number in range(12))
    items = [Item(f"c{n}", "root", {"VGPU": 101 + 7 * n}, places) for n in range(48)]
    total = sum(item.amounts["VGPU"] for item in items)
    bins = {(place, "VGPU"): Bin(total // 12 + number % 3) for number, place in enumerate(places)}
    held = {(item.consumer, "root", "VGPU"): item.amounts["VGPU"] for item in items}
    begun = time.thread_time()

    with pytest.raises(errors.SearchBoundReached, match="say for some of the consumers"):
        distribute(
            DistributionProblem(items=items, bins=bins, held=held, names={}), max_steps=10_000_000, max_seconds=0.3
        )

    # Without the limit it would search for minutes.
    assert time.thread_time() - begun < 5
