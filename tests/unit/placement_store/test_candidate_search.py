"""Test the search for allocation candidates: its results against enumeration, its rules, and its cost."""

import sys
from itertools import islice
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.placement_store.candidate_enumeration import Amounts, amounts_of, every_candidate, every_serving
from support.placement_store.candidate_strategies import host_trees, is_valid, requests, row, tight_cases

from moorage import errors
from moorage.model import AllocationRequest, ResourceGroup, ResourceRequest
from placement_store.candidates import CandidateProvider, HostTree, search
from placement_store.candidates.search import search_one_of_each_tree
from placement_store.candidates.tree import SHARES
from placement_store.providers.rows import InventoryRow

#: How the groups of a request may share providers.
Policy = Literal["none", "isolate"]


def amounts(candidate: AllocationRequest) -> Amounts:
    return frozenset(
        (uuid, name, amount) for uuid, part in candidate.allocations.items() for name, amount in part.resources.items()
    )


def provider(uuid: str, parent: str | None = "host", root: str = "host", **has: Any) -> CandidateProvider:
    """A provider of a host's tree; inventories by their classes, beside `traits` and `aggregates`."""
    traits, aggregates = frozenset(has.pop("traits", ())), frozenset(has.pop("aggregates", ()))
    inventories = {name: one if isinstance(one, InventoryRow) else row(one) for name, one in has.items()}
    return CandidateProvider(uuid, root, parent, inventories, traits, aggregates)


def host(*children: CandidateProvider, **has: Any) -> HostTree:
    return HostTree([provider("host", None, **({"VCPU": 64, "MEMORY_MB": 65536} | has)), *children])


def gpus(number: int, **has: Any) -> list[CandidateProvider]:
    return [provider(f"gpu{n}", **({"VGPU": 1} | has)) for n in range(number)]


def asking_for(number: int, group_policy: Policy = "none", amount: int = 1) -> ResourceRequest:
    """A request for the amounts of a flavor, and for a number of devices, each in its own group."""
    groups = {"": ResourceGroup(resources={"VCPU": 4, "MEMORY_MB": 1024})}
    groups |= {f"_{n}": ResourceGroup(resources={"VGPU": amount}) for n in range(number)}
    return ResourceRequest(groups=groups, group_policy=group_policy)


# --- Against enumeration ----------------------------------------------------------------------------------------------


def check_candidates(tree: HostTree, request: ResourceRequest, seed: int | None = None) -> None:
    """Check that the search finds exactly the candidates that enumeration finds, each once."""
    found = [amounts(candidate) for candidate in search(tree, request, seed=seed)]

    assert len(found) == len(set(found))
    assert set(found) == every_candidate(tree, request)


@settings(max_examples=600, deadline=None)
@given(host_trees(), requests().filter(is_valid), st.none() | st.integers(0, 3))
def test_the_search_finds_exactly_what_enumeration_finds_each_once(
    tree: HostTree, request: ResourceRequest, seed: int | None
) -> None:
    check_candidates(tree, request, seed)


