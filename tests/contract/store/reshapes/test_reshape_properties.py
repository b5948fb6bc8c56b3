"""Test properties of reshapes by move instructions, on SQLite: nothing is lost or added."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from support.placement_store.builders import Store
from support.placement_store.reshape_builders import Move, Reshaping, child, everything

from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import ListResourceProviders
from moorage.model import Inventory, InventoryFields, ReshapePlan, ResourceProvider
from placement_store.schema import MAIN

CLASSES = ("VGPU", "SRIOV_NET_VF")
#: All in one tree; the last one is new.
NAMES = ("node", "first", "second", "new")
CONSUMERS = [ids.derived("consumer", number) for number in range(5)]

inventories = st.builds(
    Inventory,
    total=st.integers(4, 12),
    reserved=st.sampled_from([0, 0, 0, 1]),
    max_unit=st.sampled_from([2**31 - 1, 12, 3]),
    step_size=st.sampled_from([1, 1, 1, 2]),
    allocation_ratio=st.sampled_from([1.0, 1.0, 1.5]),
)
both = st.fixed_dictionaries(dict.fromkeys(CLASSES, inventories))
some = st.dictionaries(st.sampled_from(CLASSES), inventories)
trees = st.fixed_dictionaries({"node": both, "first": both, "second": some})
amounts = st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 3), min_size=1)
parts = st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 6), min_size=1)
holdings = st.lists(
    st.tuples(st.sampled_from(CONSUMERS), st.dictionaries(st.sampled_from(NAMES[:-1]), amounts, min_size=1)),
    min_size=3,
    max_size=8,
)
ways = st.sampled_from([(source, target) for source in NAMES[:-1] for target in NAMES if source != target])
moves = st.lists(st.builds(lambda way, part: (way[0], part, way[1]), ways, parts), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('reshapes')}/main.sqlite", "main")
    MAIN.upgrade(database)
    yield Store(database)
    database.close()


def build(store: Store, tree: dict[str, dict[str, Inventory]]) -> dict[str, str]:
    """Create the tree; return its uuids by name."""
    store.empty()
    uuids = {name: ids.derived("provider", name) for name in tree}
    for name in NAMES[:-1]:
        parent = None if name == "node" else uuids["node"]
        store.provider(name, uuids[name], parent=parent, **tree[name])
    return uuids


def fill(store: Store, uuids: dict[str, str], wanted: Sequence[tuple[str, dict[str, dict[str, int]]]]) -> None:
    """Write the allocations that fit, alternately by puts and claims."""
    for number, (uuid, amounts) in enumerate(wanted):
        held = {uuids[name]: resources for name, resources in amounts.items()}
        try:
            if number % 2:
                store.claim(uuid, held, root=uuids["node"])
            else:
                store.put(uuid, held)
        except (errors.CapacityExceeded, errors.ConsumerGenerationConflict):
            continue


def present(store: Store) -> dict[str, ResourceProvider]:
    return {one.uuid: one for one in store.dispatcher.call(ListResourceProviders())}


def sums(providers: dict[str, ResourceProvider], field: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in providers.values():
        found.update({name: getattr(inventory, field) for name, inventory in one.inventories.items()})
    return found


def held(store: Store) -> dict[str, tuple[Counter[str], str | None]]:
    """Return the total of each class that each consumer holds, with its claim."""
    found = {}
    for holder in store.audit().holders:
        total: Counter[str] = Counter()
        for resources in store.held(holder.uuid or "").values():
            total.update(resources)
        found[holder.uuid or ""] = (total, holder.claim_id)
    return found


def over_full(providers: dict[str, ResourceProvider]) -> set[tuple[str, str]]:
    return {
        (one.uuid, name)
        for one in providers.values()
        for name, inventory in one.inventories.items()
        if one.used[name] > inventory.capacity
    }


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tree=trees, wanted=holdings, instructed=moves, reserved=st.integers(0, 2), steps=st.sampled_from([1, 10, 100_000])
)
def test_a_reshape_keeps_every_sum_and_every_claim_or_changes_nothing(
    store: Store,
    tree: dict[str, dict[str, Inventory]],
    wanted: list[tuple[str, dict[str, dict[str, int]]]],
    instructed: list[Move],
    reserved: int,
    steps: int,
) -> None:
    uuids = build(store, tree)
    fill(store, uuids, wanted)
    providers, before, holders = present(store), everything(store), held(store)
    arriving = {name for _, resources, target in instructed if target == "new" for name in resources}
    new = child("new", "first", {name: {"reserved": reserved} for name in arriving})
    reshaping = Reshaping(store)

    def outcome(attempt: Callable[..., ReshapePlan]) -> ReshapePlan | type[errors.MoorageError]:
        try:
            return attempt(*instructed, providers=(new,), search_steps=steps)
        except errors.MoorageError as fault:
            return type(fault)

    planned = outcome(reshaping.plan)
    assert everything(store) == before
    done = outcome(reshaping.move)
    event(done.__name__ if isinstance(done, type) else f"done, {len(done.dealt)} dealt")

    if isinstance(done, type):
        assert planned is done
        assert done in (errors.InvalidInventory, errors.ImpossibleDeal, errors.SearchBoundReached)
        assert everything(store) == before
        return
    after = present(store)
    assert sums(after, "total") == sums(providers, "total")
    assert sums(after, "reserved") >= sums(providers, "reserved")
    assert held(store) == holders
    assert over_full(after) <= over_full(providers)
    assert store.is_sound() or over_full(providers)
    assert not store.audit().drifted
    moved = {uuid for uuid, one in providers.items() if after[uuid].generation == one.generation + 1}
    assert moved == providers.keys() & done.inventories
    assert {uuid for uuid in providers if after[uuid] != providers[uuid]} == moved


def test_every_inventory_field_except_the_total_can_be_described() -> None:
    fields = set(InventoryFields.__struct_fields__)
    assert fields == set(Inventory.__struct_fields__) - {"total"}
