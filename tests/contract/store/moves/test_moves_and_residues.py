"""Test the residues that a move leaves where a guest may still run, and which of them a delete removes."""

import pytest
from support.placement_store.builders import Store
from support.placement_store.move_builders import FREE, LARGE, SMALL, Moving, disk

from moorage import errors, ids

pytestmark = pytest.mark.backends("sqlite", "mariadb", "memory")


@pytest.fixture
def moving(store: Store, source: str, pool: str) -> Moving:
    return Moving(store, {source: SMALL, **disk(pool, 50)}).build()


# --- Confirmed --------------------------------------------------------------------------------------------------------


@pytest.fixture
def evacuated(store: Store, destination: str, moving: Moving) -> Moving:
    """An instance that is evacuated from its source, which is down, and from its pool."""
    moving.begin({destination: SMALL}, kind="evacuation")
    moving.accept()
    return moving


def test_an_evacuation_leaves_a_residue_on_the_source_and_none_on_a_pool(
    store: Store, source: str, destination: str, pool: str, evacuated: Moving
) -> None:
    answer = evacuated.confirm(guest_gone=False, leave_residue=True)

    assert answer.residue_uuid == evacuated.migration
    residue = store.consumer(evacuated.migration)
    assert (residue.consumer_type, residue.claim_id, residue.owner) == ("RESIDUE", None, None)
    assert (residue.accepted_by, residue.root_provider_uuid) == (evacuated.attempt, source)
    assert evacuated.migrations == {source: SMALL}
    assert store.used(pool) == {"DISK_GB": 0}
    assert [state.consumer_uuid for state in store.listed(residues=True) if state.claim_id is None] == [
        evacuated.migration
    ]
    assert store.is_sound()


def test_a_move_that_left_a_residue_cannot_be_ended_again(store: Store, destination: str, evacuated: Moving) -> None:
    message = evacuated.ending("confirm", leave_residue=True)
    answer = store.dispatcher.call(message)
    assert store.dispatcher.call(message) == answer
    for outcome in ("confirm", "revert"):
        with pytest.raises(errors.ConsumerNotFound):
            store.dispatcher.call(evacuated.ending(outcome, leave_residue=True))
    with pytest.raises(errors.ConsumerNotFound):
        evacuated.swap({destination: LARGE}, leave_residue=True)


def test_the_residue_of_an_evacuation_survives_later_moves_and_the_delete_until_its_host_cleans_up(
    store: Store, source: str, destination: str, evacuated: Moving
) -> None:
    evacuated.confirm(guest_gone=False, leave_residue=True)
    third = store.provider("third", VCPU=8, MEMORY_MB=8192)
    later = Moving(store, {destination: SMALL}, uuid=evacuated.uuid, generation=3, source_claim=evacuated.claim_id)
    later.begin({third: SMALL})
    later.confirm()
    assert evacuated.migrations == {source: SMALL}

    released = store.delete(
        evacuated.uuid, for_good=True, leave_residue=True, migration_uuids=(evacuated.migration, later.migration)
    )

    assert (released.residue_uuid, released.residue_uuids) == (None, (evacuated.migration,))
    assert evacuated.migrations == {source: SMALL}
    store.delete(evacuated.migration, for_good=True)
    assert store.rows() == {}
    assert evacuated.is_buried()


@pytest.mark.parametrize("reported", ["before", "after"])
def test_a_host_that_cleans_up_before_or_after_the_confirm_frees_the_residue(
    store: Store, source: str, evacuated: Moving, reported: str
) -> None:
    if reported == "before":
        store.delete(evacuated.attempt, for_good=True)
    answer = evacuated.confirm(guest_gone=False, leave_residue=True)
    assert answer.residue_uuid == (None if reported == "before" else evacuated.migration)
    if reported == "after":
        assert store.used(source) == SMALL
        store.delete(evacuated.attempt, for_good=True)

    assert evacuated.is_buried()
    assert store.used(source) == FREE


def test_an_attempt_reported_gone_does_not_delete_a_migration_under_way(
    store: Store, source: str, evacuated: Moving
) -> None:
    store.delete(evacuated.attempt, for_good=True)
    assert evacuated.migrations == evacuated.held


# --- Reverted ---------------------------------------------------------------------------------------------------------


def test_a_reverted_move_leaves_a_residue_on_an_unreachable_destination(
    store: Store, source: str, destination: str, pool: str, moving: Moving
) -> None:
    moving.begin({destination: LARGE, pool: {"DISK_GB": 70}}, kind="resize")
    moving.accept()

    answer = moving.revert(leave_residue=True)

    assert answer.residue_uuid == moving.next_attempt
    assert store.held(moving.next_attempt) == {destination: LARGE}
    assert store.consumer(moving.next_attempt).consumer_type == "RESIDUE"
    assert moving.amounts == moving.held
    assert store.used(pool) == {"DISK_GB": 50}
    assert moving.is_buried()
    assert store.is_sound()


