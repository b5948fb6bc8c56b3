"""Nothing starts before the first gate, and nothing stays that the second one refuses."""

import math

from support.compute.builders import HOST, Begin, Failing, SlowDriver, build_on, wait_until

from moorage import errors
from moorage.messages import AcceptInCell, BuildFailedInCell, BuildFinished, ReturnHosts

BROKEN = errors.InvalidState(reason="the cell is not itself")


def test_nothing_is_started_for_a_released_claim(stage: Begin) -> None:
    now = stage()
    driver = now.start(SlowDriver)
    build = build_on(HOST)
    now.cell.over.add(build.attempt_id)

    def asked_twice() -> bool:
        now.build(build)  # not taken up while it is still in hand
        return len(now.cell.said(AcceptInCell)) >= 2

    wait_until(asked_twice)

    assert set(now.cell.of_builds()) == {"accept_claim"}
    assert driver.spawns == 0
    assert now.guests() == []


def test_a_gate_that_breaks_is_a_failed_build_of_which_nothing_was_started(stage: Begin) -> None:
    now = stage(Failing(BROKEN, AcceptInCell))
    driver = now.start(SlowDriver)

    now.build(build_on(HOST))
    wait_until(lambda: now.cell.said(BuildFailedInCell))

    assert "not itself" in now.cell.said(BuildFailedInCell)[0].reason
    assert driver.spawns == 0


def test_a_guest_that_the_second_gate_refuses_is_destroyed(stage: Begin) -> None:
    now = stage()
    driver = now.start(SlowDriver)
    build = build_on(HOST)

    now.build(build)
    assert driver.begun.wait(10)
    now.cell.over.add(build.attempt_id)
    driver.go_on.set()
    wait_until(lambda: now.cell.said(BuildFinished))
    wait_until(lambda: now.guests() == [])

    assert now.cell.of_builds() == ["accept_claim", "build_finished"]


def test_a_guest_is_not_destroyed_because_its_cell_has_no_record_of_it(stage: Begin) -> None:
    build = build_on(HOST)
    now = stage(Failing(errors.InstanceNotFound(name=build.instance_uuid), BuildFinished))
    now.start()

    now.build(build)
    wait_until(lambda: now.cell.said(BuildFinished))
    now.stop()

    assert [guest.attempt_id for guest in now.guests()] == [build.attempt_id]


def test_a_running_guest_is_kept_when_its_host_refuses_guests_by_now(stage: Begin) -> None:
    now = stage()
    now.start()
    build = build_on(HOST)
    now.build(build)
    wait_until(lambda: now.cell.said(BuildFinished))
    now.stop()

    now.conf.set_override("refusing_hosts", [HOST], group="fake_driver")
    now.start()
    now.build(build)
    # Reported by the host that returns, by the build, or by both.
    wait_until(lambda: len(now.cell.said(BuildFinished)) >= 2)

    assert [guest.attempt_id for guest in now.guests()] == [build.attempt_id]


def test_a_running_guest_is_kept_when_the_first_gate_breaks(stage: Begin) -> None:
    # A host that has returned has reported the guest, and passes no gate with it any more.
    cell = Failing(BROKEN, AcceptInCell, ReturnHosts, left=0)
    now = stage(cell)
    now.start()
    build = build_on(HOST)
    now.build(build)
    wait_until(lambda: cell.said(BuildFinished))
    now.stop()

    cell.left = math.inf
    now.start()
    now.build(build)
    wait_until(lambda: len(cell.said(AcceptInCell)) >= 2)
    now.stop()

    assert [guest.attempt_id for guest in now.guests()] == [build.attempt_id]
    assert cell.said(BuildFailedInCell) == []


def test_a_guest_of_an_earlier_life_is_destroyed_when_its_attempt_is_over_for_the_cell(stage: Begin) -> None:
    now = stage()
    driver = now.start(SlowDriver)
    build = build_on(HOST)
    driver.go_on.set()
    now.build(build)
    wait_until(lambda: now.cell.said(BuildFinished))
    now.stop()

    now.cell.over.add(build.attempt_id)
    now.start()
    now.build(build)
    wait_until(lambda: now.guests() == [])

    # Refused to whichever comes first: the repeated build, or the report of the host that returns.
    assert now.cell.of_builds()[:2] == ["accept_claim", "build_finished"]
    assert now.cell.of_builds()[2:] in (["accept_claim"], ["build_finished"])


def test_an_attempt_reported_as_refused_is_not_started_by_a_later_life(stage: Begin) -> None:
    now = stage(fake_driver={"refusing_hosts": [HOST]})
    now.start()
    build = build_on(HOST)
    now.build(build)
    wait_until(lambda: now.cell.said(BuildFailedInCell))
    now.stop()

    now.conf.set_override("refusing_hosts", [], group="fake_driver")
    now.start()
    now.build(build)
    wait_until(lambda: len(now.cell.said(BuildFailedInCell)) == 2)

    assert now.guests() == []
    assert now.cell.said(BuildFinished) == []
