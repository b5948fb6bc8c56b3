"""Test both gates of a cell: attempts that come together are judged and recorded as each would be alone."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, select
from support.conductor.record_builders import SPEC, records_database, selected  # noqa: F401 - a fixture

from conductor.cell.attempt_sequence import AttemptSequences
from conductor.cell.endpoints.gates import CellGates
from conductor.cell.gates import Gates
from conductor.cell.records.failed_builds import FailedBuilds
from conductor.cell.records.instances import CellRecords, NewInstance
from conductor.cell.records.migrations import MigrationRecords
from conductor.engine.operations import Operations
from conductor.engine.steps import BUILD, Backoff, NewOperation, NoPayload, Superseded, Wait
from conductor.schema import cell_failed_builds, cell_hosts, cell_operations
from moorage import errors, ids
from moorage.batches import BatchItem
from moorage.db.database import Database
from moorage.messages import AcceptInCell, BuildFinished, InstanceBuild

#: How an instance, its attempt and the message differ from those of a build that goes well.
STORIES = ("well", "accepted", "reported", "deleting", "failed", "another claim", "returning", "unknown")


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transactions wait for each other however slow the machine is."""
    monkeypatch.setattr("moorage.db.shared_transactions._PATIENCE", 60.0)


@dataclass
class Built:
    """An instance with its attempt, as messages name them."""

    story: str
    uuid: str
    attempt_id: str
    claim_id: str

    @property
    def named(self) -> dict[str, str]:
        claim_id = ids.fresh() if self.story == "another claim" else self.claim_id
        return {"instance_uuid": self.uuid, "attempt_id": self.attempt_id, "claim_id": claim_id}

    def accept(self) -> AcceptInCell:
        return AcceptInCell(request_id=ids.fresh(), host="a", **self.named)

    def finished(self) -> BuildFinished:
        return BuildFinished(request_id=ids.fresh(), **self.named)


class Cell:
    """The records of one cell, and its gates."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.records = CellRecords(ids.fresh())
        self.uuid = self.records.cell_uuid
        self.operations = Operations(
            database, cell_operations, "me", {"cell_uuid": self.uuid}, Backoff(first=0.01, longest=0.05)
        )
        sequences = AttemptSequences(self.records, MigrationRecords(self.records))
        self.gates = Gates(database, self.records, sequences, self.operations)
        #: The claims that the store was called for.
        self.accepted: list[str] = []
        store = SimpleNamespace(call=lambda message: self.accepted.append(message.claim_id))
        self.endpoint = CellGates(cast(Any, SimpleNamespace(gates=self.gates, placement_client=store)))

    def build(self, story: str) -> Built:
        """Record an instance whose host has been ordered to start it, and what else the story tells."""
        first = selected(self.uuid)
        built = Built(story, ids.fresh(), ids.fresh(), first.claim_id or "")
        if story == "unknown":
            return built
        new = NewOperation(uuid=ids.fresh(), kind=BUILD, subject=built.uuid, step="start", payload=NoPayload())
        build = InstanceBuild(instance_uuid=built.uuid, request_spec=SPEC, selections=(first,))

        def work(connection: Any) -> None:
            self.records.add(connection, [NewInstance(built.attempt_id, build, "req")])
            self.operations.begin(connection, [new], "req")
            match story:
                case "accepted":
                    self.records.change_attempt(connection, built.attempt_id, state="building")
                case "reported":
                    self.records.change_attempt(connection, built.attempt_id, state="active")
                    self.records.change(connection, built.uuid, state="active")
                case "deleting":
                    self.records.change(connection, built.uuid, state="deleting")
                case "failed":
                    self.records.change_attempt(connection, built.attempt_id, state="failed")

        self.database.write(work)
        return built

    def host_returns(self) -> None:
        row = {
            "agent": "agent",
            "description": b"",
            "description_number": 1,
            "acknowledged_number": 0,
            "last_seen": 1.0,
        }
        statement = cell_hosts.insert().values(
            cell_uuid=self.uuid, service_host="a", nodename="a", is_returning=True, **row
        )
        self.database.write(lambda connection: connection.execute(statement))

    def state(self, built: Built) -> tuple[Any, ...]:
        """Return what is on record of an instance."""

        def work(connection: Any) -> tuple[Any, ...]:
            instance = self.records.read(connection, built.uuid)
            attempt = self.records.attempt(connection, built.uuid, built.attempt_id)
            columns = select(cell_operations.c.state, cell_operations.c.step_number, cell_operations.c.lease_owner)
            operations = connection.execute(columns.where(cell_operations.c.subject == built.uuid)).all()
            return (
                instance and instance.state,
                attempt and (attempt.state, attempt.accepted),
                [(state, number, owner is None) for state, number, owner in operations],
            )

        return self.database.read(work)


@contextmanager
def transactions(database: Database) -> Iterator[list[str]]:
    """Collect the statements that are carried out meanwhile, and a word for each transaction that is committed."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        seen.append(statement)

    def commit(_connection: Any) -> None:
        seen.append("COMMIT")

    event.listen(database.engine, "after_cursor_execute", note)
    event.listen(database.engine, "commit", commit)
    try:
        yield seen
    finally:
        event.remove(database.engine, "after_cursor_execute", note)
        event.remove(database.engine, "commit", commit)


