"""Test moves that are confirmed or reverted: the allocations of the instance, and foreign amounts."""

import itertools
from dataclasses import replace

import pytest
from support.placement_store.builders import Amounts, Store, call_between
from support.placement_store.move_builders import FREE, LARGE, SMALL, Moving, disk, row
from support.placement_store.reshape_builders import Reshaping, child

from moorage import errors, ids
from moorage.model import AllocationRequest, Inventory, ProviderAmounts, ServerGroup
from moorage.model.allocations import amounts_of

pytestmark = pytest.mark.backends("sqlite", "mariadb", "memory")

# --- Foreign amounts --------------------------------------------------------------------------------------------------


def with_extras(moving: Moving, source: str, pool: str, third: str) -> dict[str, dict[str, int]]:
    """Add foreign amounts on the source, on the pool, and on a provider that the instance does not use."""
    amounts = {source: {"VCPU": 3, "MEMORY_MB": 2048}, pool: {"DISK_GB": 60}, third: {"VCPU": 1}}
    moving.generation = moving.store.put(moving.uuid, amounts, moving.generation)
    return amounts


def test_foreign_amounts_on_a_provider_that_the_move_leaves_refuse_it(
    store: Store, source: str, destination: str, pool: str, third: str, i1: Moving
) -> None:
    amounts = with_extras(i1, source, pool, third)
    with pytest.raises(errors.CannotCarryOver) as caught:
        i1.begin({destination: SMALL})
    assert caught.value.count == 2
    assert sorted(caught.value.amounts, key=lambda one: one["resource_class"]) == [
        {"provider_uuid": pool, "resource_class": "DISK_GB", "amount": 10},
        {"provider_uuid": source, "resource_class": "VCPU", "amount": 1},
    ]
    assert i1.amounts == amounts
    assert i1.migrations == {}


def test_foreign_amounts_go_to_the_migration_on_request_and_return_with_a_revert(
    store: Store, source: str, destination: str, pool: str, third: str, i1: Moving
) -> None:
    amounts = with_extras(i1, source, pool, third)

    i1.begin({destination: SMALL}, drop_extras=True)

    assert i1.amounts == {destination: SMALL, third: {"VCPU": 1}}
    assert i1.migrations == {source: amounts[source], pool: amounts[pool]}
    assert i1.revert().extras == {}
    assert i1.amounts == amounts


def test_foreign_amounts_on_a_common_pool_survive_confirm_and_revert(
    store: Store, source: str, destination: str, pool: str
) -> None:
    for outcome, expected in (("confirm", 30), ("revert", 60)):
        moving = Moving(store, {source: SMALL, **disk(pool, 50)}).build()
        moving.generation = store.put(moving.uuid, {source: SMALL, **disk(pool, 60)}, 1)
        moving.begin({destination: SMALL, **disk(pool, 20)})
        assert moving.amounts == {destination: SMALL, **disk(pool, 60)}
        store.dispatcher.call(moving.ending(outcome, guest_gone=True))
        assert moving.amounts[pool] == {"DISK_GB": expected}
        store.delete(moving.uuid, for_good=True)
    assert store.rows() == {}


def test_a_confirmed_move_names_foreign_amounts_lost_with_the_source(
    store: Store, source: str, destination: str, pool: str, third: str, i1: Moving
) -> None:
    with_extras(i1, source, pool, third)
    i1.begin({destination: SMALL}, drop_extras=True)

    lost = i1.confirm().extras

    assert amounts_of(lost) == {source: {"VCPU": 1}, pool: {"DISK_GB": 10}}
    assert i1.amounts == {destination: SMALL, third: {"VCPU": 1}}


def test_a_reverted_move_names_foreign_amounts_lost_with_the_destination(
    store: Store, source: str, destination: str, moving: Moving
) -> None:
    moving.begin({destination: SMALL})
    store.put(moving.uuid, {destination: LARGE}, 2)

    lost = moving.revert().extras

    assert amounts_of(lost) == {destination: {"VCPU": 2, "MEMORY_MB": 2048}}
    assert moving.amounts == {source: SMALL}


def test_a_confirm_may_keep_foreign_amounts_of_the_migration_on_the_instance(
    store: Store, source: str, destination: str, pool: str, third: str, i1: Moving
) -> None:
    with_extras(i1, source, pool, third)
    i1.begin({destination: SMALL}, drop_extras=True)
    store.put(ids.fresh(), {source: {"VCPU": 1}})

    stays = i1.confirm(keep_extras=True).extras

    expected = {source: {"VCPU": 1}, pool: {"DISK_GB": 10}}
    assert amounts_of(stays) == expected
    assert i1.amounts == {destination: SMALL, third: {"VCPU": 1}, **expected}
    assert i1.is_buried()
    assert store.is_sound()