@settings(max_examples=400, deadline=None)
@given(host_trees(), requests().filter(is_valid), st.none() | st.integers(0, 3))
def test_a_first_candidate_found_without_backtracking_is_the_one_that_backtracking_finds(
    tree: HostTree, request: ResourceRequest, seed: int | None
) -> None:
    found = list(search(tree, request, seed=seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[search.__module__], "_without_backtracking", lambda *_: None)
        assert found == list(search(tree, request, seed=seed))


@settings(max_examples=800, deadline=None)
@given(tight_cases())
def test_remembered_dead_ends_hide_no_candidate(case: tuple[HostTree, ResourceRequest]) -> None:
    check_candidates(*case)


#: The providers of each group, and the amounts.
Assignment = tuple[frozenset[tuple[str, frozenset[str]]], Amounts]


def every_assignment(tree: HostTree, request: ResourceRequest) -> set[Assignment]:
    return {
        (frozenset((suffix, frozenset(p.uuid for p, _ in used)) for suffix, used in serving.items()), taken)
        for serving in every_serving(tree, request)
        for taken in [amounts_of(serving, request)]
    }


def assignment(candidate: AllocationRequest) -> Assignment:
    return frozenset((suffix, frozenset(uuids)) for suffix, uuids in candidate.mappings.items()), amounts(candidate)


@settings(max_examples=200, deadline=None)
@given(host_trees(), requests().filter(is_valid))
def test_each_mapping_names_the_providers_that_serve_its_group(tree: HostTree, request: ResourceRequest) -> None:
    assignments = every_assignment(tree, request)

    for candidate in search(tree, request):
        assert assignment(candidate) in assignments


def check_assignments(tree: HostTree, request: ResourceRequest, seed: int | None = None) -> None:
    """Check that the search without folding finds exactly the assignments that enumeration finds, each once."""
    found = [assignment(candidate) for candidate in search(tree, request, seed=seed, folds=False)]

    assert len(found) == len(set(found))
    assert set(found) == every_assignment(tree, request)


@settings(max_examples=300, deadline=None)
@given(host_trees(), requests().filter(is_valid), st.none() | st.integers(0, 3))
def test_without_folding_the_search_finds_each_assignment_once(
    tree: HostTree, request: ResourceRequest, seed: int | None
) -> None:
    check_assignments(tree, request, seed)


@settings(max_examples=300, deadline=None)
@given(tight_cases())
def test_without_folding_remembered_dead_ends_hide_no_assignment(case: tuple[HostTree, ResourceRequest]) -> None:
    check_assignments(*case)


@settings(max_examples=100, deadline=None)
@given(host_trees(), requests().filter(is_valid), st.none() | st.integers(0, 3))
def test_the_same_search_gives_the_same_candidates_in_the_same_order(
    tree: HostTree, request: ResourceRequest, seed: int | None
) -> None:
    assert list(search(tree, request, seed=seed)) == list(search(tree, request, seed=seed))


@settings(deadline=None)
@given(host_trees(), requests().filter(is_valid))
def test_the_search_for_one_of_each_tree_finds_the_candidates_with_one_provider_per_tree(
    tree: HostTree, request: ResourceRequest
) -> None:
    root_of = {provider.uuid: provider.root_uuid for provider in (*tree.providers, *tree.sharing)}
    expected = {
        amounts(candidate)
        for candidate in search(tree, request)
        if len({root_of[uuid] for uuid in candidate.allocations}) == len(candidate.allocations)
    }

    assert {amounts(candidate) for candidate in search_one_of_each_tree(tree, request)} == expected


# --- Rules that are easily got wrong ----------------------------------------------------------------------------------


def test_groups_on_one_provider_must_fit_together_beside_its_usage() -> None:
    tree = host(provider("gpu", VGPU=row(10, used=7)))

    assert list(search(tree, asking_for(2, amount=2))) == []
    assert len(list(search(tree, asking_for(1, amount=3)))) == 1


def test_groups_on_one_provider_must_keep_its_max_unit_together() -> None:
    tree = host(provider("gpu", VGPU=row(10, max_unit=3)))

    assert list(search(tree, asking_for(2, amount=2))) == []


def test_a_root_rule_is_about_the_host_and_not_about_a_pool() -> None:
    pool = provider("pool", None, "pool", DISK_GB=100, traits=[SHARES], aggregates=["agg"])
    tree = HostTree([provider("host", None, aggregates=["agg"], traits=["CUSTOM_A"])], [pool])

    def found(**rules: Any) -> int:
        return len(list(search(tree, ResourceRequest(groups={"": ResourceGroup(resources={"DISK_GB": 1})}, **rules))))

    assert found(root_required=("CUSTOM_A",)) == found(root_forbidden=(SHARES,)) == 1
    assert found(root_required=(SHARES,)) == found(root_forbidden=("CUSTOM_A",)) == 0


def test_a_group_without_resources_chooses_the_node_above_the_others() -> None:
    numa = [provider(f"numa{n}", VCPU=4, traits=["CUSTOM_FAST"] if n else []) for n in range(2)]
    devices = [provider(f"gpu{n}", f"numa{n}", VGPU=1) for n in range(2)]
    request = ResourceRequest(
        groups={
            "_node": ResourceGroup(required=("CUSTOM_FAST",)),
            "_cpu": ResourceGroup(resources={"VCPU": 2}),
            "_gpu": ResourceGroup(resources={"VGPU": 1}),
        },
        group_policy="none",
        same_subtree=(("_node", "_cpu", "_gpu"),),
    )

    tree = host(*numa, *devices, VCPU=1)

    [found] = search(tree, request)

    assert found.mappings == {"_node": ("numa1",), "_cpu": ("numa1",), "_gpu": ("gpu1",)}
    assert amounts(found) == {("numa1", "VCPU", 2), ("gpu1", "VGPU", 1)}
    # With isolation no two groups share a provider, even if one of them takes nothing of it.
    assert list(search(tree, structs.replace(request, group_policy="isolate"))) == []


def test_the_providers_of_the_unsuffixed_group_must_have_its_traits_together() -> None:
    numa = [provider("fast", VCPU=4, traits=["CUSTOM_A"]), provider("slow", VCPU=4, traits=["CUSTOM_C"])]
    device = provider("gpu", VGPU=1, traits=["CUSTOM_B"])
    bystander = provider("nic", SRIOV_NET_VF=1, traits=["CUSTOM_D"])
    tree = host(*numa, device, bystander, VCPU=1)

    def serving(**rules: Any) -> set[tuple[str, ...]]:
        group = ResourceGroup(resources={"VCPU": 2, "VGPU": 1}, **rules)
        return {candidate.mappings[""] for candidate in search(tree, ResourceRequest(groups={"": group}))}

    assert serving() == {("fast", "gpu"), ("slow", "gpu")}
    assert serving(required=("CUSTOM_A", "CUSTOM_B")) == {("fast", "gpu")}
    assert serving(any_of=(("CUSTOM_C", "CUSTOM_D"), ("CUSTOM_B", "CUSTOM_D"))) == {("slow", "gpu")}
    assert serving(forbidden=("CUSTOM_C",)) == {("fast", "gpu")}
    assert serving(required=("CUSTOM_D",)) == serving(forbidden=("CUSTOM_B",)) == set()


def test_equal_groups_on_equal_devices_are_found_once_for_each_set_of_devices() -> None:
    found = list(search(host(*gpus(5)), asking_for(3, "isolate")))

    assert len(found) == 10  # 5 over 3, of 60 arrangements
    assert len({amounts(candidate) for candidate in found}) == 10


def test_each_of_several_equal_devices_is_found() -> None:
    found = list(search(host(*gpus(16)), asking_for(1)))

    assert {uuid for candidate in found for uuid in candidate.mappings["_0"]} == {f"gpu{n}" for n in range(16)}


# --- Spreading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "served_by"),
    [
        (ResourceGroup(resources={"VGPU": 1}, required=("CUSTOM_NEW",)), {"new"}),
        (ResourceGroup(resources={"VGPU": 1}, member_of=(("rack",),)), {"racked"}),
        (ResourceGroup(resources={"VGPU": 1}, in_tree="pool"), {"pool"}),
        (ResourceGroup(resources={"VGPU": 2}), {"large"}),
        (ResourceGroup(resources={"VGPU": 1}), {"plain", "new", "racked", "sharing", "pool", "large"}),
    ],
)
def test_devices_that_differ_in_one_respect_are_distinguished(group: ResourceGroup, served_by: set[str]) -> None:
    shared: dict[str, Any] = {"traits": (SHARES,), "aggregates": ("shared",)}
    tree = HostTree(
        [
            provider("host", None, VCPU=64, MEMORY_MB=65536, aggregates=("shared",)),
            provider("plain", VGPU=1),
            provider("new", VGPU=1, traits=("CUSTOM_NEW",)),
            provider("racked", VGPU=1, aggregates=("rack",)),
            provider("sharing", VGPU=1, **shared),
            provider("large", VGPU=2),
            provider("unwanted", SRIOV_NET_VF=8),
        ],
        [provider("pool", None, "pool", VGPU=1, **shared)],
    )

    found = list(search(tree, ResourceRequest(groups={"_0": group})))

    assert {uuid for candidate in found for uuid in candidate.allocations} == served_by
    assert set(map(amounts, found)) == every_candidate(tree, ResourceRequest(groups={"_0": group}))


