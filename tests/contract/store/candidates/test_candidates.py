"""Test allocation candidates from the store: which trees are searched, at what cost, and that they can be claimed."""

import itertools
import math
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec import structs
from sqlalchemy import select
from support.databases.statements import executed
from support.placement_store import hard_searches
from support.placement_store.builders import Store
from support.placement_store.candidate_enumeration import every_candidate, trees_in_the_store
from support.placement_store.candidate_strategies import host_trees, is_valid, requests

from moorage import errors, ids
from moorage.messages import EnsureTrait, ListAllocationCandidates, SetAggregates, SetTraits
from moorage.model import AllocationCandidates, Inventory, ProviderSummary, ResourceGroup, ResourceRequest
from placement_store.candidates import HostTree, listing
from placement_store.candidates.search_budget import SearchBudget
from placement_store.candidates.tree import SHARES
from placement_store.schema import inventories, resource_providers

AGGREGATE, ANOTHER = ids.fresh(), ids.fresh()
SMALL = {"VCPU": 1, "MEMORY_MB": 512}


def ask(store: Store, *, limit: int = 1000, **groups_and_more: Any) -> AllocationCandidates:
    """List candidates; `resources` are those of the unsuffixed group, if no groups are given."""
    resources = groups_and_more.pop("resources", None)
    groups = groups_and_more.pop("groups", {"": ResourceGroup(resources=resources or SMALL)})
    request = ResourceRequest(groups=groups, **groups_and_more)
    return store.dispatcher.call(ListAllocationCandidates(request=request, limit=limit))


def amounts(found: AllocationCandidates) -> list[dict[str, dict[str, int]]]:
    return [{uuid: part.resources for uuid, part in one.allocations.items()} for one in found.allocation_requests]


def give(store: Store, uuid: str, *, traits: tuple[str, ...] = (), aggregates: tuple[str, ...] = ()) -> str:
    if traits:
        store.dispatcher.call(SetTraits(request_id=ids.fresh(), uuid=uuid, traits=traits))
    if aggregates:
        store.dispatcher.call(SetAggregates(request_id=ids.fresh(), uuid=uuid, aggregates=aggregates))
    return uuid


def pool(store: Store, name: str, aggregate: str = AGGREGATE, **inventories: Any) -> str:
    return give(store, store.provider(name, **inventories), traits=(SHARES,), aggregates=(aggregate,))


# --- Results ----------------------------------------------------------------------------------------------------------


def test_each_host_with_room_is_a_candidate_and_the_summaries_show_its_whole_tree(store: Store) -> None:
    host = store.provider("host", VCPU=8, MEMORY_MB=Inventory(total=4096, reserved=96, allocation_ratio=1.5))
    gpu = give(store, store.provider("gpu", parent=host, VGPU=2), traits=("HW_GPU_API_VULKAN",))
    store.provider("small host", VCPU=1, MEMORY_MB=128)
    store.put(ids.fresh(), {host: {"VCPU": 3}})

    found = ask(store)

    assert amounts(found) == [{host: SMALL}]
    assert found.allocation_requests[0].mappings == {"": (host,)}
    assert found.provider_summaries == {
        host: ProviderSummary(
            root_provider_uuid=host, capacity={"VCPU": 8.0, "MEMORY_MB": 6000.0}, used={"VCPU": 3, "MEMORY_MB": 0}
        ),
        gpu: ProviderSummary(
            root_provider_uuid=host,
            parent_provider_uuid=host,
            capacity={"VGPU": 2.0},
            used={"VGPU": 0},
            traits=("HW_GPU_API_VULKAN",),
        ),
    }


