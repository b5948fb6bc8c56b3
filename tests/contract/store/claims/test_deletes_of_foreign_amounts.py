"""Test that foreign amounts on a consumer deleted for good are deleted or kept, and are named in either case."""

from typing import Any

import pytest
from sqlalchemy import select
from support.placement_store.builders import Amounts, Store, http_put, request
from support.placement_store.group_builders import Groups
from support.placement_store.move_builders import SMALL, Moving, Server
from support.placement_store.reshape_builders import Reshaping, child

from moorage import errors, ids
from moorage.messages import Released
from moorage.model.allocations import amounts_of
from moorage.service.stored_requests import Retention
from placement_store.claims import put as puts
from placement_store.schema import consumers, tombstones
from placement_store.upkeep.pruning import Pruning

pytestmark = pytest.mark.backends("sqlite", "mariadb", "memory")


@pytest.fixture
def server(store: Store, host: str, pool: str) -> Server:
    return Server(store, host, pool)


def put_over_http(store: Store, uuid: str, amounts: Amounts, generation: int) -> None:
    store.database.write(lambda c: puts.write(c, {uuid: http_put(amounts, generation)}, store.names))


# --- Deleted and named ------------------------------------------------------------------------------------------------


def test_foreign_amounts_are_deleted_with_the_server_and_named(
    store: Store, host: str, pool: str, burdened: Server
) -> None:
    request_id = ids.fresh()

    for _ in range(2):
        released = burdened.delete(request_id=request_id)
        assert amounts_of(released.extras) == {host: {"VCPU": 1}, pool: {"DISK_GB": 5}}

    assert store.rows() == {}
    assert amounts_of(burdened.delete().extras) == {}


def test_nothing_is_named_for_a_server_without_foreign_amounts(store: Store, server: Server) -> None:
    for keep in (True, False):
        assert server.delete(keep_extras=keep) == Released()
    assert store.rows() == {}


def test_amounts_moved_by_a_reshape_are_not_foreign(store: Store, pool: str) -> None:
    node = store.provider("node", VCPU=8, VGPU=4)
    uuid, claimed = ids.fresh(), {node: {"VCPU": 2, "VGPU": 1}, pool: {"DISK_GB": 20}}
    claim_id = store.claim(uuid, claimed).claim_id
    Reshaping(store).move(("node", {"VGPU": 4}, "gpu"), providers=(child("gpu", "node"),))
    gpu = next(provider for provider in store.held(uuid) if provider not in (node, pool))
    store.put(uuid, {node: {"VCPU": 2}, gpu: {"VGPU": 3}, pool: {"DISK_GB": 20}}, store.consumer(uuid).generation)

    released = store.delete(uuid, for_good=True, claimed_with={claim_id: request(claimed)}, keep_extras=True)

    assert amounts_of(released.extras) == store.held(uuid) == {gpu: {"VGPU": 2}}
    assert store.is_sound()


def test_a_resource_class_deleted_since_the_claim_does_not_prevent_the_delete(store: Store, host: str) -> None:
    uuid = ids.fresh()
    claim_id = store.claim(uuid, {host: SMALL}).claim_id
    claimed = {claim_id: request({host: SMALL | {"CUSTOM_GONE": 1}})}
    assert store.delete(uuid, for_good=True, claimed_with=claimed) == Released()
    assert store.rows() == {}


@pytest.mark.parametrize("keep", [True, False])
def test_without_the_right_claim_everything_is_deleted_and_nothing_is_foreign(
    store: Store, burdened: Server, keep: bool
) -> None:
    claimed = {ids.fresh(): request(burdened.claimed)}
    assert burdened.delete(claimed_with=claimed, keep_extras=keep) == Released()
    assert store.rows() == {}


@pytest.mark.parametrize("keep", [True, False])
def test_all_amounts_of_a_consumer_without_a_claim_are_foreign(store: Store, host: str, pool: str, keep: bool) -> None:
    uuid, held = ids.fresh(), {host: SMALL, pool: {"DISK_GB": 5}}
    store.put(uuid, held)

    released = store.delete(uuid, for_good=True, keep_extras=keep)

    assert amounts_of(released.extras) == held
    if keep:
        assert store.held(uuid) == held
    else:
        assert store.rows() == {}


def test_the_rest_of_a_claim_that_another_client_has_removed_is_not_foreign(
    store: Store, host: str, pool: str, server: Server
) -> None:
    server.others_put({pool: {"DISK_GB": 25}})
    assert store.consumer(server.uuid).claim_id is None

    released = server.delete(keep_extras=True)

    assert amounts_of(released.extras) == store.held(server.uuid) == {pool: {"DISK_GB": 5}}


