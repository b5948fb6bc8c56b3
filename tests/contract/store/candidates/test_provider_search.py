"""Test the search for providers that fulfil a request group on their own."""

from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.placement_store.builders import Store

from moorage import errors, ids
from moorage.messages import ListAllocationCandidates, ListResourceProviders
from moorage.model import Inventory, ProviderReport, ResourceGroup, ResourceProvider, ResourceRequest

AVX, SSE, SSD = "HW_CPU_X86_AVX2", "HW_CPU_X86_SSE42", "STORAGE_DISK_SSD"
TRAITS = [AVX, SSE, SSD]
AGGREGATES = [ids.derived("aggregate", number) for number in range(3)]


def matching(store: Store, **asked: Any) -> list[str]:
    """Return the names of the providers that fulfil a group."""
    message = ListResourceProviders(matching=ResourceGroup(**asked))
    return [provider.name for provider in store.dispatcher.call(message)]


@pytest.fixture
def fleet(store: Store) -> Store:
    """A host with a NUMA node, one without anything, and a pool."""
    rack, room, _ = AGGREGATES
    store.report(
        described("host", {"VCPU": Inventory(total=8, reserved=2, allocation_ratio=1.5)}, (AVX, SSE), (rack,)),
        described("empty", {}, (), (room,)),
        described(
            "pool", {"DISK_GB": Inventory(total=100, min_unit=10, max_unit=50, step_size=5)}, (SSD,), (rack, room)
        ),
        described("numa", {"VCPU": Inventory(total=4)}, (AVX,), (), "host"),
    )
    return store


def described(
    name: str,
    inventories: dict[str, Inventory],
    traits: tuple[str, ...],
    aggregates: tuple[str, ...],
    parent: str | None = None,
) -> ProviderReport:
    return ProviderReport(
        uuid=ids.derived(name),
        name=name,
        inventories=inventories,
        traits=traits,
        aggregates=aggregates,
        parent_provider_uuid=None if parent is None else ids.derived(parent),
    )


def test_providers_are_found_by_name_and_by_uuid(fleet: Store) -> None:
    listed = fleet.dispatcher.call
    for asked in (
        ListResourceProviders(name="numa"),
        ListResourceProviders(uuid=ids.derived("numa")),
        ListResourceProviders(name="numa", uuid=ids.derived("numa")),
    ):
        assert [provider.name for provider in listed(asked)] == ["numa"]
    assert listed(ListResourceProviders(name="numa", uuid=ids.derived("host"))) == []


def test_providers_match_resources_if_a_claim_would_fit(fleet: Store) -> None:
    fleet.put(ids.derived("c"), {ids.derived("host"): {"VCPU": 3}})

    assert matching(fleet, resources={"VCPU": 4}) == ["host", "numa"]
    assert matching(fleet, resources={"VCPU": 6}) == ["host"]
    assert matching(fleet, resources={"VCPU": 7}) == []
    assert [n for n in (5, 10, 12, 50, 55) if matching(fleet, resources={"DISK_GB": n})] == [10, 50]
    assert matching(fleet, resources={"VCPU": 1, "DISK_GB": 10}) == []
    assert matching(fleet) == ["empty", "host", "numa", "pool"]


def test_room_is_found_for_more_classes_than_sqlite_takes_conditions(store: Store) -> None:
    classes = [f"CUSTOM_CLASS_{number}" for number in range(1010)]
    store.names.ensure(classes)
    of_all: dict[str, Any] = dict.fromkeys(classes, 2)
    of_all_but_one: dict[str, Any] = dict.fromkeys(classes[1:], 2)
    store.provider("all", **of_all)
    store.provider("all but one", **of_all_but_one)

    assert matching(store, resources=dict.fromkeys(classes, 2)) == ["all"]
    assert matching(store, resources=dict.fromkeys(classes, 2) | {classes[-1]: 3}) == []


