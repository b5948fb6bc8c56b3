"""Test trees of providers: children, names, parents, deletion, and the changes that claims do not permit."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.placement_store.builders import Store
from support.placement_store.move_builders import Moving

from moorage import errors, ids
from moorage.messages import (
    CreateResourceProvider,
    DeleteResourceProvider,
    ListProviderTrees,
    ListResourceProviders,
    UpdateResourceProvider,
)
from moorage.model import Inventory, ProviderReport, ResourceProvider
from placement_store.providers import create as new_providers
from placement_store.providers import rows as providers
from placement_store.providers.create import NewProvider
from placement_store.schema import resource_providers


def update(store: Store, uuid: str, **changes: Any) -> ResourceProvider:
    return store.dispatcher.call(UpdateResourceProvider(request_id=ids.fresh(), uuid=uuid, **changes))


def reparent(store: Store, uuid: str, parent: str | None) -> ResourceProvider:
    return update(store, uuid, parent_provider_uuid=parent)


def delete(store: Store, uuid: str) -> None:
    store.dispatcher.call(DeleteResourceProvider(request_id=ids.fresh(), uuid=uuid))


def trees(store: Store, *uuids: str) -> list[ResourceProvider]:
    return store.dispatcher.call(ListProviderTrees(uuids=uuids))


def shape(store: Store, *uuids: str) -> list[tuple[str, str | None]]:
    """Return the names of the providers of these trees, each with the name of its parent."""
    found = trees(store, *uuids)
    names = {provider.uuid: provider.name for provider in found}
    return [(one.name, names.get(one.parent_provider_uuid or "")) for one in found]


@pytest.fixture
def tree(store: Store) -> dict[str, str]:
    """A host with two NUMA nodes, the first of which has a GPU: uuids by name."""
    host = store.provider("host", VCPU=8)
    uuids = {"host": host}
    for number in (0, 1):
        uuids[f"numa{number}"] = store.provider(f"numa{number}", parent=host, MEMORY_MB=4096)
    uuids["gpu"] = store.provider("gpu", parent=uuids["numa0"], VGPU=4)
    return uuids


# --- Creating and showing ---------------------------------------------------------------------------------------------


def test_a_child_has_its_parents_root_at_any_depth(store: Store, tree: dict[str, str]) -> None:
    gpu = store.get(tree["gpu"])

    assert (gpu.parent_provider_uuid, gpu.root_provider_uuid) == (tree["numa0"], tree["host"])
    assert store.get(tree["numa1"]).parent_provider_uuid == tree["host"]
    assert store.get(tree["host"]).parent_provider_uuid is None


def test_a_missing_parent_and_a_provider_as_its_own_parent_are_refused(store: Store) -> None:
    unknown, uuid = ids.fresh(), ids.fresh()
    with pytest.raises(errors.ProviderNotFound) as caught:
        store.provider("child", parent=unknown)
    assert caught.value.name == unknown
    with pytest.raises(errors.InvalidRequest) as looped:
        store.provider("child", uuid, parent=uuid)
    assert looped.value.path == "$.parent_provider_uuid"
    assert store.dispatcher.call(ListResourceProviders()) == []


def test_naming_any_provider_lists_its_whole_tree_parents_first(store: Store, tree: dict[str, str]) -> None:
    store.provider("another")

    expected = [("host", None), ("numa0", "host"), ("gpu", "numa0"), ("numa1", "host")]
    assert shape(store, tree["gpu"]) == expected
    assert shape(store, tree["gpu"], tree["numa1"], ids.fresh()) == expected
    assert trees(store, ids.fresh()) == []


def test_new_providers_may_be_created_in_any_order(store: Store) -> None:
    host, numa, gpu = (ids.derived(name) for name in ("host", "numa", "gpu"))
    new = [NewProvider(gpu, "gpu", numa), NewProvider(numa, "numa", host), NewProvider(host, "host")]

    created = store.database.write(lambda connection: new_providers.create(connection, new))

    assert set(created) == {host, numa, gpu}
    assert shape(store, gpu) == [("host", None), ("numa", "host"), ("gpu", "numa")]
    assert store.database.read(lambda connection: providers.tree_ids(connection, [created[host]])) == sorted(
        created.values()
    )


def test_new_providers_that_form_a_loop_are_refused(store: Store) -> None:
    one, other = ids.fresh(), ids.fresh()
    new = [NewProvider(ids.fresh(), "root"), NewProvider(one, "one", other), NewProvider(other, "other", one)]
    with pytest.raises(errors.InvalidRequest) as caught:
        store.database.write(lambda connection: new_providers.create(connection, new))
    assert caught.value.path == "$.providers[1].parent_provider_uuid"
    assert store.dispatcher.call(ListResourceProviders()) == []


def test_a_new_child_is_recorded_in_the_change_feed(store: Store, tree: dict[str, str]) -> None:
    before = store.changes()
    store.provider("nic", parent=tree["host"])
    assert store.changes() == before + 1


# --- Names ------------------------------------------------------------------------------------------------------------


def test_a_rename_bumps_the_seq_and_not_the_generation(store: Store, tree: dict[str, str]) -> None:
    before, changes = store.seq(tree["gpu"]), store.changes()

    renamed = update(store, tree["gpu"], name="accelerator")

    assert (renamed.name, renamed.generation, renamed.parent_provider_uuid) == ("accelerator", 1, tree["numa0"])
    assert (store.seq(tree["gpu"]), store.changes()) == (before + 1, changes + 1)


def test_a_rename_in_the_tree_of_a_host_is_not_undone_by_a_report_of_its_former_state(
    store: Store, tree: dict[str, str]
) -> None:
    store.register_host(tree["host"])
    for name in ("host", "gpu"):
        read = store.get(tree[name])
        report = ProviderReport(
            uuid=read.uuid,
            name=read.name,
            parent_provider_uuid=read.parent_provider_uuid,
            inventories={"VCPU": Inventory(total=8)},
            generation=read.generation,
        )

        update(store, tree[name], name=f"{name}.example")

        with pytest.raises(errors.ProviderGenerationConflict):
            store.report(report)
        present = store.get(tree[name])
        store.report(structs.replace(report, name=present.name, generation=present.generation))
        assert store.get(tree[name]).name == f"{name}.example"


def test_an_update_without_a_change_writes_nothing(store: Store, tree: dict[str, str]) -> None:
    before, changes = store.seq(tree["gpu"]), store.changes()

    update(store, tree["gpu"], name="gpu", parent_provider_uuid=tree["numa0"])
    update(store, tree["gpu"])

    assert (store.seq(tree["gpu"]), store.changes()) == (before, changes)


def test_a_taken_name_and_an_unknown_provider_are_refused(store: Store, tree: dict[str, str]) -> None:
    with pytest.raises(errors.AlreadyExists) as taken:
        update(store, tree["gpu"], name="numa1", parent_provider_uuid=tree["numa1"])
    assert taken.value.name == "numa1"
    assert store.get(tree["gpu"]).parent_provider_uuid == tree["numa0"]
    with pytest.raises(errors.ProviderNotFound):
        update(store, ids.fresh(), name="x")


# --- Parents ----------------------------------------------------------------------------------------------------------


def test_a_subtree_moves_within_its_tree(store: Store, tree: dict[str, str]) -> None:
    store.put(ids.derived("c"), {tree["gpu"]: {"VGPU": 1}})

    moved = reparent(store, tree["gpu"], tree["numa1"])

    assert (moved.parent_provider_uuid, moved.root_provider_uuid) == (tree["numa1"], tree["host"])
    assert shape(store, tree["gpu"]) == [("host", None), ("numa0", "host"), ("numa1", "host"), ("gpu", "numa1")]


def test_a_subtree_moves_to_another_root_with_all_its_descendants_and_back(store: Store, tree: dict[str, str]) -> None:
    other = store.provider("other")
    seqs = {name: store.seq(uuid) for name, uuid in tree.items()}

    moved = reparent(store, tree["numa0"], other)

    assert (moved.root_provider_uuid, moved.generation) == (other, 1)
    assert store.get(tree["gpu"]).root_provider_uuid == other
    assert shape(store, other) == [("other", None), ("numa0", "other"), ("gpu", "numa0")]
    assert shape(store, tree["host"]) == [("host", None), ("numa1", "host")]
    assert {name: store.seq(uuid) - seqs[name] for name, uuid in tree.items()} == {
        "host": 0,
        "numa0": 1,
        "numa1": 0,
        "gpu": 1,
    }
    reparent(store, tree["numa0"], tree["host"])
    assert store.get(tree["gpu"]).root_provider_uuid == tree["host"]


def test_a_subtree_becomes_a_tree_and_a_tree_becomes_a_subtree(store: Store, tree: dict[str, str]) -> None:
    moved = reparent(store, tree["numa0"], None)

    assert (moved.root_provider_uuid, moved.parent_provider_uuid) == (tree["numa0"], None)
    assert store.get(tree["gpu"]).root_provider_uuid == tree["numa0"]

    reparent(store, tree["host"], tree["gpu"])

    assert shape(store, tree["host"]) == [("numa0", None), ("gpu", "numa0"), ("host", "gpu"), ("numa1", "host")]
    assert {provider.root_provider_uuid for provider in trees(store, tree["host"])} == {tree["numa0"]}


@pytest.mark.parametrize("parent", ["host", "numa0", "gpu"])
def test_a_loop_is_refused_with_its_path(store: Store, tree: dict[str, str], parent: str) -> None:
    before = trees(store, tree["host"])
    with pytest.raises(errors.InvalidRequest) as caught:
        reparent(store, tree["host"], tree[parent])
    assert caught.value.path == "$.parent_provider_uuid"
    assert trees(store, tree["host"]) == before


def test_an_unknown_new_parent_is_not_found(store: Store, tree: dict[str, str]) -> None:
    unknown = ids.fresh()
    with pytest.raises(errors.ProviderNotFound) as caught:
        reparent(store, tree["gpu"], unknown)
    assert caught.value.name == unknown


def test_a_provider_used_by_a_claim_cannot_leave_its_hosts_tree(store: Store, tree: dict[str, str]) -> None:
    other, consumer = store.provider("other"), ids.derived("c")
    store.claim(consumer, {tree["host"]: {"VCPU": 1}, tree["gpu"]: {"VGPU": 1}})
    before = trees(store, tree["host"])

    for name, parent in (("gpu", None), ("numa0", other), ("host", other)):
        with pytest.raises(errors.ProviderInUse) as caught:
            reparent(store, tree[name], parent)
        assert caught.value.provider_uuid == tree[name]
    assert trees(store, tree["host"]) == before

    # A provider without allocations may leave the tree, and others may move within it.
    reparent(store, tree["numa1"], other)
    reparent(store, tree["gpu"], tree["host"])
    store.delete(consumer)
    assert reparent(store, tree["host"], other).root_provider_uuid == other


def test_a_pool_used_by_a_claim_cannot_move_into_its_hosts_tree(store: Store, host: str) -> None:
    pool = store.provider("pool", DISK_GB=100)
    elsewhere = store.provider("elsewhere")
    store.claim(ids.derived("c"), {host: {"VCPU": 1}, pool: {"DISK_GB": 5}})

    with pytest.raises(errors.ProviderInUse):
        reparent(store, pool, host)

    assert reparent(store, pool, elsewhere).root_provider_uuid == elsewhere


def test_a_pool_used_in_a_move_cannot_move_into_the_tree_of_the_source_or_the_destination(store: Store) -> None:
    source, destination = store.provider("source", VCPU=8), store.provider("destination", VCPU=8)
    pool, elsewhere = store.provider("pool", DISK_GB=100), store.provider("elsewhere")
    moving = Moving(store, {source: {"VCPU": 1}, pool: {"DISK_GB": 5}}).build()
    moving.begin({destination: {"VCPU": 1}, pool: {"DISK_GB": 5}})

    for host in (source, destination):
        with pytest.raises(errors.ProviderInUse) as caught:
            reparent(store, pool, host)
        assert caught.value.provider_uuid == pool
    assert reparent(store, pool, elsewhere).root_provider_uuid == elsewhere

    moving.confirm()
    assert reparent(store, pool, source).root_provider_uuid == source


def test_a_provider_used_without_a_claim_may_leave_its_tree_as_in_placement(store: Store, tree: dict[str, str]) -> None:
    consumer = ids.derived("c")
    store.put(consumer, {tree["gpu"]: {"VGPU": 1}})

    reparent(store, tree["gpu"], None)

    assert store.held(consumer) == {tree["gpu"]: {"VGPU": 1}}
    assert store.used(tree["gpu"]) == {"VGPU": 1}
    assert store.is_sound()


def test_the_compute_node_of_a_host_remains_a_root(store: Store, tree: dict[str, str]) -> None:
    store.register_host(tree["host"])
    other = store.provider("other")

    with pytest.raises(errors.ProviderInUse):
        reparent(store, tree["host"], other)

    assert reparent(store, tree["host"], None).root_provider_uuid == tree["host"]
    assert reparent(store, other, tree["host"]).root_provider_uuid == tree["host"]


# --- Deleting ---------------------------------------------------------------------------------------------------------


def test_a_parent_is_deleted_after_its_children(store: Store, tree: dict[str, str]) -> None:
    for name in ("host", "numa0"):
        with pytest.raises(errors.ProviderHasChildren) as caught:
            delete(store, tree[name])
        assert caught.value.provider_uuid == tree[name]

    for name in ("gpu", "numa0", "numa1", "host"):
        delete(store, tree[name])

    assert store.dispatcher.call(ListResourceProviders()) == []
    with pytest.raises(errors.ProviderNotFound):
        delete(store, tree["host"])


@pytest.mark.backends("memory", "sqlite", "mariadb")
def test_the_host_of_a_claim_that_pools_serve_alone_cannot_be_deleted(store: Store) -> None:
    host, pool = store.provider("host"), store.provider("pool", DISK_GB=100)
    consumer = ids.derived("c")
    store.claim(consumer, {pool: {"DISK_GB": 5}}, root=host)

    for write in (lambda: delete(store, host), lambda: store.report(gone=[host])):
        with pytest.raises(errors.ProviderInUse) as caught:
            write()
        assert caught.value.provider_uuid == host
    assert store.consumer(consumer).root_provider_uuid == host

    store.delete(consumer)
    delete(store, host)
    with pytest.raises(errors.ProviderNotFound):
        store.get(host)


def test_the_host_of_a_claim_that_pools_serve_alone_remains_a_root(store: Store) -> None:
    host, pool, other = store.provider("host"), store.provider("pool", DISK_GB=100), store.provider("other")
    consumer = ids.derived("c")
    store.claim(consumer, {pool: {"DISK_GB": 5}}, root=host)

    with pytest.raises(errors.ProviderInUse) as caught:
        reparent(store, host, other)
    assert caught.value.provider_uuid == host

    store.delete(consumer)
    assert reparent(store, host, other).root_provider_uuid == other


def test_a_server_leaves_a_host_that_an_earlier_version_deleted_beneath_its_claim(store: Store) -> None:
    host, pool, other = store.provider("host"), store.provider("pool", DISK_GB=100), store.provider("other")
    amounts = {pool: {"DISK_GB": 5}}
    kept, released = ids.derived("kept"), ids.derived("released")
    claim_id = store.claim(kept, amounts, root=host).claim_id
    store.claim(released, amounts, root=host)
    row = resource_providers.c.uuid == host
    store.database.write(
        lambda connection: connection.execute(resource_providers.update().where(row).values(root_provider_id=None))
    )
    store.database.write(lambda connection: connection.execute(resource_providers.delete().where(row)))

    store.swap(kept, claim_id, amounts, amounts, root_provider_uuid=other)
    store.delete(released)

    assert store.consumer(kept).root_provider_uuid == other
    assert store.used(pool) == {"DISK_GB": 5}


def test_the_same_request_is_answered_as_before(store: Store) -> None:
    first = CreateResourceProvider(request_id="r1", uuid=ids.fresh(), name="a")
    answer = store.dispatcher.call(first)
    update(store, first.uuid, name="b")

    assert store.dispatcher.call(first) == answer
    assert store.get(first.uuid).name == "b"


# --- Any sequence of moves --------------------------------------------------------------------------------------------

_SIZE = 6


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, _SIZE - 1), st.none() | st.integers(0, _SIZE - 1)), max_size=12))
def test_a_provider_always_has_the_root_that_its_parents_lead_to(
    store: Store, moves: list[tuple[int, int | None]]
) -> None:
    store.empty()
    uuids = [store.provider(f"p{number}") for number in range(_SIZE)]
    parents: dict[int, int | None] = dict.fromkeys(range(_SIZE))

    for moved, parent in moves:
        ancestors = lineage(parents, parent)
        try:
            reparent(store, uuids[moved], None if parent is None else uuids[parent])
        except errors.InvalidRequest:
            assert moved in ancestors
        else:
            assert moved not in ancestors
            parents[moved] = parent

    for number, uuid in enumerate(uuids):
        found, above = store.get(uuid), parents[number]
        assert found.parent_provider_uuid == (None if above is None else uuids[above])
        assert found.root_provider_uuid == uuids[lineage(parents, number)[-1]]


def lineage(parents: dict[int, int | None], number: int | None) -> list[int]:
    """Return a provider and its ancestors, the root last."""
    found = []
    while number is not None:
        found.append(number)
        number = parents[number]
    return found