def test_a_pool_serves_the_hosts_of_its_aggregate_and_itself_and_is_in_their_summaries(store: Store) -> None:
    shared = pool(store, "pool", DISK_GB=100)
    near = give(store, store.provider("near", VCPU=8, MEMORY_MB=4096), aggregates=(AGGREGATE,))
    give(store, store.provider("far", VCPU=8, MEMORY_MB=4096), aggregates=(ANOTHER,))

    whole = ask(store, resources={"VCPU": 1, "DISK_GB": 10})
    disk = ask(store, resources={"DISK_GB": 10})

    assert amounts(whole) == [{near: {"VCPU": 1}, shared: {"DISK_GB": 10}}]
    assert whole.provider_summaries.keys() == {near, shared}
    # A candidate that uses only the pool is listed once, and not once for each host.
    assert amounts(disk) == [{shared: {"DISK_GB": 10}}]


def test_a_sharing_child_provider_is_also_a_member_of_the_aggregates_of_its_root(store: Store) -> None:
    storage = give(store, store.provider("storage"), aggregates=(ANOTHER,))
    shelf = give(store, store.provider("shelf", parent=storage, DISK_GB=100), traits=(SHARES,), aggregates=(AGGREGATE,))
    host = give(store, store.provider("host", VCPU=8), aggregates=(AGGREGATE, ANOTHER))

    def in_aggregates(*uuids: str) -> AllocationCandidates:
        wanted = {"VCPU": 1, "DISK_GB": 1}
        return ask(store, groups={"": ResourceGroup(resources=wanted, member_of=tuple((uuid,) for uuid in uuids))})

    assert amounts(in_aggregates(ANOTHER)) == [{host: {"VCPU": 1}, shelf: {"DISK_GB": 1}}]
    assert in_aggregates(ANOTHER).provider_summaries.keys() == {host, storage, shelf}
    assert amounts(in_aggregates(ids.fresh())) == []


def test_a_pool_matches_an_aggregate_of_its_root_even_if_the_host_is_not_a_member(store: Store) -> None:
    storage = give(store, store.provider("storage"), aggregates=(ANOTHER,))
    shelf = give(store, store.provider("shelf", parent=storage, DISK_GB=100), traits=(SHARES,), aggregates=(AGGREGATE,))
    host = give(store, store.provider("host", VCPU=8), aggregates=(AGGREGATE,))

    disk = ResourceGroup(resources={"DISK_GB": 1}, member_of=((ANOTHER,),))
    found = ask(store, groups={"": disk, "_1": ResourceGroup(resources={"VCPU": 1})})

    assert amounts(found) == [{shelf: {"DISK_GB": 1}, host: {"VCPU": 1}}]


def test_in_tree_may_name_any_provider_of_the_tree(store: Store) -> None:
    shared = pool(store, "pool", DISK_GB=100)
    shelf = store.provider("part of the pool", parent=shared)
    hosts = [give(store, store.provider(name, VCPU=8, DISK_GB=10), aggregates=(AGGREGATE,)) for name in ("one", "two")]
    part = store.provider("part of two", parent=hosts[1])

    def bound(to: str, suffix: str) -> list[dict[str, dict[str, int]]]:
        cpu = ResourceGroup(resources={"VCPU": 1}, in_tree=to if suffix == "" else None)
        disk = ResourceGroup(resources={"DISK_GB": 1}, in_tree=to if suffix == "_1" else None)
        return amounts(ask(store, groups={"": cpu, "_1": disk}))

    of_two = [{hosts[1]: {"VCPU": 1}, shared: {"DISK_GB": 1}}, {hosts[1]: {"VCPU": 1, "DISK_GB": 1}}]
    assert sorted(bound(part, ""), key=len) == sorted(of_two, key=len)
    assert bound(part, "_1") == [{hosts[1]: {"VCPU": 1, "DISK_GB": 1}}]
    assert bound(shelf, "_1") == [{host: {"VCPU": 1}, shared: {"DISK_GB": 1}} for host in hosts]
    assert bound(shelf, "") == bound(ids.fresh(), "_1") == []


