"""Test swaps, moves, releases and heals of claims whose amounts a reshape has moved: nothing is left behind or lost."""

from collections.abc import Mapping

import pytest
from support.placement_store.builders import Store, request
from support.placement_store.move_builders import Moving, disk
from support.placement_store.reshape_builders import Reshaping, child, dealt

from moorage import errors, ids
from moorage.messages import DeleteResourceProvider, HealConsumers
from moorage.model import RecordedHold, SeenConsumer

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


# --- Reshapes of a provider that shares with other trees --------------------------------------------------------------


@pytest.fixture
def pool(store: Store) -> str:
    return store.provider("pool", DISK_GB=100)


def reshape_pool(reshaping: Reshaping, pool: str, parent: str | None = None) -> str:
    """Move all DISK_GB of a pool to a new child of it, or of another provider."""
    [part] = reshaping.move((pool, {"DISK_GB": 100}, "part"), providers=(child("part", parent or pool),)).created
    return part


def test_a_swap_releases_what_a_reshape_of_a_pool_has_moved(
    store: Store, reshaping: Reshaping, node: str, after: str, pool: str
) -> None:
    uuid = ids.fresh()
    old = {node: CLAIMED, **disk(pool, 50)}
    claim_id = store.claim(uuid, old).claim_id
    part = reshape_pool(reshaping, pool)

    claim_id = store.swap(uuid, claim_id, old, {after: CLAIMED, **disk(part, 50)}).claim_id
    assert store.held(uuid) == {after: CLAIMED, **disk(part, 50)}

    # A claim that names the former pool is released also if the next host does not use the pool.
    store.swap(uuid, claim_id, {after: CLAIMED, **disk(pool, 50)}, {node: CLAIMED})
    assert store.held(uuid) == {node: CLAIMED}
    assert nothing(store, after, pool, part)
    assert store.is_sound()


@pytest.mark.parametrize(("old", "new"), [(50, 20), (20, 50)])
@pytest.mark.parametrize("outcome", ["confirm", "revert"])
@pytest.mark.parametrize("when", ["before the move", "in the move"])
def test_a_move_ends_with_its_amounts_of_a_reshaped_pool(
    store: Store, reshaping: Reshaping, node: str, after: str, pool: str, old: int, new: int, outcome: str, when: str
) -> None:
    moving = Moving(store, {node: CLAIMED, **disk(pool, old)}).build()
    part = pool
    if when == "before the move":
        part = reshape_pool(reshaping, pool)
        moving.generation = store.consumer(moving.uuid).generation
    moving.begin({after: CLAIMED, **disk(part, new)})
    moving.accept()
    if when == "in the move":
        part = reshape_pool(reshaping, pool)
    assert moving.amounts == {after: CLAIMED, **disk(part, max(old, new))}

    if outcome == "confirm":
        moving.confirm()
        assert moving.amounts == {after: CLAIMED, **disk(part, new)}
    else:
        moving.revert(guest_gone=True)
        assert moving.amounts == {node: CLAIMED, **disk(part, old)}
    assert moving.migrations == {}
    assert store.is_sound()


@pytest.mark.parametrize("owner", ["node", "after"])
def test_a_revert_after_a_reshape_of_a_pool_below_a_host_restores_its_amount_once(
    store: Store, reshaping: Reshaping, node: str, after: str, owner: str
) -> None:
    parent = {"node": node, "after": after}[owner]
    pool = store.provider("shared", parent=parent, DISK_GB=100)
    moving = Moving(store, {node: CLAIMED, **disk(pool, 50)}).build()
    moving.begin({after: CLAIMED, **disk(pool, 50)})
    moving.accept()
    part = reshape_pool(reshaping, pool, parent)

    moving.revert(guest_gone=True)

    assert moving.amounts == {node: CLAIMED, **disk(part, 50)}
    assert nothing(store, after, pool)
    assert store.is_sound()


