"""Test the retention of stored answers, tombstones and services."""

import pytest
from sqlalchemy import func, select
from support.placement_store.builders import Store

from moorage import errors, ids
from moorage.config import options
from moorage.messages import AcknowledgeRequests, PutAllocations
from moorage.service.stored_requests import Retention
from placement_store.schema import requests, services, tombstones
from placement_store.upkeep.pruning import Pruning

KEEP = Retention(acknowledged=100.0, unacknowledged=1000.0, tombstones=5000.0)


def put(store: Store, host: str, request_id: str, consumer: str) -> None:
    store.dispatcher.call(
        PutAllocations(request_id=request_id, consumer_uuid=consumer, wanted=store.wanted({host: {"VCPU": 1}}))
    )


def stored(store: Store) -> set[str]:
    query = select(requests.c.request_id).where(requests.c.method == "put_allocations")
    return set(store.database.read(lambda connection: connection.scalars(query).all()))


def acknowledge(store: Store, *request_ids: str) -> None:
    store.dispatcher.call(AcknowledgeRequests(request_id=ids.fresh(), request_ids=request_ids))


def grow_older(store: Store, seconds: float) -> None:
    for column in ("created_at", "acknowledged_at"):
        store.age("requests", column, seconds)
    store.age("tombstones", "created_at", seconds)


def test_an_acknowledged_answer_is_deleted_earlier_than_others(store: Store, host: str) -> None:
    pruning, consumer = Pruning(store.database, KEEP), ids.fresh()
    put(store, host, "old", consumer)
    put(store, host, "unacknowledged", ids.fresh())
    acknowledge(store, "old", "never heard of")
    grow_older(store, 90)
    acknowledge(store, "old")

    pruning.round()
    assert stored(store) == {"old", "unacknowledged"}
    put(store, host, "old", consumer)
    grow_older(store, 20)
    pruning.round()
    assert stored(store) == {"unacknowledged"}
    # Without the stored answer, the consumer's generation prevents a second write.
    with pytest.raises(errors.ConsumerGenerationConflict):
        put(store, host, "old", consumer)
    grow_older(store, 1000)
    pruning.round()
    assert stored(store) == set()
    assert store.used(host)["VCPU"] == 2


def test_the_retention_of_an_answer_starts_at_its_acknowledgement(store: Store, host: str) -> None:
    put(store, host, "r1", ids.fresh())
    grow_older(store, 990)
    acknowledge(store, "r1")
    grow_older(store, 50)
    Pruning(store.database, KEEP).round()
    assert stored(store) == {"r1"}


def test_many_answers_are_deleted_in_one_round(store: Store) -> None:
    rows = [
        {"request_id": f"r{n}", "method": "put_allocations", "digest": b"x" * 32, "result": b"1", "created_at": 0.0}
        for n in range(2500)
    ]
    with store.database.engine.connect() as connection, connection.begin():
        connection.execute(requests.insert(), rows)
    Pruning(store.database, KEEP).round()
    assert stored(store) == set()


def test_a_tombstone_outlives_every_answer(store: Store, host: str) -> None:
    uuid = ids.fresh()
    store.delete(uuid, for_good=True)
    pruning = Pruning(store.database, KEEP)
    grow_older(store, 4990)
    pruning.round()
    with pytest.raises(errors.ConsumerDeleted):
        store.claim(uuid, {host: {"VCPU": 1}})
    grow_older(store, 20)
    pruning.round()
    assert store.scalar(select(func.count()).select_from(tombstones)) == 0


def test_a_service_that_stopped_reporting_long_ago_is_deleted(store: Store) -> None:
    row = {"kind": "scheduler", "name": "a", "cell_uuid": "", "machine": "m", "version": "1"}
    with store.database.engine.connect() as connection, connection.begin():
        connection.execute(services.insert(), [{**row, "first_heard_at": 0.0, "heard_at": 0.0}])
    Pruning(store.database, KEEP).round()
    assert store.scalar(select(func.count()).select_from(services)) == 0


def test_retentions_are_at_least_the_time_in_which_a_repeat_may_arrive() -> None:
    conf = options.new(
        {
            "placement": {"request_retention": 0.0, "unacknowledged_retention": 0.0, "tombstone_retention": 0.0},
            "rpc": {"call_timeout": 30.0},
            "conductor": {"max_unanswered_retries": 3},
        }
    )
    kept = Retention.of(conf)
    assert 30.0 * (3 + 2) < kept.acknowledged <= kept.unacknowledged <= kept.tombstones
    assert Retention.of(options.new()) == (3600.0, 7 * 86400.0, 30 * 86400.0)


@pytest.mark.parametrize(
    ("conductor", "tries"),
    [
        ({}, 10),
        ({"retry_backoff": 60.0}, 10),
        ({"retry_backoff": 60.0, "max_unanswered_retries": 0}, 10),
        ({"retry_backoff": 0.1, "max_unanswered_retries": 40}, 40),
    ],
)
def test_an_answer_is_kept_until_the_last_try_of_its_request_with_all_time_outs_and_back_offs(
    conductor: dict[str, float], tries: int
) -> None:
    forgetting = {"request_retention": 0.0, "unacknowledged_retention": 0.0, "tombstone_retention": 0.0}
    conf = options.new({"placement": forgetting, "conductor": conductor, "rpc": {"call_timeout": 20.0}})
    first = conf.conductor.retry_backoff
    # A quarter of each wait is random: these are the longest.
    waits = sum(min(first * 3.0 ** (number - 1), first * 30.0) for number in range(1, tries + 1))
    assert Retention.of(conf).acknowledged >= (tries + 2) * 20.0 + waits + conf.conductor.lease_seconds