def together(cell: Cell, calls: Sequence[Callable[[], object]]) -> list["Future[object]"]:
    """Make all calls while a transaction holds the first of them up: the others share the next transaction."""
    holding, released = threading.Event(), threading.Event()
    held = cell.build("well")

    def hold(connection: Any) -> None:
        cell.records.lock(connection, held.uuid)
        holding.set()
        assert released.wait(20)

    with ThreadPoolExecutor(len(calls) + 2) as threads:
        holder = threads.submit(cell.database.write, hold)
        assert holding.wait(10)
        first = threads.submit(cell.gates.finish, held.finished())
        first_accept = threads.submit(cell.gates.accept, held.accept())
        threading.Event().wait(0.1)
        made = [threads.submit(call) for call in calls]
        threading.Event().wait(0.3)
        released.set()
        holder.result(20)
        assert first.result(20)
        assert first_accept.exception(20) is None
    return made


def outcome(call: "Future[object]") -> object:
    fault = call.exception(20)
    return call.result() if fault is None else type(fault)


def alone(call: Callable[[], object]) -> object:
    try:
        return call()
    except errors.MoorageError as fault:
        return type(fault)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stories=st.lists(st.sampled_from(STORIES), min_size=2, max_size=8),
    gate=st.sampled_from(("accept", "finish")),
    twice=st.booleans(),
)
def test_what_comes_together_gets_the_answers_and_leaves_the_records_of_single_calls(
    database: Database, stories: list[str], gate: str, twice: bool
) -> None:
    one, other = Cell(database), Cell(database)

    def calls(cell: Cell, builds: Sequence[Built]) -> list[Callable[[], object]]:
        if gate == "accept":
            return [lambda built=built: cell.gates.accept(built.accept()) for built in builds]  # type: ignore[misc]
        return [lambda built=built: cell.gates.finish(built.finished()) for built in builds]  # type: ignore[misc]

    shared, single = [one.build(story) for story in stories], [other.build(story) for story in stories]
    times = 2 if twice else 1

    made = together(one, calls(one, shared * times))
    expected = [alone(call) for call in calls(other, single * times)]

    assert [outcome(call) for call in made] == expected
    assert [one.state(built) for built in shared] == [other.state(built) for built in single]


