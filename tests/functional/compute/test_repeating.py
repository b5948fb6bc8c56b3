"""Test lost replies, duplicates and restarts of an agent."""

import threading
from typing import Any

import pytest
from support.compute.builders import (
    HOST,
    UNAVAILABLE,
    FailingCell,
    FakeCell,
    NewStage,
    SlowDriver,
    build_on,
    wait_until,
)
from support.processes.stopwatch import Stopwatch

from moorage.messages import AcceptInCell, BuildFailedInCell, BuildFinished
from moorage.messages.wire import Message


@pytest.mark.parametrize("lost", [AcceptInCell, BuildFinished, BuildFailedInCell])
def test_an_unanswered_message_about_a_build_is_repeated_with_the_same_ids(
    new_stage: NewStage, lost: type[Message[Any]]
) -> None:
    failing = {"failing_hosts": [HOST]} if lost is BuildFailedInCell else {}
    stage = new_stage(FailingCell(UNAVAILABLE, lost, left=2), fake_driver=failing)
    stage.start()

    stage.build(build_on(HOST))
    wait_until(lambda: len(stage.cell.received(lost)) == 3)

    first, *others = stage.cell.received(lost)
    assert others == [first] * 2
    if lost is AcceptInCell:
        wait_until(lambda: stage.cell.received(BuildFinished))
        assert len(stage.guests()) == 1


def test_a_report_whose_reply_is_lost_is_repeated_with_the_same_ids(new_stage: NewStage) -> None:
    class Cell(FakeCell):
        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, BuildFinished):
                wait_until(lambda: len(self.received(BuildFinished)) == 2)

    stage = new_stage(Cell(), rpc={"call_timeout": 2.0})
    stage.start()
    build = build_on(HOST)

    stage.build(build)
    wait_until(lambda: len(stage.cell.received(BuildFinished)) == 2)

    first, second = stage.cell.received(BuildFinished)
    assert first == second
    assert stage.attempts() == [build.attempt_id]


def test_a_duplicate_build_is_answered_and_not_started_again(new_stage: NewStage) -> None:
    stage = new_stage()
    driver = stage.start(SlowDriver)
    build = build_on(HOST)

    stage.build(build)
    assert driver.begun.wait(10)
    stage.build(build)
    driver.go_on.set()
    wait_until(lambda: stage.cell.received(BuildFinished))

    assert driver.spawns == 1
    assert stage.cell.build_methods() == ["accept_claim", "build_finished"]


@pytest.mark.parametrize("failing", [[], [HOST]])
def test_a_repeated_build_that_has_ended_repeats_its_report(new_stage: NewStage, failing: list[str]) -> None:
    stage = new_stage(fake_driver={"failing_hosts": failing})
    stage.start()
    build = build_on(HOST)
    kind = BuildFailedInCell if failing else BuildFinished

    def is_reported_again() -> bool:
        stage.build(build)
        return len(stage.cell.received(kind)) >= 2

    stage.build(build)
    wait_until(lambda: stage.cell.received(kind))
    # Until a moment after the answer of the cell, a duplicate is ignored, because the attempt is still under way.
    wait_until(is_reported_again)

    reports = stage.cell.received(kind)
    assert all(report == reports[0] for report in reports)
    assert len(stage.cell.received(AcceptInCell)) == 1


def test_a_guest_survives_a_restart_of_the_agent_and_a_repeated_build_finds_it(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.start()
    build = build_on(HOST)
    stage.build(build)
    wait_until(lambda: stage.cell.received(BuildFinished))
    stage.stop()
    assert stage.attempts() == [build.attempt_id]

    stage.start()
    stage.build(build)
    wait_until(lambda: len(stage.cell.received(BuildFinished)) == 2)

    first, second = stage.cell.received(BuildFinished)
    assert first == second
    assert stage.attempts() == [build.attempt_id]


def test_a_failed_attempt_that_is_repeated_after_a_restart_is_not_started(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"failing_hosts": [HOST]})
    stage.start()
    build = build_on(HOST)
    stage.build(build)
    wait_until(lambda: stage.cell.received(BuildFailedInCell))

    stage.restart(failing_hosts=[])
    stage.build(build)
    wait_until(lambda: len(stage.cell.received(BuildFailedInCell)) == 2)

    first, second = stage.cell.received(BuildFailedInCell)
    assert second.reason != first.reason
    assert second.request_id != first.request_id
    assert stage.guests() == []


def test_a_stopping_agent_waits_for_a_spawn_and_reports_it(new_stage: NewStage) -> None:
    stage = new_stage(compute={"stop_timeout": 60.0})
    driver = stage.start(SlowDriver)
    build = build_on(HOST)
    stage.build(build)
    assert driver.begun.wait(10)

    # Late enough for the stop to have begun on a busy machine.
    threading.Timer(2.0, driver.go_on.set).start()
    stage.stop()

    assert stage.cell.build_methods() == ["accept_claim", "build_finished"]
    assert stage.attempts() == [build.attempt_id]


def test_a_stopping_agent_begins_nothing_new(new_stage: NewStage) -> None:
    stage = new_stage(compute={"workers": 1, "stop_timeout": 60.0})
    driver = stage.start(SlowDriver)
    first, second = build_on(HOST), build_on(HOST)
    stage.build(first)
    assert driver.begun.wait(10)
    stage.build(second)

    threading.Timer(2.0, driver.go_on.set).start()
    stage.stop()

    assert [accepted.attempt_id for accepted in stage.cell.received(AcceptInCell)] == [first.attempt_id]


def test_a_stopping_agent_does_not_wait_for_a_cell_that_does_not_answer(new_stage: NewStage) -> None:
    stage = new_stage(FailingCell(UNAVAILABLE, Message))
    stage.start()
    stage.build(build_on(HOST))
    wait_until(lambda: len(stage.cell.received(AcceptInCell)) > 3)

    watch = Stopwatch()
    stage.stop()

    assert watch.seconds < 5
    assert stage.guests() == []
