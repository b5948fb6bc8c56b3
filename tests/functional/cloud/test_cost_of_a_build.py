"""Test that a build costs no more calls, transactions and statements than `docs/performance.md` says."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import gt
from typing import Any

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine

from harness.bench.build import ended
from harness.bench.requests import SPEC
from harness.cloud import CloudSpec, RunningCloud
from harness.waiting import wait_until
from moorage import failpoints, ids
from moorage.db.engine import WRITING
from moorage.messages import BuildInstances

#: The most that each stage of a build costs: statements, transactions that read, transactions that write.
COST = {
    "serve.conductor.build_instances": (3, 0, 1),
    "step.build.select": (4, 0, 1),
    # The view reads again what was changed by others than the previous claim.
    "serve.scheduler.select_destinations": (11, 2, 1),
    "step.build.hand_over": (2, 0, 1),
    "serve.conductor.cell.build_instances": (7, 0, 1),
    "step.build.start": (1, 0, 1),
    "serve.conductor.cell.accept_claim": (4, 1, 1),
    "serve.placement.accept_claim": (1, 0, 1),
    "serve.conductor.cell.build_finished": (5, 0, 1),
}
#: The calls of a build, beginning with that of the client.
CALLS = {
    "conductor.build_instances": 1,
    "scheduler.select_destinations": 1,
    "conductor.cell.build_instances": 1,
    "compute.build_instance": 1,
    "conductor.cell.accept_claim": 1,
    "placement.accept_claim": 1,
    "conductor.cell.build_finished": 1,
}
#: Builds that are ordered at the same time, each with a request of its own.
TOGETHER = 32


@dataclass
class Counted:
    """The statements and transactions of a process, by the place of its threads among the failpoints."""

    statements: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    def cost(self, place: str) -> tuple[int, int, int]:
        return self.statements[place], self.reads[place], self.writes[place]

    def note(self, name: str) -> None:
        """Note a failpoint: a message is sent."""
        _place, sent, message = name.rpartition("send.")
        if sent:
            self.calls[message] += 1


@contextmanager
def counting(*, alone: bool = True) -> Iterator[Counted]:
    """Count the statements and transactions of all databases of this process, and its calls.

    :param alone: each request has transactions of its own, so that each statement is counted where it belongs.
    """
    counted = Counted()

    def place() -> str:
        return failpoints._place.get()

    def statement(*_what: Any) -> None:
        counted.statements[place()] += 1

    def begun(connection: Connection) -> None:
        (counted.writes if connection.info[WRITING] else counted.reads)[place()] += 1

    event.listen(Engine, "after_cursor_execute", statement)
    event.listen(Engine, "begin", begun)
    try:
        with failpoints.observed(counted.note), pytest.MonkeyPatch.context() as patch:
            patch.setattr(failpoints, "_is_observed", alone)
            yield counted
    finally:
        event.remove(Engine, "after_cursor_execute", statement)
        event.remove(Engine, "begin", begun)


def build(cloud: RunningCloud, count: int = 1) -> None:
    """Order builds at the same time, and wait until all instances are active."""
    uuids, client = [ids.fresh() for _ in range(count)], cloud.client("conductor")

    def order(uuid: str) -> None:
        client.call(BuildInstances(request_id=ids.fresh(), request_spec=SPEC, instance_uuids=(uuid,)))

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(order, uuids))
    read = cloud.database.read
    active = dict.fromkeys(uuids, "active")
    wait_until(lambda: read(lambda connection: ended(connection, uuids)) == active, "the builds to end")


def test_a_build_costs_no_more_calls_transactions_and_statements_than_documented() -> None:
    with RunningCloud(CloudSpec(hosts=3)) as cloud:
        # The first build looks up the cell, and the view of the scheduler is behind.
        build(cloud)
        build(cloud)
        with counting() as counted:
            build(cloud)
            # The guest may run before the steps that have started it are recorded.
            wait_until(lambda: all(counted.writes[place] for place in COST), "every stage to be recorded")

    assert {message: counted.calls[message] for message in CALLS} == CALLS
    over = {place: counted.cost(place) for place, most in COST.items() if any(map(gt, counted.cost(place), most))}
    assert not over, "a stage costs more than docs/performance.md says"


def test_builds_that_are_ordered_at_once_share_statements_and_transactions() -> None:
    with RunningCloud(CloudSpec(hosts=10)) as cloud:
        build(cloud)
        build(cloud)
        with counting(alone=False) as counted:
            build(cloud, TOGETHER)
            wait_until(lambda: all(counted.writes[place] for place in COST), "every stage to be recorded")

    alone = [sum(each) for each in zip(*COST.values(), strict=True)]
    shared = [sum(each) / TOGETHER for each in zip(*map(counted.cost, COST), strict=True)]
    # The number of builds that share depends on the timing of threads. Reads and writes are added, because reads at
    # the first gate share transactions as well.
    assert shared[0] <= 0.75 * alone[0], "each statement is for several builds"
    assert sum(shared[1:]) <= 0.7 * sum(alone[1:]), "each transaction is for several builds"
