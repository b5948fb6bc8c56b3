"""Test the worker of a conductor, on SQLite and on MariaDB: leases, repeated steps, and data for the next step."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, select
from support.conductor.record_builders import begin
from support.conductor.worked_steps import QUICK, ordered, reasons, worker_of, working

from conductor.engine.operations import Operations
from conductor.engine.steps import BUILD, DELETE, Backoff, Ended, Next, NoPayload, Operation
from conductor.engine.waiting_steps import KeptPlace, StepQueue
from conductor.schema import conductor_operations
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.db.database import Database
from moorage.service import liveness


def test_a_step_that_takes_longer_than_the_lease_is_not_taken_over(database: Database) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def one(operation: Operation) -> Callable[[Connection], Ended]:
        begun.set()
        assert go_on.wait(20)
        return lambda _connection: Ended()

    mine = Operations(database, conductor_operations, "me", {}, QUICK, lease_seconds=3.0)
    others = Operations(database, conductor_operations, "other", {}, QUICK)
    with working(mine, one=one) as worker:
        worker.enqueue(begin(database, mine))
        assert begun.wait(10)
        threading.Event().wait(4.0)
        assert list(others.due(10)) == []
        go_on.set()
    assert database.read(lambda connection: mine.lock_one_pending(connection, "s", BUILD)) is None


def test_the_worker_takes_over_an_operation_and_repeats_a_step_that_raises(database: Database) -> None:
    tries: list[bool] = []
    ended = threading.Event()

    def one(operation: Operation) -> Callable[[Connection], Next]:
        tries.append(operation.resumed)
        if len(tries) == 1:
            raise errors.BusUnavailable(reason="it is away")
        if len(tries) == 2:
            raise ValueError("ours")
        return lambda _connection: Next("two", NoPayload())

    def two(operation: Operation) -> Callable[[Connection], Ended]:
        ended.set()
        return lambda _connection: Ended()

    operations = Operations(database, conductor_operations, "me", {}, QUICK)
    begin(database, operations)
    with working(operations, threads=2, one=one, two=two):
        assert ended.wait(10)

    assert tries == [True, True, True], "a step that was found in the records may have been carried out before"
    assert list(operations.due(10)) == []


def test_a_step_whose_outcome_cannot_be_recorded_is_retried_with_the_reason_on_record(database: Database) -> None:
    found: list[tuple[int, str | None]] = []
    ended = threading.Event()

    def one(operation: Operation) -> Callable[[Connection], Ended]:
        reason = database.read(lambda connection: connection.scalar(select(conductor_operations.c.reason)))
        found.append((operation.tries, reason and reason.decode()))

        def record(_connection: Connection) -> Ended:
            if len(found) < 3:
                raise ValueError("it cannot be recorded")
            ended.set()
            return Ended()

        return record

    operations = Operations(database, conductor_operations, "me", {}, QUICK)
    with working(operations, one=one) as worker:
        worker.enqueue(begin(database, operations))
        assert ended.wait(10)

    reason = "an unexpected fault (ValueError), see the log"
    assert found == [(0, None), (1, reason), (2, reason)]


def test_a_step_is_a_repeated_one_after_its_outcome_could_not_be_recorded(database: Database) -> None:
    seen: list[bool] = []
    ended = threading.Event()

    def one(operation: Operation) -> Callable[[Connection], Ended]:
        seen.append(operation.is_repeated)

        def record(_connection: Connection) -> Ended:
            if len(seen) == 1:
                raise errors.StoreUnavailable(schema="test", reason="it is away")
            ended.set()
            return Ended()

        return record

    operations = Operations(database, conductor_operations, "me", {}, QUICK)
    with working(operations, one=one) as worker:
        worker.enqueue(begin(database, operations))
        assert ended.wait(10)

    assert seen == [False, True]


@pytest.mark.parametrize(
    "fault",
    [errors.StoreUnavailable(schema="test", reason="it is away"), ValueError("it was recorded before")],
    ids=["the database is away", "the repeated transaction fails"],
)
def test_a_step_that_was_recorded_by_a_commit_without_an_answer_is_not_repeated(
    database: Database, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    done: list[str] = []
    ended = threading.Event()
    write = database.write

    def one(operation: Operation) -> Callable[[Connection], Next]:
        done.append(operation.step)

        def record(_connection: Connection) -> Next:
            lost.append(None)
            return Next("two", NoPayload())

        return record

    def two(operation: Operation) -> Callable[[Connection], Ended]:
        done.append(operation.step)
        ended.set()
        return lambda _connection: Ended()

    lost: list[None] = []

    def write_and_lose_the_answer(work: Callable[[Connection], Any]) -> Any:
        answer = write(work)
        if lost:
            lost.clear()
            raise fault
        return answer

    monkeypatch.setattr(database, "write", write_and_lose_the_answer)
    operations = Operations(database, conductor_operations, "me", {}, QUICK)
    with working(operations, one=one, two=two) as worker:
        worker.enqueue(begin(database, operations))
        assert ended.wait(20)

    assert done == ["one", "two"]


def test_a_step_gets_the_data_of_the_previous_step_and_reads_the_records_if_it_is_repeated(
    database: Database,
) -> None:
    carried: list[tuple[str, object]] = []
    ended = threading.Event()

    def one(operation: Operation) -> Callable[[Connection], Next]:
        carried.append(("one", operation.carried_as(str)))
        return lambda _connection: Next("two", NoPayload(), carried="from one")

    def two(operation: Operation) -> Callable[[Connection], Ended]:
        carried.append(("two", operation.carried_as(str)))
        if len(carried) == 2:
            raise errors.BusUnavailable(reason="it is away")
        ended.set()
        return lambda _connection: Ended()

    operations = Operations(database, conductor_operations, "me", {}, QUICK)
    new = Operation.new("req", ids.fresh(), BUILD, "s", "one", NoPayload(), "from the order")
    with working(operations, one=one, two=two) as worker:
        worker.enqueue(*ordered(database, operations, new))
        assert ended.wait(10)

    assert carried == [("one", "from the order"), ("two", "from one"), ("two", None)]


def test_a_take_over_reads_each_operation_once_and_a_sweep_with_many_operations_in_hand_reads_none_of_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conductor.engine.leases._OWN_GRACE_SECONDS", 0.0)
    rows: list[int] = []
    read = database.read

    def counted(work: Callable[[Connection], Any]) -> Any:
        found = read(work)
        rows.append(len(found))
        return found

    def begin_many(owner: Operations, count: int, *, taken: bool) -> list[Operation]:
        new = [Operation.new("req", ids.fresh(), BUILD, f"s{number}", "one", NoPayload()) for number in range(count)]
        return database.write(lambda connection: owner.begin(connection, new, taken=taken))

    operations = Operations(database, conductor_operations, "me", {}, QUICK)
    worker = worker_of(operations)
    # More than one page of operations that are in the queue already come first.
    worker.enqueue(*begin_many(operations, 300, taken=True))
    begin_many(operations, 500, taken=False)

    monkeypatch.setattr(database, "read", counted)
    worker.sweep()
    assert len(worker._in_hand) == 800
    assert sum(rows) <= 800
    rows.clear()
    worker.sweep()
    assert sum(rows) == 0


def test_an_operation_does_not_wait_for_the_many_of_another_kind(database: Database) -> None:
    done: list[str] = []
    ended = threading.Event()

    def one(operation: Operation) -> Callable[[Connection], Ended]:
        done.append(operation.kind)
        if operation.kind == DELETE:
            ended.set()
        return lambda _connection: Ended()

    operations = Operations(database, conductor_operations, "me", {}, QUICK)
    worker = worker_of(operations)
    kinds = [BUILD] * 200 + [DELETE]
    new = [
        Operation.new("req", ids.fresh(), kind, f"s{number}", "one", NoPayload()) for number, kind in enumerate(kinds)
    ]
    worker.enqueue(*ordered(database, operations, *new))
    worker.start({(BUILD, "one"): one, (DELETE, "one"): one})
    try:
        assert ended.wait(20)
    finally:
        worker.stop()
    assert DELETE in done[:2]


def test_an_operation_whose_step_is_ordered_anew_before_its_next_try_is_tried_once(database: Database) -> None:
    calls: list[int] = []

    def one(operation: Operation) -> Callable[[Connection], Ended]:
        calls.append(operation.lease_number)
        raise errors.StoreUnavailable(schema="test", reason="it is away")

    operations = Operations(database, conductor_operations, "me", {}, Backoff(first=3.0, longest=3.0))
    new = Operation.new("req", ids.fresh(), BUILD, "s", "one", NoPayload())
    with working(operations, one=one) as worker:
        worker.enqueue(*ordered(database, operations, new))
        for number in range(1, 4):
            wait_until(lambda: len(calls) == number and reasons(database))  # noqa: B023 - called at once
            worker.enqueue(*database.write(lambda connection: operations.retry_now(connection, "s", BUILD)))
        wait_until(lambda: worker._in_hand == {new.uuid: 1})
    assert [calls.count(superseded) for superseded in calls[:3]] == [1, 1, 1]


def test_operations_for_which_places_are_kept_are_not_taken_together(database: Database) -> None:
    operations = Operations(database, conductor_operations, "me", {}, QUICK)
    new = [Operation.new("req", ids.fresh(), BUILD, f"s{number}", "one", NoPayload()) for number in range(3)]
    first, second, third = ordered(database, operations, *new)
    queue, places = StepQueue(), [KeptPlace("a", lambda: None, lambda _may_join, _most: []) for _ in range(2)]
    queue.put(third)
    queue.put(first, places[0])
    queue.put(second, places[1])
    assert queue.take(lambda *_: True, 16) == [(first, places[0])]
    assert queue.take(lambda *_: True, 16) == [(second, places[1]), (third, None)]


def test_a_thread_that_ends_before_the_others_when_the_worker_stops_has_not_died(database: Database) -> None:
    threads: dict[str, threading.Thread] = {}
    go_on = {"operations-0": threading.Event(), "operations-1": threading.Event()}

    def one(_operation: Operation) -> Callable[[Connection], Ended]:
        thread = threading.current_thread()
        threads[thread.name] = thread
        assert go_on[thread.name].wait(20)
        return lambda _connection: Ended()

    operations = Operations(database, conductor_operations, "me", {}, QUICK)
    new = [Operation.new("req", ids.fresh(), BUILD, subject, "one", NoPayload()) for subject in ("s", "t")]
    with working(operations, threads=2, one=one) as worker:
        for operation in ordered(database, operations, *new):
            worker.enqueue(operation)
        wait_until(lambda: len(threads) == 2)
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        go_on["operations-1"].set()
        wait_until(lambda: not threads["operations-1"].is_alive())

        dead = liveness.dead()

        go_on["operations-0"].set()
        stopping.join()
    assert "operations-1" not in dead