def test_seeds_spread_the_first_choice_over_equal_devices_only() -> None:
    tree = host(provider("preferred", VGPU=4), *gpus(8))

    def firsts(tree: HostTree) -> set[str]:
        return {next(search(tree, asking_for(1), seed=seed)).mappings["_0"][0] for seed in range(200)}

    assert firsts(host(*gpus(8))) == {f"gpu{n}" for n in range(8)}
    assert firsts(tree) == {"preferred"}


# --- The cost of a search in positions, which do not depend on the load of the machine --------------------------------

WIDE = [(8, 8), (16, 8), (64, 4)]
FEW = 100


@pytest.mark.parametrize("group_policy", ["none", "isolate"])
@pytest.mark.parametrize(("devices", "groups"), WIDE)
def test_a_wide_host_has_its_first_candidate_after_a_few_positions(
    devices: int, groups: int, group_policy: Policy
) -> None:
    tree = host(*gpus(devices))

    found = list(islice(search(tree, asking_for(groups, group_policy), max_steps=FEW), 200))

    assert len(found) == (1 if devices == groups else 200)


@pytest.mark.parametrize("group_policy", ["none", "isolate"])
@pytest.mark.parametrize(("devices", "groups"), WIDE)
def test_a_wide_host_that_is_one_device_short_is_refused_after_a_few_positions(
    devices: int, groups: int, group_policy: Policy
) -> None:
    busy = [provider(f"busy{n}", VGPU=row(1, used=1)) for n in range(devices - groups + 1)]
    tree = host(*gpus(groups - 1), *busy)

    assert list(search(tree, asking_for(groups, group_policy), max_steps=FEW)) == []


