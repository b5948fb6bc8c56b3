"""Test how moves begin: the allocations of instance and migration, and the conditions that refuse a move."""

from collections import Counter
from typing import Any

import pytest
from support.databases.statements import listening, statements_of
from support.placement_store.builders import Store
from support.placement_store.move_builders import FREE, LARGE, SMALL, Moving, disk, row

from moorage import errors, ids

pytestmark = pytest.mark.backends("sqlite", "mariadb", "memory")

# --- Beginning --------------------------------------------------------------------------------------------------------


@pytest.mark.backends("sqlite", "mariadb")
def test_a_move_gives_the_source_to_the_migration_and_the_destination_to_the_instance(
    store: Store, source: str, destination: str, moving: Moving
) -> None:
    before = row(store, moving.uuid)

    answer = moving.begin({destination: SMALL})

    assert (moving.amounts, moving.migrations) == ({destination: SMALL}, {source: SMALL})
    instance, migration = store.consumer(moving.uuid), store.consumer(moving.migration)
    assert (answer.claim_id, answer.consumer_generation) == (instance.claim_id, 2)
    assert (instance.root_provider_uuid, instance.accepted_by, instance.owner) == (destination, None, "mover")
    assert (migration.consumer_type, migration.generation) == ("MIGRATION", 1)
    assert (migration.claim_id, migration.accepted_by) == (moving.source_claim, moving.attempt)
    assert (migration.root_provider_uuid, migration.owner) == (source, "conductor")
    assert (migration.project_id, migration.user_id) == ("project", "user")
    carried = row(store, moving.migration)
    assert carried.migration_of == moving.uuid
    for column in ("accepted_host", "accepted_at", "claimed_at"):
        assert getattr(carried, column) == getattr(before, column) is not None
    assert store.used(source) == store.used(destination) == SMALL
    assert store.is_sound()


@pytest.mark.backends("sqlite", "mariadb")
def test_a_move_replaces_the_rows_of_the_source_and_keeps_the_row_of_the_pool(
    store: Store, source: str, destination: str, pool: str, i1: Moving
) -> None:
    before, generations = store.rows(), {uuid: store.generation(uuid) for uuid in (source, destination, pool)}

    i1.begin({destination: SMALL, **disk(pool, 50)})

    after = store.rows()
    assert [before[number] for number in before.keys() & after.keys()] == [
        one for one in before.values() if one[3] == 50
    ]
    assert (len(before.keys() - after.keys()), len(after.keys() - before.keys())) == (2, 4)
    assert (i1.amounts, i1.migrations) == ({destination: SMALL, **disk(pool, 50)}, {source: SMALL})
    assert {uuid: store.generation(uuid) - old for uuid, old in generations.items()} == {
        source: 1,
        destination: 1,
        pool: 1,
    }


@pytest.mark.parametrize(("new", "held_meanwhile"), [(20, 50), (50, 50), (70, 70)])
def test_the_instance_holds_the_larger_amount_of_a_common_pool_until_the_move_ends(
    store: Store, source: str, destination: str, pool: str, i1: Moving, new: int, held_meanwhile: int
) -> None:
    i1.begin({destination: LARGE, **disk(pool, new)}, kind="resize")
    assert (i1.amounts, i1.migrations) == ({destination: LARGE, **disk(pool, held_meanwhile)}, {source: SMALL})

    i1.confirm()

    assert i1.amounts == {destination: LARGE, **disk(pool, new)}
    assert (store.used(pool), store.used(source)) == ({"DISK_GB": new}, FREE)
    assert store.is_sound()


@pytest.mark.parametrize("new", [20, 50, 70])
def test_a_revert_restores_the_amounts_on_the_source_and_on_the_pool(
    store: Store, source: str, destination: str, pool: str, i1: Moving, new: int
) -> None:
    i1.begin({destination: LARGE, **disk(pool, new)}, kind="resize")

    answer = i1.revert()

    assert i1.amounts == {source: SMALL, **disk(pool, 50)}
    assert (answer.claim_id, answer.consumer_generation) == (i1.source_claim, 3)
    assert (store.used(pool), store.used(destination)) == ({"DISK_GB": 50}, FREE)
    assert store.is_sound()