def test_candidates_are_taken_from_the_trees_in_turn_up_to_the_limit(store: Store) -> None:
    hosts = [store.provider(f"host {n}", VCPU=8) for n in range(3)]
    for host in hosts:
        for number in range(3):
            store.provider(f"gpu {number} of {host}", parent=host, VGPU=1)

    found = ask(store, limit=4, resources={"VCPU": 1, "VGPU": 1})

    assert len(found.allocation_requests) == 4
    assert [next(uuid for uuid in one if uuid in hosts) for one in amounts(found)] == [*hosts, hosts[0]]
    assert found == ask(store, limit=4, resources={"VCPU": 1, "VGPU": 1})


def test_a_random_order_lists_the_same_candidates_and_a_small_limit_reaches_many_hosts(store: Store) -> None:
    uuids = [store.provider(f"host{number}", VCPU=8, MEMORY_MB=8192) for number in range(40)]

    def drawn(seed: int, limit: int) -> list[str]:
        request = ResourceRequest(groups={"": ResourceGroup(resources=SMALL)})
        found = listing.list_candidates(store.dispatcher, request, limit, rng=Random(seed))
        return [uuid for one in amounts(found) for uuid in one]

    assert sorted(drawn(1, 100)) == sorted(uuids)
    assert drawn(1, 100) != uuids
    assert len({uuid for seed in range(20) for uuid in drawn(seed, 2)}) > 10


def test_a_request_that_no_host_can_serve_has_no_candidates_and_no_summaries(store: Store) -> None:
    store.provider("host", VCPU=8, MEMORY_MB=4096)

    assert ask(store, resources={"VCPU": 9}) == ask(store, resources={"DISK_GB": 1}) == AllocationCandidates()


UNKNOWN = ("CUSTOM_UNKNOWN",)


@pytest.mark.parametrize(
    "asked",
    [
        {"groups": {"": ResourceGroup(resources=SMALL, required=UNKNOWN)}},
        {"groups": {"": ResourceGroup(resources=SMALL, forbidden=UNKNOWN)}},
        {"groups": {"_1": ResourceGroup(resources=SMALL, any_of=(("HW_CPU_X86_AVX2", *UNKNOWN),))}},
        {"root_required": UNKNOWN},
        {"root_forbidden": UNKNOWN},
    ],
)
def test_an_unknown_trait_is_refused_in_every_field(store: Store, asked: dict[str, Any]) -> None:
    with pytest.raises(errors.TraitNotFound) as caught:
        ask(store, **asked)
    assert caught.value.name == "CUSTOM_UNKNOWN"


def test_an_unknown_resource_class_is_refused(store: Store) -> None:
    with pytest.raises(errors.ResourceClassNotFound) as caught:
        ask(store, resources={"CUSTOM_UNKNOWN": 1})
    assert caught.value.name == "CUSTOM_UNKNOWN"


def test_an_inconsistent_request_is_refused_with_the_path_of_the_field(store: Store) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        ask(store, groups={"_1": ResourceGroup(resources=SMALL), "_2": ResourceGroup(resources=SMALL)})
    assert caught.value.path == "$.request.group_policy"


# --- Cost -------------------------------------------------------------------------------------------------------------


def fleet(store: Store, hosts: int) -> None:
    for number in range(hosts):
        give(store, store.provider(f"{number}", VCPU=8, MEMORY_MB=4096), aggregates=(AGGREGATE,))


def test_many_trees_are_loaded_in_as_many_statements_as_two(store: Store) -> None:
    pool(store, "pool", DISK_GB=100)
    fleet(store, 12)
    roots = [root for (root,) in store.database.read(lambda connection: connection.exec_driver_sql(ROOTS).all())]

    def statements(number: int) -> int:
        with executed(store.database) as sent:
            found = store.database.read(lambda connection: trees_in_the_store(connection, store.names, roots[:number]))
        assert len(found) == number
        return len(sent)

    assert statements(13) == statements(2)


