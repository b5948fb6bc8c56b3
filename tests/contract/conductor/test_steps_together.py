"""Test that the outcomes of steps that are recorded together are recorded or superseded as they would be alone."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection
from support.conductor.record_builders import advance, begin
from support.databases.statements import statements_of
from support.moorage.batched_calls import outcome_of
from support.moorage.queued_calls import queue

from conductor.engine.operations import Operations
from conductor.engine.steps import (
    BUILD,
    Backoff,
    Ended,
    Next,
    NoPayload,
    Operation,
    Outcome,
    Retry,
    SharedCommit,
    Superseded,
    Wait,
)
from conductor.schema import conductor_operations
from moorage import ids
from moorage.db.database import Database

OUTCOMES: dict[str, Outcome] = {
    "next": Next("two", NoPayload()),
    "later": Next("two", NoPayload(), delay=5.0),
    "wait": Wait("three", NoPayload(), 60.0),
    "wait for a message": Wait("three", NoPayload(), reason="for a reason"),
    "retry": Retry("nobody answers"),
    "done": Ended(),
    "failed": Ended("for a reason"),
}


pytestmark = pytest.mark.usefixtures("patient_transactions")


def of(database: Database) -> Operations:
    return Operations(database, conductor_operations, "me", {}, Backoff(first=1.0, longest=1.0))


def held_up(operations: Operations, database: Database, calls: list[Callable[[], object]]) -> list["Future[object]"]:
    """Make all calls while the outcome of another step is being recorded."""
    recording, released = threading.Event(), threading.Event()
    first = begin(database, operations, "first")

    def commit(_connection: Connection) -> Outcome:
        recording.set()
        assert released.wait(20)
        return Ended()

    with ThreadPoolExecutor(len(calls) + 1) as threads:
        threads.submit(advance, operations, first, commit)
        assert recording.wait(10)
        made = queue(threads, operations._outcomes._batches, calls)
        released.set()
    return made


def row(database: Database, operation: Operation) -> tuple[object, ...]:
    """Return the record of an operation, apart from times."""
    table = conductor_operations.c
    columns = (table.step, table.step_number, table.payload, table.tries, table.reason, table.state, table.lease_number)
    query = conductor_operations.select().with_only_columns(
        *columns, table.lease_owner.is_(None), table.due_at.is_(None)
    )
    return tuple(database.read(lambda connection: connection.execute(query.where(table.uuid == operation.uuid)).one()))


def ending(operation: Operation, call: Callable[[], object]) -> object:
    """Return the outcome of a step; of the following step, if any, only its name, its numbers and whose step it is."""
    following = outcome_of(call)
    if isinstance(following, Operation):
        return following.uuid == operation.uuid, following.step, following.step_number, following.tries
    return following


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(OUTCOMES)), st.sampled_from(("ours", "another's", "in vain"))),
        min_size=2,
        max_size=7,
    )
)
def test_steps_that_end_together_are_recorded_as_they_would_be_alone(
    database: Database, steps: list[tuple[str, str]]
) -> None:
    operations = of(database)

    def stage() -> tuple[list[Operation], list[Callable[[], object]]]:
        begun = [begin(database, operations, ids.fresh()) for _ in steps]
        calls: list[Callable[[], object]] = []
        for operation, (outcome, fate) in zip(begun, steps, strict=True):

            def commit(
                connection: Connection, uuid: str = operation.uuid, outcome: str = outcome, fate: str = fate
            ) -> Outcome:
                # What a superseded step has written is rolled back, and so is what one writes that raises an error.
                other = Operation.new("req", ids.fresh(), BUILD, f"{uuid} {fate}", "one", NoPayload())
                operations.begin(connection, [other])
                if fate == "in vain":
                    raise ValueError(fate)
                return OUTCOMES[outcome]

            if fate == "another's":
                assert operations.take_again(operation) is not None
            calls.append(lambda operation=operation, commit=commit: advance(operations, operation, commit))  # type: ignore[misc]
        return begun, calls

    def written(fate: str) -> int:
        table = conductor_operations.c
        query = conductor_operations.select().where(table.subject.endswith(f" {fate}"))
        return len(database.read(lambda connection: connection.execute(query).all()))

    before = written("ours")
    shared, calls = stage()
    made = held_up(operations, database, calls)
    together = [ending(operation, call.result) for operation, call in zip(shared, made, strict=True)]
    between = written("ours")
    single, calls = stage()
    alone = [ending(operation, call) for operation, call in zip(single, calls, strict=True)]

    assert together == alone
    assert [row(database, operation) for operation in shared] == [row(database, operation) for operation in single]
    assert between - before == written("ours") - between == sum(fate == "ours" for _outcome, fate in steps)
    assert written("another's") == written("in vain") == 0


def test_steps_that_change_alike_are_recorded_by_one_statement(database: Database) -> None:
    operations = of(database)
    begun = [begin(database, operations, f"s{number}") for number in range(6)]

    def call(operation: Operation) -> Callable[[], object]:
        return lambda: advance(operations, operation, lambda _connection: OUTCOMES["wait"])

    with statements_of(database) as statements:
        made = held_up(operations, database, [call(operation) for operation in begun])

    assert [one.result() for one in made] == [None] * 6
    # One for the first step, during which the others wait, and one for the others.
    assert sum(statement.startswith("UPDATE") for statement in statements) == 2
    assert {row(database, operation)[:2] for operation in begun} == {("three", 2)}


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_results_of_one_kind_are_written_together_and_each_alone_if_one_is_overtaken(
    database: Database, is_overtaken: bool
) -> None:
    operations = of(database)
    begun = [begin(database, operations, f"subject-{number}") for number in range(4)]
    written: list[list[str]] = []

    def record(_connection: Connection, results: Sequence[str]) -> list[Outcome]:
        written.append(list(results))
        return [Next("two", NoPayload()) for _ in results]

    def advance_noted(operation: Operation) -> Operation | None:
        return advance(operations, operation, SharedCommit(record, operation.subject), noted.append)

    noted: list[Outcome] = []
    if is_overtaken:
        database.write(lambda connection: operations.end_pending(connection, ["subject-2"], BUILD))
    made = held_up(operations, database, [lambda each=each: advance_noted(each) for each in begun])  # type: ignore[misc]

    names = [each.subject for each in begun]
    assert written[0] == names
    expected: list[object] = [(True, "two", 2, 0)] * 4
    if is_overtaken:
        expected[2] = Superseded
        assert sorted(written[1:]) == [[name] for name in names]
    else:
        assert written == [names]
        assert noted == [Next("two", NoPayload())] * 4
    assert [ending(operation, call.result) for operation, call in zip(begun, made, strict=True)] == expected