def test_a_pool_used_by_one_side_is_held_by_that_side(
    store: Store, source: str, destination: str, pool: str, i1: Moving
) -> None:
    other = store.provider("other pool", DISK_GB=100)
    i1.begin({destination: SMALL, **disk(other, 40)})
    assert i1.amounts == {destination: SMALL, **disk(other, 40)}
    assert i1.migrations == {source: SMALL, **disk(pool, 50)}

    i1.revert()

    assert i1.amounts == {source: SMALL, **disk(pool, 50)}
    assert store.used(other) == {"DISK_GB": 0}


def test_a_move_to_a_full_destination_is_refused_and_changes_nothing(store: Store, source: str, moving: Moving) -> None:
    tiny, before = store.provider(VCPU=1), store.rows()
    with pytest.raises(errors.CapacityExceeded) as caught:
        moving.begin({tiny: {"VCPU": 2}})
    assert caught.value.provider_uuid == tiny
    assert store.rows() == before
    assert store.consumer(moving.uuid).accepted_by == moving.attempt
    assert not moving.is_buried()


def test_a_move_needs_no_more_room_on_the_source_and_a_common_pool(
    store: Store, source: str, destination: str, pool: str, i1: Moving
) -> None:
    store.put(ids.fresh(), {source: {"VCPU": 6}, **disk(pool, 50)})
    i1.begin({destination: SMALL, **disk(pool, 50)})
    with pytest.raises(errors.CapacityExceeded):
        i1.swap({destination: SMALL, **disk(pool, 51)})
    assert i1.migrations == {source: SMALL}


# --- Refused moves ----------------------------------------------------------------------------------------------------


def test_a_move_with_another_claim_or_a_stale_generation_is_refused(
    store: Store, source: str, destination: str, moving: Moving
) -> None:
    with pytest.raises(errors.ClaimReleased):
        moving.begin({destination: SMALL}, claim_id=ids.fresh())
    for named in (None, 0, 2):
        with pytest.raises(errors.ConsumerGenerationConflict) as caught:
            moving.begin({destination: SMALL}, new={"consumer_generation": named})
        assert (caught.value.named, caught.value.found) == (named, 1)
    store.put(moving.uuid, {source: SMALL}, 1)
    with pytest.raises(errors.ConsumerGenerationConflict):
        moving.begin({destination: SMALL})
    moving.generation = 2
    moving.begin({destination: SMALL})


def test_an_instance_with_an_unaccepted_claim_is_not_moved(store: Store, source: str, destination: str) -> None:
    moving = Moving(store, {source: SMALL})
    moving.source_claim, moving.generation = store.claim(moving.uuid, {source: SMALL}).claim_id, 1
    with pytest.raises(errors.InvalidState):
        moving.begin({destination: SMALL})


def test_a_move_of_a_deleted_instance_or_with_a_deleted_migration_is_refused(
    store: Store, source: str, destination: str, moving: Moving
) -> None:
    store.delete(moving.migration, for_good=True)
    with pytest.raises(errors.ConsumerDeleted) as caught:
        moving.begin({destination: SMALL})
    assert caught.value.consumer_uuid == moving.migration
    assert moving.amounts == {source: SMALL}
    store.delete(moving.uuid, for_good=True)
    with pytest.raises(errors.ConsumerDeleted):
        moving.begin({destination: SMALL}, migration_uuid=ids.fresh())
    assert store.rows() == {}
    with pytest.raises(errors.ClaimReleased):
        Moving(store, {source: SMALL}, source_claim=ids.fresh(), generation=1).begin({destination: SMALL})


