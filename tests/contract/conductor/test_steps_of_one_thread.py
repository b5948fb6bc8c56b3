"""Test that one thread carries out steps that are due together; each has its own answer, outcome and error."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, select

from conductor.engine.acknowledgements import Acknowledgements, AcknowledgingClient
from conductor.engine.bulkheads import Bulkheads
from conductor.engine.operations import Operations
from conductor.engine.step_calls import StepCall
from conductor.engine.steps import BUILD, Backoff, CommitStep, Ended, Next, NoPayload, Operation
from conductor.engine.worker import Worker
from conductor.schema import conductor_operations
from harness.waiting import wait_until
from moorage import context, errors, failpoints, ids
from moorage.batches import BatchItem
from moorage.db.database import Database
from moorage.messages import wire

QUICK = Backoff(first=0.01, longest=0.05)
MANY = 12


class Ask(wire.Mutation[str], frozen=True, kw_only=True):
    topic = "there"
    method = "ask"
    may_be_batched = True
    subject: str


class Peer:
    """A client that answers calls in portions; it answers the subjects in `late` when a test allows it."""

    takes_many = True

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.asked: Counter[str] = Counter()
        self.request_ids: dict[str, str | None] = {}
        self.late: set[str] = set()
        self.refused: set[str] = set()
        self.may_answer = threading.Event()

    def call(self, message: Ask) -> str:
        self.sizes.append(1)
        return self._answer(message)

    def call_many(self, items: Sequence[BatchItem[Ask, str]]) -> Iterator[list[BatchItem[Ask, str]]]:
        self.sizes.append(len(items))
        for portion in (
            [item for item in items if item.value.subject not in self.late],
            [item for item in items if item.value.subject in self.late],
        ):
            for item in portion:
                item.do(self._answer)
            if portion:
                yield portion

    def ping(self) -> None:
        pass

    def _answer(self, message: Ask) -> str:
        self.asked[message.subject] += 1
        self.request_ids[message.subject] = context.current().request_id
        if message.subject in self.late:
            assert self.may_answer.wait(20)
        if message.subject in self.refused:
            raise errors.InstanceNotFound(name=message.subject)
        return f"answer to {message.subject}"


class AcknowledgementReceiver:
    """Takes acknowledgements."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []

    def call(self, message: Any) -> None:
        self.acknowledged += message.request_ids


class Stage:
    """A worker whose operations ask a peer in their first step, and end in the second."""

    def __init__(self, database: Database, share: int = 2, threads: int = 4) -> None:
        self.database = database
        self.peer = Peer()
        self.receiver = AcknowledgementReceiver()
        self.operations = Operations(database, conductor_operations, "me", {}, QUICK)
        self.bulkheads = Bulkheads("peer", share, QUICK, (errors.NoReply,), 60.0, postpones=True)
        self.services = Bulkheads("service", threads, QUICK, (), 60.0, postpones=False)
        self.acknowledgements = Acknowledgements(self.receiver)  # type: ignore[arg-type]  # the part of a client that is used
        self.client = AcknowledgingClient(self.peer, self.acknowledgements, self.services)  # type: ignore[arg-type]
        self.worker = Worker(self.operations, threads, "test", self.bulkheads, self.acknowledgements)
        self.answers: dict[str, str] = {}
        self.ended: set[str] = set()
        self.spoilt: set[str] = set()
        self.waits_elsewhere: set[str] = set()
        self.may_go_on = threading.Event()
        self.uuids: dict[str, str] = {}
        self.changed = threading.Condition()
        self.steps: dict[tuple[str, str], Callable[[Operation], Any]] = {
            (BUILD, "ask"): self.ask,
            (BUILD, "end"): self.end,
        }

    def ask(self, operation: Operation) -> Generator[StepCall[Any] | Callable[[], Any], Any, CommitStep]:
        subject = operation.subject
        if subject in self.waits_elsewhere:
            assert (yield partial(self.may_go_on.wait, 20))
        with self.bulkheads.admit("peer", "peer", lambda: None):
            try:
                answer = yield from self.client.calling(Ask(request_id=operation.derived("ask"), subject=subject))
            except errors.InstanceNotFound as refusal:
                answer = f"refused: {refusal.data['name']}"

        def record(_connection: Connection) -> Next:
            if subject in self.spoilt:
                raise ValueError("it cannot be recorded")
            self.answers[subject] = answer
            return Next("end", NoPayload())

        return record

    def end(self, operation: Operation) -> CommitStep:
        def record(_connection: Connection) -> Ended:
            with self.changed:
                self.ended.add(operation.subject)
                self.changed.notify_all()
            return Ended()

        return record

    def order(self, count: int = MANY) -> None:
        """Begin several operations at once."""
        new = [
            Operation.new(f"of s{number}", ids.fresh(), BUILD, f"s{number}", "ask", NoPayload())
            for number in range(count)
        ]
        self.uuids = {each.subject: each.uuid for each in new}
        begun = self.database.write(lambda connection: self.operations.begin(connection, new))
        self.worker.enqueue(*begun)

    def wait_for(self, subjects: set[str]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: subjects <= self.ended, 20), sorted(subjects - self.ended)

    def states(self) -> Counter[str]:
        return Counter(self.database.read(lambda connection: connection.scalars(select(conductor_operations.c.state))))