def test_providers_match_only_their_own_traits(fleet: Store) -> None:
    assert matching(fleet, required=(AVX,)) == ["host", "numa"]
    assert matching(fleet, required=(AVX, SSE)) == ["host"]
    assert matching(fleet, forbidden=(AVX,)) == ["empty", "pool"]
    assert matching(fleet, any_of=((SSE, SSD),)) == ["host", "pool"]
    assert matching(fleet, any_of=((SSE, SSD), (AVX,))) == ["host"]
    assert matching(fleet, required=(AVX,), forbidden=(SSE,)) == ["numa"]


def test_providers_are_found_by_aggregate_and_by_tree(fleet: Store) -> None:
    rack, room, unused = AGGREGATES
    assert matching(fleet, member_of=((rack,),)) == ["host", "pool"]
    assert matching(fleet, member_of=((rack, room),)) == ["empty", "host", "pool"]
    assert matching(fleet, member_of=((rack,), (room,))) == ["pool"]
    assert matching(fleet, not_member_of=(room,)) == ["host", "numa"]
    assert matching(fleet, member_of=((rack,),), not_member_of=(room, unused)) == ["host"]
    assert matching(fleet, in_tree=ids.derived("numa")) == ["host", "numa"]


def test_an_unknown_tree_or_aggregate_has_no_members(fleet: Store) -> None:
    assert matching(fleet, in_tree=ids.fresh()) == []
    assert matching(fleet, member_of=((AGGREGATES[2],),)) == []
    assert matching(fleet, not_member_of=(AGGREGATES[2],)) == ["empty", "host", "numa", "pool"]


def test_an_unknown_class_or_trait_is_refused(fleet: Store) -> None:
    with pytest.raises(errors.ResourceClassNotFound):
        matching(fleet, resources={"CUSTOM_TYPO": 1})
    for asked in ({"required": ("CUSTOM_TYPO",)}, {"forbidden": ("CUSTOM_TYPO",)}, {"any_of": ((AVX, "CUSTOM_TYPO"),)}):
        with pytest.raises(errors.TraitNotFound) as caught:
            matching(fleet, **asked)
        assert caught.value.name == "CUSTOM_TYPO"


def test_a_request_that_contradicts_itself_is_refused_with_the_path_of_the_field(fleet: Store) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        matching(fleet, required=(AVX,), forbidden=(SSE, AVX))
    assert caught.value.path == "$.matching.forbidden"
    with pytest.raises(errors.InvalidRequest) as caught:
        matching(fleet, any_of=((SSD,), (AVX, SSE)), forbidden=(SSE, AVX))
    assert caught.value.path == "$.matching.any_of[1]"


# --- Properties -------------------------------------------------------------------------------------------------------

_SOME_TRAITS = st.sets(st.sampled_from(TRAITS)).map(lambda found: tuple(sorted(found)))
_SOME_AGGREGATES = st.sets(st.sampled_from(AGGREGATES)).map(lambda found: tuple(sorted(found)))


class Drawn(NamedTuple):
    """Describes a provider to create: inventory and usage of VCPU, traits, aggregates, the number of its parent."""

    inventory: Inventory | None
    used: int
    traits: tuple[str, ...]
    aggregates: tuple[str, ...]
    parent: int | None


INVENTORIES = st.builds(
    Inventory,
    total=st.integers(1, 8),
    max_unit=st.integers(1, 8),
    min_unit=st.integers(1, 3),
    step_size=st.integers(1, 3),
    allocation_ratio=st.sampled_from([0.5, 1.0, 2.0]),
)
PROVIDERS = st.builds(
    Drawn,
    inventory=st.none() | INVENTORIES,
    used=st.integers(0, 4),
    traits=_SOME_TRAITS,
    aggregates=_SOME_AGGREGATES,
    parent=st.none() | st.integers(0, 1),
)
GROUPS = st.builds(
    ResourceGroup,
    resources=st.just({}) | st.integers(1, 8).map(lambda amount: {"VCPU": amount}),
    required=_SOME_TRAITS,
    any_of=st.lists(st.lists(st.sampled_from(TRAITS), min_size=1, max_size=2).map(tuple), max_size=1).map(tuple),
    forbidden=_SOME_TRAITS,
    member_of=st.lists(st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=2).map(tuple), max_size=2).map(tuple),
    not_member_of=_SOME_AGGREGATES,
    in_tree=st.none() | st.integers(0, 4).map(lambda number: ids.derived("drawn", number)),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PROVIDERS, min_size=2, max_size=4), GROUPS)
