"""Test reports of providers and whole trees, which are written completely or not at all."""

from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import select
from support.databases.statements import executed, listening
from support.placement_store.builders import Store, node_report

from moorage import errors, ids
from moorage.messages import (
    DeleteResourceClass,
    DeleteTrait,
    ListProviderTrees,
    ListResourceClasses,
    ListResourceProviders,
    ListTraits,
    ReportProviders,
    UpdateResourceProvider,
)
from moorage.model import Inventory, ProviderReport
from placement_store.providers import rows as providers
from placement_store.schema import resource_providers

AVX, SSD = "HW_CPU_X86_AVX2", "STORAGE_DISK_SSD"
RACK = ids.derived("rack")
HOST, NUMA, GPU = (ids.derived(name) for name in ("host", "numa", "gpu"))


# --- Hosts without children ------------------------------------------------------------------------------------------


def test_reported_providers_are_created_with_their_inventories(store: Store) -> None:
    generations = store.report(node_report(1, VCPU=8, CUSTOM_GPU=1), node_report(2))

    assert generations == {ids.derived("node", 1): 1, ids.derived("node", 2): 0}
    first, second = store.dispatcher.call(ListResourceProviders())

    assert first.inventories == {"VCPU": Inventory(total=8), "CUSTOM_GPU": Inventory(total=1)}
    assert (first.uuid, first.generation, first.root_provider_uuid) == (ids.derived("node", 1), 1, first.uuid)
    assert (second.inventories, second.generation) == ({}, 0)
    assert store.changes() == 2


def test_an_unchanged_report_writes_nothing(store: Store) -> None:
    nodes = [node_report(number, VCPU=8) for number in range(3)]
    store.report(*nodes)
    before = (store.changes(), [store.seq(node.uuid) for node in nodes])

    store.report(*nodes)

    assert (store.changes(), [store.seq(node.uuid) for node in nodes]) == before


def test_a_report_writes_only_changed_providers(store: Store) -> None:
    store.report(node_report(1, VCPU=8), node_report(2, VCPU=8), node_report(3, VCPU=8, DISK_GB=5))
    before = [store.seq(ids.derived("node", number)) for number in (1, 2, 3)]

    store.report(node_report(1, VCPU=8), node_report(2, VCPU=9, DISK_GB=3), node_report(3, VCPU=8))

    assert [store.seq(ids.derived("node", n)) - seq for n, seq in zip((1, 2, 3), before, strict=True)] == [0, 1, 1]
    assert store.get(ids.derived("node", 2)).used == {"VCPU": 0, "DISK_GB": 0}
    assert store.get(ids.derived("node", 3)).inventories == {"VCPU": Inventory(total=8)}


def test_a_provider_takes_the_name_that_its_host_reports(store: Store) -> None:
    store.report(node_report(1, VCPU=8))

    store.report(ProviderReport(uuid=ids.derived("node", 1), name="renamed", inventories={"VCPU": Inventory(total=8)}))

    found = store.get(ids.derived("node", 1))
    assert (found.name, found.generation) == ("renamed", 1)


def test_a_report_with_one_invalid_provider_is_refused_as_a_whole(store: Store) -> None:
    store.provider("taken")
    good, uuid = node_report(1, VCPU=8), ids.fresh()
    bad = ProviderReport(uuid=uuid, name="bad", inventories={"VCPU": Inventory(total=1, reserved=9)})
    with pytest.raises(errors.InvalidInventory) as caught:
        store.report(good, bad)
    assert caught.value.provider_uuid == uuid
    with pytest.raises(errors.AlreadyExists) as taken:
        store.report(good, ProviderReport(uuid=uuid, name="taken"))
    assert taken.value.name == "taken"
    with pytest.raises(errors.InvalidRequest) as doubled:
        store.report(good, good)
    assert doubled.value.path == "$.providers[1].uuid"
    assert [found.name for found in store.dispatcher.call(ListResourceProviders())] == ["taken"]


def test_a_report_cannot_remove_an_inventory_in_use(store: Store) -> None:
    store.report(node_report(1, VCPU=8, DISK_GB=5))
    store.put(ids.derived("c"), {ids.derived("node", 1): {"DISK_GB": 1}})
    with pytest.raises(errors.InventoryInUse) as caught:
        store.report(node_report(1, VCPU=8))
    assert caught.value.resource_class == "DISK_GB"


def test_a_thousand_providers_are_reported_in_one_call(store: Store) -> None:
    store.report(*(node_report(number, VCPU=8, MEMORY_MB=8192, DISK_GB=100) for number in range(1000)))

    rows = store.database.read(lambda connection: providers.rows(connection, None))

    assert len(rows) == 1000
    assert {row.generation for row in rows} == {1}
    assert all(len(row.inventories) == 3 and row.root_id == row.id for row in rows)