def test_kept_foreign_amounts_of_the_migration_are_not_in_the_residue(
    store: Store, source: str, destination: str, moving: Moving
) -> None:
    moving.begin({destination: SMALL})
    store.put(moving.migration, {source: LARGE}, store.consumer(moving.migration).generation)

    ended = moving.confirm(guest_gone=False, leave_residue=True, keep_extras=True)

    assert ended.residue_uuid == moving.migration
    assert moving.migrations == {source: SMALL}
    assert moving.amounts == {destination: SMALL, source: {"VCPU": 2, "MEMORY_MB": 2048}}


def test_a_revert_may_keep_foreign_amounts_on_the_destination(
    store: Store, source: str, destination: str, moving: Moving
) -> None:
    moving.begin({destination: SMALL})
    store.put(moving.uuid, {destination: LARGE}, 2)

    stays = moving.revert(keep_extras=True).extras

    expected = {destination: {"VCPU": 2, "MEMORY_MB": 2048}}
    assert amounts_of(stays) == expected
    assert moving.amounts == {source: SMALL, **expected}


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_a_stale_migration_generation_refuses_the_end_of_a_move(
    store: Store, source: str, destination: str, moving: Moving, outcome: str
) -> None:
    moving.begin({destination: SMALL})
    read = store.consumer(moving.migration).generation
    found = store.put(moving.migration, {source: LARGE}, read)
    before = moving.amounts

    with pytest.raises(errors.ConsumerGenerationConflict) as caught:
        store.dispatcher.call(moving.ending(outcome, guest_gone=True, migration_generation=read))

    assert (caught.value.consumer_uuid, caught.value.found) == (moving.migration, found)
    assert (moving.amounts, moving.migrations) == (before, {source: LARGE})
    store.dispatcher.call(moving.ending(outcome, guest_gone=True, migration_generation=found))


def test_a_revert_does_not_restore_a_pool_amount_that_another_client_has_reduced(
    store: Store, source: str, destination: str, pool: str, i1: Moving
) -> None:
    i1.begin({destination: SMALL, **disk(pool, 20)})
    store.put(i1.uuid, {destination: SMALL, **disk(pool, 30)}, 2)
    store.put(ids.fresh(), disk(pool, 70))

    i1.revert()

    assert i1.amounts == {source: SMALL, **disk(pool, 30)}
    assert store.is_sound()


# --- Ending -----------------------------------------------------------------------------------------------------------


def test_a_confirmed_move_deletes_the_migration_for_good_and_keeps_the_claim(
    store: Store, source: str, destination: str, moving: Moving
) -> None:
    moving.begin({destination: SMALL})
    moving.accept()

    answer = moving.confirm(consumer_generation=2)

    found = store.consumer(moving.uuid)
    assert (found.claim_id, found.accepted_by, found.root_provider_uuid) == (
        moving.claim_id,
        moving.next_attempt,
        destination,
    )
    assert (answer.claim_id, answer.consumer_generation, answer.residue_uuid) == (moving.claim_id, 3, None)
    assert moving.is_buried()
    assert store.used(source) == FREE
    assert store.is_sound()


@pytest.mark.backends("sqlite", "mariadb")
def test_a_reverted_move_restores_the_claim_of_the_source(
    store: Store, source: str, destination: str, moving: Moving
) -> None:
    before = row(store, moving.uuid)
    moving.begin({destination: SMALL})

    moving.revert(consumer_generation=2)

    after = row(store, moving.uuid)
    assert after.generation == 3
    for column in (
        "claim_id",
        "root_provider_id",
        "accepted_by",
        "accepted_host",
        "accepted_at",
        "owner",
        "claimed_at",
    ):
        assert getattr(after, column) == getattr(before, column)
    assert moving.is_buried()
    assert (store.used(destination), store.used(source)) == (FREE, SMALL)
    store.accept(moving.uuid, moving.source_claim, moving.attempt, "source")