def test_exactly_the_providers_that_fulfil_the_whole_group_are_listed(
    store: Store, drawn: list[Drawn], group: ResourceGroup
) -> None:
    store.empty()
    build(store, drawn)
    everything = store.dispatcher.call(ListResourceProviders())

    if impossible(group):
        with pytest.raises(errors.InvalidRequest):
            store.dispatcher.call(ListResourceProviders(matching=group))
        return
    found = store.dispatcher.call(ListResourceProviders(matching=group))

    roots = {provider.uuid: provider.root_provider_uuid for provider in everything}
    assert found == [provider for provider in everything if fulfils(provider, group, roots)]


def build(store: Store, drawn: list[Drawn]) -> None:
    """Create the providers; the first two are roots."""
    reports = [
        ProviderReport(
            uuid=ids.derived("drawn", number),
            name=f"p{number}",
            inventories={"VCPU": one.inventory} if one.inventory else {},
            traits=one.traits,
            aggregates=one.aggregates,
            parent_provider_uuid=ids.derived("drawn", one.parent) if number > 1 and one.parent is not None else None,
        )
        for number, one in enumerate(drawn)
    ]
    store.report(*reports)
    for number, one in enumerate(drawn):
        if one.used and one.inventory and fits(one.inventory, 0, one.used):
            store.put(ids.fresh(), {ids.derived("drawn", number): {"VCPU": one.used}})


def impossible(group: ResourceGroup) -> bool:
    forbidden = set(group.forbidden)
    return bool(forbidden & set(group.required)) or any(set(any_of) <= forbidden for any_of in group.any_of)


def fulfils(provider: ResourceProvider, group: ResourceGroup, roots: dict[str, str]) -> bool:
    traits, aggregates = set(provider.traits), set(provider.aggregates)
    return (
        all(
            name in provider.inventories and fits(provider.inventories[name], provider.used[name], amount)
            for name, amount in group.resources.items()
        )
        and traits >= set(group.required)
        and all(traits & set(any_of) for any_of in group.any_of)
        and not traits & set(group.forbidden)
        and all(aggregates & set(any_of) for any_of in group.member_of)
        and not aggregates & set(group.not_member_of)
        and (group.in_tree is None or roots.get(group.in_tree) == provider.root_provider_uuid)
    )


def fits(inventory: Inventory, used: int, amount: int) -> bool:
    return (
        used + amount <= inventory.capacity
        and inventory.min_unit <= amount <= inventory.max_unit
        and amount % inventory.step_size == 0
    )


def test_a_group_may_name_more_classes_than_a_statement_can_have_conditions(store: Store) -> None:
    wanted: dict[str, Any] = {f"CUSTOM_{number}": 1 for number in range(1100)}
    store.dispatcher.classes.ensure(wanted)
    # The inventories of the first few hosts are read whole.
    for number in range(40):
        store.provider(f"host {number}", CUSTOM_1=1)
    big = store.provider("big host", **wanted)

    request = ResourceRequest(groups={"": ResourceGroup(resources=wanted)})
    found = store.dispatcher.call(ListAllocationCandidates(request=request, limit=10))

    assert [dict(one.allocations[big].resources) for one in found.allocation_requests] == [wanted]
    assert matching(store, resources=wanted) == ["big host"]
