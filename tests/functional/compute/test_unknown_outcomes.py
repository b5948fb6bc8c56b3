"""Test spawns whose outcome the driver does not know, because the host has died."""

from typing import Any

import pytest
from support.compute.builders import HOST, NewStage, build_on, wait_until

from compute.driver import GuestSpec
from compute.fake.behaviour import Behaviour
from compute.fake.driver import FakeDriver
from moorage import errors
from moorage.messages import BuildFailedInCell, BuildFinished, ReturnHosts


@pytest.mark.parametrize("runs", [True, False], ids=["made", "half made"])
def test_a_guest_whose_host_has_died_before_its_driver_knew_the_outcome_is_reported_when_the_host_returns(
    new_stage: NewStage, runs: bool
) -> None:
    class Dying(FakeDriver):
        def admit(self, host: str, guest: GuestSpec) -> None:
            """Take every guest."""

        def spawn(self, host: str, guest: GuestSpec) -> None:
            super().spawn(host, guest)
            self.lose(host)

        def behaviour(self, host: str, guest: GuestSpec) -> Behaviour:
            if not runs:
                self.lose(host)
            return super().behaviour(host, guest)

        def lose(self, host: str) -> None:
            self.die(host, 0.5)
            raise errors.NoReply(topic=f"host {host}", method="spawn", seconds=0.0)

    stage = new_stage()
    stage.start(Dying)
    wait_until(lambda: stage.cell.received(ReturnHosts) and not stage.cell.returning)
    build = build_on(HOST)
    stage.build(build)
    wait_until(stage.guests)
    with stage.cell.lock:
        stage.cell.returning = {HOST}

    kind: Any = BuildFinished if runs else BuildFailedInCell
    wait_until(lambda: [report.attempt_id for report in stage.cell.received(kind)] == [build.attempt_id])
    assert stage.attempts() == ([build.attempt_id] if runs else [])