# --- Trees ------------------------------------------------------------------------------------------------------------


def of_host(**changes: Any) -> ProviderReport:
    return structs.replace(ProviderReport(uuid=HOST, name="host", inventories={"VCPU": Inventory(total=8)}), **changes)


def of_numa(**changes: Any) -> ProviderReport:
    return structs.replace(
        ProviderReport(
            uuid=NUMA,
            name="numa",
            inventories={"MEMORY_MB": Inventory(total=4096)},
            parent_provider_uuid=HOST,
            traits=(AVX, "CUSTOM_FAST"),
            aggregates=(RACK,),
        ),
        **changes,
    )


def of_gpu(**changes: Any) -> ProviderReport:
    return structs.replace(
        ProviderReport(
            uuid=GPU, name="gpu", inventories={"VGPU": Inventory(total=4)}, parent_provider_uuid=NUMA, traits=(SSD,)
        ),
        **changes,
    )


def listed(store: Store) -> list[str]:
    return [found.name for found in store.dispatcher.call(ListResourceProviders())]


@pytest.fixture
def tree(store: Store) -> dict[str, int]:
    """The generations of a reported tree: a host with a NUMA node with a GPU."""
    return store.report(of_host(), of_numa(), of_gpu())


def test_a_whole_tree_is_created_with_inventories_traits_and_aggregates(store: Store, tree: dict[str, int]) -> None:
    assert tree == {HOST: 1, NUMA: 1, GPU: 1}
    host, numa, gpu = store.dispatcher.call(ListProviderTrees(uuids=(HOST,)))
    assert (numa.parent_provider_uuid, gpu.parent_provider_uuid, gpu.root_provider_uuid) == (HOST, NUMA, HOST)
    assert (numa.traits, numa.aggregates) == (("CUSTOM_FAST", AVX), (RACK,))
    assert (host.traits, gpu.inventories) == ((), {"VGPU": Inventory(total=4)})


def test_a_tree_that_matches_its_report_is_not_written(store: Store, tree: dict[str, int]) -> None:
    before = ([store.seq(uuid) for uuid in tree], store.changes())

    again = store.report(of_host(generation=1), of_numa(traits=("CUSTOM_FAST", AVX)), of_gpu(generation=1))

    assert again == tree
    assert ([store.seq(uuid) for uuid in tree], store.changes()) == before


def test_a_changed_provider_bumps_its_generation_once(store: Store, tree: dict[str, int]) -> None:
    changed = of_numa(inventories={"MEMORY_MB": Inventory(total=8192)}, traits=(SSD,), aggregates=(), name="node")

    assert store.report(of_host(), changed, of_gpu()) == {HOST: 1, NUMA: 2, GPU: 1}

    found = store.get(NUMA)
    assert (found.name, found.traits, found.aggregates) == ("node", (SSD,), ())
    assert found.inventories["MEMORY_MB"].total == 8192


@pytest.mark.parametrize("change", [{"traits": ()}, {"aggregates": ()}, {"inventories": {}}])
def test_a_change_of_traits_aggregates_or_inventories_is_noticed(
    store: Store, tree: dict[str, int], change: dict[str, Any]
) -> None:
    assert store.report(of_host(), of_numa(**change), of_gpu()) == {HOST: 1, NUMA: 2, GPU: 1}


def test_traits_and_aggregates_that_are_not_reported_stay(store: Store, tree: dict[str, int]) -> None:
    assert store.report(of_numa(traits=None, aggregates=None)) == {NUMA: 1}
    assert (store.get(NUMA).traits, store.get(NUMA).aggregates) == (("CUSTOM_FAST", AVX), (RACK,))


def test_a_child_can_be_reported_below_an_existing_parent(store: Store) -> None:
    store.report(of_host())

    assert store.report(of_host(), of_numa()) == {HOST: 1, NUMA: 1}
    assert store.report(of_gpu()) == {GPU: 1}

    assert store.get(GPU).root_provider_uuid == HOST


def test_a_stale_report_is_refused_with_the_current_generation(store: Store, tree: dict[str, int]) -> None:
    for stale in (of_numa(generation=0), of_numa(generation=0, traits=())):
        with pytest.raises(errors.ProviderGenerationConflict) as caught:
            store.report(of_host(inventories={}), stale)
        assert (caught.value.provider_uuid, caught.value.named, caught.value.found) == (NUMA, 0, 1)
    assert store.generation(HOST) == 1


