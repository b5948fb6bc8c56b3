"""Test consumers written over HTTP, which differ from those of RPC in how they are created and deleted."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import func, select
from support.databases.statements import executed
from support.placement_store.builders import Amounts, Store, at_once, http_put

from moorage import errors, ids
from placement_store.allocations import write as allocations
from placement_store.claims import put as puts
from placement_store.claims.put import ANY_GENERATION, Put
from placement_store.db.retries import StaleRead, retry_on_stale_read
from placement_store.schema import consumers

SMALL, ONE_MB = {"VCPU": 2}, {"MEMORY_MB": 1}


def write(store: Store, wanted: Mapping[str, Put]) -> None:
    retry_on_stale_read(lambda: store.database.write(lambda connection: puts.write(connection, wanted, store.names)))


def put(store: Store, uuid: str, amounts: Amounts, generation: Any = None) -> None:
    """Write allocations as the HTTP API does."""
    write(store, {uuid: http_put(amounts, generation)})


def generation(store: Store, uuid: str) -> int | None:
    """Return the generation of a consumer's row; None if there is no row."""
    found: int | None = store.scalar(select(consumers.c.generation).where(consumers.c.uuid == uuid))
    return found


def test_a_consumer_known_only_over_http_is_deleted_with_its_last_allocation(store: Store, host: str) -> None:
    put_empty, released = ids.fresh(), ids.fresh()
    for uuid in (put_empty, released):
        put(store, uuid, {host: SMALL})
        assert generation(store, uuid) == 1

    put(store, put_empty, {}, 1)
    store.delete(released)

    assert store.scalar(select(func.count()).select_from(consumers)) == 0
    assert store.used(host)["VCPU"] == 0
    put(store, put_empty, {host: SMALL})
    assert generation(store, put_empty) == 1


def test_a_consumer_written_over_rpc_is_kept_without_allocations(store: Store, host: str) -> None:
    by_rpc, by_both, claimed = ids.fresh(), ids.fresh(), ids.fresh()
    store.put(by_rpc, {host: SMALL})
    put(store, by_both, {host: SMALL})
    store.put(by_both, {host: SMALL}, 1)
    put(store, claimed, {host: SMALL})
    store.claim(claimed, {host: SMALL}, consumer_generation=1)

    put(store, by_rpc, {}, 1)
    put(store, by_both, {}, 2)
    store.delete(claimed)

    assert [generation(store, uuid) for uuid in (by_rpc, by_both, claimed)] == [2, 3, 3]


@pytest.mark.parametrize("named", [None, 2, ANY_GENERATION])
def test_a_consumer_without_allocations_does_not_exist_over_http(store: Store, host: str, named: Any) -> None:
    uuid = ids.fresh()
    store.put(uuid, {host: SMALL})
    store.put(uuid, {}, 1)
    with pytest.raises(errors.ConsumerGenerationConflict):
        put(store, uuid, {host: SMALL}, 1)

    put(store, uuid, {host: SMALL}, named)

    assert generation(store, uuid) == 3
    with pytest.raises(errors.ConsumerGenerationConflict):
        put(store, uuid, {host: SMALL})


