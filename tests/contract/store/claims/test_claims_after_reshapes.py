"""Test swaps and releases of claims whose amounts a reshape has moved: nothing is left behind."""

import pytest
from support.placement_store.builders import Store
from support.placement_store.reshape_builders import Reshaping, child

from moorage import errors, ids
from moorage.messages import DeleteResourceProvider

pytestmark = pytest.mark.backends("sqlite", "mariadb", "memory")

CLAIMED = {"VCPU": 2, "VGPU": 1}


@pytest.fixture
def node(store: Store) -> str:
    """A flat compute node."""
    return store.provider("node", VCPU=8, VGPU=4, CUSTOM_NIC=2)


@pytest.fixture
def after(store: Store) -> str:
    return store.provider("after", VCPU=8, VGPU=4)


def move_out(reshaping: Reshaping, store: Store) -> str:
    """Move all VGPU of the node to a child of it."""
    [gpu] = reshaping.move(("node", {"VGPU": 4}, "gpu"), providers=(child("gpu", "node"),)).created
    return gpu


def nothing(store: Store, *providers: str) -> bool:
    return all(set(store.used(uuid).values()) <= {0} for uuid in providers)


def test_a_swap_to_another_host_releases_amounts_that_a_reshape_has_moved(
    store: Store, reshaping: Reshaping, node: str, after: str
) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {node: CLAIMED}).claim_id
    gpu = move_out(reshaping, store)
    assert store.held(uuid) == {node: {"VCPU": 2}, gpu: {"VGPU": 1}}

    swapped = store.swap(uuid, claim_id, {node: CLAIMED}, {after: CLAIMED})

    assert store.held(uuid) == {after: CLAIMED}
    assert nothing(store, node, gpu)
    assert (store.consumer(uuid).claim_id, store.consumer(uuid).root_provider_uuid) == (swapped.claim_id, after)
    assert store.is_sound()


def test_the_residue_on_a_reshaped_host_holds_the_moved_amounts(
    store: Store, reshaping: Reshaping, node: str, after: str
) -> None:
    uuid, attempt = ids.fresh(), ids.fresh()
    claim_id = store.claim(uuid, {node: CLAIMED}).claim_id
    store.accept(uuid, claim_id, attempt)
    gpu = move_out(reshaping, store)

    swapped = store.swap(uuid, claim_id, {node: CLAIMED}, {after: CLAIMED}, leave_residue=True)

    assert swapped.residue_uuid == attempt
    assert store.held(attempt) == {node: {"VCPU": 2}, gpu: {"VGPU": 1}}
    assert store.held(uuid) == {after: CLAIMED}
    store.delete(attempt, for_good=True)
    assert nothing(store, node, gpu)


@pytest.mark.parametrize("leave_residue", [True, False])
def test_a_delete_after_a_reshape_leaves_a_whole_residue_or_nothing(
    store: Store, reshaping: Reshaping, node: str, leave_residue: bool
) -> None:
    uuid, attempt = ids.fresh(), ids.fresh()
    claim_id = store.claim(uuid, {node: CLAIMED}).claim_id
    store.accept(uuid, claim_id, attempt)
    gpu = move_out(reshaping, store)

    store.delete(uuid, claim_id=claim_id, for_good=True, leave_residue=leave_residue)

    if leave_residue:
        assert store.held(attempt) == {node: {"VCPU": 2}, gpu: {"VGPU": 1}}
        store.delete(attempt, for_good=True)
    assert store.rows() == {}
    assert nothing(store, node, gpu)


def test_the_release_of_an_unaccepted_claim_after_a_reshape_leaves_nothing(
    store: Store, reshaping: Reshaping, node: str
) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {node: CLAIMED}).claim_id
    gpu = move_out(reshaping, store)

    store.delete(uuid, claim_id=claim_id, unaccepted=True)

    assert store.held(uuid) == {}
    assert nothing(store, node, gpu)


def test_a_swap_on_the_same_host_releases_the_claimed_amounts_at_their_new_place(
    store: Store, reshaping: Reshaping, node: str
) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {node: CLAIMED}).claim_id
    # Another client adds one of each class: foreign amounts.
    store.put(uuid, {node: {"VCPU": 3, "VGPU": 2, "CUSTOM_NIC": 1}}, 1)
    gpu = move_out(reshaping, store)

    store.swap(uuid, claim_id, {node: CLAIMED}, {node: {"VCPU": 4}, gpu: {"VGPU": 2}})

    assert store.held(uuid) == {node: {"VCPU": 5, "CUSTOM_NIC": 1}, gpu: {"VGPU": 3}}
    assert store.is_sound()


def test_a_swap_after_a_reshape_keeps_foreign_amounts_on_a_pool_and_releases_those_on_the_host(
    store: Store, reshaping: Reshaping, node: str, after: str
) -> None:
    pool, uuid = store.provider("pool", DISK_GB=100), ids.fresh()
    claim_id = store.claim(uuid, {node: CLAIMED, pool: {"DISK_GB": 10}}).claim_id
    store.put(uuid, {node: {"VCPU": 2, "VGPU": 3, "CUSTOM_NIC": 1}, pool: {"DISK_GB": 15}}, 1)
    gpu = move_out(reshaping, store)
    moved, shared = {node: CLAIMED, pool: {"DISK_GB": 10}}, {pool: {"DISK_GB": 10}}

    store.swap(uuid, claim_id, moved, {after: CLAIMED, **shared})

    assert store.held(uuid) == {after: CLAIMED, pool: {"DISK_GB": 15}}
    assert nothing(store, node, gpu)


def test_a_claim_is_swapped_even_if_its_child_provider_was_emptied_by_a_reshape_and_deleted(
    store: Store, reshaping: Reshaping, node: str, after: str
) -> None:
    gpu, uuid = move_out(reshaping, store), ids.fresh()
    made_with = {node: {"VCPU": 2}, gpu: {"VGPU": 1}}
    claim_id = store.claim(uuid, made_with).claim_id
    reshaping.move((gpu, {"VGPU": 4}, node))
    store.dispatcher.call(DeleteResourceProvider(request_id=ids.fresh(), uuid=gpu))

    store.swap(uuid, claim_id, made_with, {after: CLAIMED})

    assert store.held(uuid) == {after: CLAIMED}
    assert nothing(store, node)


def test_an_alternate_on_a_reshaped_host_is_refused_and_the_claim_stays(
    store: Store, reshaping: Reshaping, node: str, after: str
) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {after: CLAIMED}).claim_id
    move_out(reshaping, store)
    with pytest.raises(errors.CapacityExceeded):
        store.swap(uuid, claim_id, {after: CLAIMED}, {node: CLAIMED})
    assert (store.held(uuid), store.consumer(uuid).claim_id) == ({after: CLAIMED}, claim_id)