def test_a_report_with_a_generation_does_not_create_a_deleted_provider_again(store: Store) -> None:
    with pytest.raises(errors.ProviderNotFound) as caught:
        store.report(of_host(generation=3))
    assert caught.value.name == HOST
    assert listed(store) == []


def test_a_report_deletes_gone_providers_and_may_be_repeated(store: Store, tree: dict[str, int]) -> None:
    assert store.report(of_host(), gone=(GPU, NUMA)) == {HOST: 1}
    assert listed(store) == ["host"]
    before = store.changes()
    store.report(of_host(), gone=(GPU, NUMA))
    assert store.changes() == before


def test_a_repeated_report_creates_no_name_that_has_been_deleted_since(store: Store) -> None:
    message = ReportProviders(
        request_id=ids.fresh(),
        providers=(
            ProviderReport(
                uuid=HOST, name="host", inventories={"CUSTOM_GPU": Inventory(total=1)}, traits=("CUSTOM_T",)
            ),
        ),
    )
    done = store.dispatcher.call(message)
    store.report(ProviderReport(uuid=HOST, name="host", traits=()))
    store.dispatcher.call(DeleteTrait(request_id=ids.fresh(), name="CUSTOM_T"))
    store.dispatcher.call(DeleteResourceClass(request_id=ids.fresh(), name="CUSTOM_GPU"))

    assert store.dispatcher.call(message) == done

    assert store.dispatcher.call(ListTraits(starting_with="CUSTOM_")) == []
    assert "CUSTOM_GPU" not in store.dispatcher.call(ListResourceClasses())


def test_another_provider_takes_the_name_of_one_that_is_gone(store: Store, tree: dict[str, int]) -> None:
    new = ids.fresh()
    store.report(of_host(), of_numa(), of_gpu(uuid=new), gone=(GPU,))
    assert listed(store) == ["gpu", "host", "numa"]
    assert store.get(new).name == "gpu"


@pytest.mark.parametrize("after", ["bcd", "bca", "acb"])
def test_names_pass_from_renamed_providers_to_others_in_one_report(store: Store, after: str) -> None:
    uuids = [ids.fresh() for _ in after]
    last = ids.fresh()
    store.report(*(ProviderReport(uuid=uuid, name=name) for uuid, name in zip(uuids, "abc", strict=True)))
    free = next(name for name in "abce" if name not in after)

    store.report(
        *(ProviderReport(uuid=uuid, name=name) for uuid, name in zip(uuids, after, strict=True)),
        ProviderReport(uuid=last, name=free),
    )

    assert [store.get(uuid).name for uuid in [*uuids, last]] == [*after, free]


def test_a_report_does_not_take_the_name_of_a_provider_that_keeps_it(store: Store) -> None:
    kept, renamed = ids.fresh(), ids.fresh()
    store.report(ProviderReport(uuid=kept, name="kept"), ProviderReport(uuid=renamed, name="renamed"))
    for others in ((), (ProviderReport(uuid=ids.fresh(), name="renamed"),)):
        with pytest.raises(errors.AlreadyExists) as caught:
            store.report(ProviderReport(uuid=renamed, name="kept"), *others)
        assert caught.value.name == "kept"
    assert [store.get(uuid).name for uuid in (kept, renamed)] == ["kept", "renamed"]


def test_a_report_whose_gone_provider_is_in_use_changes_nothing(store: Store, tree: dict[str, int]) -> None:
    store.put(ids.derived("c"), {GPU: {"VGPU": 1}})
    with pytest.raises(errors.ProviderInUse) as used:
        store.report(of_host(inventories={}), of_numa(), gone=(GPU,))
    assert used.value.provider_uuid == GPU
    with pytest.raises(errors.ProviderHasChildren) as parent:
        store.report(of_host(inventories={}), gone=(NUMA,))
    assert parent.value.provider_uuid == NUMA
    assert listed(store) == ["gpu", "host", "numa"]
    assert store.get(HOST).inventories.keys() == {"VCPU"}


def test_a_report_with_another_parent_is_refused(store: Store, tree: dict[str, int]) -> None:
    for moved, path in ((of_gpu(parent_provider_uuid=HOST), 2), (of_gpu(parent_provider_uuid=None), 2)):
        with pytest.raises(errors.InvalidRequest) as caught:
            store.report(of_host(inventories={}), of_numa(), moved)
        assert caught.value.path == f"$.providers[{path}].parent_provider_uuid"
        assert NUMA in caught.value.reason
    with pytest.raises(errors.InvalidRequest) as caught:
        store.report(ProviderReport(uuid=ids.fresh(), name="other"), of_host(parent_provider_uuid=GPU))
    assert "a root" in caught.value.reason
    assert listed(store) == ["gpu", "host", "numa"]