def test_amounts_that_do_not_pack_are_refused_after_a_few_positions() -> None:
    # 17 amounts of 3 for 16 fast devices of 5: there is room for the sum, but not for two amounts on one device.
    tree = host(*gpus(16, VGPU=5, traits=["CUSTOM_FAST"]), *(provider(f"slow{n}", VGPU=5) for n in range(4)))
    groups = {f"_{n}": ResourceGroup(resources={"VGPU": 3}, required=("CUSTOM_FAST",)) for n in range(17)}
    groups |= {f"_small{n}": ResourceGroup(resources={"VGPU": 1}) for n in range(7)}

    assert list(search(tree, ResourceRequest(groups=groups, group_policy="none"), max_steps=FEW)) == []


def test_isolated_groups_with_too_few_devices_are_refused_after_a_few_positions() -> None:
    # Each device lacks another trait, so no two are equal; each has room for all groups, so only the number of devices
    # is too small.
    traits = [f"CUSTOM_{n}" for n in range(11)]
    devices = [provider(f"gpu{n}", VGPU=20, traits=set(traits) - {traits[n]}) for n in range(11)]
    groups = {f"_{trait}": ResourceGroup(resources={"VGPU": 1}, required=(trait,)) for trait in traits}
    groups["_any"] = ResourceGroup(resources={"VGPU": 1})
    request = ResourceRequest(groups=groups, group_policy="isolate")

    assert list(search(host(*devices), request, max_steps=FEW)) == []