def test_a_consumer_without_allocations_exists_over_rpc(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.put(uuid, {host: SMALL})
    put(store, uuid, {}, 1)
    with pytest.raises(errors.ConsumerGenerationConflict):
        store.put(uuid, {host: SMALL})
    assert store.put(uuid, {host: SMALL}, 2) == 3


def test_a_write_over_rpc_of_the_unknown_type_keeps_the_consumer_without_a_type(store: Store, host: str) -> None:
    uuid = ids.fresh()
    put(store, uuid, {host: SMALL})
    found = store.consumer(uuid)
    assert found.consumer_type == "UNKNOWN"

    store.put(uuid, {host: {"VCPU": 1}}, found.generation, consumer_type=found.consumer_type)

    assert store.scalar(select(consumers.c.consumer_type).where(consumers.c.uuid == uuid)) is None


@pytest.mark.parametrize("named", [None, ANY_GENERATION])
def test_a_put_of_no_allocations_creates_no_consumer(store: Store, host: str, named: Any) -> None:
    put(store, ids.fresh(), {}, named)
    assert store.scalar(select(func.count()).select_from(consumers)) == 0


def test_a_refused_put_leaves_no_consumer_behind(store: Store, host: str) -> None:
    refused: dict[type[errors.MoorageError], Amounts] = {
        errors.ProviderNotFound: {host: SMALL, ids.fresh(): SMALL},
        errors.ResourceClassNotFound: {host: {"CUSTOM_NONE": 1}},
        errors.CapacityExceeded: {host: {"VCPU": 9}},
    }
    uuid = ids.fresh()
    for kind, amounts in refused.items():
        with pytest.raises(kind):
            put(store, uuid, amounts)
        with pytest.raises(kind):
            write(store, {ids.fresh(): http_put({host: SMALL}), uuid: http_put(amounts)})
    assert store.scalar(select(func.count()).select_from(consumers)) == 0

    put(store, uuid, {host: SMALL})


def test_http_may_write_a_consumer_deleted_for_good_but_claims_are_refused(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.put(uuid, {host: SMALL})
    store.delete(uuid, for_good=True)

    put(store, uuid, {host: SMALL})

    for named in (None, 1):
        with pytest.raises(errors.ConsumerDeleted):
            store.put(uuid, {host: SMALL}, named)
        with pytest.raises(errors.ConsumerDeleted):
            store.claim(uuid, {host: SMALL}, consumer_generation=named)
    put(store, uuid, {}, 1)
    assert generation(store, uuid) is None


def test_one_of_two_concurrent_puts_for_a_consumer_without_allocations_wins(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.put(uuid, {host: SMALL})
    store.put(uuid, {}, 1)

    outcomes = at_once(*[lambda: put(store, uuid, {host: SMALL})] * 2)

    assert sorted(outcomes) == ["ConsumerGenerationConflict", "done"]
    assert (generation(store, uuid), store.used(host)["VCPU"]) == (3, 2)


def test_a_delete_for_good_beside_a_put_over_http_leaves_the_store_sound(store: Store, host: str) -> None:
    for _ in range(10):
        uuid = ids.fresh()
        writers = partial(put, store, uuid, {host: SMALL}), partial(store.delete, uuid, for_good=True)
        assert at_once(*writers) == ["done", "done"]
        # If the delete was last, nothing is allocated; otherwise a consumer that only HTTP knows has the allocation.
        assert store.used(host)["VCPU"] == (2 if generation(store, uuid) else 0)
        store.delete(uuid, for_good=True)
    assert store.is_sound()


def test_twenty_consumers_whose_type_changes_cost_as_many_statements_as_two(store: Store, host: str) -> None:
    uuids = [ids.fresh() for _ in range(20)]
    for uuid in uuids:
        put(store, uuid, {host: ONE_MB})
    counts = []
    for kind, some in (("ONE", uuids[:2]), ("TWO", uuids[2:])):
        described = {"project_id": "other", "user_id": "user", "consumer_type": kind}
        wanted = {uuid: replace(http_put({host: ONE_MB}, 1), described=described) for uuid in some}
        with executed(store.database) as statements:
            write(store, wanted)
        counts.append(len(statements))

    assert counts[0] == counts[1]
    columns = (consumers.c.project_id, consumers.c.consumer_type, consumers.c.generation)
    with store.database.engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(select(*columns).order_by(consumers.c.id))]
    assert found == [("other", "ONE", 2)] * 2 + [("other", "TWO", 2)] * 18


def test_a_stale_consumer_among_many_changed_ones_changes_none(store: Store, host: str) -> None:
    uuids = [ids.fresh() for _ in range(3)]
    for uuid in uuids:
        put(store, uuid, {host: ONE_MB})
    described = {"project_id": "other", "user_id": "user"}
    wanted = {uuid: replace(http_put({host: ONE_MB}, 1), described=described) for uuid in uuids}

    planned = store.database.read(lambda connection: puts.plan(connection, wanted, store.names))
    put(store, uuids[1], {host: SMALL}, 1)

    with pytest.raises(StaleRead):
        store.database.write(lambda connection: allocations.write(connection, planned.changes, store.names))
    assert [generation(store, uuid) for uuid in uuids] == [1, 2, 1]
