"""Test that a destroyed guest is gone and does not come back."""

import time
from typing import Any

import pytest
from support.compute.builders import (
    AGENT,
    AWAY,
    CELL,
    HOST,
    Begin,
    Failing,
    Holding,
    SlowDriver,
    build_on,
    destroy_of,
    guest_spec,
    wait_until,
)

from compute.agent import ComputeAgent
from compute.cell_client import CellClient
from compute.fake.driver import FakeDriver
from moorage import errors, ids
from moorage.messages import AcceptInCell, BuildFailedInCell, BuildFinished
from moorage.messages.wire import Message


def test_a_destroyed_guest_is_gone_when_the_answer_comes_and_does_not_return(stage: Begin) -> None:
    now = stage()
    now.start()
    build, other = build_on(HOST), build_on(HOST)
    now.build(build)
    now.build(other)
    wait_until(lambda: len(now.cell.said(BuildFinished)) == 2)

    now.destroy(build)
    assert [guest.attempt_id for guest in now.guests()] == [other.attempt_id]
    now.destroy(build)
    now.build(build)
    time.sleep(0.2)

    assert [guest.attempt_id for guest in now.guests()] == [other.attempt_id]
    assert len(now.cell.said(BuildFinished)) == 2


def test_an_attempt_that_was_destroyed_first_is_never_started_not_even_after_a_restart(stage: Begin) -> None:
    now = stage()
    now.start()
    build = build_on(HOST)

    now.destroy(build)
    now.build(build)
    now.stop()
    assert now.cell.of_builds() == []
    now.start()
    now.build(build)
    wait_until(lambda: now.cell.said(BuildFailedInCell))

    assert now.guests() == []


def test_an_attempt_that_is_destroyed_while_it_stands_at_the_gate_is_not_started(stage: Begin) -> None:
    cell = Holding(AcceptInCell)
    now = stage(cell)
    driver = now.start(SlowDriver)
    build = build_on(HOST)
    now.build(build)
    assert cell.asked.wait(10)

    now.destroy(build)
    cell.go_on.set()
    now.stop()

    assert driver.spawns == 0
    assert cell.of_builds() == ["accept_claim"]


def test_a_spawn_that_hangs_is_cut_short_by_a_destroy(stage: Begin) -> None:
    now = stage(fake_driver={"hanging_hosts": [HOST]})
    now.start()
    build, other = build_on(HOST), build_on("host-0002")
    now.build(build)
    wait_until(now.guests)

    now.destroy(build)
    now.build(other)
    wait_until(lambda: now.cell.said(BuildFinished))

    assert [guest.attempt_id for guest in now.guests()] == [other.attempt_id]
    assert now.cell.said(BuildFailedInCell) == []


def test_a_destroy_during_a_spawn_that_cannot_be_cut_short_is_answered_when_nothing_is_left(stage: Begin) -> None:
    now = stage(fake_driver={"late_hosts": [HOST], "late_seconds": 0.5})
    now.start()
    build = build_on(HOST)
    now.build(build)
    wait_until(now.guests)

    begun = time.monotonic()
    now.destroy(build)

    assert time.monotonic() - begun > 0.2
    assert now.guests() == []
    assert now.cell.said(BuildFinished) == []


def test_a_destroy_is_told_to_come_again_when_the_spawn_takes_too_long(stage: Begin) -> None:
    now = stage(fake_driver={"late_hosts": [HOST], "late_seconds": 1.0})
    driver = FakeDriver(now.conf, AGENT, CELL.name)
    driver.start()
    cell = CellClient(now.around.bus.client(f"conductor.{CELL.uuid}"))
    agent = ComputeAgent(driver, cell, 1, spawn_patience=0.1)
    agent.start()
    build = build_on(HOST)
    agent.build(build)
    wait_until(now.guests)

    message = destroy_of(build)
    with pytest.raises(errors.RequestInProgress) as caught:
        agent.destroy(message)
    assert caught.value.request_id == message.request_id
    agent.stop(10)

    assert now.guests() == []
    assert now.cell.said(BuildFinished) == []
    agent.destroy(message)
    driver.close()


def test_an_agent_that_stops_does_not_wait_for_a_spawn_that_hangs(stage: Begin) -> None:
    now = stage(fake_driver={"hanging_hosts": [HOST]}, compute={"stop_timeout": 0.1})
    now.start()
    build = build_on(HOST)
    now.build(build)
    wait_until(now.guests)

    begun = time.monotonic()
    now.stop()

    assert time.monotonic() - begun < 5
    assert [guest.attempt_id for guest in now.guests()] == [build.attempt_id]
    assert now.cell.said(BuildFailedInCell) == []


def test_an_attempt_that_waits_for_a_free_worker_is_not_started_once_it_is_destroyed(stage: Begin) -> None:
    now = stage(compute={"workers": 1})
    driver = now.start(SlowDriver)
    first, second = build_on(HOST), build_on(HOST)
    now.build(first)
    assert driver.begun.wait(10)
    now.build(second)

    now.destroy(second)
    driver.go_on.set()
    wait_until(lambda: now.cell.said(BuildFinished))
    now.stop()

    assert [guest.attempt_id for guest in now.guests()] == [first.attempt_id]
    assert driver.spawns == 1


def test_a_destroy_ends_the_waiting_for_a_gate_that_nobody_keeps(stage: Begin) -> None:
    now = stage(Failing(AWAY, AcceptInCell), compute={"workers": 1})
    driver = now.start(SlowDriver)
    build = build_on(HOST)
    now.build(build)
    wait_until(lambda: len(now.cell.said(AcceptInCell)) > 1)

    now.destroy(build)
    asked = len(now.cell.said(AcceptInCell))
    time.sleep(0.5)

    assert len(now.cell.said(AcceptInCell)) <= asked + 1
    assert driver.spawns == 0


def test_a_guest_of_another_claim_is_not_destroyed(stage: Begin) -> None:
    now = stage()
    driver = now.start()
    build = build_on(HOST)
    now.build(build)
    wait_until(lambda: now.cell.said(BuildFinished))
    # Not earlier: what is there while the host returns is taken for a guest of the agent's earlier life.
    stranger = guest_spec()
    driver.spawn(HOST, stranger)

    wrong = destroy_of(build)
    with pytest.raises(errors.InvalidState):
        now.around.agent.call(type(wrong)(**{**_fields(wrong), "claim_id": ids.fresh()}))

    assert {guest.attempt_id for guest in now.guests()} == {build.attempt_id, stranger.attempt_id}


def _fields(message: Message[Any]) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__}
