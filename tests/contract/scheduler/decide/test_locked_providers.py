"""Test that a provider which somebody keeps locked delays only the requests that claim it."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import select
from support.scheduler.builders import select as asked
from support.scheduler.rig import Rig, node_uuid

from harness.waiting import wait_until
from moorage.batches import BatchItem
from moorage.messages import SelectDestinations
from moorage.model import Selection
from placement_store.schema import resource_providers

Answers = list[list[Selection]]

#: Alone, a request waits ten seconds for a locked row: five lock wait time-outs of two seconds.
MUCH_LESS = 7.0
ON_MARIADB = pytest.mark.parametrize("rig", [pytest.param("mariadb", marks=pytest.mark.servers)], indirect=True)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@contextmanager
def locked(rig: Rig, number: int) -> Iterator[None]:
    """Keep the row of the provider of a host locked until exit."""
    row = select(resource_providers.c.id).where(resource_providers.c.uuid == node_uuid(number))
    with rig.database.engine.connect() as holder:
        holder.execute(row.with_for_update())
        yield
        holder.rollback()


def on_host(number: int, request_id: str) -> SelectDestinations:
    return asked(request_id, force_hosts=(f"host{number}",))


def host_of(future: Future[Answers]) -> str:
    [[selection]] = future.result(30)
    return selection.service_host


@ON_MARIADB
def test_a_locked_provider_delays_no_request_of_the_same_batch_that_does_not_claim_it(
    rig: Rig, pool: ThreadPoolExecutor
) -> None:
    rig.add_hosts([1, 2])
    scheduler = rig.scheduler()
    messages = [on_host(2 if number == 3 else 1, f"r{number}") for number in range(6)]
    calls: list[BatchItem[SelectDestinations, Answers]] = [BatchItem(message) for message in messages]
    with locked(rig, 2):
        began = time.monotonic()

        def decided(call: BatchItem[SelectDestinations, Answers], alone: Callable[[], Answers] | None) -> Answers:
            return call.outcome() if alone is None else alone()

        futures = list(map(pool.submit, [decided] * 6, calls, scheduler.endpoint.select_many(calls)))
        blocked = futures.pop(3)
        assert [host_of(future) for future in futures] == ["host1"] * 5
        assert time.monotonic() - began < MUCH_LESS
        assert not blocked.done()
    assert host_of(blocked) == "host2"


@ON_MARIADB
def test_a_request_that_waits_for_a_locked_provider_does_not_delay_the_requests_after_it(
    rig: Rig, pool: ThreadPoolExecutor
) -> None:
    rig.add_hosts([1, 2])
    scheduler = rig.scheduler()
    batches = scheduler.endpoint._shared._batches
    with locked(rig, 2):
        began = time.monotonic()
        blocked = pool.submit(scheduler.select, on_host(2, "first"))
        wait_until(lambda: batches._is_under_way, lambda: "no batch has begun", interval=0.001)
        futures = [pool.submit(scheduler.select, on_host(1, f"r{number}")) for number in range(3)]
        assert [host_of(future) for future in futures] == ["host1"] * 3
        assert time.monotonic() - began < MUCH_LESS
        assert not blocked.done()
    assert host_of(blocked) == "host2"
