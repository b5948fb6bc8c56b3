"""Test that the view agrees with the store after a claim has replaced an earlier claim of its instance."""

from typing import Any

from msgspec import structs
from support.scheduler.builders import select, spec
from support.scheduler.rig import OneScheduler, Rig

from moorage.batches import BatchItem
from moorage.messages import SelectDestinations
from scheduler.decide.selections import Selections


def replacing(rig: Rig, request_id: str, **changes: Any) -> SelectDestinations:
    """Claim for a new instance, and return a request that replaces this claim, which no host has accepted."""
    message = select(request_id, **changes)
    [[claimed]] = rig.scheduler().select(message)
    assert claimed.consumer_generation is not None
    return structs.replace(
        message,
        request_id=f"{request_id} again",
        consumer_generations={message.instance_uuids[0]: claimed.consumer_generation},
    )


def in_the_store(rig: Rig, number: int) -> tuple[float, int]:
    """Return the used CPUs of a host and the number of instances in the view of a new scheduler."""
    return seen(rig.scheduler(), number)


def seen(scheduler: OneScheduler, number: int) -> tuple[float, int]:
    scheduler.catch_up()
    return scheduler.used(number), int(scheduler.host_cache.snapshot().instances.sum())


def test_an_instance_that_stays_on_its_host_counts_there_once(rig: Rig) -> None:
    rig.add_hosts([1])
    scheduler = rig.scheduler()
    again = replacing(rig, "r1")

    scheduler.select(again)

    scheduler.follow()
    assert seen(scheduler, 1) == in_the_store(rig, 1) == (2, 1)


def test_the_host_that_an_instance_leaves_counts_another_claim_of_the_same_transaction(rig: Rig) -> None:
    rig.add_hosts([1, 2])
    again = replacing(rig, "r1", force_hosts=("host1",))
    to_the_other = structs.replace(again, request_spec=spec(force_hosts=("host2",)))
    scheduler = rig.scheduler()
    calls = [
        BatchItem[SelectDestinations, Selections](message)
        for message in (to_the_other, select("r2", force_hosts=("host1",)))
    ]

    assert scheduler.endpoint.select_many(calls) == [None, None]

    scheduler.follow()
    assert [seen(scheduler, number) for number in (1, 2)] == [in_the_store(rig, number) for number in (1, 2)]
