"""Test that a destroyed guest is gone and is not started again."""

import time
from functools import partial

import pytest
from support.compute.builders import (
    AGENT,
    CELL,
    HOST,
    UNAVAILABLE,
    FailingCell,
    HangingDestroys,
    HoldingCell,
    NewStage,
    SlowDriver,
    build_on,
    destroy_of,
    guest_spec,
    wait_until,
)
from support.processes.stopwatch import Stopwatch

import compute.service
from compute.agent import ComputeAgent
from compute.cell_client import CellClient
from compute.fake.driver import FakeDriver
from moorage import errors, ids
from moorage.messages import AcceptInCell, BuildFailedInCell, BuildFinished


def test_a_destroy_is_answered_when_the_guest_is_gone_and_a_repeated_build_does_not_bring_it_back(
    new_stage: NewStage,
) -> None:
    stage = new_stage()
    stage.start()
    build, other = build_on(HOST), build_on(HOST)
    stage.build(build)
    stage.build(other)
    wait_until(lambda: len(stage.cell.received(BuildFinished)) == 2)

    stage.destroy(build)
    assert stage.attempts() == [other.attempt_id]
    stage.destroy(build)
    stage.build(build)
    time.sleep(0.2)

    assert stage.attempts() == [other.attempt_id]
    assert len(stage.cell.received(BuildFinished)) == 2


def test_a_build_that_arrives_after_its_destroy_is_not_started_even_after_a_restart(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.start()
    build = build_on(HOST)

    stage.destroy(build)
    stage.build(build)
    stage.stop()
    assert stage.cell.build_methods() == []
    stage.start()
    stage.build(build)
    wait_until(lambda: stage.cell.received(BuildFailedInCell))

    assert stage.guests() == []


def test_an_attempt_that_is_destroyed_while_it_waits_at_the_first_gate_is_not_started(new_stage: NewStage) -> None:
    cell = HoldingCell(AcceptInCell)
    stage = new_stage(cell)
    driver = stage.start(SlowDriver)
    build = build_on(HOST)
    stage.build(build)
    assert cell.arrived.wait(10)

    stage.destroy(build)
    cell.go_on.set()
    stage.stop()

    assert driver.spawns == 0
    assert cell.build_methods() == ["accept_claim"]


def test_a_destroy_aborts_a_hanging_spawn(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"hanging_hosts": [HOST]})
    stage.start()
    build, other = build_on(HOST), build_on("host-0002")
    stage.build(build)
    wait_until(stage.guests)

    stage.destroy(build)
    stage.build(other)
    wait_until(lambda: stage.cell.received(BuildFinished))

    assert stage.attempts() == [other.attempt_id]
    assert stage.cell.received(BuildFailedInCell) == []


def test_a_destroy_during_a_spawn_that_cannot_be_aborted_is_answered_when_the_guest_is_gone(
    new_stage: NewStage,
) -> None:
    stage = new_stage(fake_driver={"late_hosts": [HOST], "late_seconds": 2.0})
    stage.start()
    build = build_on(HOST)
    stage.build(build)
    wait_until(stage.guests)

    begun = time.monotonic()
    stage.destroy(build)

    assert time.monotonic() - begun > 0.2
    assert stage.guests() == []
    assert stage.cell.received(BuildFinished) == []


def test_a_destroy_is_answered_with_request_in_progress_when_the_spawn_takes_too_long(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"late_hosts": [HOST], "late_seconds": 2.0})
    driver = FakeDriver(stage.conf, AGENT, CELL.name)
    driver.start()
    cell = CellClient(stage.peers.bus.client(f"conductor.{CELL.uuid}"))
    agent = ComputeAgent(driver, cell, 1, patience=0.1)
    agent.start()
    build = build_on(HOST)
    agent.build(build)
    wait_until(stage.guests)

    message = destroy_of(build)

    def is_destroyed() -> bool:
        try:
            agent.destroy(message)
        except errors.RequestInProgress:
            return False
        return True

    with pytest.raises(errors.RequestInProgress) as caught:
        agent.destroy(message)
    assert caught.value.request_id == message.request_id
    wait_until(lambda: not stage.guests())
    wait_until(is_destroyed)
    agent.stop(10)

    assert stage.cell.received(BuildFinished) == []
    driver.close()