@pytest.mark.backends("sqlite", "mariadb")
def test_a_revert_to_a_full_and_shrunk_host_needs_no_room_and_no_unit_rules(
    store: Store, source: str, destination: str, pool: str, i1: Moving
) -> None:
    i1.begin({destination: SMALL, **disk(pool, 20)})
    store.put(ids.fresh(), {source: {"VCPU": 6, "MEMORY_MB": 6144}, **disk(pool, 50)})
    store.set_inventories(source, store.generation(source), VCPU=1, MEMORY_MB=Inventory(total=64, max_unit=1))
    store.set_inventories(pool, store.generation(pool), DISK_GB=Inventory(total=60, step_size=7))

    i1.revert()

    assert i1.amounts == {source: SMALL, **disk(pool, 50)}
    assert not store.audit().drifted


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_a_move_is_ended_only_once_and_only_with_its_current_claim_and_generation(
    store: Store, source: str, destination: str, moving: Moving, outcome: str
) -> None:
    moving.begin({destination: SMALL})
    end = store.dispatcher.call
    with pytest.raises(errors.ClaimReleased):
        end(moving.ending(outcome, guest_gone=True, claim_id=moving.source_claim))
    with pytest.raises(errors.ConsumerGenerationConflict) as caught:
        end(moving.ending(outcome, guest_gone=True, consumer_generation=1))
    assert (caught.value.named, caught.value.found) == (1, 2)
    with pytest.raises(errors.ConsumerNotFound):
        end(moving.ending(outcome, guest_gone=True, migration_uuid=ids.fresh()))
    with pytest.raises(errors.InvalidRequest) as other:
        end(moving.ending(outcome, guest_gone=True, migration_uuid=moving.uuid))
    assert other.value.path == "$.migration_uuid"
    message = moving.ending(outcome, guest_gone=True)

    answer = end(message)

    assert end(message) == answer
    again = errors.ConsumerNotFound if outcome == "confirm" else errors.ClaimReleased
    for later in ("confirm", "revert"):
        with pytest.raises(again):
            end(moving.ending(later, guest_gone=True))
    assert store.is_sound()


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_a_move_compares_named_generations_even_of_unchanged_providers(
    store: Store, source: str, destination: str, pool: str, i1: Moving, outcome: str
) -> None:
    def relying(amounts: Amounts, by: int = 0) -> AllocationRequest:
        parts = {
            uuid: ProviderAmounts(resources=dict(resources), generation=store.generation(uuid) + by)
            for uuid, resources in amounts.items()
        }
        return AllocationRequest(allocations=parts)

    with pytest.raises(errors.ProviderGenerationConflict):
        i1.begin({destination: SMALL}, held=relying(i1.held, by=-1), drop_extras=True)
    store.put(i1.uuid, {source: SMALL}, i1.generation)
    i1.generation += 1
    # The instance holds nothing of the pool any more.
    i1.begin({destination: SMALL}, held=relying(i1.held))
    end = store.dispatcher.call
    with pytest.raises(errors.ProviderGenerationConflict):
        end(i1.ending(outcome, guest_gone=True, held=relying(i1.held, by=-1)))

    end(i1.ending(outcome, guest_gone=True, held=relying(i1.held), claimed=relying(i1.claimed)))

    assert i1.amounts == {destination if outcome == "confirm" else source: SMALL}
    assert store.is_sound()


def test_the_move_of_a_deleted_instance_cannot_be_ended(
    store: Store, source: str, destination: str, moving: Moving
) -> None:
    moving.begin({destination: SMALL})
    store.delete(moving.uuid, for_good=True, migration_uuids=(moving.migration,))
    for outcome in ("confirm", "revert"):
        with pytest.raises(errors.ClaimReleased):
            store.dispatcher.call(moving.ending(outcome, guest_gone=True))
    assert store.rows() == {}


def test_an_accepted_claim_ends_only_without_a_guest_or_with_a_residue(
    store: Store, source: str, destination: str, moving: Moving
) -> None:
    moving.begin({destination: SMALL})
    moving.accept()
    for outcome in ("confirm", "revert"):
        with pytest.raises(errors.InvalidState):
            store.dispatcher.call(moving.ending(outcome))
    assert (moving.amounts, moving.migrations) == ({destination: SMALL}, {source: SMALL})


def test_a_move_whose_migration_was_released_can_be_confirmed_but_not_reverted(
    store: Store, source: str, destination: str, moving: Moving
) -> None:
    moving.begin({destination: SMALL})
    store.put(moving.migration, {}, 1)
    with pytest.raises(errors.InvalidState):
        moving.revert()
    moving.confirm()
    assert moving.amounts == {destination: SMALL}
    assert moving.is_buried()


# --- Reshapes during a move -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
@pytest.mark.parametrize("same_host", [False, True])
def test_a_reshape_during_a_move_keeps_the_amounts_of_confirm_and_revert_exact(
    store: Store, outcome: str, same_host: bool
) -> None:
    node, after = (store.provider(name, VCPU=8, VGPU=4) for name in ("node", "after"))
    moving = Moving(store, {node: {"VCPU": 2, "VGPU": 1}}).build()
    moving.begin({node if same_host else after: {"VCPU": 3, "VGPU": 2}})
    [gpu] = Reshaping(store).move(("node", {"VGPU": 4}, "gpu"), providers=(child("gpu", "node"),)).created
    assert moving.migrations == {node: {"VCPU": 2}, gpu: {"VGPU": 1}}

    store.dispatcher.call(moving.ending(outcome, guest_gone=True))

    new = {node: {"VCPU": 3}, gpu: {"VGPU": 2}} if same_host else {after: {"VCPU": 3, "VGPU": 2}}
    assert moving.amounts == (new if outcome == "confirm" else {node: {"VCPU": 2}, gpu: {"VGPU": 1}})
    assert store.is_sound()
    store.delete(moving.uuid, for_good=True)
    assert store.rows() == {}


