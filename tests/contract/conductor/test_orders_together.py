"""Test that orders to build that are recorded together are recorded, answered or refused as they would be alone."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Row, Select, event
from support.conductor.record_builders import SPEC, selected
from support.databases.statements import statements_of
from support.moorage.batched_calls import handle_together, outcome_of
from support.moorage.queued_calls import queue

from conductor.cell.context import CellRequests
from conductor.cell.endpoints.builds import CellOrders
from conductor.cell.records.instances import CellRecords
from conductor.engine.acknowledgements import Acknowledgements
from conductor.engine.bulkheads import Bulkheads
from conductor.engine.operations import Operations
from conductor.engine.order_requests import OrderRequests
from conductor.engine.revoked_claims import RevokedClaims
from conductor.engine.steps import Backoff, Operation
from conductor.engine.worker import Worker
from conductor.schema import (
    cell_disowned,
    cell_instances,
    cell_operations,
    cell_requests,
    conductor_instances,
    conductor_operations,
    conductor_requests,
)
from conductor.super.endpoints.builds import SuperOrders
from moorage import ids
from moorage.db.database import Database
from moorage.messages import BuildInCell, BuildInstances, InstanceBuild
from moorage.messages.wire import Mutation
from moorage.model import Selection
from moorage.service.stored_requests import StoredRequests

STORIES = ("new", "known", "repeated", "reused", "twice", "of several", "revoked")


pytestmark = pytest.mark.usefixtures("patient_transactions")


class RecordingWorker(Worker):
    """A worker that only stores its operations."""

    def __init__(self, operations: Operations) -> None:
        bulkheads = Bulkheads("host", 1, Backoff(), (), 1.0, postpones=True)
        super().__init__(operations, 0, "test", bulkheads, Acknowledgements(cast(Any, None)))
        self.enqueued: list[Operation] = []

    def enqueue(self, *operations: Operation | None) -> None:
        self.enqueued += [operation for operation in operations if operation is not None]


class Super:
    """The super conductor's endpoint with the records of its schema."""

    instances, operations_table = conductor_instances, conductor_operations
    #: The statements of orders that share a transaction: requests, instances, operations.
    statements = ("INSERT", "INSERT", "INSERT")

    def __init__(self, database: Database) -> None:
        self.database = database
        operations = Operations(database, conductor_operations, "me", {}, Backoff())
        self.worker = RecordingWorker(operations)
        self.requests = OrderRequests(database, StoredRequests(database, conductor_requests), self.worker)
        options = SimpleNamespace(max_attempts=3)
        parts = SimpleNamespace(operations=operations, requests=self.requests, options=options)
        self.endpoint = SuperOrders(cast(Any, parts))

    def order(self, uuids: Sequence[str], request_id: str) -> BuildInstances:
        return BuildInstances(request_id=request_id, request_spec=SPEC, instance_uuids=tuple(uuids))

    def revoke(self, message: Mutation[Any]) -> None:
        """Nothing is revoked here before a claim is made."""


class Cell:
    """The endpoint of a cell's conductor with the records of its cell."""

    instances, operations_table = cell_instances, cell_operations
    #: As above; then the instances on record, revoked claims, and the lives of hosts are read, and attempts written.
    statements = ("INSERT", "SELECT", "SELECT", "INSERT", "SELECT", "INSERT", "INSERT")

    def __init__(self, database: Database) -> None:
        self.database = database
        self.uuid = ids.fresh()
        scope = {"cell_uuid": self.uuid}
        operations = Operations(database, cell_operations, "me", scope, Backoff())
        self.worker = RecordingWorker(operations)
        self.requests = CellRequests(database, StoredRequests(database, cell_requests), self.uuid, self.worker)
        self.revoked_claims = RevokedClaims(cell_disowned, scope)
        parts = SimpleNamespace(
            operations=operations,
            requests=self.requests,
            records=CellRecords(self.uuid),
            revoked_claims=self.revoked_claims,
        )
        self.endpoint = CellOrders(cast(Any, parts))

    def order(self, uuids: Sequence[str], request_id: str) -> BuildInCell:
        builds = (InstanceBuild(instance_uuid=uuid, request_spec=SPEC, selections=(self._of(uuid),)) for uuid in uuids)
        return BuildInCell(request_id=request_id, builds=tuple(builds))

    def _of(self, uuid: str) -> Selection:
        return msgspec.structs.replace(selected(self.uuid), claim_id=ids.derived(uuid, "claim"))

    def revoke(self, message: BuildInCell) -> None:
        for build in message.builds:
            claim_id = ids.derived(build.instance_uuid, "claim")
            self.database.write(partial(self.revoked_claims.add, claim_id=claim_id, consumer_uuid=build.instance_uuid))


Stage = Super | Cell


@pytest.fixture(params=[Super, Cell])
def stage(request: pytest.FixtureRequest, database: Database) -> Stage:
    made: Stage = request.param(database)
    return made


def tell(stage: Stage, story: str) -> list[Mutation[Any]]:
    """Record the earlier orders of a story, and return its own orders."""
    uuids, request_id = [ids.fresh() for _ in range(3 if story == "of several" else 1)], ids.fresh()
    message = stage.order(uuids, request_id)
    match story:
        case "known":
            build(stage, stage.order(uuids, ids.fresh()))
        case "repeated":
            build(stage, message)
        case "reused":
            build(stage, stage.order([ids.fresh()], request_id))
        case "twice":
            return [message, message]
        case "revoked":
            stage.revoke(cast(Any, message))
    return [message]