def test_an_inconsistent_report_is_refused_with_the_path_of_the_field(store: Store) -> None:
    for reports, gone, path in (
        ((of_numa(), of_host()), (), "$.providers[0].parent_provider_uuid"),
        ((of_host(parent_provider_uuid=HOST),), (), "$.providers[0].parent_provider_uuid"),
        ((of_host(), of_host(name="other")), (), "$.providers[1].uuid"),
        ((of_host(), of_numa(name="host")), (), "$.providers[1].name"),
        ((of_host(), of_numa()), (NUMA,), "$.providers[1].uuid"),
    ):
        with pytest.raises(errors.InvalidRequest) as caught:
            store.report(*reports, gone=gone)
        assert caught.value.path == path
    assert listed(store) == []


def test_an_error_in_one_provider_rolls_back_the_whole_report(store: Store, tree: dict[str, int]) -> None:
    news = of_host(inventories={"VCPU": Inventory(total=16)}), of_numa(traits=())
    for bad, fault in (
        (of_gpu(traits=("NO_SUCH_TRAIT",)), errors.TraitNotFound),
        (of_gpu(inventories={"NO_SUCH_CLASS": Inventory(total=1)}), errors.ResourceClassNotFound),
        (of_gpu(inventories={"VGPU": Inventory(total=1, reserved=2)}), errors.InvalidInventory),
        (ProviderReport(uuid=ids.fresh(), name="x", parent_provider_uuid=ids.fresh()), errors.ProviderNotFound),
        (of_gpu(uuid=ids.fresh()), errors.AlreadyExists),
    ):
        with pytest.raises(fault):
            store.report(*news, bad)
    assert [store.generation(uuid) for uuid in (HOST, NUMA, GPU)] == [1, 1, 1]
    assert listed(store) == ["gpu", "host", "numa"]


def test_a_report_starts_again_if_a_provider_was_moved_before_it_was_locked(store: Store, tree: dict[str, int]) -> None:
    locks: list[str] = []
    under_the_host = (
        f"UPDATE resource_providers SET parent_provider_id = "
        f"{store.scalar(select(resource_providers.c.id).where(resource_providers.c.uuid == HOST))} WHERE uuid = '{GPU}'"
    )

    def move_first(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        """Move the GPU below the host just before it is locked for the first time; the transaction is rolled back."""
        if statement.startswith("SELECT") and "parent_provider_id" in statement and "ORDER BY" in statement:
            if not locks:
                cursor.execute(under_the_host)
            locks.append(statement)

    with listening(store.database.engine, "before_cursor_execute", move_first):
        store.report(of_host(), of_numa(), of_gpu(traits=(AVX,)))

    assert len(locks) == 2
    gpu = store.dispatcher.call(ListProviderTrees(uuids=(HOST,)))[-1]
    assert (gpu.uuid, gpu.parent_provider_uuid, gpu.traits) == (GPU, NUMA, (AVX,))


def test_a_moved_provider_must_be_reported_with_its_new_parent(store: Store, tree: dict[str, int]) -> None:
    store.dispatcher.call(UpdateResourceProvider(request_id=ids.fresh(), uuid=GPU, parent_provider_uuid=HOST))
    with pytest.raises(errors.InvalidRequest):
        store.report(of_host(), of_numa(), of_gpu())
    assert store.report(of_host(), of_numa(), of_gpu(parent_provider_uuid=HOST)) == tree


def test_a_report_of_hundreds_of_trees_costs_few_statements(store: Store) -> None:
    wanted = [one for number in range(333) for one in small_tree(number)]
    store.report(*wanted)

    with executed(store.database) as statements:
        generations = store.report(*(structs.replace(one, traits=(SSD,)) for one in wanted))

    assert set(generations.values()) == {2}
    # There is one DELETE of traits for each provider; all other statements are for many providers.
    assert sum(not statement.startswith("DELETE FROM provider_traits") for statement in statements) < 40
    assert [one.traits for one in store.dispatcher.call(ListResourceProviders())] == [(SSD,)] * 999


def small_tree(number: int) -> list[ProviderReport]:
    uuids = [ids.derived("tree", number, part) for part in range(3)]
    return [
        ProviderReport(
            uuid=uuid,
            name=f"tree {number} {part}",
            inventories={"VCPU": Inventory(total=8)},
            traits=(AVX,),
            aggregates=(RACK,),
            parent_provider_uuid=None if part == 0 else uuids[part - 1],
        )
        for part, uuid in enumerate(uuids)
    ]
