"""Test the steps of a worker that wait for a destination, on SQLite and on MariaDB."""

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
from sqlalchemy import Connection
from support.conductor.worked_steps import QUICK, ordered, reasons, working

from conductor.engine.bulkheads import Bulkheads, CircuitOpen
from conductor.engine.operations import Operations
from conductor.engine.steps import BUILD, Backoff, Ended, Next, NoPayload, Operation
from conductor.engine.waiting_steps import Postponed
from conductor.schema import conductor_operations
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.db.database import Database


@pytest.mark.parametrize(("seconds", "kept"), [(5.0, "from the order"), (0.0, None)])
def test_a_step_that_is_postponed_keeps_the_data_of_the_previous_step_for_a_short_time(
    database: Database, monkeypatch: pytest.MonkeyPatch, seconds: float, kept: str | None
) -> None:
    monkeypatch.setattr("conductor.engine.worker._CARRIED_SECONDS", seconds)
    carried: list[object] = []
    ended = threading.Event()

    def one(operation: Operation) -> Callable[[Connection], Ended]:
        carried.append(operation.carried_as(str))
        if len(carried) == 1:
            raise Postponed(lambda wake: wake(None))
        ended.set()
        return lambda _connection: Ended()

    operations = Operations(database, conductor_operations, "me", {}, QUICK)
    new = Operation.new("req", ids.fresh(), BUILD, "s", "one", NoPayload(), "from the order")
    with working(operations, one=one) as worker:
        worker.enqueue(*ordered(database, operations, new))
        assert ended.wait(10)

    assert carried == ["from the order", kept]


def test_a_step_is_postponed_at_most_once(database: Database) -> None:
    bulkheads = Bulkheads("host", 1, QUICK, (errors.NoReply,), 60.0, postpones=True)
    begun, ended = Counter[str](), threading.Semaphore(0)

    def one(operation: Operation) -> Callable[[Connection], Ended]:
        begun[operation.uuid] += 1
        with bulkheads.admit("a", "a", lambda: None):
            time.sleep(0.01)  # long enough for the other thread to begin a step that is postponed
        ended.release()
        return lambda _connection: Ended()

    operations = Operations(database, conductor_operations, "me", {}, QUICK)
    new = [Operation.new("req", ids.fresh(), BUILD, f"s{number}", "one", NoPayload()) for number in range(12)]
    with working(operations, threads=2, bulkheads=bulkheads, one=one) as worker:
        worker.enqueue(*ordered(database, operations, *new))
        for _ in new:
            assert ended.acquire(timeout=20)

    assert len(begun) == 12
    assert max(begun.values()) <= 2, begun


def test_an_operation_whose_step_is_ordered_anew_while_it_waits_is_held_once(database: Database) -> None:
    bulkheads = Bulkheads("host", 1, QUICK, (errors.NoReply,), 60.0, postpones=True)
    silence, answers, ended, calls = threading.Event(), threading.Event(), threading.Event(), Counter[bool]()

    def call() -> None:
        if not answers.is_set():
            silence.set()
            raise errors.NoReply(topic="there", method="work", seconds=1.0)

    def one(operation: Operation) -> Callable[[Connection], Ended]:
        try:
            with bulkheads.admit("a", "a", call):
                calls[answers.is_set()] += 1
                call()
        except CircuitOpen as silent:
            raise errors.CellUnreachable(cell="a", reason=str(silent)) from silent
        ended.set()
        return lambda _connection: Ended()

    operations = Operations(database, conductor_operations, "me", {}, QUICK)
    new = Operation.new("req", ids.fresh(), BUILD, "s", "one", NoPayload())
    bulkheads.start()
    try:
        with working(operations, threads=2, bulkheads=bulkheads, one=one) as worker:
            worker.enqueue(*ordered(database, operations, new))
            assert silence.wait(20)
            for _ in range(20):
                worker.enqueue(*database.write(lambda connection: operations.retry_now(connection, "s", BUILD)))
                wait_until(lambda: reasons(database))
            wait_until(lambda: worker._in_hand == {new.uuid: 1})
            answers.set()
            assert ended.wait(20)
            wait_until(lambda: not worker._in_hand)
    finally:
        answers.set()
        bulkheads.stop()
    assert calls[True] == 1


def test_a_step_that_waited_and_was_superseded_gives_its_place_to_the_next_step(database: Database) -> None:
    bulkheads = Bulkheads("host", 1, QUICK, (errors.NoReply,), 60.0, postpones=True)
    calling, redirected, called_again, go_on = (threading.Event() for _ in range(4))

    def one(operation: Operation) -> Callable[[Connection], Ended]:
        with bulkheads.admit("a", "a", lambda: None):
            (called_again if calling.is_set() else calling).set()
            assert go_on.wait(20)
        return lambda _connection: Ended()

    def two(_operation: Operation) -> Callable[[Connection], Ended]:
        redirected.set()
        return lambda _connection: Ended()

    def redirect(connection: Connection) -> Operation | None:
        waiting = operations.lock_one_pending(connection, "second", BUILD)
        assert waiting is not None
        return operations.redirect(connection, waiting, Next("two", NoPayload()))

    operations = Operations(database, conductor_operations, "me", {}, QUICK)
    first, second, third = (
        Operation.new("req", ids.fresh(), BUILD, subject, "one", NoPayload())
        for subject in ("first", "second", "third")
    )
    with working(operations, threads=2, bulkheads=bulkheads, one=one, two=two) as worker:
        worker.enqueue(*ordered(database, operations, first))
        assert calling.wait(20)
        worker.enqueue(*ordered(database, operations, second))
        wait_until(lambda: len(bulkheads._bulkheads["a"].fresh) == 1)
        worker.enqueue(database.write(redirect))
        assert redirected.wait(20)
        go_on.set()
        wait_until(lambda: not worker._in_hand)
        worker.enqueue(*ordered(database, operations, third))
        assert called_again.wait(20)


def test_all_steps_that_wait_for_a_silent_destination_record_the_reason_after_one_probe(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Backoff(first=60.0, longest=60.0)
    monkeypatch.setattr("conductor.engine.bulkheads._LONGEST_BACKOFF", slow.longest)
    bulkheads = Bulkheads("host", 1, slow, (errors.NoReply,), 60.0, postpones=True)
    probes: list[None] = []
    go_on = threading.Event()

    def probe() -> None:
        probes.append(None)
        raise errors.NoReply(topic="there", method="ping", seconds=1.0)

    def one(_operation: Operation) -> Callable[[Connection], Ended]:
        try:
            with bulkheads.admit("a", "a", probe):
                assert go_on.wait(20)
                raise errors.NoReply(topic="there", method="work", seconds=1.0)
        except CircuitOpen as silent:
            raise errors.CellUnreachable(cell="a", reason=str(silent)) from silent

    operations = Operations(database, conductor_operations, "me", {}, slow)
    new = [Operation.new("req", ids.fresh(), BUILD, f"s{number}", "one", NoPayload()) for number in range(6)]
    bulkheads.start()
    try:
        with working(operations, threads=2, bulkheads=bulkheads, one=one) as worker:
            worker.enqueue(*ordered(database, operations, *new))
            wait_until(lambda: "a" in bulkheads._bulkheads and len(bulkheads._bulkheads["a"].fresh) == 5)
            go_on.set()
            wait_until(lambda: len(reasons(database)) == 6, seconds=20)
    finally:
        bulkheads.stop()
    assert len(probes) == 1
