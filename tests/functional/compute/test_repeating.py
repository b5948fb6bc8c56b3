"""Lost replies, duplicates and restarts of an agent."""

import threading
import time
from typing import Any

import pytest
from support.compute.builders import AWAY, HOST, Begin, Failing, FakeCell, SlowDriver, build_on, wait_until

from moorage.messages import AcceptInCell, BuildFailedInCell, BuildFinished
from moorage.messages.wire import Message


@pytest.mark.parametrize("lost", [AcceptInCell, BuildFinished, BuildFailedInCell])
def test_what_nobody_answers_is_repeated_with_the_same_ids(stage: Begin, lost: type[Message[Any]]) -> None:
    failing = {"failing_hosts": [HOST]} if lost is BuildFailedInCell else {}
    now = stage(Failing(AWAY, lost, left=2), fake_driver=failing)
    now.start()

    now.build(build_on(HOST))
    wait_until(lambda: len(now.cell.said(lost)) == 3)

    first, *others = now.cell.said(lost)
    assert others == [first] * 2
    if lost is AcceptInCell:
        wait_until(lambda: now.cell.said(BuildFinished))
        assert len(now.guests()) == 1


def test_a_lost_reply_is_asked_for_again_with_the_same_ids(stage: Begin) -> None:
    class Cell(FakeCell):
        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, BuildFinished) and len(self.said(BuildFinished)) == 1:
                time.sleep(1.0)

    now = stage(Cell(), rpc={"call_timeout": 0.3})
    now.start()
    build = build_on(HOST)

    now.build(build)
    wait_until(lambda: len(now.cell.said(BuildFinished)) == 2)

    first, second = now.cell.said(BuildFinished)
    assert first == second
    assert [guest.attempt_id for guest in now.guests()] == [build.attempt_id]


def test_a_duplicate_is_answered_and_not_started_again(stage: Begin) -> None:
    now = stage()
    driver = now.start(SlowDriver)
    build = build_on(HOST)

    now.build(build)
    assert driver.begun.wait(10)
    now.build(build)
    driver.go_on.set()
    wait_until(lambda: now.cell.said(BuildFinished))

    assert driver.spawns == 1
    assert now.cell.of_builds() == ["accept_claim", "build_finished"]


@pytest.mark.parametrize("failing", [[], [HOST]])
def test_a_finished_attempt_that_is_sent_again_repeats_its_report(stage: Begin, failing: list[str]) -> None:
    now = stage(fake_driver={"failing_hosts": failing})
    now.start()
    build = build_on(HOST)
    kind = BuildFailedInCell if failing else BuildFinished

    now.build(build)
    wait_until(lambda: now.cell.said(kind))
    # It is let go a moment after the cell has answered; until then a duplicate is one that is in hand.
    wait_until(lambda: now.build(build) or len(now.cell.said(kind)) >= 2)

    reports = now.cell.said(kind)
    assert all(report == reports[0] for report in reports)
    assert len(now.cell.said(AcceptInCell)) == 1


def test_guests_outlive_the_agent_and_a_repeated_attempt_finds_its_own(stage: Begin) -> None:
    now = stage()
    now.start()
    build = build_on(HOST)
    now.build(build)
    wait_until(lambda: now.cell.said(BuildFinished))
    now.stop()
    assert [guest.attempt_id for guest in now.guests()] == [build.attempt_id]

    now.start()
    now.build(build)
    wait_until(lambda: len(now.cell.said(BuildFinished)) == 2)

    first, second = now.cell.said(BuildFinished)
    assert first == second
    assert [guest.attempt_id for guest in now.guests()] == [build.attempt_id]


def test_a_failed_attempt_that_is_sent_again_after_a_restart_does_not_come_to_life(stage: Begin) -> None:
    now = stage(fake_driver={"failing_hosts": [HOST]})
    now.start()
    build = build_on(HOST)
    now.build(build)
    wait_until(lambda: now.cell.said(BuildFailedInCell))
    now.stop()

    now.conf.set_override("failing_hosts", [], group="fake_driver")
    now.start()
    now.build(build)
    wait_until(lambda: len(now.cell.said(BuildFailedInCell)) == 2)

    first, second = now.cell.said(BuildFailedInCell)
    assert second.reason != first.reason
    assert second.request_id != first.request_id
    assert now.guests() == []


def test_a_stopping_agent_lets_a_spawn_end_and_reports_it(stage: Begin) -> None:
    now = stage()
    driver = now.start(SlowDriver)
    build = build_on(HOST)
    now.build(build)
    assert driver.begun.wait(10)

    threading.Timer(0.3, driver.go_on.set).start()
    now.stop()

    assert now.cell.of_builds() == ["accept_claim", "build_finished"]
    assert [guest.attempt_id for guest in now.guests()] == [build.attempt_id]


def test_a_stopping_agent_begins_nothing_new(stage: Begin) -> None:
    now = stage(compute={"workers": 1})
    driver = now.start(SlowDriver)
    first, second = build_on(HOST), build_on(HOST)
    now.build(first)
    assert driver.begun.wait(10)
    now.build(second)

    threading.Timer(0.3, driver.go_on.set).start()
    now.stop()

    assert [accepted.attempt_id for accepted in now.cell.said(AcceptInCell)] == [first.attempt_id]


def test_a_stopping_agent_does_not_wait_for_a_cell_that_is_away(stage: Begin) -> None:
    now = stage(Failing(AWAY, Message))
    now.start()
    now.build(build_on(HOST))
    wait_until(lambda: len(now.cell.said(AcceptInCell)) > 3)

    begun = time.monotonic()
    now.stop()

    assert time.monotonic() - begun < 5
    assert now.guests() == []