def test_one_candidate_costs_the_same_in_a_larger_cloud(store: Store) -> None:
    fleet(store, 20)
    with executed(store.database) as small:
        ask(store, limit=1)
    for number in range(40):
        store.provider(f"another {number}", VCPU=8, MEMORY_MB=4096)
    with executed(store.database) as large:
        found = ask(store, limit=1)

    assert len(found.allocation_requests) == 1
    assert small == large


def test_trees_without_the_requested_classes_are_not_loaded_except_for_the_first_few(store: Store) -> None:
    fleet(store, 40)
    with executed(store.database) as without_candidates:
        ask(store, resources={"VCPU": 1, "VGPU": 1})
    with executed(store.database) as with_candidates:
        ask(store)

    def loads(statements: list[str]) -> int:
        return sum("parent_provider_id, " in s or ".total" in s.split("FROM")[0] for s in statements)

    # The first sixteen trees are loaded without a statement that filters them.
    assert (loads(with_candidates), loads(without_candidates)) == (2, 1)


def test_candidates_of_the_first_trees_cost_seven_statements(store: Store) -> None:
    fleet(store, 20)
    with executed(store.database) as statements:
        assert len(ask(store, limit=10).allocation_requests) == 10

    # The pools; the first roots; their providers, aggregates, inventories and traits; the names of these traits.
    assert len(statements) == 7


# --- Properties -------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(host_trees(), requests().filter(is_valid))
def test_the_listed_candidates_are_those_of_an_enumeration_and_can_be_claimed(
    store: Store, tree: HostTree, request: ResourceRequest
) -> None:
    uuids = stored(store, tree)
    asked = renamed(request, uuids)
    trees = store.database.read(lambda c: trees_in_the_store(c, store.names, [r for (r,) in c.exec_driver_sql(ROOTS)]))
    expected = set().union(*(every_candidate(one, asked) for one in trees.values()))

    found = amounts(ask(store, **structs.asdict(asked)))

    listed = [frozenset((u, n, a) for u, part in one.items() for n, a in part.items()) for one in found]
    assert len(listed) == len(set(listed))
    assert set(listed) == expected
    for candidate in found[:5]:
        consumer = ids.fresh()
        store.put(consumer, candidate)
        store.delete(consumer)


ROOTS = "SELECT id FROM resource_providers WHERE parent_provider_id IS NULL ORDER BY id"
AGGREGATES = {"agg-1": AGGREGATE, "agg-2": ANOTHER}


def stored(store: Store, tree: HostTree) -> dict[str, str]:
    """Replace the content of the store by a tree and the trees that share with it; return their uuids in the store."""
    store.empty()
    for name in ("CUSTOM_A", "CUSTOM_B", "CUSTOM_C"):
        store.dispatcher.call(EnsureTrait(request_id=ids.fresh(), name=name))
    uuids: dict[str, str] = {}
    # A parent's name sorts before the names of its children.
    for provider in sorted((*tree.providers, *tree.above_sharing, *tree.sharing), key=lambda one: one.uuid):
        described: dict[str, Any] = {name: row.described for name, row in provider.inventories.items()}
        uuid = store.provider(provider.uuid, parent=uuids.get(provider.parent_uuid or ""), **described)
        for name, row in provider.inventories.items():
            use(store, uuid, name, row.used)
        uuids[provider.uuid] = give(
            store, uuid, traits=tuple(provider.traits), aggregates=tuple(AGGREGATES[a] for a in provider.aggregates)
        )
    return uuids


def use(store: Store, uuid: str, name: str, amount: int) -> None:
    """Set the used amount, which may be more than the capacity, as after a reduction of the inventory."""
    provider_id = select(resource_providers.c.id).where(resource_providers.c.uuid == uuid).scalar_subquery()
    table = inventories.c
    this = (table.resource_provider_id == provider_id, table.resource_class_id == store.names.id_of(name))
    store.database.write(lambda c: c.execute(inventories.update().where(*this).values(used=amount)))


