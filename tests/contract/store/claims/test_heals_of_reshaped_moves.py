"""Test heals in the middle of moves whose pools were reshaped: a pool counts once, and the move ends exactly."""

import pytest
from support.placement_store.builders import Amounts, Store, request
from support.placement_store.move_builders import SMALL, Moving, disk
from support.placement_store.reshape_builders import Reshaping, child, dealt

from moorage import errors, ids
from moorage.messages import HealConsumers
from moorage.model import RecordedHold, SeenConsumer

OUTCOMES = ("confirm", "revert")


def holds(moving: Moving, held: Amounts, claimed: Amounts) -> tuple[RecordedHold, RecordedHold]:
    """Return the records of the instance and of the migration: the first provider is a host, the others are pools."""

    def of(uuid: str, claim_id: str, attempt: str, amounts: Amounts) -> dict[str, object]:
        return {
            "consumer_uuid": uuid,
            "claim_id": claim_id,
            "accepted_by": attempt,
            "accepted_host": "host",
            "root_provider_uuid": next(iter(amounts)),
            "allocations": request(amounts).allocations,
            "pools": tuple(amounts)[1:],
            "project_id": "project",
            "user_id": "user",
        }

    instance = of(moving.uuid, moving.claim_id, moving.next_attempt, claimed)
    migration = of(moving.migration, moving.source_claim, moving.attempt, held)
    return (
        RecordedHold(consumer_type="INSTANCE", owner="mover", **instance),  # type: ignore[arg-type]
        RecordedHold(consumer_type="MIGRATION", migration_of=moving.uuid, **migration),  # type: ignore[arg-type]
    )


def heal(store: Store, *recorded: RecordedHold) -> None:
    seen: dict[str, SeenConsumer] = {}
    for hold in recorded:
        try:
            found = store.consumer(hold.consumer_uuid)
            seen[hold.consumer_uuid] = SeenConsumer(generation=found.generation, claim_id=found.claim_id)
        except errors.ConsumerNotFound:
            seen[hold.consumer_uuid] = SeenConsumer()
    store.dispatcher.call(HealConsumers(request_id=ids.fresh(), holds=recorded, seen=seen))


def take_away(store: Store, uuid: str, provider: str, name: str) -> None:
    """Release an amount of a consumer, as another client can."""
    found = store.held(uuid)
    del found[provider][name]
    store.put(uuid, found, store.consumer(uuid).generation)


def end(moving: Moving, outcome: str) -> None:
    if outcome == "confirm":
        moving.confirm()
    else:
        moving.revert(guest_gone=True)


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize(("old", "new"), [(50, 20), (20, 50)])
@pytest.mark.parametrize("harmed", ["instance", "migration"])
def test_a_heal_counts_a_pool_once_that_was_reshaped_before_the_move(
    store: Store,
    reshaping: Reshaping,
    host: str,
    destination: str,
    pool: str,
    old: int,
    new: int,
    outcome: str,
    harmed: str,
) -> None:
    moving = Moving(store, {host: SMALL, **disk(pool, old)}).build()
    [part] = reshaping.move((pool, {"DISK_GB": 100}, "part"), providers=(child("part", pool),)).created
    moving.generation = store.consumer(moving.uuid).generation
    claimed = {destination: SMALL, **disk(part, new)}
    moving.begin(claimed)
    moving.accept()
    before = moving.amounts, moving.migrations
    uuid, place = {"instance": (moving.uuid, destination), "migration": (moving.migration, host)}[harmed]
    take_away(store, uuid, place, "VCPU")

    heal(store, *holds(moving, moving.held, claimed))

    assert (moving.amounts, moving.migrations) == before
    end(moving, outcome)
    assert moving.amounts == (claimed if outcome == "confirm" else {host: SMALL, **disk(part, old)})
    assert moving.migrations == {}
    assert store.is_sound()


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_heal_leaves_the_part_of_a_pool_to_the_migration_that_a_reshape_moved_before_a_swap(
    store: Store, reshaping: Reshaping, host: str, destination: str, pool: str, outcome: str
) -> None:
    last = store.provider("last", VCPU=8, MEMORY_MB=8192)
    moving = Moving(store, {host: SMALL, **disk(pool, 50)}).build()
    moving.begin({destination: SMALL, **disk(pool, 20)})
    [part] = reshaping.move(
        (pool, {"DISK_GB": 50}, "part"),
        providers=(child("part", pool),),
        dealt=(dealt(moving.uuid, pool, "part", DISK_GB=50),),
    ).created
    claimed = {last: SMALL, **disk(pool, 20)}
    moving.swap(claimed)
    moving.accept()
    before = moving.amounts, moving.migrations
    assert before == (claimed, {host: SMALL, **disk(part, 50)})

    # The record of the cell takes the pool for shared.
    heal(store, *holds(moving, {host: SMALL}, {last: SMALL, **disk(pool, 50)}))

    assert (moving.amounts, moving.migrations) == before
    end(moving, outcome)
    if outcome == "confirm":
        assert moving.amounts == claimed
    else:
        assert sum(one.get("DISK_GB", 0) for one in moving.amounts.values()) == 50
    assert store.is_sound()
