"""Test the effect of attached resource groups on a request, on a claim, and on a consumer's allocations."""

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from conductor.cell import attached_groups
from moorage import ids
from moorage.model import (
    AllocationRequest,
    Allocations,
    Flavor,
    ProviderAmounts,
    RequestSpec,
    ResourceGroup,
    Selection,
)

#: The root of the host's tree, two of its children, and a pool that shares with it.
ROOT, LEFT, RIGHT, POOL = (ids.derived("tests", "provider", name) for name in ("root", "left", "right", "pool"))
TREE = {ROOT, LEFT, RIGHT}
CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB")
PORT = "_port"
SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=1024))

Amounts = Mapping[tuple[str, str], int]


def allocations(amounts: Amounts) -> Allocations:
    found: dict[str, dict[str, int]] = {}
    for (uuid, name), amount in amounts.items():
        if amount:
            found.setdefault(uuid, {})[name] = amount
    return {uuid: ProviderAmounts(resources=resources) for uuid, resources in found.items()}


def amounts_of(held: Allocations) -> Counter[tuple[str, str]]:
    return Counter({(uuid, name): n for uuid, part in held.items() for name, n in part.resources.items()})


def selection(claimed: AllocationRequest) -> Selection:
    return Selection(
        service_host="a",
        nodename="a",
        compute_node_uuid=ROOT,
        cell_uuid=ids.derived("tests", "cell"),
        agent="agent",
        availability_zone="nova",
        allocation_request=claimed,
        shared_providers=(POOL,),
    )


def some(*providers: str, least: int = 0) -> st.SearchStrategy[dict[tuple[str, str], int]]:
    pairs = st.tuples(st.sampled_from(providers), st.sampled_from(CLASSES))
    return st.dictionaries(pairs, st.integers(1, 9), min_size=least, max_size=5)


groups = st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 9), min_size=1, max_size=3)
places = st.sampled_from((ROOT, LEFT, RIGHT))


def claim(own: Amounts, place: str, resources: Mapping[str, int]) -> AllocationRequest:
    before = AllocationRequest(allocations=allocations(own), mappings={"": (ROOT,)})
    return attached_groups.claimed_with(before, PORT, place, dict(resources))


@given(own=some(*TREE, POOL, least=1), extras=some(*TREE, POOL), place=places, resources=groups)
def test_detaching_an_attached_group_restores_claim_and_allocations(
    own: Amounts, extras: Amounts, place: str, resources: dict[str, int]
) -> None:
    before = allocations(Counter(own) + Counter(extras))
    claimed = claim(own, place, resources)
    held = attached_groups.held_with(before, place, resources)

    assert attached_groups.held_without(held, selection(claimed), PORT, resources, TREE) == before
    assert attached_groups.claimed_without(claimed, PORT, resources).allocations == allocations(own)


@given(own=some(*TREE, POOL, least=1), held=some(*TREE, POOL), place=places, resources=groups)
def test_detaching_releases_at_most_the_group_and_nothing_of_the_servers_own_claim(
    own: Amounts, held: Amounts, place: str, resources: dict[str, int]
) -> None:
    after = attached_groups.held_without(
        allocations(held), selection(claim(own, place, resources)), PORT, resources, TREE
    )

    gone = Counter(held)
    gone.subtract(amounts_of(after))
    assert all(amount >= 0 for amount in gone.values())
    assert not any(amount for (uuid, _name), amount in gone.items() if uuid == POOL)
    assert all(held[pair] - amount >= min(own.get(pair, 0), held[pair]) for pair, amount in gone.items())
    for name in CLASSES:
        assert sum(amount for (_uuid, named), amount in gone.items() if named == name) <= resources.get(name, 0)


@given(own=some(*TREE, POOL, least=1), place=places, resources=groups, moved=st.sampled_from(CLASSES), to=places)
def test_a_group_that_a_reshape_moved_within_the_tree_is_found_there(
    own: Amounts, place: str, resources: dict[str, int], moved: str, to: str
) -> None:
    claimed = claim(own, place, resources)

    def reshaped(amounts: Amounts) -> Counter[tuple[str, str]]:
        found = Counter[tuple[str, str]]()
        for (uuid, name), amount in amounts.items():
            found[to if name == moved and uuid in TREE else uuid, name] += amount
        return found

    held = reshaped(amounts_of(claimed.allocations))
    after = attached_groups.held_without(allocations(held), selection(claimed), PORT, resources, TREE)

    assert amounts_of(after) == reshaped(own)


def test_the_second_suffixed_group_sets_the_group_policy_none_unless_one_is_set() -> None:
    group = ResourceGroup(resources={"VGPU": 1})
    one = attached_groups.with_group(SPEC, "a", group)
    assert one.group_policy is None
    assert attached_groups.with_group(one, "b", group).group_policy == "none"
    alone = structs.replace(one, group_policy="isolate")
    assert attached_groups.with_group(alone, "b", group).group_policy == "isolate"
    assert attached_groups.without_group(one, "a") == SPEC


def test_the_providers_of_isolated_groups_are_excluded() -> None:
    claimed = AllocationRequest(
        allocations=allocations({(ROOT, "VCPU"): 1}), mappings={"": (ROOT,), "a": (LEFT,), "b": (POOL,)}
    )
    held = claimed.allocations
    assert attached_groups.shut_out(SPEC, claimed, held) == set()
    assert attached_groups.shut_out(structs.replace(SPEC, group_policy="isolate"), claimed, held) == {LEFT, POOL}
    flavor = structs.replace(SPEC.flavor, extra_specs={"group_policy": "isolate"})
    assert attached_groups.shut_out(structs.replace(SPEC, flavor=flavor), claimed, held) == {LEFT, POOL}


def test_the_provider_to_which_a_reshape_moved_an_isolated_group_is_excluded() -> None:
    isolated = structs.replace(SPEC, group_policy="isolate")
    claimed = AllocationRequest(
        allocations=allocations({(ROOT, "VCPU"): 1, (LEFT, "VGPU"): 1}), mappings={"": (ROOT,), "a": (LEFT,)}
    )
    moved = allocations({(ROOT, "VCPU"): 1, (RIGHT, "VGPU"): 1})

    assert attached_groups.shut_out(isolated, claimed, moved) == {LEFT, RIGHT}
    # The amounts of the unsuffixed group may be on any provider.
    spread = allocations({(RIGHT, "VCPU"): 1, (LEFT, "VGPU"): 1})
    assert attached_groups.shut_out(isolated, claimed, spread) == {LEFT}
