"""Test the count of further instances that fit: it is never higher than what an exhaustive search finds."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scheduler.builders import CELLS, funnel, host_cache, host_row, provider, select
from support.scheduler.trees import AGGREGATES, child, groups, host_cache_of, node, pool

from moorage.ids import derived
from moorage.messages import SelectDestinations
from moorage.model import RequestSpec, ResourceGroup, ServerGroup, WhatIf
from moorage.plugin import Filter, Host, HostInventory
from moorage.testing.builders import inventory
from placement_store import candidates
from placement_store.providers.inventories import MAX_RATIO
from placement_store.server_groups.rows import OccupiedRoot
from scheduler.decide.funnel import Funnel
from scheduler.decide.host_candidates import RefusedClaims
from scheduler.decide.planner import NoHost, Planner
from scheduler.decide.request_context import NO_CONTEXT, RequestContext
from scheduler.plugins.loading import Named
from scheduler.view.planned import PlannedView
from scheduler.view.snapshot import Snapshot

LONG = 3600.0


def counted(
    view: Snapshot, message: SelectDestinations, known: RequestContext = NO_CONTEXT, plugins: Funnel | None = None
) -> WhatIf:
    return Planner(plugins or funnel(), 1).how_many(view, message, known, LONG)


def by_trying_everything(view: Snapshot, request: RequestSpec) -> int:
    """Place instances in every order, on every host, by every candidate; return the highest number."""
    asked = request.resource_request
    names = {name for group in asked.groups.values() for name in group.resources}

    @cache
    def most(claimed: tuple[tuple[str, str, int], ...]) -> int:
        planned = PlannedView.of(view, names)
        for uuid, name, amount in claimed:
            planned.credit(uuid, {name: -amount})
        best = 0
        for row in range(len(view)):
            if not funnel().filter(planned, request, planned.in_cell(view.hosts[row].cell_uuid)).left[row]:
                continue
            tree = planned.host_tree(row, names)
            for candidate in candidates.search(tree, asked) if tree else ():
                more = {(uuid, name): amount for uuid, name, amount in claimed}
                for uuid, part in candidate.allocations.items():
                    for name, amount in part.resources.items():
                        more[uuid, name] = more.get((uuid, name), 0) + amount
                best = max(best, 1 + most(tuple(sorted((uuid, name, amount) for (uuid, name), amount in more.items()))))
        return best

    return most(())


# --- Hosts of one provider --------------------------------------------------------------------------------------------


@st.composite
def inventories(draw: st.DrawFn) -> HostInventory:
    total = draw(st.integers(1, 7))
    most = draw(st.sampled_from([1, 2, 3, 2**31 - 1]))
    return inventory(
        total,
        used=draw(st.integers(0, total)),
        reserved=draw(st.integers(0, 1)),
        allocation_ratio=draw(st.sampled_from([1.0, 1.1, 1.5])),
        min_unit=draw(st.integers(1, min(2, most))),
        max_unit=most,
        step_size=draw(st.sampled_from([1, 1, 2])),
    )


@st.composite
def flat_clouds(draw: st.DrawFn) -> Snapshot:
    hosts = [
        host_row(number, cell_uuid=draw(st.sampled_from(CELLS)), up=draw(st.sampled_from([True, True, False])))
        for number in range(draw(st.integers(1, 3)))
    ]
    held = [provider(host, VCPU=draw(inventories()), MEMORY_MB=draw(inventories())) for host in hosts]
    return host_cache(hosts, held).snapshot()


@settings(max_examples=60, deadline=None)
@given(flat_clouds(), st.integers(1, 3), st.integers(1, 3))
def test_on_flat_hosts_the_count_is_what_trying_everything_finds(view: Snapshot, vcpus: int, memory_mb: int) -> None:
    message = select(vcpus=vcpus, memory_mb=memory_mb, root_gb=0)
    found = counted(view, message)
    assert found.exact
    assert not found.out_of_time
    assert found.more == by_trying_everything(view, message.request_spec) == sum(found.cells.values())


@pytest.mark.parametrize("ratio", [1e10, MAX_RATIO])
def test_a_host_of_nearly_endless_inventories_takes_as_many_as_are_counted(ratio: float) -> None:
    endless = inventory(2**31 - 1, allocation_ratio=ratio)
    view = host_cache([host_row(0)], [provider(host_row(0), VCPU=endless, MEMORY_MB=endless)]).snapshot()
    assert counted(view, select(vcpus=1, memory_mb=1, root_gb=0)).more == 1_000_000


# --- Trees and pools --------------------------------------------------------------------------------------------------


@st.composite
def nested_clouds(draw: st.DrawFn) -> Snapshot:
    """Two hosts with up to two GPU each, which may share a pool of disk, or have their own."""
    units, hosts = st.integers(0, 3), []
    for host in range(2):
        aggregates = [AGGREGATES[0]] if draw(st.booleans()) else []
        own = {"DISK_GB": draw(units)} if draw(st.booleans()) else {}
        hosts.append(node(host, aggregates=aggregates, VCPU=draw(units), MEMORY_MB=8, **own))
        hosts += [child(host, 1 + gpu, VGPU=draw(units)) for gpu in range(draw(st.integers(0, 2)))]
    return host_cache_of(*hosts, pool(1, [AGGREGATES[0]], DISK_GB=draw(st.integers(0, 4))), hosts=2).snapshot()


_ASKED = st.sampled_from(
    [
        {},
        {"groups": groups(g={"VGPU": 1})},
        {"groups": groups(g={"VGPU": 2})},
        {"groups": {"": ResourceGroup(resources={"VGPU": 1})}},
        {
            "groups": {"a": ResourceGroup(resources={"VGPU": 1}), "b": ResourceGroup(resources={"VGPU": 2})},
            "group_policy": "none",
        },
    ]
)


@settings(max_examples=60, deadline=None)
@given(nested_clouds(), _ASKED, st.integers(0, 2))
def test_on_trees_and_pools_the_count_is_never_too_high_and_an_exact_count_is_right(
    view: Snapshot, asked: dict[str, Any], root_gb: int
) -> None:
    message = select(vcpus=1, memory_mb=1, root_gb=root_gb, **asked)
    found = counted(view, message)
    most = by_trying_everything(view, message.request_spec)
    assert found.more <= most
    assert (found.more == 0) == (most == 0)
    if found.exact:
        assert found.more == most


def test_a_pool_counts_once_for_all_hosts_and_cells_and_in_full_for_each_cell() -> None:
    hosts = [host_row(number, cell_uuid=CELLS[number % 2]) for number in range(4)]
    nodes = [node(number, aggregates=AGGREGATES[:1], VCPU=100, MEMORY_MB=100_000) for number in range(4)]
    shown = host_cache(hosts, [])
    shown.update(hosts=hosts, providers=[*nodes, pool(1, AGGREGATES[:1], DISK_GB=50)])
    assert counted(shown.snapshot(), select(vcpus=1, memory_mb=1, root_gb=10)) == WhatIf(
        more=5, cells=dict.fromkeys(CELLS, 5), exact=True
    )


def test_a_count_without_time_left_is_a_lower_bound() -> None:
    view = host_cache_of(node(0, VCPU=50, MEMORY_MB=10_000, DISK_GB=50), child(0, 1, VGPU=50)).snapshot()
    message = select(vcpus=1, memory_mb=1, root_gb=0, groups=groups(g={"VGPU": 1}))
    found = Planner(funnel(), 1).how_many(view, message, NO_CONTEXT, -1.0)
    assert (found.exact, found.out_of_time) == (False, True)
    assert counted(view, message) == WhatIf(more=50, cells={CELLS[0]: 50}, exact=True)


# --- Filters and groups -----------------------------------------------------------------------------------------------


def _group(policy: str, **rule: int) -> ServerGroup:
    return ServerGroup(uuid=derived("tests", "group"), policy=policy, **rule)  # type: ignore[arg-type]


def test_an_anti_affinity_group_takes_as_many_as_its_rule_lets_each_host_have() -> None:
    hosts = [host_row(number) for number in range(3)]
    known = RequestContext(members={hosts[0].compute_node_uuid: OccupiedRoot(members=1, forced_down=False)})
    view = host_cache(hosts).snapshot()
    message = select(server_group=_group("anti-affinity", max_server_per_host=2))
    assert counted(view, message, known).more == 1 + 2 + 2


@pytest.mark.parametrize("members", [0, 1])
def test_an_affinity_group_takes_as_many_as_its_host_or_else_the_largest_has_room_for(members: int) -> None:
    hosts = [host_row(number, cell_uuid=CELLS[number % 2]) for number in range(3)]
    held = [provider(host, VCPU=inventory(4 + number), MEMORY_MB=inventory(100)) for number, host in enumerate(hosts)]
    home = {hosts[0].compute_node_uuid: OccupiedRoot(members=1, forced_down=False)} if members else {}
    found = counted(
        host_cache(hosts, held).snapshot(),
        select(vcpus=1, memory_mb=1, root_gb=0, server_group=_group("affinity")),
        RequestContext(members=home),
    )
    assert (found.more, found.cells) == ((4, {CELLS[0]: 4}) if members else (6, {CELLS[0]: 6, CELLS[1]: 5}))


class AtMostThree(Filter):
    """Allows three servers on a host."""

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return host.instances < 3


class KeepsHalf(Filter):
    """Keeps half of the memory of a host free."""

    def passes(self, host: Host, request: RequestSpec) -> bool:
        return host.used("MEMORY_MB") < host.capacity("MEMORY_MB") / 2


@pytest.mark.parametrize(("plugin", "each"), [(AtMostThree({}), 3), (KeepsHalf({}), 5)])
def test_filters_are_applied_to_hosts_as_they_fill_up(plugin: Filter, each: int) -> None:
    hosts = [host_row(number) for number in range(4)]
    held = [provider(host, VCPU=inventory(20), MEMORY_MB=inventory(10)) for host in hosts]
    message = select(vcpus=1, memory_mb=1, root_gb=0)
    found = counted(host_cache(hosts, held).snapshot(), message, plugins=Funnel([Named("own", plugin)], []))
    assert (found.more, found.exact) == (4 * each, True)


# --- Large ------------------------------------------------------------------------------------------------------------


def test_ten_thousand_hosts_are_counted_and_explained() -> None:
    hosts = [host_row(number, availability_zone="ab"[number % 2]) for number in range(10_000)]
    view = host_cache(hosts).snapshot()
    assert counted(view, select(availability_zone="a")).more == 5_000 * 8
    message = select(vcpus=17, availability_zone="a")
    planner = Planner(funnel(), 1)
    no_host = planner.plan(view, message, RefusedClaims())
    assert isinstance(no_host, NoHost)
    explanation = planner.why_not(no_host, message, RefusedClaims())
    assert explanation.summary().startswith(
        "0 of 10,000 hosts: 5,000 in another availability zone; 5,000 short of VCPU"
    )
    assert len(explanation.nearest_misses) == 5
