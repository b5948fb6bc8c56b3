"""Test spawns whose outcome the driver does not know, because the host has died."""

from typing import Any

import pytest
from support.compute.builders import HOST, AgentUnderTest, NewStage, build_on, wait_until

from compute.driver import GuestSpec
from compute.fake.behaviour import Behaviour
from compute.fake.driver import FakeDriver
from moorage import errors
from moorage.messages import BuildFailedInCell, BuildFinished, BuildOnHost, ReturnHosts


class DyingDriver(FakeDriver):
    """Loses a host for some seconds at a moment of each spawn that a subclass chooses."""

    seconds = 0.5

    def admit(self, host: str, guest: GuestSpec) -> None:
        """Take every guest."""

    def lose(self, host: str) -> None:
        self.die(host, self.seconds)
        raise errors.NoReply(topic=f"host {host}", method="spawn", seconds=0.0)


class DyingBefore(DyingDriver):
    def spawn(self, host: str, guest: GuestSpec) -> None:
        self.lose(host)


class DyingMeanwhile(DyingDriver):
    def behaviour(self, host: str, guest: GuestSpec) -> Behaviour:
        self.lose(host)
        raise AssertionError


class DyingAfterwards(DyingDriver):
    def spawn(self, host: str, guest: GuestSpec) -> None:
        super().spawn(host, guest)
        self.lose(host)


class DyingAfterAFailure(DyingDriver):
    def spawn(self, host: str, guest: GuestSpec) -> None:
        self.die(host, self.seconds)
        raise errors.BuildFailed(instance_uuid=guest.instance_uuid, host=host, reason="it is broken")


def is_reported_once(stage: AgentUnderTest, build: BuildOnHost, *, runs: bool) -> None:
    """Wait for the only report of a build, and check that its guest is there only if it runs."""
    kind: Any = BuildFinished if runs else BuildFailedInCell
    wait_until(lambda: [report.attempt_id for report in stage.cell.received(kind)] == [build.attempt_id])
    assert stage.attempts() == ([build.attempt_id] if runs else [])


@pytest.mark.parametrize("driver", [DyingMeanwhile, DyingAfterwards])
def test_a_guest_whose_host_has_died_before_its_driver_knew_the_outcome_is_reported_when_the_host_returns(
    new_stage: NewStage, driver: type[DyingDriver]
) -> None:
    stage = new_stage()
    dying = stage.start(driver)
    dying.seconds = 3600.0
    wait_until(lambda: stage.cell.received(ReturnHosts) and not stage.cell.returning)
    build = build_on(HOST)
    stage.build(build)
    wait_until(stage.guests)
    wait_until(lambda: not dying.is_alive(HOST))
    with stage.cell.lock:
        stage.cell.returning = {HOST}
    dying.die(HOST, 0.0)

    is_reported_once(stage, build, runs=driver is DyingAfterwards)


@pytest.mark.parametrize("driver", [DyingBefore, DyingMeanwhile, DyingAfterwards, DyingAfterAFailure])
def test_a_guest_whose_host_is_alive_again_before_its_cell_has_missed_it_is_reported_at_once(
    new_stage: NewStage, driver: type[DyingDriver]
) -> None:
    stage = new_stage()
    stage.start(driver)
    wait_until(lambda: stage.cell.received(ReturnHosts) and not stage.cell.returning)
    returns = len(stage.cell.received(ReturnHosts))
    build = build_on(HOST)

    stage.build(build)

    is_reported_once(stage, build, runs=driver is DyingAfterwards)
    stage.wait_for_reports(3)
    assert len(stage.cell.build_methods()) == 2
    assert len(stage.cell.received(ReturnHosts)) == returns


def test_a_spawn_that_cannot_be_cut_short_after_its_host_was_dead_is_reported_when_it_has_ended(
    new_stage: NewStage,
) -> None:
    class StillSpawning(DyingMeanwhile):
        destroys = 0

        def destroy(self, host: str, instance_uuid: str, attempt_id: str, claim_id: str) -> None:
            self.destroys += 1
            if self.destroys < 3:
                raise errors.RequestInProgress(request_id=attempt_id)
            super().destroy(host, instance_uuid, attempt_id, claim_id)

    stage = new_stage()
    stage.start(StillSpawning)
    wait_until(lambda: stage.cell.received(ReturnHosts) and not stage.cell.returning)
    build = build_on(HOST)

    stage.build(build)

    is_reported_once(stage, build, runs=False)


@pytest.mark.parametrize("step", ["admit", "spawn"])
def test_a_build_whose_host_refuses_or_fails_it_and_dies_before_its_destroy_is_reported_with_that_reason(
    new_stage: NewStage, step: str
) -> None:
    def break_and_die(self: DyingDriver, host: str, guest: GuestSpec) -> None:
        self.die(host, self.seconds)
        raise errors.BuildImpossible(instance_uuid=guest.instance_uuid, host=host, reason="its image is broken")

    stage = new_stage()
    stage.start(type("DyingAfterABrokenImage", (DyingDriver,), {step: break_and_die}))
    wait_until(lambda: stage.cell.received(ReturnHosts) and not stage.cell.returning)
    build = build_on(HOST)

    stage.build(build)

    is_reported_once(stage, build, runs=False)
    (failed,) = stage.cell.received(BuildFailedInCell)
    assert (failed.reason, failed.no_other_host) == ("its image is broken", True)


def test_a_failed_build_is_reported_although_the_driver_fails_once_to_destroy_it(new_stage: NewStage) -> None:
    class Busy(FakeDriver):
        destroys = 0

        def destroy(self, host: str, instance_uuid: str, attempt_id: str, claim_id: str) -> None:
            self.destroys += 1
            if self.destroys == 1:
                raise OSError("its disk is busy")
            super().destroy(host, instance_uuid, attempt_id, claim_id)

    stage = new_stage(fake_driver={"failing_hosts": [HOST]})
    stage.start(Busy)
    wait_until(lambda: stage.cell.received(ReturnHosts) and not stage.cell.returning)
    build = build_on(HOST)

    stage.build(build)

    is_reported_once(stage, build, runs=False)
    assert stage.cell.received(BuildFailedInCell)[0].reason == "every spawn fails here"