@pytest.mark.parametrize("owner", ["pool", "node", "after"])
@pytest.mark.parametrize("when", ["before the move", "in the move"])
@pytest.mark.parametrize("end", ["revert", "swap and revert"])
def test_a_revert_keeps_the_foreign_amounts_that_a_reshape_of_a_pool_has_moved(
    store: Store, reshaping: Reshaping, node: str, after: str, owner: str, when: str, end: str
) -> None:
    parent = {"node": node, "after": after}.get(owner)
    pool = store.provider("shared", parent=parent, DISK_GB=100, CUSTOM_IOPS=100)
    last = store.provider("last", VCPU=8, VGPU=4)
    moving = Moving(store, {node: CLAIMED, **disk(pool, 30)}).build()
    store.put(moving.uuid, {node: CLAIMED, pool: {"DISK_GB": 35, "CUSTOM_IOPS": 7}}, moving.generation)

    def reshape() -> str:
        all_of_it = {"DISK_GB": 100, "CUSTOM_IOPS": 100}
        [part] = reshaping.move((pool, all_of_it, "part"), providers=(child("part", parent or pool),)).created
        return part

    part = reshape() if when == "before the move" else pool
    moving.generation = store.consumer(moving.uuid).generation
    moving.begin({after: CLAIMED, **disk(part, 20)})
    part = reshape() if when == "in the move" else part
    if end == "swap and revert":
        moving.swap({last: CLAIMED, **disk(part, 40)})
    ended = moving.revert(guest_gone=True)

    assert moving.amounts == {node: CLAIMED, part: {"DISK_GB": 35, "CUSTOM_IOPS": 7}}
    assert ended.extras == {}
    assert nothing(store, after, last, pool)
    assert store.is_sound()


def test_a_revert_after_a_reshape_of_a_pool_leaves_nothing_of_the_disk_beside_it(
    store: Store, reshaping: Reshaping, node: str
) -> None:
    host = store.provider("host", VCPU=8, VGPU=4, DISK_GB=100)
    pool = store.provider("shared", parent=host, DISK_GB=100)
    moving = Moving(store, {node: CLAIMED, **disk(pool, 50)}).build()
    moving.begin({host: {**CLAIMED, "DISK_GB": 30}, **disk(pool, 10)})
    part = reshape_pool(reshaping, pool, host)

    ended = moving.revert(guest_gone=True)

    assert moving.amounts == {node: CLAIMED, **disk(part, 50)}
    assert ended.extras == {}
    assert nothing(store, host, pool)


def test_a_move_from_a_pool_to_a_new_inventory_of_the_reshaped_pool_is_reverted(
    store: Store, reshaping: Reshaping, node: str, after: str, pool: str
) -> None:
    moving = Moving(store, {node: CLAIMED, **disk(pool, 50)}).build()
    part = reshape_pool(reshaping, pool)
    store.set_inventories(pool, store.generation(pool), DISK_GB=100)
    moving.generation = store.consumer(moving.uuid).generation
    moving.begin({after: CLAIMED, **disk(pool, 60)})
    moving.accept()
    assert (moving.amounts, moving.migrations) == (
        {after: CLAIMED, **disk(pool, 60)},
        {node: CLAIMED, **disk(part, 50)},
    )

    moving.revert(guest_gone=True)

    assert moving.amounts == {node: CLAIMED, **disk(part, 50)}
    assert store.is_sound()


@pytest.mark.backends("sqlite", "mariadb")
def test_a_heal_adds_only_what_is_lacking_after_a_reshape_of_a_pool(
    store: Store, reshaping: Reshaping, node: str, pool: str
) -> None:
    uuid, attempt = ids.fresh(), ids.fresh()
    claimed = {node: CLAIMED, **disk(pool, 50)}
    claim_id = store.claim(uuid, claimed).claim_id
    store.accept(uuid, claim_id, attempt, "source")
    [part] = reshaping.move(
        (pool, {"DISK_GB": 50}, "part"),
        providers=(child("part", pool),),
        dealt=(dealt(uuid, pool, "part", DISK_GB=50),),
    ).created
    hold = recorded(uuid, claim_id, attempt, claimed, pool)

    heal(store, hold, claim_id)
    assert store.held(uuid) == {node: CLAIMED, **disk(part, 50)}

    # Another client takes 20 away: only these are lacking.
    store.put(uuid, {node: CLAIMED, **disk(part, 30)}, store.consumer(uuid).generation)
    heal(store, hold, claim_id)
    assert store.held(uuid) == {node: CLAIMED, **disk(part, 30), **disk(pool, 20)}
    assert store.is_sound()


