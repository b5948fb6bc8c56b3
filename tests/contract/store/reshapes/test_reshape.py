"""Test reshapes with complete inventories and allocations, which are atomic."""

import pytest
from support.databases.statements import statements_of
from support.placement_store.builders import Store
from support.placement_store.reshape_builders import Reshaping, child, everything

from moorage import errors, ids
from moorage.model import Inventory


@pytest.fixture
def node(store: Store) -> str:
    return store.provider("node", VCPU=8, VGPU=4)


@pytest.fixture
def gpu(store: Store, node: str, reshaping: Reshaping) -> str:
    """A child without inventory."""
    reshaping.move((node, {"VGPU": 1}, "gpu"), providers=(child("gpu", node, uuid=(uuid := ids.fresh())),))
    reshaping.move((uuid, {"VGPU": 1}, node))
    return uuid


def test_an_inventory_in_use_moves_with_its_allocations(
    store: Store, reshaping: Reshaping, node: str, gpu: str
) -> None:
    first, second = ids.fresh(), ids.fresh()
    claim_id = store.claim(first, {node: {"VCPU": 2, "VGPU": 3}}).claim_id
    store.put(second, {node: {"VGPU": 1}})
    rows, generations = store.rows(), {uuid: store.generation(uuid) for uuid in (node, gpu)}

    reshaping.whole(
        {node: {"VCPU": 8}, gpu: {"VGPU": 4}},
        {first: store.wanted({node: {"VCPU": 2}, gpu: {"VGPU": 3}}, 1), second: store.wanted({gpu: {"VGPU": 1}}, 1)},
    )

    assert (store.held(first), store.held(second)) == ({node: {"VCPU": 2}, gpu: {"VGPU": 3}}, {gpu: {"VGPU": 1}})
    found = store.consumer(first)
    assert (found.claim_id, found.root_provider_uuid, found.generation) == (claim_id, node, 2)
    assert (store.used(node), store.used(gpu)) == ({"VCPU": 2}, {"VGPU": 4})
    assert {uuid: store.generation(uuid) for uuid in (node, gpu)} == {uuid: g + 1 for uuid, g in generations.items()}
    assert [row for row_id, row in rows.items() if store.rows().get(row_id) == row] == [
        row for row in rows.values() if row[2] == store.names.id_of("VCPU")
    ]
    assert store.is_sound()


def test_many_consumers_are_written_by_one_statement_while_the_providers_are_locked(
    store: Store, reshaping: Reshaping, node: str, gpu: str
) -> None:
    uuids = [ids.fresh() for _ in range(4)]
    for uuid in uuids:
        store.put(uuid, {node: {"VGPU": 1}}, consumer_type="INSTANCE")
    moved = {uuid: store.wanted({gpu: {"VGPU": 1}}, 1, consumer_type="INSTANCE") for uuid in uuids}

    with statements_of(store.database) as seen:
        reshaping.whole({node: {"VCPU": 8}, gpu: {"VGPU": 4}}, moved)

    assert sum(statement.startswith("UPDATE consumers ") for statement in seen) == 1
    assert [store.consumer(uuid).generation for uuid in uuids] == [2] * 4


def test_consumers_and_providers_that_are_not_named_do_not_change(
    store: Store, reshaping: Reshaping, node: str, gpu: str
) -> None:
    other, uuid = store.provider("other", VCPU=4), ids.fresh()
    store.put(uuid, {node: {"VCPU": 1}, other: {"VCPU": 1}})
    before = (store.rows(), store.consumer(uuid).generation, store.generation(other), store.seq(other))

    reshaping.whole({node: {"VCPU": 6, "MEMORY_MB": 100}, gpu: {"VGPU": 4}})

    assert (store.rows(), store.consumer(uuid).generation, store.generation(other), store.seq(other)) == before
    assert store.used(node) == {"VCPU": 1, "MEMORY_MB": 0}


def test_an_inventory_held_by_an_unlisted_consumer_cannot_be_removed(
    store: Store, reshaping: Reshaping, node: str, gpu: str
) -> None:
    first, unlisted = ids.fresh(), ids.fresh()
    for uuid in (first, unlisted):
        store.put(uuid, {node: {"VGPU": 1}})
    before, changes = everything(store), store.changes()

    with pytest.raises(errors.InventoryInUse) as caught:
        reshaping.whole({node: {"VCPU": 8}, gpu: {"VGPU": 4}}, {first: store.wanted({gpu: {"VGPU": 1}}, 1)})

    assert (caught.value.provider_uuid, caught.value.resource_class) == (node, "VGPU")
    assert (everything(store), store.changes()) == (before, changes)