def test_a_move_after_a_reshape_finds_the_amounts_claimed_before_it(store: Store) -> None:
    node, after = (store.provider(name, VCPU=8, VGPU=4) for name in ("node", "after"))
    moving = Moving(store, {node: {"VCPU": 2, "VGPU": 1}}).build()
    [gpu] = Reshaping(store).move(("node", {"VGPU": 4}, "gpu"), providers=(child("gpu", "node"),)).created
    moving.generation = store.consumer(moving.uuid).generation

    moving.begin({after: {"VCPU": 2, "VGPU": 1}})

    assert moving.migrations == {node: {"VCPU": 2}, gpu: {"VGPU": 1}}


# --- Server groups ----------------------------------------------------------------------------------------------------


@pytest.mark.backends("sqlite", "mariadb")
def test_a_migration_is_in_the_group_of_its_instance_and_a_residue_in_none(
    store: Store, source: str, destination: str
) -> None:
    group = ServerGroup(uuid=ids.fresh(), policy="anti-affinity")
    first, second = (Moving(store, {source: {"VCPU": 1}}) for _ in range(2))
    first.build(group=group)
    first.begin({destination: {"VCPU": 1}}, new={"group": group})
    assert row(store, first.migration).consumer_group_id == row(store, first.uuid).consumer_group_id is not None
    for host in (source, destination):
        with pytest.raises(errors.GroupRuleRefused):
            store.claim(second.uuid, {host: {"VCPU": 1}}, group=group)

    first.confirm(guest_gone=False, leave_residue=True)

    assert row(store, first.migration).consumer_group_id is None
    second.build(group=group)
    with pytest.raises(errors.GroupRuleRefused):
        second.begin({destination: {"VCPU": 1}})
    assert second.amounts == {source: {"VCPU": 1}}


# --- Concurrent messages ----------------------------------------------------------------------------------------------


# On SQLite there is no other writer while a message is carried out.
@pytest.mark.backends("mariadb")
@pytest.mark.parametrize("late", ["swap", "confirm"])
def test_a_swap_or_confirm_beside_a_revert_fails_because_the_claim_is_released(
    store: Store, other_process: Store, late: str
) -> None:
    def interrupted(after: int) -> list[str]:
        hosts = [store.provider(VCPU=8) for _ in range(3)]
        moving = Moving(store, {hosts[0]: {"VCPU": 1}}).build()
        moving.begin({hosts[1]: {"VCPU": 1}})
        revert = moving.ending("revert")
        with call_between(store.database, after, lambda: other_process.dispatcher.call(revert)) as between:
            if not after:
                moving.swap({hosts[2]: {"VCPU": 1}}) if late == "swap" else moving.confirm()
                return between
            with pytest.raises(errors.ClaimReleased):
                moving.swap({hosts[2]: {"VCPU": 1}}) if late == "swap" else moving.confirm()
        assert moving.amounts == moving.held
        return between

    # The request is stored first. Before the next write, no row is locked that the other message needs.
    stored, *rest = interrupted(0)
    assert stored.startswith("INSERT INTO requests")
    reads = list(itertools.takewhile(lambda sql: sql.startswith("SELECT") and not sql.endswith("MODE"), rest))
    assert len(reads) > 1
    for after in range(1, len(reads) + 2):
        interrupted(after)
    assert store.is_sound()


@pytest.mark.backends("mariadb")
def test_the_slower_of_two_concurrent_moves_of_an_instance_is_refused(store: Store, other_process: Store) -> None:
    hosts = [store.provider(VCPU=100) for _ in range(3)]

    def interrupted(after: int) -> list[str]:
        moving = Moving(store, {hosts[0]: {"VCPU": 1}}).build()
        faster = replace(moving, store=other_process, migration=ids.fresh())
        with call_between(store.database, after, lambda: faster.begin({hosts[1]: {"VCPU": 1}})) as between:
            if not after:
                moving.begin({hosts[2]: {"VCPU": 1}})
                return between
            with pytest.raises((errors.ClaimReleased, errors.ClaimContention)):
                moving.begin({hosts[2]: {"VCPU": 1}})
        return between

    statements = interrupted(0)
    reads = list(itertools.takewhile(lambda sql: sql.startswith("SELECT") and not sql.endswith("MODE"), statements))
    assert len(reads) > 2
    for after in range(1, len(reads) + 1):
        interrupted(after)
    assert store.is_sound()
