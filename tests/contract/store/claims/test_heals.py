"""Test heals: consumers get the allocations that their owner has on record, under the recorded claim, if they fit."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import delete, select, update
from support.placement_store.builders import Amounts, Store, call_between
from support.placement_store.move_builders import FREE, LARGE, SMALL, Moving, disk, row
from support.placement_store.reshape_builders import Reshaping, child

from moorage import errors, ids
from moorage.messages import (
    AcceptClaim,
    AuditStore,
    DeleteResourceClass,
    EnsureResourceClass,
    HealConsumers,
    Healed,
    Recounted,
    RecountInventories,
)
from moorage.model import Inventory, ProviderAmounts, RecordedHold, SeenConsumer, ServerGroup
from placement_store.claims import claim as claims
from placement_store.schema import allocations, consumers, inventories, tombstones
from placement_store.upkeep import audit, reconciler_log


def heal_message(*holds: RecordedHold, seen: dict[str, SeenConsumer], **more: Any) -> HealConsumers:
    return HealConsumers(**{"request_id": ids.fresh()} | more, seen=seen, holds=holds)


def hold(uuid: str, claim_id: str | None, amounts: Amounts, attempt: str | None, **more: Any) -> RecordedHold:
    fields: dict[str, Any] = {
        "consumer_type": "INSTANCE",
        "root_provider_uuid": next(iter(amounts)),
        "accepted_host": "source",
        "project_id": "project",
        "user_id": "user",
        "owner": "conductor",
    }
    parts = {uuid: ProviderAmounts(resources=dict(resources)) for uuid, resources in amounts.items()}
    return RecordedHold(**fields | more, consumer_uuid=uuid, claim_id=claim_id, accepted_by=attempt, allocations=parts)


def source_hold(moving: Moving, **more: Any) -> RecordedHold:
    return hold(moving.uuid, moving.source_claim, moving.held, moving.attempt, **more)


def seen(store: Store, *uuids: str) -> dict[str, SeenConsumer]:
    """Return the generation and the claim of each of these consumers."""
    found: dict[str, SeenConsumer] = {}
    for uuid in uuids:
        try:
            consumer = store.consumer(uuid)
        except errors.ConsumerNotFound:
            found[uuid] = SeenConsumer()
        else:
            found[uuid] = SeenConsumer(generation=consumer.generation, claim_id=consumer.claim_id)
    return found


@pytest.fixture
def heal(store: Store) -> Callable[..., Healed]:
    """Heal consumers, naming their current generations and claims unless others are given."""

    def healed(*holds: RecordedHold, gone: tuple[str, ...] = (), **more: Any) -> Healed:
        named = [*(hold.consumer_uuid for hold in holds), *gone]
        return store.dispatcher.call(heal_message(*holds, **{"seen": seen(store, *named)} | more))

    return healed


@pytest.fixture
def recount(store: Store) -> Callable[..., Recounted]:
    def counted(*uuids: str) -> Recounted:
        return store.dispatcher.call(RecountInventories(request_id=ids.fresh(), provider_uuids=uuids))

    return counted


def lose(store: Store, uuid: str) -> None:
    """Delete a consumer from the tables, with its allocations in the sums."""
    number = select(consumers.c.id).where(consumers.c.uuid == uuid).scalar_subquery()
    with store.database.engine.connect() as connection, connection.begin():
        for held in connection.execute(select(allocations).where(allocations.c.consumer_id == number)).all():
            connection.execute(
                update(inventories)
                .where(
                    inventories.c.resource_provider_id == held.resource_provider_id,
                    inventories.c.resource_class_id == held.resource_class_id,
                )
                .values(used=inventories.c.used - held.used)
            )
        connection.execute(delete(allocations).where(allocations.c.consumer_id == number))
        connection.execute(delete(consumers).where(consumers.c.uuid == uuid))


Heal = Callable[..., Healed]


def test_a_lost_consumer_is_rebuilt_under_its_own_claim_and_can_be_moved(
    store: Store, heal: Heal, i1: Moving, source: str, destination: str, pool: str
) -> None:
    lose(store, i1.uuid)
    assert store.used(source) == FREE

    healed = heal(source_hold(i1, pools=(pool,)))

    assert healed == Healed(generations={i1.uuid: 1})
    assert i1.amounts == i1.held
    consumer = store.consumer(i1.uuid)
    assert (consumer.claim_id, consumer.accepted_by) == (i1.source_claim, i1.attempt)
    assert (consumer.root_provider_uuid, consumer.owner) == (source, "conductor")
    i1.generation = 1
    i1.begin({destination: SMALL, **disk(pool, 50)})
    i1.confirm()
    assert i1.amounts == {destination: SMALL, **disk(pool, 50)}
    assert store.is_sound()


def test_a_repeated_heal_changes_nothing(store: Store, heal: Heal, moving: Moving, source: str) -> None:
    message = heal_message(source_hold(moving), seen={moving.uuid: SeenConsumer()})
    lose(store, moving.uuid)

    assert store.dispatcher.call(message) == store.dispatcher.call(message)
    assert store.used(source) == SMALL
    assert heal(source_hold(moving)).released == {}
    assert store.used(source) == SMALL


def test_a_repeated_acceptance_after_a_heal_changes_nothing(
    store: Store, heal: Heal, moving: Moving, source: str
) -> None:
    lose(store, moving.uuid)
    recorded = source_hold(moving)
    heal(recorded)
    query = select(consumers).where(consumers.c.uuid == moving.uuid)
    healed = store.database.read(lambda connection: connection.execute(query).one())

    again = AcceptClaim(
        request_id=ids.fresh(),
        consumer_uuid=moving.uuid,
        claim_id=str(recorded.claim_id),
        attempt_id=str(recorded.accepted_by),
        host=str(recorded.accepted_host),
    )
    store.database.write(lambda connection: claims.accept(connection, again))

    assert store.database.read(lambda connection: connection.execute(query).one()) == healed


def test_missing_amounts_are_claimed_again_and_foreign_amounts_stay(
    store: Store, heal: Heal, moving: Moving, source: str, pool: str
) -> None:
    store.put(moving.uuid, {source: {"VCPU": 1, "MEMORY_MB": 3000}, **disk(pool, 7)}, 1)

    heal(source_hold(moving))

    assert moving.amounts == {source: {"VCPU": 2, "MEMORY_MB": 3000}, **disk(pool, 7)}
    assert store.is_sound()


def test_amounts_written_again_without_a_claim_are_not_doubled(
    store: Store, heal: Heal, moving: Moving, source: str
) -> None:
    lose(store, moving.uuid)
    store.put(moving.uuid, {source: SMALL})

    heal(source_hold(moving))

    assert moving.amounts == {source: SMALL}
    assert store.consumer(moving.uuid).claim_id == moving.source_claim
    store.delete(moving.uuid, claim_id=moving.source_claim)
    assert store.used(source) == FREE


def test_another_claim_is_replaced_by_the_recorded_one_and_its_amounts_are_named(
    store: Store, heal: Heal, moving: Moving, source: str, third: str
) -> None:
    stale = moving.source_claim
    recorded = hold(moving.uuid, ids.fresh(), {third: SMALL}, ids.fresh(), accepted_host="third")

    healed = heal(recorded)

    assert moving.amounts == {third: SMALL}
    assert healed.released == {source: ProviderAmounts(resources=SMALL)}
    with pytest.raises(errors.ClaimReleased):
        store.delete(moving.uuid, claim_id=stale)
    assert store.is_sound()


def test_a_heal_that_does_not_fit_is_refused_and_changes_nothing(
    store: Store, heal: Heal, moving: Moving, source: str
) -> None:
    lose(store, moving.uuid)
    store.claim(ids.fresh(), {source: {"VCPU": 7, "MEMORY_MB": 1024}})
    before = store.rows()

    with pytest.raises(errors.CapacityExceeded):
        heal(source_hold(moving))

    assert store.rows() == before
    assert store.is_sound()
    with pytest.raises(errors.ConsumerNotFound):
        store.consumer(moving.uuid)


def test_a_recorded_class_that_has_been_deleted_since_is_left_out(
    store: Store, heal: Heal, i1: Moving, source: str
) -> None:
    store.dispatcher.call(EnsureResourceClass(request_id=ids.fresh(), name="CUSTOM_GONE"))
    store.dispatcher.call(DeleteResourceClass(request_id=ids.fresh(), name="CUSTOM_GONE"))
    lose(store, i1.uuid)
    recorded = {uuid: dict(resources) for uuid, resources in i1.held.items()}
    recorded[source]["CUSTOM_GONE"] = 1

    heal(hold(i1.uuid, i1.source_claim, recorded, i1.attempt))

    assert i1.amounts == i1.held


def test_a_consumer_changed_since_it_was_read_is_not_healed(
    store: Store, heal: Heal, moving: Moving, source: str
) -> None:
    was = seen(store, moving.uuid)
    store.put(moving.uuid, {source: {"VCPU": 1}}, 1)
    for wrong in (was, {moving.uuid: SeenConsumer()}, {moving.uuid: SeenConsumer(generation=2, claim_id=ids.fresh())}):
        with pytest.raises(errors.ConsumerGenerationConflict):
            heal(source_hold(moving), seen=wrong)
    assert moving.amounts == {source: {"VCPU": 1}}


def test_a_consumer_deleted_for_good_is_not_healed(store: Store, heal: Heal, moving: Moving, source: str) -> None:
    store.delete(moving.uuid, for_good=True)
    with pytest.raises(errors.ConsumerDeleted):
        heal(source_hold(moving))
    assert store.used(source) == FREE


def test_a_move_that_is_not_ended_is_rebuilt_on_both_sides_and_can_end_either_way(
    store: Store, heal: Heal, i1: Moving, source: str, destination: str, pool: str
) -> None:
    i1.begin({destination: LARGE, **disk(pool, 80)})
    i1.accept()
    instance = hold(
        i1.uuid, i1.claim_id, {destination: LARGE, **disk(pool, 80)}, i1.next_attempt, accepted_host="destination"
    )
    migration = hold(
        i1.migration, i1.source_claim, {source: SMALL}, i1.attempt, consumer_type="MIGRATION", migration_of=i1.uuid
    )
    for uuid in (i1.uuid, i1.migration):
        lose(store, uuid)

    heal(instance, migration)

    assert (i1.amounts, i1.migrations) == ({destination: LARGE, **disk(pool, 80)}, {source: SMALL})
    i1.revert(guest_gone=True)
    assert i1.amounts == {source: SMALL, **disk(pool, 50)}
    assert store.used(destination) == FREE
    assert store.is_sound()


@pytest.mark.parametrize("outcome", ["confirm", "revert"])
def test_a_move_ends_with_the_amounts_of_one_side_if_a_reshape_came_before_it_and_its_server_was_healed(
    store: Store, reshaping: Reshaping, heal: Heal, i1: Moving, destination: str, pool: str, outcome: str
) -> None:
    [part] = reshaping.move((pool, {"DISK_GB": 100}, "part"), providers=(child("part", pool),)).created
    i1.generation = store.consumer(i1.uuid).generation
    i1.begin({destination: LARGE, **disk(part, 30)})
    i1.accept()
    own = {destination: LARGE, **disk(pool, 50), **disk(part, 30)}
    lose(store, i1.uuid)

    heal(hold(i1.uuid, i1.claim_id, own, i1.next_attempt, accepted_host="destination", pools=(pool, part)))
    ended = store.dispatcher.call(i1.ending(outcome, guest_gone=True))

    back = {**i1.held, **disk(part, 50)}
    del back[pool]
    assert (i1.amounts, ended.extras) == (i1.claimed if outcome == "confirm" else back, {})
    assert store.is_sound()


def test_a_residue_is_rebuilt_without_a_claim_until_its_attempt_is_gone(store: Store, heal: Heal, source: str) -> None:
    attempt = ids.fresh()
    heal(hold(attempt, None, {source: SMALL}, attempt, consumer_type="RESIDUE", owner=None))
    assert store.used(source) == SMALL

    store.delete(attempt, for_good=True)
    assert store.used(source) == FREE
    with pytest.raises(errors.ConsumerDeleted):
        heal(hold(ids.fresh(), None, {source: SMALL}, attempt, consumer_type="RESIDUE", owner=None))


@pytest.mark.backends("mariadb")
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_heal_beside_a_report_that_the_attempt_is_gone_leaves_no_residue(
    store: Store, other_process: Store, is_lost: bool
) -> None:
    def interrupted(after: int) -> list[str]:
        source = store.provider(**SMALL)
        moving = Moving(store, {source: SMALL}).build()
        moving.begin({store.provider(**SMALL): SMALL})
        if is_lost:
            lose(store, moving.migration)
        residue = hold(moving.migration, None, {source: SMALL}, moving.attempt, consumer_type="RESIDUE", owner=None)
        message = heal_message(residue, seen=seen(store, moving.migration))
        reported_gone = partial(other_process.delete, moving.attempt, for_good=True)
        with call_between(store.database, after, reported_gone) as between:
            if not after:
                store.dispatcher.call(message)
                return between
            with pytest.raises(errors.ConsumerDeleted):
                store.dispatcher.call(message)
        # If the migration was not lost, it is still that of a move under way.
        assert moving.migrations == ({} if is_lost else moving.held)
        return between

    reads = list(itertools.takewhile(lambda sql: not sql.startswith("UPDATE"), interrupted(0)))
    assert len(reads) > 3
    for after in range(1, len(reads) + 1):
        interrupted(after)


def test_a_healed_claim_without_an_acceptance_is_in_doubt_again_although_the_reconciler_has_released_it(
    store: Store, heal: Heal, source: str
) -> None:
    uuid, claim_id = ids.fresh(), ids.fresh()
    recorded = hold(uuid, claim_id, {source: SMALL}, None, accepted_host=None)

    def in_doubt() -> list[reconciler_log.Doubtful]:
        return store.database.read(
            lambda connection: list(reconciler_log.doubtful(connection, older_than=-1, not_since=0, at_most=10))
        )

    heal(recorded)
    [claim] = in_doubt()
    lose(store, uuid)
    store.database.write(lambda connection: reconciler_log.record(connection, claim, reconciler_log.RELEASED))
    heal(recorded)
    assert [one.claim_id for one in in_doubt()] == [claim_id]


def test_a_consumer_without_a_record_is_released_and_on_request_deleted_for_good(
    store: Store, heal: Heal, moving: Moving, source: str
) -> None:
    heal(gone=(moving.uuid,))
    assert (moving.amounts, store.used(source)) == ({}, FREE)
    assert store.consumer(moving.uuid).claim_id is None

    other = ids.fresh()
    heal(gone=(moving.uuid, other), for_good=(moving.uuid, other))
    for uuid in (moving.uuid, other):
        with pytest.raises(errors.ConsumerDeleted):
            store.put(uuid, {source: SMALL})


def test_amounts_moved_by_a_reshape_are_found_at_their_new_place(
    store: Store, heal: Heal, moving: Moving, source: str
) -> None:
    child = store.provider("child", parent=source, MEMORY_MB=4096)
    store.put(moving.uuid, {source: {"VCPU": 2}, child: {"MEMORY_MB": 2048}}, 1)
    heal(source_hold(moving))
    assert moving.amounts == {source: {"VCPU": 2}, child: {"MEMORY_MB": 2048}}

    lose(store, moving.uuid)
    store.set_inventories(source, store.generation(source), VCPU=8)
    heal(source_hold(moving))
    assert moving.amounts == {source: {"VCPU": 2}, child: {"MEMORY_MB": 2048}}


@pytest.mark.parametrize("together", [True, False])
def test_lost_consumers_share_the_capacity_that_a_reshape_has_split(
    store: Store, heal: Heal, reshaping: Reshaping, source: str, together: bool
) -> None:
    gpu = store.provider("gpu", parent=source, VGPU=4)
    both = [Moving(store, {source: SMALL, gpu: {"VGPU": 2}}).build() for _ in range(2)]
    reshaping.move((gpu, {"VGPU": 2}, "part"), providers=(child("part", gpu),))
    for moving in both:
        lose(store, moving.uuid)

    holds = [source_hold(moving) for moving in both]
    for some in [holds] if together else [[hold] for hold in holds]:
        heal(*some)

    assert [[*moving.amounts] for moving in both] == [[source, gpu], [source, store.uuid_of("part")]]
    assert store.is_sound()


@pytest.mark.parametrize("is_its_own", [True, False])
def test_amounts_that_the_heal_itself_releases_are_assigned_again_where_they_were_claimed(
    store: Store, heal: Heal, source: str, is_its_own: bool
) -> None:
    gpus = [store.provider(f"gpu{number}", parent=source, VGPU=2) for number in range(2)]
    amounts = {source: SMALL, **{gpu: {"VGPU": 2} for gpu in gpus}}
    stale = Moving(store, amounts).build()
    for gpu in gpus:
        store.set_inventories(gpu, store.generation(gpu), VGPU=1)

    uuid = stale.uuid if is_its_own else ids.fresh()
    heal(hold(uuid, ids.fresh(), amounts, ids.fresh()), gone=() if is_its_own else (stale.uuid,))

    assert store.held(uuid) == amounts
    assert not store.audit().drifted


def test_amounts_of_a_class_without_any_inventory_are_refused(
    store: Store, heal: Heal, moving: Moving, source: str
) -> None:
    lose(store, moving.uuid)
    store.set_inventories(source, store.generation(source), VCPU=8)
    with pytest.raises(errors.CapacityExceeded):
        heal(source_hold(moving))
    assert store.is_sound()


def test_newer_unit_rules_do_not_refuse_older_claims(store: Store, heal: Heal, moving: Moving, source: str) -> None:
    lose(store, moving.uuid)
    store.set_inventories(
        source, store.generation(source), VCPU=Inventory(total=8, max_unit=1), MEMORY_MB=Inventory(total=8192)
    )
    heal(source_hold(moving))
    assert moving.amounts == {source: SMALL}


def test_a_heal_is_refused_by_the_name_of_a_group_that_the_store_knows_with_another_rule(
    store: Store, heal: Heal, moving: Moving
) -> None:
    group = ServerGroup(uuid=ids.fresh(), policy="anti-affinity")
    heal(source_hold(moving, group=group))
    with pytest.raises(errors.InvalidRequest, match=f"group {group.uuid} is known with policy anti-affinity") as caught:
        heal(source_hold(moving, group=ServerGroup(uuid=group.uuid, policy="affinity")))
    assert caught.value.path == "$.holds"


def test_a_rebuilt_member_counts_for_the_rule_of_its_group(
    store: Store, heal: Heal, moving: Moving, source: str
) -> None:
    group = ServerGroup(uuid=ids.fresh(), policy="anti-affinity")
    lose(store, moving.uuid)
    heal(source_hold(moving, group=group))
    with pytest.raises(errors.GroupRuleRefused):
        store.claim(ids.fresh(), {source: SMALL}, group=group)


def test_an_inconsistent_heal_is_refused(store: Store, heal: Heal, moving: Moving, source: str) -> None:
    unseen = ids.fresh()
    for wrong in ({"seen": {unseen: SeenConsumer()}}, {"for_good": (moving.uuid,)}, {"for_good": (unseen,)}):
        with pytest.raises(errors.InvalidRequest):
            heal(source_hold(moving), **wrong)
    with pytest.raises(errors.InvalidRequest):
        heal(hold(moving.uuid, None, {source: SMALL}, moving.attempt))
    with pytest.raises(errors.ProviderNotFound):
        heal(hold(moving.uuid, moving.source_claim, {ids.fresh(): SMALL}, moving.attempt))


def test_a_recount_corrects_sums_and_removes_allocations_without_a_consumer(
    store: Store, recount: Callable[..., Recounted], moving: Moving, source: str, destination: str
) -> None:
    store.claim(ids.fresh(), {source: SMALL})
    before = (store.seq(source), store.changes())
    with store.database.engine.connect() as connection, connection.begin():
        connection.execute(delete(consumers).where(consumers.c.uuid == moving.uuid))
        connection.exec_driver_sql("UPDATE inventories SET used = used + 3 WHERE resource_class_id = 0")

    assert recount(source, destination, ids.fresh()) == Recounted(inventories=3, orphans=2)

    assert (store.used(source), store.used(destination)) == (SMALL, FREE)
    assert store.is_sound()
    assert store.seq(source) > before[0]
    assert store.changes() > before[1]
    assert recount(source) == Recounted()


def test_an_audit_on_request_lists_the_amounts_owner_and_host_of_a_consumer(
    store: Store, i1: Moving, source: str, pool: str
) -> None:
    child = store.provider("child", parent=source, VGPU=4)
    store.put(i1.uuid, {source: SMALL, child: {"VGPU": 1}, **disk(pool, 50)}, 1)

    found = store.database.read(lambda connection: audit.report(connection, AuditStore(amounts=True)))

    [holder] = found.holders
    assert holder.held == {source: SMALL, child: {"VGPU": 1}, **disk(pool, 50)}
    assert (holder.generation, holder.owner, holder.placed_on) == (2, "conductor", source)
    assert found.roots == {child: source}
    assert store.audit().holders[0].held == {}


def test_a_heal_that_releases_a_consumer_leaves_no_tombstone(store: Store, heal: Heal, moving: Moving) -> None:
    heal(gone=(moving.uuid,))
    assert store.scalar(select(tombstones.c.consumer_uuid)) is None
    assert row(store, moving.uuid).accepted_by is None
