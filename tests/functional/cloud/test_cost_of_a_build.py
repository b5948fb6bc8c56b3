"""The cost of one build, in calls, transactions and statements: it is written in `docs/performance.md`, and kept."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import gt
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine

from harness.bench.build import ended
from harness.bench.requests import SPEC
from harness.cloud import CloudSpec, RunningCloud, wait_until
from moorage import failpoints, ids
from moorage.messages import BuildInstances

#: The most that each stage of a build costs: statements, transactions that read, transactions that write.
COST = {
    "serve.conductor.build_instances": (3, 0, 1),
    "step.build.select": (4, 0, 1),
    # The view reads again what others than the claim before have changed.
    "serve.scheduler.select_destinations": (11, 2, 1),
    "step.build.hand_over": (2, 0, 1),
    "serve.conductor.cell.build_instances": (7, 0, 1),
    "step.build.start": (1, 0, 1),
    "serve.conductor.cell.accept_claim": (4, 1, 1),
    "serve.placement.accept_claim": (1, 0, 1),
    "serve.conductor.cell.build_finished": (5, 0, 1),
}
#: The calls of a build, from the client's on.
CALLS = {
    "conductor.build_instances": 1,
    "scheduler.select_destinations": 1,
    "conductor.cell.build_instances": 1,
    "compute.build_instance": 1,
    "conductor.cell.accept_claim": 1,
    "placement.accept_claim": 1,
    "conductor.cell.build_finished": 1,
}


@dataclass
class Counted:
    """The statements and transactions of a process, by the failpoints' place of its threads."""

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
def counting() -> Iterator[Counted]:
    """Count the statements and transactions of all databases of this process, and its calls."""
    counted = Counted()

    def place() -> str:
        return failpoints._place.get()

    def statement(_connection: Connection, _cursor: Any, text: str, *_rest: Any) -> None:
        # How a transaction begins on SQLite alone.
        if not text.startswith("BEGIN"):
            counted.statements[place()] += 1

    def begun(connection: Connection) -> None:
        is_writing = connection.get_execution_options().get("moorage_writing", False)
        (counted.writes if is_writing else counted.reads)[place()] += 1

    event.listen(Engine, "after_cursor_execute", statement)
    event.listen(Engine, "begin", begun)
    try:
        with failpoints.observed(counted.note):
            yield counted
    finally:
        event.remove(Engine, "after_cursor_execute", statement)
        event.remove(Engine, "begin", begun)


def build(cloud: RunningCloud) -> None:
    """Build an instance, and wait until it is active."""
    uuid = ids.fresh()
    cloud.client("conductor").call(BuildInstances(request_id=ids.fresh(), request_spec=SPEC, instance_uuids=(uuid,)))
    wait_until(lambda: ended(cloud.database, [uuid]) == {uuid: "active"}, "a build to end")


def test_a_build_costs_no_more_calls_transactions_and_statements_than_is_written() -> None:
    with RunningCloud(CloudSpec(hosts=3)) as cloud:
        # The first one looks up the cell, and finds the schedulers' view behind.
        build(cloud)
        build(cloud)
        with counting() as counted:
            build(cloud)
            # The guest may run before the steps that have led to it are on record.
            wait_until(lambda: all(counted.writes[place] for place in COST), "every stage to be recorded")

    assert {message: counted.calls[message] for message in CALLS} == CALLS
    over = {place: counted.cost(place) for place, most in COST.items() if any(map(gt, counted.cost(place), most))}
    assert not over, "a stage costs more than docs/performance.md says"
