"""Test that both gates of a cell handle several calls together in the same way as each of them alone."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from support.conductor.record_builders import SPEC, advance, selected
from support.databases.statements import statements_of
from support.moorage.batched_calls import handle_together, outcome_of

from conductor.cell.attempt_sequence import AttemptSequences
from conductor.cell.endpoints.gates import CellGates
from conductor.cell.gates import Gates
from conductor.cell.records import failed_builds
from conductor.cell.records.instances import CellRecords, NewInstance
from conductor.cell.records.migrations import MigrationRecords
from conductor.engine.bulkheads import CircuitOpen
from conductor.engine.operations import Operations
from conductor.engine.steps import BUILD, Backoff, NoPayload, Operation, Superseded, Wait
from conductor.schema import cell_failed_builds, cell_hosts, cell_operations
from moorage import errors, ids
from moorage.batches import BatchItem
from moorage.bus.bus import LaterCalls
from moorage.db.database import Database
from moorage.messages import AcceptClaim, AcceptInCell, BuildFinished, Done, InstanceBuild

#: How an instance, its attempt and the message differ from those of a build that goes well.
STORIES = ("well", "accepted", "reported", "in error", "deleting", "failed", "another claim", "returning", "unknown")


pytestmark = pytest.mark.usefixtures("patient_transactions")


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
        self.store_is_silent = False
        self.endpoint = CellGates(cast(Any, SimpleNamespace(gates=self.gates, gate_client=self)))

    def call_if_admitted(self, message: AcceptClaim) -> None:
        """Accept a claim in the store."""
        if self.store_is_silent:
            raise CircuitOpen("it has not answered for 3 s")
        self.accepted.append(message.claim_id)

    def call_many_if_admitted(self, items: Sequence[BatchItem[Any, Any]]) -> Iterator[Sequence[BatchItem[Any, Any]]]:
        """Accept claims in the store, which answers each second call later."""
        for portion in filter(None, (items[::2], items[1::2])):
            for item in portion:
                if self.store_is_silent:
                    raise CircuitOpen("it has not answered for 3 s")
                item.do(self.call_if_admitted)
            yield portion

    def build(self, story: str) -> Built:
        """Record an instance whose host has the order to start it, in the situation that the story names."""
        first = selected(self.uuid)
        built = Built(story, ids.fresh(), ids.fresh(), first.claim_id or "")
        if story == "unknown":
            return built
        new = Operation.new("req", uuid=ids.fresh(), kind=BUILD, subject=built.uuid, step="start", payload=NoPayload())
        build = InstanceBuild(instance_uuid=built.uuid, request_spec=SPEC, selections=(first,))

        def work(connection: Any) -> None:
            self.records.add(connection, [NewInstance(built.attempt_id, build, "req")])
            self.operations.begin(connection, [new])
            match story:
                case "accepted":
                    self.records.change_attempt(connection, built.attempt_id, state="building")
                case "reported":
                    self.records.change_attempt(connection, built.attempt_id, state="active")
                    self.records.change(connection, built.uuid, state="active")
                case "in error":
                    self.records.change_attempt(connection, built.attempt_id, state="active")
                    self.records.change(connection, built.uuid, state="error")
                case "deleting":
                    self.records.change(connection, built.uuid, state="deleting")
                case "failed":
                    self.records.change_attempt(connection, built.attempt_id, state="failed")

        self.database.write(work)
        return built

    def host_returns(self, nodename: str = "a", *, is_returning: bool = True) -> None:
        row = {
            "agent": "agent",
            "description": b"",
            "description_number": 1,
            "acknowledged_number": 0,
            "last_seen": 1.0,
        }
        statement = cell_hosts.insert().values(
            cell_uuid=self.uuid, service_host="a", nodename=nodename, is_returning=is_returning, **row
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


def together(cell: Cell, calls: Sequence[Callable[[], object]]) -> list["Future[object]"]:
    """Make all calls while a transaction blocks an earlier call: they share the next transaction."""
    holding, released = threading.Event(), threading.Event()
    held = cell.build("well")

    def hold(connection: Any) -> None:
        cell.records.lock(connection, held.uuid)
        holding.set()
        assert released.wait(20)

    with ThreadPoolExecutor(len(calls) + 2) as threads:
        holder = threads.submit(cell.database.write, hold)
        assert holding.wait(10)
        first = threads.submit(cell.gates.finishes.do, held.finished())
        first_accept = threads.submit(cell.gates.acceptances.do, held.accept())
        threading.Event().wait(0.1)
        made = [threads.submit(call) for call in calls]
        threading.Event().wait(0.3)
        released.set()
        holder.result(20)
        assert first.result(20)
        assert first_accept.exception(20) is None
    return made


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stories=st.lists(st.sampled_from(STORIES), min_size=2, max_size=8),
    gate=st.sampled_from(("accept", "finish")),
    twice=st.booleans(),
)
def test_calls_that_share_a_transaction_have_the_answers_and_records_of_single_calls(
    database: Database, stories: list[str], gate: str, twice: bool
) -> None:
    one, other = Cell(database), Cell(database)

    def calls(cell: Cell, builds: Sequence[Built]) -> list[Callable[[], object]]:
        if gate == "accept":
            return [partial(cell.gates.acceptances.do, built.accept()) for built in builds]
        return [partial(cell.gates.finishes.do, built.finished()) for built in builds]

    times = 2 if twice else 1
    shared, single = [one.build(story) for story in stories], [other.build(story) for story in stories]
    made = together(one, calls(one, shared * times))
    expected = [outcome_of(call) for call in calls(other, single * times)]

    assert [outcome_of(call.result) for call in made] == expected
    assert [one.state(built) for built in shared] == [other.state(built) for built in single]


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stories=st.lists(st.sampled_from(STORIES), min_size=2, max_size=8),
    gate=st.sampled_from(("accept", "finish")),
    twice=st.booleans(),
    store_is_silent=st.booleans(),
)
@example(stories=["well", "accepted"], gate="accept", twice=True, store_is_silent=False)
@example(stories=["well", "failed"], gate="accept", twice=False, store_is_silent=True)
def test_calls_of_one_message_have_the_answers_and_records_of_single_calls(
    database: Database, stories: list[str], gate: str, twice: bool, store_is_silent: bool
) -> None:
    one, other = Cell(database), Cell(database)
    one.store_is_silent = other.store_is_silent = store_is_silent
    handle_many, handle, message_of = {
        "accept": (one.endpoint.accept_many, other.endpoint.accept_claim, Built.accept),
        "finish": (one.endpoint.finish_many, other.endpoint.build_finished, Built.finished),
    }[gate]
    times = 2 if twice else 1
    many, single = [one.build(story) for story in stories], [other.build(story) for story in stories]
    made = handle_together(cast(Any, handle_many), [message_of(built) for built in many * times])
    expected = [outcome_of(partial(cast(Any, handle), message_of(built))) for built in single * times]

    assert made == expected
    assert len(one.accepted) == len(other.accepted)
    assert one.accepted or gate == "finish" or store_is_silent or "well" not in stories
    assert [one.state(built) for built in many] == [other.state(built) for built in single]


def test_an_attempt_whose_row_is_locked_does_not_delay_the_others_of_its_message(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell(database)
    built = [cell.build("well") for _ in range(2)]
    calls: list[BatchItem[Any, Any]] = [BatchItem(each.accept()) for each in built]
    may_go_on = threading.Event()

    def record_alone() -> None:
        assert may_go_on.wait(0.0), "only a thread of its own may wait for the row"

    # The shared transaction has waited for the locked row in vain: each record must be made alone.
    monkeypatch.setattr(
        cell.gates, "acceptances", SimpleNamespace(do_many=lambda records: [record_alone] * len(records))
    )
    [later] = {end for end in cell.endpoint.accept_many(calls) if isinstance(end, LaterCalls)}

    portions = list(later.end())

    may_go_on.set()
    assert [end() for portion in portions for end in portion.values() if end is not None] == [Done(), Done()]


def test_ends_of_builds_in_one_message_cost_as_many_statements_as_a_single_end(database: Database) -> None:
    cell = Cell(database)
    [one, *builds] = [cell.build("well") for _ in range(9)]
    with statements_of(database) as first:
        cell.endpoint.build_finished(one.finished())
    with statements_of(database) as seen:
        handle_together(cell.endpoint.finish_many, [built.finished() for built in builds])

    assert len(seen) == len(first)
    assert {cell.state(built)[0] for built in builds} == {"active"}


def test_on_a_returning_host_the_first_gate_is_closed_and_the_second_is_open(
    database: Database,
) -> None:
    cell = Cell(database)
    builds = [cell.build("well") for _ in range(3)]
    cell.host_returns()

    for built in builds:
        with pytest.raises(errors.RequestInProgress):
            cell.gates.looks.do(built.accept())
        with pytest.raises(errors.RequestInProgress):
            cell.gates.acceptances.do(built.accept())
    assert {cell.state(built)[1] for built in builds} == {("starting", False)}
    assert cell.gates.finishes.do(builds[0].finished())
    assert cell.state(builds[0])[1] == ("active", False)


def test_a_host_with_several_nodes_is_returning_as_long_as_one_of_them_is(database: Database) -> None:
    cell = Cell(database)
    built = cell.build("well")
    cell.host_returns("first")
    cell.host_returns("second", is_returning=False)

    with pytest.raises(errors.RequestInProgress):
        cell.gates.acceptances.do(built.accept())


def test_the_guest_of_an_instance_in_error_passes_both_gates_again(database: Database) -> None:
    cell = Cell(database)
    built = cell.build("in error")
    before = cell.state(built)

    cell.gates.acceptances.do(built.accept())
    assert cell.gates.finishes.do(built.finished())

    assert cell.state(built) == before


def test_ends_of_builds_in_one_transaction_cost_few_statements(database: Database) -> None:
    cell = Cell(database)
    [one, *builds] = [cell.build("well") for _ in range(9)]
    with statements_of(database) as seen:
        cell.gates.finishes.do(one.finished())
    cost = len(seen)

    with statements_of(database) as seen:
        made = together(cell, [partial(cell.gates.finishes.do, built.finished()) for built in builds])

    assert [outcome_of(call.result) for call in made] == [True] * len(builds)
    assert {cell.state(built)[0] for built in builds} == {"active"}
    # With the statements of the blocked build, of its order and of its lock: the cost of four builds, and not of nine.
    assert len(seen) <= 4 * cost + 6, seen


def test_the_end_of_a_build_supersedes_its_step_under_way(database: Database) -> None:
    cell = Cell(database)
    built = cell.build("well")
    operation = database.write(lambda connection: cell.operations.lock_one_pending(connection, built.uuid, BUILD))
    assert operation is not None

    assert cell.gates.finishes.do(built.finished())

    with pytest.raises(Superseded):
        advance(cell.operations, operation, lambda _connection: Wait("wait", NoPayload(), 1.0))
    assert cell.state(built)[2] == [("done", 2, True)]


def test_each_guest_that_starts_halves_the_failures_of_its_host_also_if_several_start_together(
    database: Database,
) -> None:
    cell = Cell(database)
    database.write(lambda connection: failed_builds.add(connection, cell.uuid, ids.fresh(), "a"))
    database.write(lambda connection: failed_builds.add(connection, cell.uuid, ids.fresh(), "b"))

    database.write(lambda connection: failed_builds.halve(connection, cell.uuid, ["a", "a", "b", "c"]))

    weights = select(cell_failed_builds.c.host, cell_failed_builds.c.weight)
    rows = database.read(
        lambda connection: connection.execute(weights.where(cell_failed_builds.c.cell_uuid == cell.uuid)).all()
    )
    assert {row.host: row.weight for row in rows} == {"a": 0.25, "b": 0.5}
