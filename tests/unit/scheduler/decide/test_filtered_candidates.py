"""Test filters that refuse some allocation candidates of a host: others, or another host, serve the request."""

from typing import Any, ClassVar

import pytest
from support.scheduler.builders import funnel, select
from support.scheduler.trees import child, groups, host_cache_of, host_with, node

from moorage import errors
from moorage.model import AllocationRequest, RequestSpec
from moorage.plugin import Filter, Host
from placement_store.candidates.search_budget import SearchBudget
from scheduler.decide.funnel import Funnel
from scheduler.decide.host_candidates import RefusedClaims
from scheduler.decide.planner import DestinationPlan, NoHost, Planner
from scheduler.decide.plugin_failures import PluginFailures
from scheduler.decide.request_context import NO_CONTEXT
from scheduler.plugins.loading import Named
from scheduler.view.host_cache import HostCache

BASE = {"VCPU": 16, "MEMORY_MB": 32768, "DISK_GB": 500}
GPU = groups(g={"VGPU": 1})


class AllowedFilter(Filter):
    """Passes candidates with an allowed GPU, and records the hosts of the candidates that it was asked about."""

    reason = "has no GPU that is allowed"
    asked: ClassVar[list[str]] = []

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return True

    def concerns(self, request: RequestSpec) -> bool:
        return "anything" not in request.scheduler_hints

    def passes_candidate(self, host: Host, candidate: AllocationRequest, request: RequestSpec) -> bool:
        assert candidate.allocations.keys() <= set(host.providers)
        self.asked.append(host.service_host)
        return candidate.mappings["g"][0] in self.settings["allowed"]


class BrokenFilter(AllowedFilter):
    """Answers nothing of candidates."""

    def passes_candidate(self, host: Host, candidate: AllocationRequest, request: RequestSpec) -> bool:
        return None  # type: ignore[return-value]


def with_filter(*allowed: str, kind: type[Filter] = AllowedFilter, skip: bool = False) -> Funnel:
    AllowedFilter.asked.clear()
    standard = funnel()
    named = Named("allowed", kind({"allowed": allowed}))
    return Funnel([*standard.filters, named], standard.weighers, PluginFailures(skip=skip).for_request())


def plan(
    shown: HostCache, plugins: Funnel, refused_claims: RefusedClaims | None = None, **asked: Any
) -> DestinationPlan | NoHost:
    return Planner(plugins, 1).plan(
        shown.snapshot(), select(**{"groups": GPU, **asked}), refused_claims or RefusedClaims()
    )


def two_hosts() -> HostCache:
    """The first is the better one; each has three GPUs, of numbers 1 to 3 and 4 to 6."""
    first = host_with(0, [{"VGPU": 1}] * 3, **{**BASE, "VCPU": 99})
    second = [node(1, **BASE), *(child(1, number, VGPU=1) for number in (4, 5, 6))]
    return host_cache_of(*first, *second, hosts=2)


def served_by(planned: DestinationPlan | NoHost) -> list[str]:
    assert isinstance(planned, DestinationPlan)
    return [choice.allocation_request.mappings["g"][0] for choice in planned.chosen]


def test_a_host_serves_with_a_candidate_that_passes_the_filter() -> None:
    assert served_by(plan(two_hosts(), with_filter(child(0, 3).uuid))) == [child(0, 3).uuid]
    assert set(AllowedFilter.asked) == {"host0"}


def test_a_host_without_a_passing_candidate_is_skipped() -> None:
    assert served_by(plan(two_hosts(), with_filter(child(1, 5).uuid))) == [child(1, 5).uuid]


def test_several_instances_and_alternates_use_passing_candidates() -> None:
    allowed = child(0, 2).uuid, child(1, 4).uuid, child(1, 6).uuid
    planned = plan(two_hosts(), with_filter(*allowed), count=3)
    assert sorted(served_by(planned)) == sorted(allowed)
    single = plan(two_hosts(), with_filter(*allowed), num_alternates=1)
    assert isinstance(single, DestinationPlan)
    [[alternate]] = single.alternates
    assert alternate.allocation_request.mappings["g"][0] in allowed


def test_a_refusal_names_the_filters_reason_and_no_shortage() -> None:
    plugins = with_filter()
    planner, message = Planner(plugins, 1), select(groups=GPU)
    refused = planner.plan(two_hosts().snapshot(), message, RefusedClaims())
    assert isinstance(refused, NoHost)
    last = refused.filtered.stages[-1]
    assert (last.name, last.reason, int(last.left.sum())) == ("candidates", AllowedFilter.reason, 0)
    explanation = planner.why_not(refused, message, RefusedClaims(), ["host1"])
    assert not explanation.nearest_misses
    assert explanation.nearest_hosts == {"host0": AllowedFilter.reason, "host1": AllowedFilter.reason}


def test_a_filter_that_is_not_concerned_is_not_asked() -> None:
    assert served_by(plan(two_hosts(), with_filter(), scheduler_hints={"anything": "1"}))
    assert not AllowedFilter.asked


def test_an_answer_that_is_no_boolean_breaks_the_request_or_leaves_the_filter_out() -> None:
    with pytest.raises(errors.BrokenPlugin, match="allowed"):
        plan(two_hosts(), with_filter(kind=BrokenFilter))
    lenient = with_filter(kind=BrokenFilter, skip=True)
    assert served_by(plan(two_hosts(), lenient))
    assert list(lenient.plugin_failures.skipped) == ["filter allowed"]


class OneHostFilter(BrokenFilter):
    """Passes the first host alone."""

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return host.service_host == "host0"


def test_candidates_that_a_filter_refused_before_it_broke_serve_the_next_instances() -> None:
    # Three GPUs of the first host, and then those of the second, which the filter refuses until it is left out.
    planned = plan(two_hosts(), with_filter(kind=OneHostFilter, skip=True), count=6)
    assert len(set(served_by(planned))) == 6


def test_the_calls_count_against_the_budget_of_the_request() -> None:
    with pytest.raises(errors.SearchBoundReached):
        plan(two_hosts(), with_filter(), RefusedClaims(SearchBudget(steps=8)))


def test_only_passing_candidates_count_for_how_many_more_fit() -> None:
    shown = two_hosts().snapshot()
    allowed = child(0, 2).uuid, child(1, 4).uuid, child(1, 6).uuid
    counted = [
        Planner(plugins, 1).how_many(shown, select(groups=GPU), NO_CONTEXT, 60.0).more
        for plugins in (funnel(), with_filter(*allowed), with_filter())
    ]
    assert counted == [6, 3, 0]


def test_the_default_filters_do_not_filter_candidates() -> None:
    assert not funnel().candidate_filters(select().request_spec)
