"""Test heals of claims without amounts: an instance whose host the store has lost can be evacuated."""

from typing import Any

import pytest
from sqlalchemy import delete
from support.placement_store.builders import Store
from support.placement_store.move_builders import FREE, SMALL, Moving, disk

from moorage import errors, ids
from moorage.messages import DeleteResourceProvider, HealConsumers
from moorage.model import RecordedHold, SeenConsumer
from placement_store.schema import consumers


def heal(store: Store, moving: Moving, root: str, **more: Any) -> None:
    """Write the claim of a lost instance without its amounts."""
    fields: dict[str, Any] = {"consumer_type": "INSTANCE", "claim_id": moving.source_claim, "owner": "mover"}
    hold = RecordedHold(
        consumer_uuid=moving.uuid,
        root_provider_uuid=root,
        accepted_by=moving.attempt,
        accepted_host="source",
        allocations={},
        project_id="project",
        user_id="user",
        **fields | more,
    )
    seen = {moving.uuid: SeenConsumer()}
    healed = store.dispatcher.call(HealConsumers(request_id=ids.fresh(), holds=(hold,), seen=seen))
    moving.generation = healed.generations[moving.uuid]


@pytest.fixture
def lost(store: Store, i1: Moving, source: str) -> Moving:
    """Return an instance that the store has lost, with its allocations and with the provider of its host."""
    store.delete(i1.uuid)
    with store.database.engine.connect() as connection, connection.begin():
        connection.execute(delete(consumers).where(consumers.c.uuid == i1.uuid))
    store.dispatcher.call(DeleteResourceProvider(request_id=ids.fresh(), uuid=source))
    return i1


def test_an_instance_whose_host_is_lost_gets_its_claim_back_and_moves(
    store: Store, lost: Moving, source: str, destination: str, pool: str
) -> None:
    heal(store, lost, source)
    consumer = store.consumer(lost.uuid)
    assert (consumer.claim_id, consumer.accepted_by) == (lost.source_claim, lost.attempt)
    assert (consumer.root_provider_uuid, lost.amounts) == (None, {})

    lost.begin({destination: SMALL, **disk(pool, 50)})
    lost.accept()
    lost.confirm(guest_gone=False, leave_residue=True)

    assert lost.amounts == {destination: SMALL, **disk(pool, 50)}
    assert lost.is_buried()
    assert store.is_sound()


def test_a_move_from_a_lost_host_falls_back_to_an_alternate_and_can_be_reverted(
    store: Store, lost: Moving, source: str, destination: str, third: str, pool: str
) -> None:
    heal(store, lost, source)
    lost.begin({destination: SMALL, **disk(pool, 50)})
    lost.swap({third: SMALL, **disk(pool, 50)})
    assert (store.used(destination), lost.amounts) == (FREE, {third: SMALL, **disk(pool, 50)})

    lost.revert()

    consumer = store.consumer(lost.uuid)
    assert (consumer.claim_id, consumer.accepted_by) == (lost.source_claim, lost.attempt)
    assert (lost.amounts, store.used(third), lost.is_buried()) == ({}, FREE, True)
    assert store.is_sound()


def test_only_a_claim_is_healed_without_amounts(store: Store, lost: Moving, source: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="a residue has amounts"):
        heal(store, lost, source, claim_id=None, consumer_type="RESIDUE")