def test_options_of_a_delete_for_good_are_refused_for_a_release(store: Store, server: Server) -> None:
    for more in ({"keep_extras": True}, {"migration_uuids": (ids.fresh(),)}):
        with pytest.raises(errors.InvalidRequest) as caught:
            server.delete(for_good=False, **more)
        assert caught.value.path == f"$.{next(iter(more))}"
    assert store.held(server.uuid) == server.claimed


# --- Kept -------------------------------------------------------------------------------------------------------------


def test_kept_foreign_amounts_stay_on_a_consumer_that_cannot_be_claimed_for(
    store: Store, host: str, pool: str, burdened: Server
) -> None:
    left = {host: {"VCPU": 1}, pool: {"DISK_GB": 5}}

    released = burdened.delete(keep_extras=True)

    assert amounts_of(released.extras) == left
    consumer = store.consumer(burdened.uuid)
    assert store.held(burdened.uuid) == left
    assert (consumer.claim_id, consumer.root_provider_uuid, consumer.accepted_by, consumer.owner) == (None,) * 4
    assert (store.used(host)["VCPU"], store.used(pool)) == (1, {"DISK_GB": 5})
    assert store.listed(residues=True) == [], "it is listed as a residue"
    for generation in (None, consumer.generation):
        with pytest.raises(errors.ConsumerDeleted):
            store.claim(burdened.uuid, {host: SMALL}, consumer_generation=generation)
        with pytest.raises(errors.ConsumerDeleted):
            store.put(burdened.uuid, {host: SMALL}, generation)
    assert store.is_sound()


def test_a_repeated_delete_succeeds_and_keeps_the_foreign_amounts(
    store: Store, host: str, pool: str, burdened: Server
) -> None:
    left, request_id = {host: {"VCPU": 1}, pool: {"DISK_GB": 5}}, ids.fresh()
    calls: list[dict[str, Any]] = [{"request_id": request_id}, {"request_id": request_id}, {}, {"claimed_with": {}}]
    for more in calls:
        assert amounts_of(burdened.delete(keep_extras=True, **more).extras) == left
    burdened.delete(keep_extras=True, claim_id=burdened.claim_id)
    burdened.delete(claim_id=burdened.claim_id)
    assert store.held(burdened.uuid) == left
    with pytest.raises(errors.ClaimReleased):
        burdened.delete(for_good=False, claim_id=burdened.claim_id, claimed_with={})


def test_a_release_of_kept_foreign_amounts_deletes_the_consumer(store: Store, host: str, burdened: Server) -> None:
    burdened.delete(keep_extras=True)

    store.delete(burdened.uuid)

    assert store.rows() == {}
    with pytest.raises(errors.ConsumerNotFound):
        store.consumer(burdened.uuid)
    with pytest.raises(errors.ConsumerDeleted):
        store.claim(burdened.uuid, {host: SMALL})


def test_a_second_delete_without_keep_removes_and_names_the_kept_amounts(
    store: Store, host: str, pool: str, burdened: Server
) -> None:
    burdened.delete(keep_extras=True)
    assert amounts_of(store.delete(burdened.uuid, for_good=True).extras) == {host: {"VCPU": 1}, pool: {"DISK_GB": 5}}
    assert store.rows() == {}


@pytest.mark.backends("sqlite", "mariadb")
def test_kept_foreign_amounts_can_be_changed_and_cleared_over_http(
    store: Store, host: str, pool: str, burdened: Server
) -> None:
    burdened.delete(keep_extras=True)
    generation = store.consumer(burdened.uuid).generation

    put_over_http(store, burdened.uuid, {pool: {"DISK_GB": 5}}, generation)
    assert store.held(burdened.uuid) == {pool: {"DISK_GB": 5}}
    put_over_http(store, burdened.uuid, {}, generation + 1)

    assert store.scalar(select(consumers.c.id).where(consumers.c.uuid == burdened.uuid)) is None


def test_a_reshape_moves_kept_foreign_amounts(store: Store) -> None:
    node = store.provider("node", VCPU=8, VGPU=4)
    uuid = ids.fresh()
    store.put(uuid, {node: {"VGPU": 2}})
    store.delete(uuid, for_good=True, keep_extras=True)

    Reshaping(store).move(("node", {"VGPU": 4}, "gpu"), providers=(child("gpu", "node"),))

    assert node not in store.held(uuid)
    assert list(store.held(uuid).values()) == [{"VGPU": 2}]
    with pytest.raises(errors.ConsumerDeleted):
        store.claim(uuid, {node: {"VCPU": 1}})