def of_one_message(handler: Callable[[Any], Any], messages: Sequence[object]) -> list[object]:
    """Have messages handled that came in one message, and return the answer of each or the type of its error."""
    calls: list[BatchItem[Any, Any]] = [BatchItem(message) for message in messages]
    found: list[object] = []
    for call, remaining in zip(calls, handler(calls), strict=True):
        if remaining is not None:
            call.do(lambda _message, remaining=remaining: remaining())  # type: ignore[misc]
        found.append(alone(call.outcome))
    return found


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stories=st.lists(st.sampled_from(STORIES), min_size=2, max_size=8),
    gate=st.sampled_from(("accept", "finish")),
    twice=st.booleans(),
)
def test_what_comes_in_one_message_gets_the_answers_and_leaves_the_records_of_single_calls(
    database: Database, stories: list[str], gate: str, twice: bool
) -> None:
    one, other = Cell(database), Cell(database)
    times = 2 if twice else 1
    many, single = [one.build(story) for story in stories], [other.build(story) for story in stories]

    if gate == "accept":
        made = of_one_message(one.endpoint.accept_many, [built.accept() for built in many * times])
        expected = [alone(lambda built=built: other.endpoint.accept_claim(built.accept())) for built in single * times]  # type: ignore[misc]
    else:
        made = of_one_message(one.endpoint.finish_many, [built.finished() for built in many * times])
        expected = [
            alone(lambda built=built: other.endpoint.build_finished(built.finished())) for built in single * times
        ]  # type: ignore[misc]

    assert made == expected
    assert len(one.accepted) == len(other.accepted)
    assert [one.state(built) for built in many] == [other.state(built) for built in single]


def test_builds_whose_ends_come_in_one_message_cost_as_many_statements_as_one(database: Database) -> None:
    cell = Cell(database)
    [one, *builds] = [cell.build("well") for _ in range(9)]
    with transactions(database) as first:
        cell.endpoint.build_finished(one.finished())
    with transactions(database) as seen:
        of_one_message(cell.endpoint.finish_many, [built.finished() for built in builds])

    assert len(seen) == len(first)
    assert {cell.state(built)[0] for built in builds} == {"active"}


def test_on_a_returning_host_no_attempt_passes_the_first_gate_and_one_that_runs_passes_the_second(
    database: Database,
) -> None:
    cell = Cell(database)
    builds = [cell.build("well") for _ in range(3)]
    cell.host_returns()

    for built in builds:
        with pytest.raises(errors.RequestInProgress):
            cell.gates.look(built.accept())
        with pytest.raises(errors.RequestInProgress):
            cell.gates.accept(built.accept())
    assert {cell.state(built)[1] for built in builds} == {("starting", False)}
    assert cell.gates.finish(builds[0].finished())
    assert cell.state(builds[0])[1] == ("active", False)


def test_many_builds_that_end_together_cost_as_many_statements_as_one(database: Database) -> None:
    cell = Cell(database)
    [one, *builds] = [cell.build("well") for _ in range(9)]
    with transactions(database) as seen:
        cell.gates.finish(one.finished())
    cost = len(seen)

    with transactions(database) as seen:
        made = together(cell, [lambda built=built: cell.gates.finish(built.finished()) for built in builds])  # type: ignore[misc]

    assert [outcome(call) for call in made] == [True] * len(builds)
    assert {cell.state(built)[0] for built in builds} == {"active"}
    # Those of the held instance, of its order, and of its lock come with them: four builds' worth, and not nine.
    assert len(seen) <= 4 * cost + 6, seen


def test_the_step_under_way_is_superseded_by_the_end_of_its_build(database: Database) -> None:
    cell = Cell(database)
    built = cell.build("well")
    operation = database.write(lambda connection: cell.operations.pending(connection, built.uuid, BUILD))
    assert operation is not None

    assert cell.gates.finish(built.finished())

    with pytest.raises(Superseded):
        cell.operations.advance(operation, lambda _connection: Wait("wait", NoPayload(), 1.0))
    assert cell.state(built)[2] == [("done", 2, True)]


def test_each_guest_that_starts_halves_the_failures_of_its_host_also_where_they_start_together(
    database: Database,
) -> None:
    cell = Cell(database)
    failed = FailedBuilds(cell.uuid)
    database.write(lambda connection: failed.add(connection, ids.fresh(), "a"))
    database.write(lambda connection: failed.add(connection, ids.fresh(), "b"))

    database.write(lambda connection: failed.halve(connection, ["a", "a", "b", "c"]))

    weights = select(cell_failed_builds.c.host, cell_failed_builds.c.weight)
    rows = database.read(
        lambda connection: connection.execute(weights.where(cell_failed_builds.c.cell_uuid == cell.uuid)).all()
    )
    assert {row.host: row.weight for row in rows} == {"a": 0.25, "b": 0.5}