def test_stale_generations_of_providers_and_of_consumers_are_different_conflicts(
    store: Store, reshaping: Reshaping, node: str, gpu: str
) -> None:
    uuid = ids.fresh()
    store.put(uuid, {node: {"VGPU": 1}})
    wanted = {node: {"VCPU": 8}, gpu: {"VGPU": 4}}
    moved = {uuid: store.wanted({gpu: {"VGPU": 1}}, 1)}
    before, generation = everything(store), store.generation(gpu)

    with pytest.raises(errors.ProviderGenerationConflict) as stale_provider:
        reshaping.whole(wanted, moved, {gpu: generation - 1})
    assert (stale_provider.value.provider_uuid, stale_provider.value.found) == (gpu, generation)
    with pytest.raises(errors.ConsumerGenerationConflict) as stale_consumer:
        reshaping.whole(wanted, {uuid: store.wanted({gpu: {"VGPU": 1}}, 7)})
    assert (stale_consumer.value.consumer_uuid, stale_consumer.value.found) == (uuid, 1)
    with pytest.raises(errors.ProviderGenerationConflict):
        reshaping.whole(wanted, {uuid: store.wanted({gpu: {"VGPU": 1}}, 1, relied_on={gpu: generation + 1})})

    assert everything(store) == before


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        (Inventory(total=2), "not enough room"),
        (Inventory(total=4, reserved=2), "not enough room"),
        (Inventory(total=4, allocation_ratio=0.5), "not enough room"),
        (Inventory(total=4, max_unit=2), "not between min_unit 1 and max_unit 2"),
        (Inventory(total=4, step_size=2), "not a multiple of step_size 2"),
    ],
)
def test_new_allocations_must_fit_the_new_inventories_and_not_the_old_ones(
    store: Store, reshaping: Reshaping, node: str, gpu: str, described: Inventory, reason: str
) -> None:
    uuid = ids.fresh()
    store.put(uuid, {node: {"VGPU": 3}})
    # The current inventory has more room and looser unit rules than the new one.
    store.set_inventories(gpu, store.generation(gpu), VGPU=100)
    before = everything(store)

    with pytest.raises(errors.CapacityExceeded) as caught:
        reshaping.whole({node: {"VCPU": 8}, gpu: {"VGPU": described}}, {uuid: store.wanted({gpu: {"VGPU": 3}}, 1)})

    [refusal] = caught.value.refusals
    assert (refusal["provider_uuid"], refusal["asked"], refusal["reason"]) == (gpu, 3, reason)
    assert everything(store) == before


def test_an_invalid_inventory_is_refused(store: Store, reshaping: Reshaping, node: str) -> None:
    before = everything(store)
    for described in (Inventory(total=4, reserved=5), Inventory(total=4, allocation_ratio=1.7e308)):
        with pytest.raises(errors.InvalidInventory) as caught:
            reshaping.whole({node: {"VCPU": 8, "VGPU": described}})
        assert (caught.value.provider_uuid, caught.value.resource_class) == (node, "VGPU")
    assert everything(store) == before


def test_allocations_of_an_over_committed_inventory_may_shrink_but_not_grow_in_sum(
    store: Store, reshaping: Reshaping, node: str, gpu: str
) -> None:
    first, second = ids.fresh(), ids.fresh()
    for uuid in (first, second):
        store.put(uuid, {node: {"VGPU": 2}})

    # Four units are used of a total of one: a unit that one consumer releases may go to the other.
    reshaping.whole({node: {"VCPU": 8, "VGPU": 1}})
    exchange = {first: store.wanted({node: {"VGPU": 1}}, 1), second: store.wanted({node: {"VGPU": 3}}, 1)}
    reshaping.whole({node: {"VCPU": 8, "VGPU": 1}}, exchange)
    assert store.used(node)["VGPU"] == 4

    with pytest.raises(errors.CapacityExceeded):
        reshaping.whole({node: {"VCPU": 8, "VGPU": 1}}, {first: store.wanted({node: {"VGPU": 2}}, 2)})
    reshaping.whole({node: {"VCPU": 8, "VGPU": 1}}, {first: store.wanted({}, 2)})
    assert store.used(node)["VGPU"] == 3


def test_a_consumer_without_allocations_on_its_host_loses_its_claim(
    store: Store, reshaping: Reshaping, node: str
) -> None:
    other, uuid = store.provider("other", VGPU=4), ids.fresh()
    store.claim(uuid, {node: {"VGPU": 1}})

    reshaping.whole({node: {"VCPU": 8}, other: {"VGPU": 8}}, {uuid: store.wanted({other: {"VGPU": 1}}, 1)})

    found = store.consumer(uuid)
    assert (store.held(uuid), found.claim_id, found.root_provider_uuid) == ({other: {"VGPU": 1}}, None, None)


def test_missing_providers_and_classes_are_not_found_and_a_consumer_may_be_new(
    store: Store, reshaping: Reshaping, node: str
) -> None:
    before, nowhere, new = everything(store), ids.fresh(), ids.fresh()
    with pytest.raises(errors.ProviderNotFound):
        reshaping.whole({node: {"VCPU": 8}, nowhere: {"VGPU": 4}}, generations={nowhere: 0})
    with pytest.raises(errors.ProviderNotFound):
        reshaping.whole({node: {"VCPU": 8}}, {new: store.wanted({nowhere: {"VGPU": 1}})})
    with pytest.raises(errors.ResourceClassNotFound):
        reshaping.whole({node: {"CUSTOM_NONE": 8}})
    assert everything(store) == before

    reshaping.whole({node: {"VCPU": 8, "PCI_DEVICE": 1}}, {new: store.wanted({node: {"PCI_DEVICE": 1}})})
    assert (store.held(new), store.consumer(new).generation) == ({node: {"PCI_DEVICE": 1}}, 1)