@pytest.mark.backends("sqlite", "mariadb")
@pytest.mark.parametrize("parent", ["pool", "host"])
def test_a_lost_consumer_is_healed_where_a_reshape_has_moved_the_whole_inventories(
    store: Store, reshaping: Reshaping, node: str, after: str, parent: str
) -> None:
    pool = store.provider("shared", parent=None if parent == "pool" else after, DISK_GB=100)
    gpu, part = move_out(reshaping, store), reshape_pool(reshaping, pool, None if parent == "pool" else after)
    # A disk of the host is not one of the pool, however much of it is free.
    store.set_inventories(after, store.generation(after), DISK_GB=1000)
    uuid, claim_id = ids.fresh(), ids.fresh()
    hold = recorded(uuid, claim_id, ids.fresh(), {node: CLAIMED, **disk(pool, 50)}, pool)

    heal(store, hold)

    assert store.held(uuid) == {node: {"VCPU": 2}, gpu: {"VGPU": 1}, **disk(part, 50)}
    assert store.consumer(uuid).claim_id == claim_id
    assert store.is_sound()


@pytest.mark.backends("sqlite", "mariadb")
def test_a_heal_takes_no_disk_of_a_host_for_a_full_pool_below_it(store: Store, node: str) -> None:
    host = store.provider("host", DISK_GB=100)
    pool = store.provider("shared", parent=host, DISK_GB=100)
    store.put(ids.fresh(), {pool: {"DISK_GB": 60}}, None)
    uuid, claim_id = ids.fresh(), ids.fresh()
    hold = recorded(uuid, claim_id, ids.fresh(), {node: CLAIMED, **disk(pool, 50)}, pool)
    with pytest.raises(errors.CapacityExceeded):
        heal(store, hold)
    assert store.used(host) == {"DISK_GB": 0}


@pytest.mark.backends("sqlite", "mariadb")
def test_a_heal_finds_what_a_server_has_of_a_pool_that_a_reshape_emptied_and_that_was_deleted(
    store: Store, reshaping: Reshaping, node: str, pool: str
) -> None:
    shared = store.provider("shared", parent=pool, DISK_GB=100)
    uuid, attempt, claimed = ids.fresh(), ids.fresh(), {node: CLAIMED, **disk(shared, 50)}
    claim_id = store.claim(uuid, claimed).claim_id
    [part] = reshaping.move((shared, {"DISK_GB": 100}, "part"), providers=(child("part", pool),)).created
    store.dispatcher.call(DeleteResourceProvider(request_id=ids.fresh(), uuid=shared))

    heal(store, recorded(uuid, claim_id, attempt, claimed, shared), claim_id)

    assert store.held(uuid) == {node: CLAIMED, **disk(part, 50)}
    assert store.consumer(uuid).accepted_by == attempt
    assert store.is_sound()


@pytest.mark.backends("sqlite", "mariadb")
def test_a_lost_server_of_a_deleted_pool_is_healed_when_its_provider_is_created_again_below_the_pool(
    store: Store, reshaping: Reshaping, node: str, pool: str
) -> None:
    shared = store.provider("shared", parent=pool, DISK_GB=100)
    [part] = reshaping.move((shared, {"DISK_GB": 100}, "part"), providers=(child("part", pool),)).created
    store.dispatcher.call(DeleteResourceProvider(request_id=ids.fresh(), uuid=shared))
    uuid, claim_id = ids.fresh(), ids.fresh()
    hold = recorded(uuid, claim_id, ids.fresh(), {node: CLAIMED, **disk(shared, 50)}, shared)
    with pytest.raises(errors.InvalidState, match=f"lacks 50 DISK_GB of the pool {shared}"):
        heal(store, hold)

    store.provider("shared", shared, parent=pool)
    heal(store, hold)

    assert store.held(uuid) == {node: CLAIMED, **disk(part, 50)}
    assert store.is_sound()


def recorded(
    uuid: str, claim_id: str, attempt: str, claimed: Mapping[str, Mapping[str, int]], pool: str
) -> RecordedHold:
    """Return the record of a claim whose first provider is its host."""
    return RecordedHold(
        consumer_uuid=uuid,
        consumer_type="INSTANCE",
        claim_id=claim_id,
        root_provider_uuid=next(iter(claimed)),
        accepted_by=attempt,
        accepted_host="source",
        allocations=request(claimed).allocations,
        pools=(pool,),
        project_id="project",
        user_id="user",
        owner="conductor",
    )


def heal(store: Store, hold: RecordedHold, claim_id: str | None = None) -> None:
    """Heal a consumer, which has a claim or is lost."""
    uuid = hold.consumer_uuid
    seen = SeenConsumer(generation=None if claim_id is None else store.consumer(uuid).generation, claim_id=claim_id)
    store.dispatcher.call(HealConsumers(request_id=ids.fresh(), holds=(hold,), seen={uuid: seen}))
