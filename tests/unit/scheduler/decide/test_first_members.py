"""Test the planning of the first members of an affinity group: the search for one host for all ends in time."""

from collections.abc import Mapping
from functools import partialmethod
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from support.scheduler.builders import funnel, host_cache, host_row, provider, select
from support.scheduler.trees import host_cache_of, host_with, node

from filters.io_ops import IoOpsFilter
from filters.num_instances import NumInstancesFilter
from moorage import errors
from moorage.ids import derived
from moorage.model import RequestSpec, ServerGroup
from moorage.plugin import BoolArray, Filter, Host, HostView
from moorage.testing.builders import inventory
from placement_store.candidates.search_budget import SearchBudget
from scheduler.decide.funnel import Funnel
from scheduler.decide.host_candidates import HostCandidates, RefusedClaims
from scheduler.decide.planner import DestinationPlan, NoHost, Planner
from scheduler.decide.request_context import RequestContext
from scheduler.plugins.loading import Named
from scheduler.view.host_cache import HostCache

TOGETHER = ServerGroup(uuid=derived("first members"), policy="affinity")
FIRST = RequestContext(members={})
HOSTS = 300
ROOM = {"MEMORY_MB": 10**6, "DISK_GB": 10**5}


class Counting(Filter):
    """Passes every host, and counts how often it is asked about all of them."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked = 0

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return True

    def mask(self, view: HostView, request: RequestSpec) -> BoolArray:
        self.asked += 1
        return np.ones(len(view), dtype=np.bool_)


def planned(
    shown: HostCache, filters: Mapping[str, Filter], count: int, budget: SearchBudget | None = None, **asked: Any
) -> DestinationPlan | NoHost:
    usual = funnel()
    plugins = Funnel([*usual.filters, *(Named(name, plugin) for name, plugin in filters.items())], usual.weighers)
    message = select(count=count, server_group=TOGETHER, **asked)
    return Planner(plugins, 1).plan(shown.snapshot(), message, RefusedClaims(budget or SearchBudget()), FIRST)


def roomy(number: int, **described: Any) -> tuple[Any, Any]:
    """Return a host with room for all members, and its provider; higher numbers have less room."""
    host = host_row(number, **described)
    held: dict[str, Any] = {"VCPU": inventory(64), "MEMORY_MB": inventory(10**6 - number), "DISK_GB": inventory(10**5)}
    return host, provider(host, **held)


@pytest.mark.parametrize(
    ("limit", "plugin"),
    [
        ("max_io_ops_per_host", IoOpsFilter({"max_io_ops_per_host": 8})),
        ("max_instances_per_host", NumInstancesFilter({"max_instances_per_host": 8})),
    ],
)
def test_hosts_whose_limit_is_too_low_are_not_tried_one_by_one(limit: str, plugin: Filter) -> None:
    counting = Counting()
    last = roomy(HOSTS, metadata={limit: frozenset({"9"})})
    hosts, providers = zip(*(roomy(number) for number in range(HOSTS)), last, strict=True)

    found = planned(host_cache(hosts, providers), {"limited": plugin, "counting": counting}, count=9)

    assert isinstance(found, DestinationPlan)
    assert {found.view.hosts[choice.row].service_host for choice in found.chosen} == {f"host{HOSTS}"}
    assert counting.asked < 50


def test_if_the_limit_of_every_host_is_too_low_the_first_host_tried_explains_the_refusal() -> None:
    hosts, providers = zip(*(roomy(number) for number in range(3)), strict=True)
    limited = NumInstancesFilter({"max_instances_per_host": 8})

    found = planned(host_cache(hosts, providers), {"limited": limited}, count=9)

    assert isinstance(found, NoHost)
    assert (found.placed, found.filtered.stages[-1].name) == (8, "limited")


def test_a_search_of_hosts_that_are_too_small_as_trees_ends_when_its_time_is_used_up() -> None:
    # Each host has room for three by the sum, but only for two because of its tree.
    halves = [one for number in range(HOSTS) for one in host_with(number, [{"VCPU": 10}] * 2, **ROOM)]
    shown, slow = host_cache_of(*halves, hosts=HOSTS), Counting()
    budget = SearchBudget(seconds=0.2, clock=lambda: 0.005 * slow.asked)

    with pytest.raises(errors.SearchBoundReached, match="members of the server group"):
        planned(shown, {"slow": slow}, 3, budget, vcpus=6)

    assert 40 <= slow.asked < 60


class OneOnTheFirst(Filter):
    """Passes the first host as long as it has no server, and all others."""

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return host.service_host != "host0" or not host.instances


def test_a_later_host_with_an_unfinished_search_is_undecided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A flat host is not searched.
    monkeypatch.setattr(HostCandidates, "__init__", partialmethod(HostCandidates.__init__, steps=1))
    shown = host_cache_of(node(0, VCPU=99, **ROOM), *host_with(1, [{"VCPU": 10}] * 2, **ROOM), hosts=2)

    found = planned(shown, {"one": OneOnTheFirst({})}, 2, vcpus=6)

    assert isinstance(found, NoHost)
    assert (found.placed, list(found.host_candidates.undecided)) == (1, [1])


def test_hosts_that_are_left_out_for_another_reason_than_room_are_explained_so() -> None:
    limit = NumInstancesFilter({"max_instances_per_host": 2})
    hosts = [roomy(0), roomy(1), roomy(2, metadata={"max_instances_per_host": frozenset({"9"})}), roomy(4, up=False)]
    small = provider(host_row(3), VCPU=inventory(4), MEMORY_MB=inventory(10**6), DISK_GB=inventory(10**5))
    shown = host_cache([*(host for host, _ in hosts), host_row(3)], [*(held for _, held in hosts), small])
    plugins = Funnel([*funnel().filters, Named("limit", limit)], funnel().weighers)
    message = structs.replace(select(count=3, server_group=TOGETHER), explain=True)
    outcome = Planner(plugins, 1).plan(shown.snapshot(), message, RefusedClaims(), FIRST)
    assert isinstance(outcome, DestinationPlan)
    assert [(each.removed, each.reason) for each in outcome.explanations[0].filters if each.removed] == [
        (1, "has not enough room for all members of the server group together"),
        (2, "cannot take all members of the server group together"),
        (1, "is down or disabled"),
    ]
