"""Test hosts that are trees in the view: each is shown as a whole, and not refused if it could serve a request."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.scheduler.builders import allocation_request, funnel, host_cache, host_row, spec
from support.scheduler.trees import (
    AGGREGATES,
    child,
    granular_requests,
    groups,
    host_cache_of,
    is_valid,
    node,
    pool,
    provider_uuid,
    providers_of_hosts,
)

from moorage.model import UNSUFFIXED, RequestSpec, ResourceGroup
from moorage.testing.builders import inventory
from placement_store import candidates
from scheduler.view.host_cache import HostCache
from scheduler.view.planned import PlannedView
from scheduler.view.provider_trees import FetchedProvider
from scheduler.view.provisional import AddedClaims


def test_a_host_is_all_its_providers_and_the_pools_that_share_with_it() -> None:
    shown = host_cache_of(
        node(0, VCPU=8, traits=["CUSTOM_OLD"], aggregates=AGGREGATES[:1]),
        child(0, 1, VGPU=inventory(4, used=4), traits=["CUSTOM_FAST"]),
        child(0, 2, VGPU=inventory(4, used=1), parent=1),
        pool(0, AGGREGATES[:1], DISK_GB=inventory(100, used=40)),
        node(1, VCPU=8, DISK_GB=10),
        hosts=2,
    ).snapshot()
    assert shown.capacity("VGPU").tolist() == [8.0, 0.0]
    assert shown.used("VGPU").tolist() == [5.0, 0.0]
    assert shown.fits("VGPU", 3).tolist() == [True, False]
    assert shown.fits("VGPU", 4).tolist() == [False, False]
    assert shown.fitting("VCPU", 8).tolist() == [1, 1]
    assert shown.free("DISK_GB").tolist() == [60.0, 10.0]
    assert shown.has_trait("CUSTOM_FAST").tolist() == [True, False]
    assert shown.root_has_trait("CUSTOM_FAST").tolist() == [False, False]
    assert shown.root_has_trait("CUSTOM_OLD").tolist() == [True, False]
    assert shown.in_aggregate(AGGREGATES[0]).tolist() == [True, False]
    assert shown.has_provider(provider_uuid(2)).tolist() == [True, False]
    assert shown.flat.tolist() == [False, True]
    assert shown.limits(0, ["DISK_GB", "VGPU", "PCPU"]) == {"DISK_GB": 100.0, "VGPU": 8.0, "PCPU": 0.0}


def test_an_over_full_provider_takes_no_room_away_from_the_others() -> None:
    shown = host_cache_of(node(0), child(0, 1, VGPU=inventory(1, used=3)), child(0, 2, VGPU=2)).snapshot()
    assert shown.room("VGPU").tolist() == [2.0]
    assert shown.free("VGPU").tolist() == [0.0]


def test_a_claim_on_a_pool_shows_on_every_host_that_it_shares_with() -> None:
    nodes = [node(number, VCPU=8, aggregates=AGGREGATES[: number % 2]) for number in range(4)]
    shown = host_cache_of(*nodes, pool(0, AGGREGATES[:1], DISK_GB=100), hosts=4)
    shared = provider_uuid(10_000)
    shown.apply_claims([AddedClaims([(shared, {"DISK_GB": 70})], shown.versions([shared]))])
    assert shown.snapshot().free("DISK_GB").tolist() == [0.0, 30.0, 0.0, 30.0]
    assert shown.provisional_ids() == {10_000}


def test_a_pool_that_leaves_an_aggregate_shares_no_more() -> None:
    shown = host_cache_of(node(0, aggregates=AGGREGATES[:1]), pool(0, AGGREGATES[:1], DISK_GB=9))
    assert shown.snapshot().fits("DISK_GB", 1).tolist() == [True]
    shown.update(providers=[pool(0, AGGREGATES[1:2], DISK_GB=9)])
    assert shown.snapshot().fits("DISK_GB", 1).tolist() == [False]
    assert shown.snapshot().flat.tolist() == [True]
    shown.update(providers=[node(0, aggregates=AGGREGATES[1:2])])
    assert shown.snapshot().fits("DISK_GB", 1).tolist() == [True]


def test_a_child_that_was_read_before_its_parent_serves_once_the_parent_is_known() -> None:
    shown = host_cache_of(node(0, VCPU=8))
    shown.update(providers=[child(0, 2, parent=1, VGPU=1)])
    assert not shown.snapshot().fits("VGPU", 1).any()
    shown.update(providers=[child(0, 1)])
    assert shown.snapshot().fits("VGPU", 1).all()


def test_a_compute_node_that_is_moved_under_another_provider_serves_nothing() -> None:
    shown = host_cache_of(node(0, VCPU=8), node(1, VCPU=8), hosts=2)
    under = FetchedProvider(
        id=100, uuid=provider_uuid(100), seq=1, root_id=0, parent_id=0, inventories={"VCPU": inventory(8)}
    )
    shown.update(providers=[under])
    assert shown.snapshot().fits("VCPU", 1).tolist() == [True, False]
    assert shown.snapshot().capacity("VCPU").tolist() == [16.0, 0.0]
    shown.update(providers=[node(1, VCPU=8)])
    assert shown.snapshot().capacity("VCPU").tolist() == [8.0, 8.0]


def test_another_provider_in_the_tree_of_a_pool_is_found_on_the_hosts_of_the_pool() -> None:
    root = FetchedProvider(id=10_001, uuid=provider_uuid(10_001), seq=0, root_id=10_001, parent_id=None, inventories={})
    shares = pool(0, AGGREGATES[:1], DISK_GB=9)
    under = FetchedProvider(
        shares.id, shares.uuid, 0, 10_001, 10_001, shares.inventories, shares.traits, shares.aggregates
    )
    shown = host_cache_of(node(0, aggregates=AGGREGATES[:1]), node(1), root, under, hosts=2).snapshot()
    assert shown.has_provider(root.uuid).tolist() == [True, False]
    assert shown.fits("DISK_GB", 9).tolist() == [True, False]


def test_a_plan_sees_what_it_has_claimed_of_each_provider() -> None:
    snapshot = host_cache_of(node(0, VCPU=8), child(0, 1, VGPU=1), child(0, 2, VGPU=1)).snapshot()
    planned = PlannedView.of(snapshot, ["VGPU"])
    planned.claim(0, allocation_request({provider_uuid(1): {"VGPU": 1}}))
    assert planned.fitting("VGPU", 1).tolist() == [1]
    tree = planned.host_tree(0, ["VGPU"])
    assert tree is not None
    assert [one.inventories["VGPU"].used for one in tree.providers if "VGPU" in one.inventories] == [1, 0]
    assert snapshot.fitting("VGPU", 1).tolist() == [2]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_host_cache_depends_only_on_the_rows_that_were_read_last(data: st.DataObject) -> None:
    last = data.draw(providers_of_hosts(3))
    earlier = data.draw(providers_of_hosts(3))
    changing = host_cache([host_row(number) for number in data.draw(st.permutations(range(3)))], [])
    for state in (earlier, last):
        known = set(changing.provider_seqs())
        gone = known - {one.id for one in state}
        changing.update(providers=data.draw(st.permutations(state)), gone_providers=gone)
        if data.draw(st.booleans()):
            changing.update(gone_hosts=[1])
            changing.update(hosts=[host_row(1)])
    plain = host_cache([host_row(number) for number in range(3)], last)
    assert _by_host(changing) == _by_host(plain)


def _by_host(shown: HostCache) -> dict[int, object]:
    snapshot = shown.snapshot()
    names = ("VCPU", "MEMORY_MB", "DISK_GB", "VGPU")
    columns = {
        name: [snapshot.capacity(name), snapshot.used(name), snapshot.room(name), snapshot.fitting(name, 2)]
        for name in names
    }
    return {
        host.id: (snapshot.host(row), {name: [float(c[row]) for c in each] for name, each in columns.items()})
        for row, host in enumerate(snapshot.hosts)
    }


@settings(max_examples=300, deadline=None)
@given(providers_of_hosts(2), granular_requests())
def test_hosts_that_the_filters_refuse_have_no_candidate(
    providers: list[FetchedProvider], request: RequestSpec
) -> None:
    assume(is_valid(request))
    snapshot = host_cache_of(*providers, hosts=2).snapshot()
    left = funnel().filter(snapshot, request, np.ones(2, dtype=np.bool_)).left
    for row in np.flatnonzero(~left).tolist():
        tree = snapshot.host_tree(row, request.resource_request.totals())
        assert tree is None or next(candidates.search(tree, request.resource_request), None) is None


@settings(max_examples=150, deadline=None)
@given(providers_of_hosts(2), granular_requests())
def test_flat_hosts_that_pass_the_filters_for_a_single_group_have_a_candidate(
    providers: list[FetchedProvider], request: RequestSpec
) -> None:
    alone = {suffix: group for suffix, group in request.groups.items() if suffix == UNSUFFIXED}
    request = structs.replace(request, groups=alone, same_subtree=(), apart=())
    assume(is_valid(request))
    snapshot = host_cache_of(*providers, hosts=2).snapshot()
    left = funnel().filter(snapshot, request, snapshot.flat).left
    for row in np.flatnonzero(left).tolist():
        tree = snapshot.host_tree(row, request.resource_request.totals())
        assert tree is not None
        assert next(candidates.search(tree, request.resource_request), None) is not None


def test_two_groups_that_must_be_apart_need_two_providers_each_fits() -> None:
    asked = spec(1, 1, 0, groups=groups(a={"VGPU": 1}, b={"VGPU": 1}), group_policy="isolate")
    base = {"VCPU": 8, "MEMORY_MB": 8}
    shown = host_cache_of(
        node(0, **base, VGPU=2),
        node(1, **base),
        child(1, 1, VGPU=2),
        node(2, **base),
        child(2, 1, VGPU=2),
        child(2, 2, VGPU=2),
        hosts=3,
    ).snapshot()
    assert funnel().filter(shown, asked, np.ones(3, dtype=np.bool_)).left.tolist() == [False, False, True]


def test_a_forbidden_trait_or_aggregate_keeps_out_only_hosts_that_have_nothing_else() -> None:
    base = {"VCPU": 8, "MEMORY_MB": 8}
    shown = host_cache_of(
        node(0, **base, VGPU=1, traits=["CUSTOM_OLD"], aggregates=AGGREGATES[:1]),
        node(1, **base),
        child(1, 1, VGPU=1, traits=["CUSTOM_OLD"], aggregates=AGGREGATES[:1]),
        child(1, 2, VGPU=1),
        hosts=2,
    ).snapshot()
    for group in (
        ResourceGroup(resources={"VGPU": 1}, forbidden=("CUSTOM_OLD",)),
        ResourceGroup(resources={"VGPU": 1}, not_member_of=(AGGREGATES[0],)),
    ):
        asked = spec(1, 1, 0, groups={"g": group})
        assert funnel().filter(shown, asked, np.ones(2, dtype=np.bool_)).left.tolist() == [False, True]


def test_groups_that_must_be_apart_are_counted_by_what_each_of_them_fits() -> None:
    base = {"VCPU": 8, "MEMORY_MB": 8}
    large, small = inventory(4, min_unit=4), inventory(2)
    shown = host_cache_of(
        node(0, **base), child(0, 1, VGPU=large), child(0, 2, VGPU=small), child(0, 3, VGPU=small)
    ).snapshot()
    asked = spec(1, 1, 0, groups=groups(a={"VGPU": 2}, b={"VGPU": 2}, c={"VGPU": 4}), group_policy="isolate")
    assert funnel().filter(shown, asked, np.ones(1, dtype=np.bool_)).left.tolist() == [True]
    three = spec(1, 1, 0, groups=groups(a={"VGPU": 2}, b={"VGPU": 2}, c={"VGPU": 2}), group_policy="isolate")
    assert funnel().filter(shown, three, np.ones(1, dtype=np.bool_)).left.tolist() == [False]
