"""Test the renaming of a resource class with its inventories and allocations."""

from typing import Any

import pytest
from support.placement_store.builders import Store, at_once
from support.placement_store.move_builders import Moving

from moorage import errors, ids
from moorage.messages import DeleteInventory, DeleteResourceClass
from placement_store.allocations import class_renaming, consumers
from placement_store.allocations import write as allocations
from placement_store.allocations.write import ConsumerChange
from placement_store.db.retries import StaleRead, retry_on_stale_read

OLD, NEW = "CUSTOM_OLD", "CUSTOM_NEW"


def of_old(total: int) -> dict[str, Any]:
    """Return an inventory of the class with the old name."""
    return {OLD: total}


def rename(store: Store, old: str = OLD, new: str = NEW) -> None:
    retry_on_stale_read(lambda: store.database.write(lambda connection: class_renaming.rename(connection, old, new)))


def test_inventories_and_allocations_have_the_new_name(store: Store) -> None:
    holder, other = store.provider(VCPU=1, **of_old(8)), store.provider(VCPU=1)
    consumer = ids.fresh()
    store.put(consumer, {holder: {OLD: 3}})
    generation, seq, elsewhere, changes = store.generation(holder), store.seq(holder), store.seq(other), store.changes()

    rename(store)

    assert store.used(holder) == {NEW: 3, "VCPU": 0}
    assert store.held(consumer) == {holder: {NEW: 3}}
    assert (store.generation(holder), store.seq(holder)) == (generation, seq + 1)
    assert store.seq(other) == elsewhere
    assert store.changes() == changes + 1
    assert store.is_sound()
    store.put(consumer, {holder: {NEW: 8}}, store.consumer(consumer).generation)


def test_the_old_name_is_refused(store: Store) -> None:
    provider = store.provider(**of_old(8))
    rename(store)

    with pytest.raises(errors.CapacityExceeded):
        store.put(ids.fresh(), {provider: {OLD: 1}})
    with pytest.raises(errors.ResourceClassNotFound):
        rename(store)
    assert store.used(provider) == {NEW: 0}


def test_a_name_that_is_taken_or_standard_is_refused(store: Store) -> None:
    store.names.ensure([OLD, NEW])

    with pytest.raises(errors.AlreadyExists):
        rename(store)
    with pytest.raises(errors.InvalidRequest):
        rename(store, "VCPU")
    with pytest.raises(errors.InvalidRequest):
        rename(store, new="VCPU")


def test_a_write_based_on_allocations_read_before_the_renaming_is_stale(store: Store) -> None:
    provider, consumer = store.provider(**of_old(8)), ids.fresh()
    store.put(consumer, {provider: {OLD: 3}})
    before = store.database.read(lambda connection: consumers.holdings(connection, [consumer]))[consumer]

    rename(store)

    release = ConsumerChange(uuid=consumer, before=before, after={})
    with pytest.raises(StaleRead):
        store.database.write(lambda connection: allocations.write(connection, [release], store.names))
    assert store.used(provider) == {NEW: 3}
    assert store.is_sound()


@pytest.mark.parametrize("_round", range(10))
def test_a_write_during_the_renaming_keeps_no_reference_to_the_old_class(store: Store, _round: int) -> None:
    first, second = store.provider(**of_old(1)), store.provider()

    outcomes = at_once(
        lambda: rename(store),
        lambda: store.set_inventories(second, 0, **{OLD: 1}),
        lambda: store.put(ids.fresh(), {first: {OLD: 1}}),
    )

    assert outcomes[0] == "done"
    assert set(store.used(first)) == {NEW}
    # The inventory was set before the renaming, or refused after it, or the old name was created again for it.
    assert set(store.used(second)) in ({NEW}, {OLD}, set())
    assert store.is_sound()


@pytest.mark.parametrize("gone_by", ["renaming", "deletion"])
@pytest.mark.parametrize("step", ["begin", "swap", "confirm", "revert", "swap of no move"])
def test_a_release_that_names_a_renamed_or_deleted_class_is_carried_out(store: Store, gone_by: str, step: str) -> None:
    source, first, second = (store.provider(VCPU=2, **of_old(1)) for _ in range(3))
    moving = Moving(store, {source: {"VCPU": 2, OLD: 1}}).build()
    if step in ("swap", "confirm", "revert"):
        moving.begin({first: {"VCPU": 2, OLD: 1}})
    if gone_by == "renaming":
        rename(store)
    else:
        for uuid in (moving.uuid, moving.migration):
            without(store, uuid, OLD)
        for provider in (source, first, second):
            store.dispatcher.call(DeleteInventory(request_id=ids.fresh(), uuid=provider, resource_class=OLD))
        store.dispatcher.call(DeleteResourceClass(request_id=ids.fresh(), name=OLD))
    moving.generation = store.consumer(moving.uuid).generation
    # As in a process that was started since.
    store.names.forget_numbers()

    match step:
        case "begin":
            moving.begin({second: {"VCPU": 2}}, drop_extras=True)
        case "swap":
            moving.swap({second: {"VCPU": 2}}, guest_gone=True)
        case "confirm":
            moving.confirm()
        case "revert":
            moving.revert(guest_gone=True)
        case _:
            released = {source: {"VCPU": 2, OLD: 1}}
            store.swap(moving.uuid, moving.source_claim, released, {second: {"VCPU": 2}}, guest_gone=True)

    place = {"confirm": first, "revert": source}.get(step, second)
    assert {uuid: amounts["VCPU"] for uuid, amounts in moving.amounts.items()} == {place: 2}
    assert store.is_sound()


def without(store: Store, uuid: str, name: str) -> None:
    """Remove the allocations of one class from a consumer, if the consumer exists."""
    try:
        consumer = store.consumer(uuid)
    except errors.ConsumerNotFound:
        return
    amounts = {
        provider: {other: amount for other, amount in part.resources.items() if other != name}
        for provider, part in consumer.allocations.items()
    }
    store.put(uuid, amounts, consumer.generation)