def renamed(request: ResourceRequest, uuids: dict[str, str]) -> ResourceRequest:
    """Return the request with the uuids of the store, or with unknown uuids."""

    def there(group: ResourceGroup) -> ResourceGroup:
        return structs.replace(
            group,
            in_tree=group.in_tree and uuids.get(group.in_tree, ids.fresh()),
            member_of=tuple(tuple(AGGREGATES[a] for a in wanted) for wanted in group.member_of),
            not_member_of=tuple(AGGREGATES[a] for a in group.not_member_of),
        )

    return structs.replace(request, groups={suffix: there(group) for suffix, group in request.groups.items()})


# --- Budget of a search -----------------------------------------------------------------------------------------------


def hard_host(store: Store, name: str) -> str:
    """A host for which the search of candidates for `hard_searches.REQUEST` takes very long."""
    host = store.provider(name, VCPU=1)
    for number, (device, inventory) in enumerate(hard_searches.DEVICES.items()):
        give(
            store,
            store.provider(f"{name} {device}", parent=host, VGPU=inventory),
            traits=hard_searches.traits_of(number),
        )
    return host


def test_one_request_has_one_budget_for_all_hosts_and_no_transaction_is_open_while_it_searches(store: Store) -> None:
    for number in range(4):
        hard_host(store, f"host{number}")
    checked_out = set()
    milliseconds = itertools.count()

    def clock() -> float:
        checked_out.add(store.database.engine.pool.checkedout())  # type: ignore[attr-defined]
        return next(milliseconds) / 1000

    budget = SearchBudget(seconds=0.5, clock=clock)

    with pytest.raises(errors.SearchBoundReached):
        listing.list_candidates(store.dispatcher, hard_searches.REQUEST, 1000, budget=budget)

    assert 0.5 <= budget.seconds < 0.51
    assert checked_out == {0}


def test_hosts_that_are_hard_to_search_do_not_hide_one_that_is_easy(store: Store) -> None:
    for number in range(3):
        hard_host(store, f"host{number}")
    easy = store.provider("easy", VCPU=1)
    device = give(store, store.provider("device", parent=easy, VGPU=1000), traits=hard_searches.ALL_TRAITS)

    # Each call of the clock counts as a tenth of a millisecond, so a busy machine makes no search more expensive.
    looks = itertools.count()
    budget = SearchBudget(seconds=0.5, clock=lambda: next(looks) / 10_000)

    found = listing.list_candidates(store.dispatcher, hard_searches.REQUEST, 1000, budget=budget)

    assert [set(one) for one in amounts(found)] == [{device}]
    assert next(looks) > 1000, "the search of the other hosts was short"


def test_the_amounts_and_mappings_of_an_answer_are_bounded_however_many_groups_there_are(store: Store) -> None:
    host = store.provider("host", VCPU=8)
    for number in range(2):
        store.provider(f"numa{number}", parent=host, VCPU=8)
    anywhere = {f"_{number}": ResourceGroup() for number in range(63)}
    groups = {"": ResourceGroup(resources={"VCPU": 1}), **anywhere}
    request = ResourceRequest(groups=groups, group_policy="none", same_subtree=(tuple(anywhere),))
    endless = SearchBudget(clock=lambda: 0.0)

    found = listing.list_candidates(store.dispatcher, request, 100_000, budget=endless, folds=False)

    # Each of them has one amount, and one mapping for each group.
    assert len(found.allocation_requests) == math.ceil(listing.MAX_ENTRIES / 65)


def test_the_work_on_a_candidate_that_is_found_is_charged_to_the_budget(store: Store) -> None:
    store.provider("host", VCPU=1, MEMORY_MB=512)
    milliseconds = itertools.count()
    budget = SearchBudget(clock=lambda: next(milliseconds) / 1000)
    request = ResourceRequest(groups={"": ResourceGroup(resources=SMALL)})

    # The only candidate of a host with one provider is found without a search.
    assert listing.list_candidates(store.dispatcher, request, 1, budget=budget).allocation_requests

    assert budget.seconds > 0