def test_all_candidates_of_almost_equal_groups_are_found_without_trying_each_arrangement() -> None:
    traits = [f"CUSTOM_{n}" for n in range(8)]
    devices = [provider(f"gpu{n}", VGPU=1, traits=set(traits) - {traits[n]}) for n in range(8)]
    groups = {f"_{trait}": ResourceGroup(resources={"VGPU": 1}, required=(trait,)) for trait in traits[:7]}

    # Some 15,000 arrangements give these.
    found = list(search(host(*devices), ResourceRequest(groups=groups, group_policy="none"), max_steps=20 * FEW))

    assert len(found) == 8


def numa_host(nodes: int, devices: int) -> HostTree:
    """A host of three levels: NUMA nodes with 8 processors, and devices below them."""
    below = [provider(f"numa{n}", VCPU=8) for n in range(nodes)]
    below += [provider(f"gpu{n}.{g}", f"numa{n}", VGPU=1) for n in range(nodes) for g in range(devices)]
    return host(*below, VCPU=1)


def guest(nodes: int, devices: int, processors: int = 4) -> ResourceRequest:
    """A request for a guest of several NUMA nodes, each with devices below the same node of the host."""
    groups: dict[str, ResourceGroup] = {}
    subtrees = []
    for n in range(nodes):
        here = {f"_cpu{n}": ResourceGroup(resources={"VCPU": processors})}
        here |= {f"_gpu{n}-{g}": ResourceGroup(resources={"VGPU": 1}) for g in range(devices)}
        groups |= here
        subtrees.append(tuple(here))
    return ResourceRequest(groups=groups, group_policy="none", same_subtree=tuple(subtrees))


def test_a_guest_of_many_numa_nodes_has_its_first_candidate_after_a_few_positions() -> None:
    assert next(search(numa_host(8, 4), guest(8, 2), max_steps=FEW), None) is not None


def test_a_guest_of_more_numa_nodes_than_the_host_has_is_refused_after_some_positions() -> None:
    assert list(search(numa_host(8, 3), guest(9, 2), max_steps=10 * FEW)) == []


def test_a_search_that_reaches_its_bound_does_not_claim_that_there_is_no_candidate() -> None:
    # All sizes are distinct, so that no two devices are equal and no bound excludes the request.
    tree = host(*(provider(f"gpu{n}", VGPU=20 + n) for n in range(8)))
    groups = {f"_{n}": ResourceGroup(resources={"VGPU": 7 + n % 5}) for n in range(20)}

    with pytest.raises(errors.SearchBoundReached) as caught:
        list(search(tree, ResourceRequest(groups=groups, group_policy="none"), max_steps=50))
    assert caught.value.steps == 50
    assert "host" in caught.value.what


# --- Trees and requests of any size -----------------------------------------------------------------------------------

#: More than Python's limit of recursion.
VERY_MANY = 1100


def test_more_isolated_groups_than_devices_are_refused_however_many_there_are() -> None:
    assert list(search(host(*gpus(VERY_MANY, VGPU=5)), asking_for(VERY_MANY + 1, "isolate"), max_steps=FEW)) == []


def test_a_subtree_may_be_deeper_than_the_recursion_limit() -> None:
    # There is room for the sum of each class and for each group, but the groups do not fit together.
    devices = [provider(f"gpu{n}", VGPU=4, VCPU=4) for n in range(2)]
    sizes = [(3, 2), (3, 2), (1, 3), (1, 1)]
    groups = {f"_{n}": ResourceGroup(resources={"VGPU": g, "VCPU": c}) for n, (g, c) in enumerate(sizes)}
    groups |= {suffix: ResourceGroup(resources={"DISK_GB": 1}) for suffix in ("_upper", "_lower")}
    chain = [provider(f"deep{n}", f"deep{n - 1}" if n else "host", DISK_GB=1) for n in range(VERY_MANY)]
    tree = HostTree([provider("host", None), *devices, *chain])
    request = ResourceRequest(groups=groups, group_policy="none", same_subtree=(("_upper", "_lower"),))

    found = next(search(tree, request, max_steps=FEW), None)

    assert found is None