@pytest.mark.backends("sqlite", "mariadb")
def test_a_deleted_server_with_kept_foreign_amounts_is_in_no_group(store: Store) -> None:
    groups = Groups(store)
    group, host = groups.group("anti-affinity"), groups.host()
    member = groups.claim(group, host)
    more = {host: {name: amount + 1 for name, amount in store.held(member.uuid)[host].items()}}
    claimed = {member.claim_id: request(store.held(member.uuid))}
    store.put(member.uuid, more, 1)

    store.delete(member.uuid, for_good=True, claimed_with=claimed, keep_extras=True)

    assert groups.shown(group).members == {}
    assert store.held(member.uuid)
    groups.claim(group, host)


@pytest.mark.backends("sqlite", "mariadb")
def test_a_tombstone_is_kept_while_its_consumer_holds_foreign_amounts(store: Store, burdened: Server) -> None:
    burdened.delete(keep_extras=True)
    pruning = Pruning(store.database, Retention(acknowledged=0.0, unacknowledged=0.0, tombstones=0.0))
    buried = select(tombstones.c.consumer_uuid)
    store.age("tombstones", "created_at", 10.0)

    pruning.round()
    assert store.scalar(buried) == burdened.uuid
    store.delete(burdened.uuid)
    pruning.round()

    assert store.scalar(buried) is None


@pytest.mark.backends("sqlite", "mariadb")
def test_an_audit_shows_kept_foreign_amounts_by_consumer(store: Store, host: str, pool: str, burdened: Server) -> None:
    other = Server(store, host, pool)
    burdened.delete(keep_extras=True)

    found = {holder.uuid: holder.foreign for holder in store.audit().holders}

    assert found == {burdened.uuid: {host: {"VCPU": 1}, pool: {"DISK_GB": 5}}, other.uuid: {}}


# --- Residues ---------------------------------------------------------------------------------------------------------


def test_foreign_amounts_on_an_unreachable_host_belong_to_the_residue(
    store: Store, host: str, pool: str, burdened: Server
) -> None:
    released = burdened.delete(leave_residue=True)

    assert released.residue_uuid == burdened.attempt
    assert amounts_of(released.extras) == {host: {"VCPU": 1}, pool: {"DISK_GB": 5}}
    assert store.held(burdened.attempt) == {host: SMALL | {"VCPU": 3}}
    assert amounts_of(store.delete(burdened.attempt, for_good=True).extras) == {}
    assert store.rows() == {}


def test_kept_foreign_amounts_are_not_in_the_residue(store: Store, host: str, pool: str, burdened: Server) -> None:
    burdened.delete(leave_residue=True, keep_extras=True)

    assert store.held(burdened.attempt) == {host: SMALL}
    assert store.held(burdened.uuid) == {host: {"VCPU": 1}, pool: {"DISK_GB": 5}}
    assert store.is_sound()
    store.delete(burdened.attempt, for_good=True, keep_extras=True)
    assert list(store.held(burdened.uuid)) == [host, pool]


# --- During a move ----------------------------------------------------------------------------------------------------


@pytest.fixture
def moved(store: Store, host: str, pool: str, destination: str) -> Moving:
    """A resize that waits for its confirmation; both sides use the pool, and there are foreign amounts on each side."""
    moving = Moving(store, {host: SMALL, pool: {"DISK_GB": 50}}).build()
    moving.begin({destination: SMALL, pool: {"DISK_GB": 20}}, kind="resize")
    moving.accept()
    store.put(moving.uuid, {destination: SMALL | {"VCPU": 3}, pool: {"DISK_GB": 57}}, 2)
    store.put(moving.migration, {host: SMALL | {"VCPU": 4}}, 1, consumer_type="MIGRATION")
    return moving


def claims_of(moving: Moving) -> dict[str, Any]:
    return {moving.source_claim: request(moving.held), moving.claim_id: request(moving.claimed)}


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("is_named", [True, False])
def test_foreign_amounts_on_both_sides_of_a_move_are_named_and_kept_on_request(
    store: Store, host: str, pool: str, destination: str, moved: Moving, keep: bool, is_named: bool
) -> None:
    extras = {host: {"VCPU": 2}, destination: {"VCPU": 1}, pool: {"DISK_GB": 7}}
    migrations = (moved.migration,) if is_named else ()

    released = store.delete(
        moved.uuid, for_good=True, migration_uuids=migrations, claimed_with=claims_of(moved), keep_extras=keep
    )

    assert amounts_of(released.extras) == extras
    assert moved.is_buried()
    if keep:
        assert store.held(moved.uuid) == extras
        store.delete(moved.uuid)
    assert store.rows() == {}
    assert store.is_sound()