def test_an_existing_migration_and_a_second_move_before_the_first_has_ended_are_refused(
    store: Store, destination: str, third: str, moving: Moving
) -> None:
    store.put(moving.migration, {destination: {"VCPU": 1}})
    with pytest.raises(errors.AlreadyExists):
        moving.begin({destination: SMALL})
    store.delete(moving.migration)
    second = Moving(store, {destination: SMALL}, uuid=moving.uuid)
    moving.migration = ids.fresh()
    moving.begin({destination: SMALL})
    moving.accept()
    second.source_claim, second.generation = moving.claim_id, moving.generation

    with pytest.raises(errors.InvalidState):
        second.begin({third: SMALL})

    moving.confirm()
    second.generation += 1
    second.begin({third: SMALL})
    assert (second.amounts, second.migrations) == ({third: SMALL}, {destination: SMALL})


# --- Same host --------------------------------------------------------------------------------------------------------


def test_a_resize_on_the_same_host_needs_room_for_both_sizes_until_it_is_confirmed(
    store: Store, source: str, moving: Moving
) -> None:
    with pytest.raises(errors.CapacityExceeded):
        moving.begin({source: {"VCPU": 7}}, kind="resize")
    moving.begin({source: {"VCPU": 6, "MEMORY_MB": 4096}}, kind="resize")
    assert (moving.amounts, moving.migrations) == ({source: {"VCPU": 6, "MEMORY_MB": 4096}}, {source: SMALL})
    assert store.used(source) == {"VCPU": 8, "MEMORY_MB": 6144}

    moving.confirm()

    assert store.used(source) == {"VCPU": 6, "MEMORY_MB": 4096}
    assert store.consumer(moving.uuid).claim_id == moving.claim_id


def test_a_reverted_resize_on_the_same_host_keeps_foreign_amounts(store: Store, source: str, moving: Moving) -> None:
    moving.generation = store.put(moving.uuid, {source: {"VCPU": 3, "MEMORY_MB": 2048}}, 1)
    moving.begin({source: {"VCPU": 4}}, kind="resize")
    assert (moving.amounts, moving.migrations) == ({source: {"VCPU": 5}}, {source: SMALL})

    answer = moving.revert()

    assert moving.amounts == {source: {"VCPU": 3, "MEMORY_MB": 2048}}
    assert answer.extras == {}
    assert store.is_sound()


def test_a_confirmed_resize_on_the_same_host_keeps_foreign_amounts(store: Store, source: str, moving: Moving) -> None:
    moving.generation = store.put(moving.uuid, {source: {"VCPU": 3, "MEMORY_MB": 2048}}, 1)
    moving.begin({source: {"VCPU": 4}}, kind="resize")
    moving.confirm()
    assert moving.amounts == {source: {"VCPU": 5}}


@pytest.mark.backends("sqlite", "mariadb")
def test_each_step_of_a_move_reads_the_providers_of_a_consumer_on_its_host_once(
    store: Store, moving: Moving, destination: str
) -> None:
    read: Counter[tuple[str, str]] = Counter()

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if " ".join(statement.split()).startswith("SELECT resource_providers.id FROM resource_providers WHERE"):
            read[statement, str(parameters)] += 1

    with listening(store.database.engine, "before_cursor_execute", note):
        moving.begin({destination: SMALL})
        begun = +read
        read.clear()
        moving.accept()
        moving.revert(guest_gone=True)
    assert set(begun.values()) == set(read.values()) == {1}


@pytest.mark.backends("sqlite", "mariadb")
def test_each_step_of_a_move_reads_the_providers_that_it_names_once(
    store: Store, i1: Moving, source: str, destination: str, pool: str
) -> None:
    def reads(statements: list[str]) -> int:
        start = "SELECT resource_providers.uuid, resource_providers.id, resource_providers.root_provider_id FROM"
        return sum(" ".join(statement.split()).startswith(start) for statement in statements)

    with statements_of(store.database) as begun:
        i1.begin({destination: SMALL, **disk(pool, 50)})
    with statements_of(store.database) as swapped:
        i1.swap({source: SMALL, **disk(pool, 50)})
    assert (reads(begun), reads(swapped)) == (1, 1)