@pytest.fixture
def stage(database: Database) -> Iterator[Stage]:
    made = Stage(database)
    yield made
    made.peer.may_answer.set()
    made.may_go_on.set()
    made.worker.stop()


def subjects(*without: int) -> set[str]:
    return {f"s{number}" for number in range(MANY) if number not in without}


def test_steps_that_are_due_together_call_in_one_message_and_each_gets_its_own_answer(stage: Stage) -> None:
    stage.peer.refused.add("s5")
    stage.order()
    stage.worker.start(stage.steps)
    stage.wait_for(subjects())
    assert stage.peer.sizes == [MANY]
    assert stage.answers == {subject: f"answer to {subject}" for subject in subjects(5)} | {"s5": "refused: s5"}
    assert stage.peer.request_ids == {subject: f"of {subject}" for subject in subjects()}


def test_a_late_answer_delays_no_other_step(stage: Stage) -> None:
    stage.peer.late.add("s5")
    stage.order()
    stage.worker.start(stage.steps)
    stage.wait_for(subjects(5))
    assert stage.ended == subjects(5)
    stage.peer.may_answer.set()
    stage.wait_for(subjects())
    assert stage.peer.asked == Counter(subjects())


def test_a_step_that_waits_outside_a_call_delays_no_other_step(stage: Stage) -> None:
    stage.waits_elsewhere |= {"s0", "s5"}
    stage.order()
    stage.worker.start(stage.steps)
    stage.wait_for(subjects(0, 5))
    assert stage.ended == subjects(0, 5)
    stage.may_go_on.set()
    stage.wait_for(subjects())
    assert stage.peer.asked == Counter(subjects())


def test_a_step_that_cannot_be_recorded_does_not_affect_the_others(stage: Stage) -> None:
    stage.spoilt.add("s5")
    stage.order()
    stage.worker.start(stage.steps)
    stage.wait_for(subjects(5))
    wait_until(lambda: stage.peer.asked["s5"] > 1)
    stage.spoilt.clear()
    stage.wait_for(subjects())
    assert {stage.peer.asked[subject] for subject in subjects(5)} == {1}


def test_a_superseded_step_is_dropped_and_the_others_continue(stage: Stage) -> None:
    stage.peer.late.add("s5")
    stage.order()
    stage.worker.start(stage.steps)
    stage.wait_for(subjects(5))

    def redirect(connection: Connection) -> None:
        pending = stage.operations.lock_one_pending(connection, "s5", BUILD)
        assert pending is not None
        stage.operations.redirect(connection, pending, Ended("redirected"))

    stage.database.write(redirect)
    stage.peer.may_answer.set()
    stage.worker.stop()
    assert stage.states() == {"done": MANY - 1, "failed": 1}
    assert "s5" not in stage.ended


def test_each_answer_of_steps_that_are_recorded_together_is_acknowledged_once(stage: Stage) -> None:
    stage.spoilt.add("s5")
    stage.order()
    stage.worker.start(stage.steps)
    stage.wait_for(subjects(5))
    stage.acknowledgements.send()
    acknowledged = Counter(stage.receiver.acknowledged)
    assert set(acknowledged.values()) == {1}
    assert ids.derived(stage.uuids["s5"], "ask") not in acknowledged
    stage.spoilt.clear()
    stage.wait_for(subjects())
    stage.worker.stop()
    stage.acknowledgements.send()
    assert Counter(stage.receiver.acknowledged) == Counter(ids.derived(uuid, "ask") for uuid in stage.uuids.values())