def build(stage: Stage, message: Mutation[Any]) -> object:
    """Give an order, and return its answer or the type of its error."""
    return outcome_of(lambda: stage.endpoint.build_instances(cast(Any, message)))


@contextmanager
def held_up(stage: Stage, calls: Sequence[Callable[[], object]]) -> Iterator[list["Future[object]"]]:
    """Make all calls while the transaction of another order is open, which commits at exit."""
    recording, released = threading.Event(), threading.Event()

    def hold(_connection: object) -> None:
        recording.set()
        assert released.wait(20)

    with ThreadPoolExecutor(len(calls) + 1) as threads:
        event.listen(stage.database.engine, "commit", hold, once=True)
        first = threads.submit(build, stage, stage.order([ids.fresh()], ids.fresh()))
        assert recording.wait(10)
        yield queue(threads, stage.requests._shared._batches, calls)
        released.set()
        first.result(20)


def rows_of(database: Database, query: Select[Any]) -> Sequence[Row[Any]]:
    return database.read(lambda connection: connection.execute(query).all())


def on_record(stage: Stage, messages: Sequence[Mutation[Any]]) -> list[object]:
    """Return the records of orders, and the operations that the worker has, apart from ids and times."""
    found: list[object] = []
    instances, operations = stage.instances.c, stage.operations_table.c
    for message in messages:
        uuids = getattr(message, "instance_uuids", None) or [each.instance_uuid for each in cast(Any, message).builds]
        subjects = [message.request_id] if isinstance(stage, Super) else uuids
        query = stage.instances.select().where(instances.uuid.in_(uuids)).order_by(instances.request_id)
        rows = rows_of(stage.database, query)
        pending = stage.operations_table.select().where(operations.subject.in_(subjects))
        begun = rows_of(stage.database, pending)
        found.append(
            (
                [(row.state, row.request_id == message.request_id) for row in rows],
                [(row.kind, row.step, row.state, row.step_number, row.lease_owner is None) for row in begun],
                [round(row.lease_until - row.created_at) for row in begun],
                sorted((each.step, each.carried is None) for each in stage.worker.enqueued if each.subject in subjects),
            )
        )
    return found


def at_once(stage: Stage, messages: Sequence[Mutation[Any]]) -> list[object]:
    """Give orders from several threads, so that they share a transaction."""
    with held_up(stage, [partial(build, stage, message) for message in messages]) as calls:
        pass
    return [call.result(20) for call in calls]


def in_one_message(stage: Stage, messages: Sequence[Mutation[Any]]) -> list[object]:
    return handle_together(cast(Any, stage.endpoint.build_many), messages)


@pytest.mark.parametrize("give", [at_once, in_one_message])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stories=st.lists(st.sampled_from(STORIES), min_size=2, max_size=6))
def test_orders_given_together_are_answered_and_recorded_as_they_would_be_alone(
    stage: Stage, give: Callable[..., list[object]], stories: list[str]
) -> None:
    messages = [message for story in stories for message in tell(stage, story)]
    together = give(stage, messages)
    others = [message for story in stories for message in tell(stage, story)]
    alone = [build(stage, message) for message in others]

    assert shape(together) == shape(alone)
    assert on_record(stage, messages) == on_record(stage, others)


def shape(outcomes: Sequence[object]) -> list[object]:
    return [len(outcome) if isinstance(outcome, list) else outcome for outcome in outcomes]


def test_orders_of_one_message_cost_the_statements_of_one(stage: Stage) -> None:
    messages = [stage.order([ids.fresh()], ids.fresh()) for _ in range(4)]
    with statements_of(stage.database) as statements:
        results = in_one_message(stage, messages)

    assert not [result for result in results if isinstance(result, type)]
    kinds = (statement.split()[0] for statement in statements)
    assert tuple(kind for kind in kinds if kind not in ("BEGIN", "COMMIT")) == stage.statements


def test_orders_that_come_together_cost_the_statements_of_one(stage: Stage) -> None:
    messages = [stage.order([ids.fresh() for _ in range(number)], ids.fresh()) for number in (1, 2, 1, 3)]
    statements: list[tuple[str, str]] = []

    def note(_connection: object, cursor: Any, statement: str, *_rest: object) -> None:
        # PyMySQL alone keeps what it has sent.
        sent = getattr(cursor, "_executed", None)
        if not statement.startswith("BEGIN"):
            statements.append((statement.split()[0], sent.decode() if isinstance(sent, bytes) else str(sent)))

    with held_up(stage, [partial(build, stage, message) for message in messages]) as calls:
        event.listen(stage.database.engine, "after_cursor_execute", note)
    results = [call.result(20) for call in calls]

    assert not [result for result in results if isinstance(result, type)]
    assert tuple(kind for kind, _sent in statements) == stage.statements
    if not stage.database.is_sqlite:
        for kind, sent in statements:
            assert kind != "INSERT" or sent.count("),(") + 1 in (4, 7), "each table is written by one statement"


def test_an_order_with_many_instances_is_recorded_by_itself(stage: Stage) -> None:
    uuids = [ids.fresh() for _ in range(65)]
    with held_up(stage, []) as _calls, ThreadPoolExecutor(1) as thread:
        # SQLite has one writer at a time.
        if not stage.database.is_sqlite:
            assert not isinstance(thread.submit(build, stage, stage.order(uuids, ids.fresh())).result(20), type)