def test_each_side_of_a_move_leaves_its_own_residue_beside_kept_foreign_amounts(
    store: Store, host: str, pool: str, destination: str, moved: Moving
) -> None:
    released = store.delete(
        moved.uuid, for_good=True, leave_residue=True, claimed_with=claims_of(moved), keep_extras=True
    )

    assert released.residue_uuids == tuple(sorted([moved.attempt, moved.next_attempt]))
    assert (store.held(moved.attempt), store.held(moved.next_attempt)) == ({host: SMALL}, {destination: SMALL})
    assert store.held(moved.uuid) == {host: {"VCPU": 2}, destination: {"VCPU": 1}, pool: {"DISK_GB": 7}}
    assert store.is_sound()


def test_amounts_moved_to_the_servers_consumer_need_no_room_and_no_unit_rules(
    store: Store, host: str, moved: Moving
) -> None:
    store.set_inventories(host, store.generation(host), VCPU=1, MEMORY_MB=2048)
    store.delete(moved.uuid, for_good=True, claimed_with=claims_of(moved), keep_extras=True)
    assert store.held(moved.uuid)[host] == {"VCPU": 2}


def test_a_migration_without_its_claim_leaves_no_foreign_amounts_of_its_own(
    store: Store, host: str, pool: str, destination: str, moved: Moving
) -> None:
    store.put(moved.migration, {pool: {"DISK_GB": 3}}, 2, consumer_type="MIGRATION")
    claimed = claims_of(moved)

    released = store.delete(moved.uuid, for_good=True, claimed_with=claimed, keep_extras=True)

    assert store.held(moved.uuid) == amounts_of(released.extras) == {destination: {"VCPU": 1}, pool: {"DISK_GB": 7}}


# --- Migrations that are not named ------------------------------------------------------------------------------------


def test_an_unnamed_migration_is_deleted_with_its_server(
    store: Store, host: str, destination: str, moved: Moving
) -> None:
    store.delete(moved.uuid, for_good=True)

    assert store.rows() == {}
    assert moved.is_buried()


def test_the_residue_of_an_evacuation_stays_until_its_host_answers(store: Store, host: str, destination: str) -> None:
    moving = Moving(store, {host: SMALL}).build()
    moving.begin({destination: SMALL}, kind="evacuation")
    moving.accept()
    moving.confirm(guest_gone=False, leave_residue=True)

    released = store.delete(moving.uuid, for_good=True, keep_extras=True)

    assert released.extras == {}
    assert moving.migrations == {host: SMALL}
    store.delete(moving.attempt, for_good=True)
    assert store.rows() == {}


def test_a_release_leaves_the_migration_for_a_later_delete_for_good(store: Store, host: str, moved: Moving) -> None:
    store.delete(moved.uuid)
    assert moved.migrations == {host: SMALL | {"VCPU": 4}}

    released = store.delete(moved.uuid, for_good=True, claimed_with=claims_of(moved))

    assert amounts_of(released.extras) == {host: {"VCPU": 2}}
    assert store.rows() == {}


@pytest.mark.backends("sqlite", "mariadb")
def test_foreign_amounts_stay_on_the_migration_if_the_server_has_no_row(store: Store, host: str, moved: Moving) -> None:
    store.delete(moved.uuid)
    with store.database.engine.connect() as connection, connection.begin():
        connection.execute(consumers.delete().where(consumers.c.uuid == moved.uuid))

    for _ in range(2):
        released = store.delete(moved.uuid, for_good=True, claimed_with=claims_of(moved), keep_extras=True)
        assert amounts_of(released.extras) == moved.migrations == {host: {"VCPU": 2}}
    assert store.audit().holders[0].foreign == {host: {"VCPU": 2}}


# --- Generations ------------------------------------------------------------------------------------------------------


def test_a_delete_with_a_stale_consumer_generation_is_refused(store: Store, host: str) -> None:
    uuid = ids.fresh()
    read = store.put(uuid, {host: {"VCPU": 1}})
    found = store.put(uuid, {host: {"VCPU": 2}}, read)

    with pytest.raises(errors.ConsumerGenerationConflict) as caught:
        store.delete(uuid, for_good=True, consumer_generation=read)

    assert (caught.value.named, caught.value.found) == (read, found)
    assert store.held(uuid) == {host: {"VCPU": 2}}
    store.delete(uuid, for_good=True, consumer_generation=found)
    assert store.rows() == {}


def test_a_delete_with_a_stale_migration_generation_is_refused(store: Store, host: str) -> None:
    moving = Moving(store, {host: {"VCPU": 2}}).build()
    moving.begin({store.provider("another", VCPU=8): {"VCPU": 2}})
    held = moving.amounts

    with pytest.raises(errors.ConsumerGenerationConflict) as caught:
        store.delete(moving.uuid, for_good=True, migration_uuids=(moving.migration,), migration_generation=99)

    assert caught.value.consumer_uuid == moving.migration
    assert (moving.amounts, moving.migrations) == (held, {host: {"VCPU": 2}})