def test_a_worker_that_stops_finishes_the_steps_under_way_and_begins_no_other(stage: Stage) -> None:
    stage.peer.late |= {"s5", "s6"}
    stage.order()
    stage.worker.start(stage.steps)
    stage.wait_for(subjects(5, 6))
    stopping = threading.Thread(target=stage.worker.stop)
    stopping.start()
    time.sleep(0.1)
    assert stopping.is_alive()
    stage.peer.may_answer.set()
    stopping.join(20)
    assert not stopping.is_alive()
    # The answers are recorded, and the next steps are left to another conductor.
    assert stage.answers.keys() == subjects()
    assert stage.ended == subjects(5, 6)
    assert sorted(stage.operations.due(MANY)) == sorted(stage.uuids[subject] for subject in ("s5", "s6"))


def test_steps_beyond_the_share_of_a_destination_wait_and_continue_afterwards(database: Database) -> None:
    stage = Stage(database, share=1)
    stage.peer.late |= subjects()
    try:
        stage.order()
        stage.worker.start(stage.steps)
        deadline = time.monotonic() + 20
        while not stage.peer.asked and time.monotonic() < deadline:
            time.sleep(0.01)
        more = [
            Operation.new("of the others", ids.fresh(), BUILD, f"t{number}", "ask", NoPayload()) for number in range(3)
        ]
        stage.worker.enqueue(*database.write(lambda connection: stage.operations.begin(connection, more)))
        time.sleep(0.1)
        assert stage.peer.sizes == [MANY]
        stage.peer.may_answer.set()
        stage.wait_for(subjects() | {"t0", "t1", "t2"})
    finally:
        stage.peer.may_answer.set()
        stage.worker.stop()


def test_steps_that_have_waited_for_a_destination_call_it_together(database: Database) -> None:
    stage = Stage(database, share=1)
    try:
        with stage.bulkheads.admit("peer", "peer", lambda: None):
            stage.order(3 * MANY)
            stage.worker.start(stage.steps)
            wait_until(lambda: len(stage.bulkheads._bulkheads["peer"].fresh) == 3 * MANY)
        stage.wait_for({f"s{number}" for number in range(3 * MANY)})
        assert stage.peer.sizes == [16, 16, 4]
    finally:
        stage.worker.stop()


def test_a_step_that_took_its_lease_again_and_was_then_postponed_is_not_marked_as_repeated(
    database: Database,
) -> None:
    stage = Stage(database, share=1)
    done: list[Operation] = []

    def ask(operation: Operation) -> Generator[StepCall[Any] | Callable[[], Any], Any, CommitStep]:
        done.append(operation)
        return (yield from stage.ask(operation))

    try:
        with stage.bulkheads.admit("peer", "peer", lambda: None):
            stage.worker.start(stage.steps | {(BUILD, "ask"): ask})
            new = [Operation.new("of it", ids.fresh(), BUILD, "s0", "ask", NoPayload())]
            [begun] = database.write(lambda connection: stage.operations.begin(connection, new))
            # The operation has waited for a thread for half of its lease.
            stage.worker.enqueue(replace(begun, taken_at=begun.taken_at - stage.operations.lease_seconds / 2))
            wait_until(lambda: done and len(stage.bulkheads._bulkheads["peer"].fresh) == 1)
        stage.wait_for({"s0"})
        assert [operation.is_repeated for operation in done] == [False, False]
    finally:
        stage.worker.stop()


def test_one_sweep_takes_all_operations_that_another_conductor_has_left(stage: Stage) -> None:
    new = [Operation.new("of it", ids.fresh(), BUILD, f"s{number}", "ask", NoPayload()) for number in range(450)]
    stage.database.write(lambda connection: stage.operations.begin(connection, new, taken=False))

    stage.worker.sweep()

    others = Operations(stage.database, conductor_operations, "other", {}, QUICK)
    assert list(others.due(len(new))) == []


def test_while_failpoints_are_observed_each_step_is_carried_out_alone(stage: Stage) -> None:
    passed: list[str] = []
    with failpoints.observed(passed.append):
        stage.order()
        stage.worker.start(stage.steps)
        stage.wait_for(subjects())
        stage.worker.stop()
    assert stage.peer.sizes == [1] * MANY
    assert Counter(passed)["step.build.ask.begin"] == MANY
    assert Counter(passed)["step.build.ask.done"] == MANY