def test_an_agent_whose_driver_hangs_in_a_destroy_answers_all_its_messages(
    new_stage: NewStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute.service, "ComputeAgent", partial(ComputeAgent, patience=0.2))
    stage = new_stage(rpc={"threads": 2}, compute={"stop_timeout": 0.1})
    driver = stage.start(HangingDestroys)
    hung, other = stage.built(), stage.built()
    driver.hanging = {hung.attempt_id}

    # More often than the server has threads.
    for _ in range(3):
        with pytest.raises(errors.RequestInProgress):
            stage.destroy(hung)

    assert driver.begun == 1, "repeated orders wait for the destroy in progress"
    stage.order(destroy_of(other))
    stage.built("host-0002")
    driver.go_on.set()
    stage.order(destroy_of(hung))
    assert [guest.host for guest in stage.guests()] == ["host-0002"]


def test_a_build_does_not_start_while_its_destroy_waits_for_a_thread(
    new_stage: NewStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute.service, "ComputeAgent", partial(ComputeAgent, patience=0.2))
    stage = new_stage(compute={"workers": 1, "stop_timeout": 0.1})
    driver = stage.start(HangingDestroys)
    hung, late = stage.built(), build_on(HOST)
    driver.hanging = {hung.attempt_id}
    for build in (hung, late):
        with pytest.raises(errors.RequestInProgress):
            stage.destroy(build)

    stage.build(late)
    driver.go_on.set()
    stage.order(destroy_of(late))
    stage.order(destroy_of(hung))

    assert stage.guests() == []
    assert len(stage.cell.received(BuildFinished)) == 1


def test_a_stopping_agent_does_not_wait_for_a_hanging_spawn(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"hanging_hosts": [HOST]}, compute={"stop_timeout": 0.1})
    stage.start()
    build = build_on(HOST)
    stage.build(build)
    wait_until(stage.guests)

    watch = Stopwatch()
    stage.stop()

    assert watch.seconds < 5
    assert stage.attempts() == [build.attempt_id]
    assert stage.cell.received(BuildFailedInCell) == []


def test_an_attempt_that_waits_for_a_free_worker_is_not_started_once_it_is_destroyed(new_stage: NewStage) -> None:
    stage = new_stage(compute={"workers": 1})
    driver = stage.start(SlowDriver)
    first, second = build_on(HOST), build_on(HOST)
    stage.build(first)
    assert driver.begun.wait(10)
    stage.build(second)

    stage.destroy(second)
    driver.go_on.set()
    wait_until(lambda: stage.cell.received(BuildFinished))
    stage.stop()

    assert stage.attempts() == [first.attempt_id]
    assert driver.spawns == 1


def test_a_destroy_ends_the_retries_of_an_unanswered_gate(new_stage: NewStage) -> None:
    stage = new_stage(FailingCell(UNAVAILABLE, AcceptInCell), compute={"workers": 1})
    driver = stage.start(SlowDriver)
    build = build_on(HOST)
    stage.build(build)
    wait_until(lambda: len(stage.cell.received(AcceptInCell)) > 1)

    stage.destroy(build)
    tries = len(stage.cell.received(AcceptInCell))
    time.sleep(0.5)

    assert len(stage.cell.received(AcceptInCell)) <= tries + 1
    assert driver.spawns == 0


def test_a_guest_of_another_claim_is_not_destroyed(new_stage: NewStage) -> None:
    stage = new_stage()
    driver = stage.start()
    build = build_on(HOST)
    stage.build(build)
    wait_until(lambda: stage.cell.received(BuildFinished))
    # Not earlier: the agent would treat a guest that exists while the host returns as one of its earlier life.
    other = guest_spec()
    driver.spawn(HOST, other)

    with pytest.raises(errors.InvalidState):
        stage.peers.agent.call(destroy_of(build, claim_id=ids.fresh()))

    assert set(stage.attempts()) == {build.attempt_id, other.attempt_id}