def test_a_reverted_resize_on_the_same_host_leaves_a_residue_of_the_new_size_alone(
    store: Store, source: str, moving: Moving, pool: str
) -> None:
    more = {source: {"VCPU": 3, "MEMORY_MB": 2048}, pool: {"DISK_GB": 50}}
    moving.generation = store.put(moving.uuid, more, 1)
    moving.begin({source: LARGE, pool: {"DISK_GB": 50}}, kind="resize")
    moving.accept()

    moving.revert(leave_residue=True)

    assert (moving.amounts, store.held(moving.next_attempt)) == (more, {source: LARGE})


@pytest.mark.parametrize("accepted", [False, True])
def test_a_destination_without_an_accepted_claim_or_without_a_guest_leaves_no_residue(
    store: Store, destination: str, moving: Moving, accepted: bool
) -> None:
    moving.begin({destination: LARGE})
    if accepted:
        moving.accept()
    assert moving.revert(guest_gone=accepted, leave_residue=True).residue_uuid is None
    assert store.used(destination) == FREE


# --- Deleted ----------------------------------------------------------------------------------------------------------


def test_a_delete_during_a_move_deletes_instance_and_migration_together(
    store: Store, destination: str, moving: Moving
) -> None:
    moving.begin({destination: SMALL})
    request_id = ids.fresh()

    for _ in range(2):
        released = store.delete(moving.uuid, for_good=True, migration_uuids=(moving.migration,), request_id=request_id)
        assert (released.residue_uuid, released.residue_uuids) == (None, ())

    assert store.rows() == {}
    assert moving.is_buried()
    with pytest.raises(errors.ConsumerDeleted):
        store.claim(moving.uuid, {destination: SMALL})


def test_each_host_that_may_still_run_a_guest_of_a_deleted_instance_keeps_a_residue(
    store: Store, source: str, destination: str, moving: Moving
) -> None:
    moving.begin({destination: LARGE})
    moving.accept()

    released = store.delete(moving.uuid, for_good=True, leave_residue=True, migration_uuids=(moving.migration,))

    assert released.residue_uuid == moving.next_attempt
    assert released.residue_uuids == tuple(sorted([moving.attempt, moving.next_attempt]))
    assert (store.held(moving.attempt), store.held(moving.next_attempt)) == ({source: SMALL}, {destination: LARGE})
    assert moving.is_buried()
    assert store.is_sound()


def test_an_attempt_whose_guest_is_gone_leaves_no_residue_of_a_deleted_instance(
    store: Store, source: str, destination: str, moving: Moving
) -> None:
    moving.begin({destination: LARGE})
    moving.accept()
    released = store.delete(
        moving.uuid,
        for_good=True,
        leave_residue=True,
        migration_uuids=(moving.migration,),
        guests_gone=(moving.attempt,),
    )
    assert released.residue_uuids == (moving.next_attempt,)
    assert store.used(source) == FREE


def test_a_migration_named_by_a_delete_cannot_be_created_later(store: Store, destination: str, moving: Moving) -> None:
    other = ids.fresh()
    store.delete(moving.uuid, for_good=True, migration_uuids=(moving.migration, other))
    for uuid in (moving.migration, other):
        with pytest.raises(errors.ConsumerDeleted):
            store.put(uuid, {destination: SMALL})


def test_a_repeated_delete_with_migrations_deletes_them_too(
    store: Store, source: str, destination: str, moving: Moving
) -> None:
    moving.begin({destination: SMALL})
    moving.accept()
    moving.confirm(guest_gone=False, leave_residue=True)
    store.delete(moving.uuid, claim_id=moving.claim_id, for_good=True)
    assert moving.migrations == {source: SMALL}
    store.delete(moving.uuid, claim_id=moving.claim_id, for_good=True, migration_uuids=(moving.migration,))
    assert store.rows() == {}


def test_a_delete_may_name_only_its_own_migrations_and_only_for_good(
    store: Store, source: str, destination: str, moving: Moving
) -> None:
    moving.begin({destination: SMALL})
    other = ids.fresh()
    store.claim(other, {destination: SMALL})
    before = store.rows()
    for uuid, for_good in ((moving.uuid, False), (other, True)):
        with pytest.raises(errors.InvalidRequest) as caught:
            store.delete(uuid, for_good=for_good, migration_uuids=(moving.migration,))
        assert caught.value.path == "$.migration_uuids"
    assert store.rows() == before
