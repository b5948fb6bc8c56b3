"""Test that nothing starts before the first gate, and that a guest which the second gate refuses is destroyed."""

import math

from support.compute.builders import HOST, FailingCell, NewStage, SlowDriver, build_on, wait_until

from moorage import errors
from moorage.messages import AcceptInCell, BuildFailedInCell, BuildFinished, ReturnHosts

BROKEN = errors.InvalidState(reason="the cell is not itself")


def test_nothing_is_started_for_a_released_claim(new_stage: NewStage) -> None:
    stage = new_stage()
    driver = stage.start(SlowDriver)
    build = build_on(HOST)
    stage.cell.superseded.add(build.attempt_id)

    def has_asked_twice() -> bool:
        stage.build(build)  # ignored while the first one is under way
        return len(stage.cell.received(AcceptInCell)) >= 2

    wait_until(has_asked_twice)

    assert set(stage.cell.build_methods()) == {"accept_claim"}
    assert driver.spawns == 0
    assert stage.guests() == []


def test_a_build_fails_and_nothing_is_started_when_the_first_gate_raises_an_error(new_stage: NewStage) -> None:
    stage = new_stage(FailingCell(BROKEN, AcceptInCell))
    driver = stage.start(SlowDriver)

    stage.build(build_on(HOST))
    wait_until(lambda: stage.cell.received(BuildFailedInCell))

    assert "not itself" in stage.cell.received(BuildFailedInCell)[0].reason
    assert driver.spawns == 0


def test_a_guest_that_the_second_gate_refuses_is_destroyed(new_stage: NewStage) -> None:
    stage = new_stage()
    driver = stage.start(SlowDriver)
    build = build_on(HOST)

    stage.build(build)
    assert driver.begun.wait(10)
    stage.cell.superseded.add(build.attempt_id)
    driver.go_on.set()
    wait_until(lambda: stage.cell.received(BuildFinished))
    wait_until(lambda: stage.guests() == [])

    assert stage.cell.build_methods() == ["accept_claim", "build_finished"]


def test_a_guest_is_not_destroyed_because_its_cell_has_no_record_of_it(new_stage: NewStage) -> None:
    build = build_on(HOST)
    stage = new_stage(FailingCell(errors.InstanceNotFound(name=build.instance_uuid), BuildFinished))
    stage.start()

    stage.build(build)
    wait_until(lambda: stage.cell.received(BuildFinished))
    stage.stop()

    assert stage.attempts() == [build.attempt_id]


def test_a_running_guest_is_kept_when_its_host_refuses_new_guests_after_a_restart(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.start()
    build = build_on(HOST)
    stage.build(build)
    wait_until(lambda: stage.cell.received(BuildFinished))

    stage.restart(refusing_hosts=[HOST])
    stage.build(build)
    # The returning host reports the guest, or the build does, or both.
    wait_until(lambda: len(stage.cell.received(BuildFinished)) >= 2)

    assert stage.attempts() == [build.attempt_id]


def test_a_running_guest_is_kept_when_the_first_gate_raises_an_error_after_a_restart(new_stage: NewStage) -> None:
    # The return is refused: a host that has returned has reported the guest, and does not ask at the gate again.
    cell = FailingCell(BROKEN, AcceptInCell, ReturnHosts, left=0)
    stage = new_stage(cell)
    stage.start()
    build = build_on(HOST)
    stage.build(build)
    wait_until(lambda: cell.received(BuildFinished))
    stage.stop()

    cell.left = math.inf
    stage.start()
    stage.build(build)
    wait_until(lambda: len(cell.received(AcceptInCell)) >= 2)
    stage.stop()

    assert stage.attempts() == [build.attempt_id]
    assert cell.received(BuildFailedInCell) == []


def test_a_guest_from_before_a_restart_is_destroyed_when_its_attempt_is_superseded(new_stage: NewStage) -> None:
    stage = new_stage()
    driver = stage.start(SlowDriver)
    build = build_on(HOST)
    driver.go_on.set()
    stage.build(build)
    wait_until(lambda: stage.cell.received(BuildFinished))
    stage.stop()

    stage.cell.superseded.add(build.attempt_id)
    stage.start()
    stage.build(build)
    wait_until(lambda: stage.guests() == [])

    # The first of two is refused: the repeated build, or the report of the returning host.
    assert stage.cell.build_methods()[:2] == ["accept_claim", "build_finished"]
    assert stage.cell.build_methods()[2:] in (["accept_claim"], ["build_finished"])


def test_an_attempt_reported_as_refused_is_not_started_after_a_restart(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"refusing_hosts": [HOST]})
    stage.start()
    build = build_on(HOST)
    stage.build(build)
    wait_until(lambda: stage.cell.received(BuildFailedInCell))

    stage.restart(refusing_hosts=[])
    stage.build(build)
    wait_until(lambda: len(stage.cell.received(BuildFailedInCell)) == 2)

    assert stage.guests() == []
    assert stage.cell.received(BuildFinished) == []
