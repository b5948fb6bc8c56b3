"""Test how an agent carries out builds, reports them, and cleans up after failed ones."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.compute.builders import AGENT, CELL, HOST, FakeCell, NewStage, SlowDriver, build_on, wait_until

from compute.driver import GuestSpec
from compute.fake.driver import FakeDriver
from compute.service import ComputeService
from moorage import context, errors
from moorage.bus.bus import serves
from moorage.messages import AcceptInCell, BuildFailedInCell, BuildFinished, LocateCellInCell
from moorage.messages.wire import Message
from moorage.model import Cell, Guest, Image


def test_a_build_is_accepted_before_it_starts_and_reported_when_it_runs(new_stage: NewStage) -> None:
    class Cell(FakeCell):
        guests_at_the_gate: list[Guest] | None = None

        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, AcceptInCell):
                self.guests_at_the_gate = stage.guests()

    cell = Cell()
    stage = new_stage(cell)
    stage.start()
    build = build_on(HOST)

    stage.build(build)
    wait_until(lambda: cell.received(BuildFinished))

    assert cell.build_methods() == ["accept_claim", "build_finished"]
    assert cell.guests_at_the_gate == []
    (accepted,) = cell.received(AcceptInCell)
    assert (accepted.claim_id, accepted.attempt_id, accepted.host) == (build.claim_id, build.attempt_id, HOST)
    (finished,) = cell.received(BuildFinished)
    assert (finished.claim_id, finished.attempt_id) == (build.claim_id, build.attempt_id)
    (guest,) = stage.guests()
    assert (guest.attempt_id, guest.claim_id, guest.resources) == (build.attempt_id, build.claim_id, build.resources)


def test_a_build_is_answered_before_its_spawn_is_over(new_stage: NewStage) -> None:
    stage = new_stage()
    driver = stage.start(SlowDriver)

    stage.build(build_on(HOST))

    assert stage.cell.received(BuildFinished) == []
    driver.go_on.set()
    wait_until(lambda: stage.cell.received(BuildFinished))


def test_a_failed_spawn_is_logged_with_its_instance_and_its_host(
    new_stage: NewStage, caplog: pytest.LogCaptureFixture
) -> None:
    stage = new_stage(fake_driver={"failing_hosts": [HOST]})
    stage.start()
    build = build_on(HOST)
    stage.build(build)
    wait_until(lambda: stage.cell.received(BuildFailedInCell))

    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    [line] = [record.getMessage() for record in warnings if record.name == "compute.agent"]
    assert line.startswith(f"The spawn of instance {build.instance_uuid} on host {HOST} has failed: ")


def test_a_failed_spawn_is_cleaned_up_before_it_is_reported_with_its_reason(new_stage: NewStage) -> None:
    class Cell(FakeCell):
        guests_when_it_failed: list[Guest] | None = None

        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, BuildFailedInCell):
                self.guests_when_it_failed = stage.guests()

    cell = Cell()
    stage = new_stage(cell, fake_driver={"failing_hosts": [HOST]})
    stage.start()

    stage.build(build_on(HOST))
    wait_until(lambda: cell.guests_when_it_failed is not None)

    assert cell.build_methods() == ["accept_claim", "build_failed"]
    assert cell.received(BuildFailedInCell)[0].reason == "every spawn fails here"
    assert cell.guests_when_it_failed == []


def test_a_spawn_from_a_broken_image_is_reported_as_failing_on_every_host(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"broken_images": ["torn"]})
    stage.start()
    build = build_on(HOST)

    stage.build(structs.replace(build, request_spec=structs.replace(build.request_spec, image=Image(id="torn"))))
    wait_until(lambda: stage.cell.received(BuildFailedInCell))

    [report] = stage.cell.received(BuildFailedInCell)
    assert (report.reason, report.no_other_host) == ("image torn is broken", True)
    assert stage.guests() == []


def test_a_reason_with_a_file_name_that_is_not_utf8_is_reported(new_stage: NewStage) -> None:
    class WithoutRoom(FakeDriver):
        def spawn(self, host: str, guest: GuestSpec) -> None:
            reason = "there is no room for " + os.fsdecode(b"caf\xe9.img")
            raise errors.BuildFailed(instance_uuid=guest.instance_uuid, host=host, reason=reason)

    stage = new_stage()
    stage.start(WithoutRoom)

    stage.build(build_on(HOST))
    wait_until(lambda: stage.cell.received(BuildFailedInCell))

    assert stage.cell.received(BuildFailedInCell)[0].reason == r"there is no room for caf\udce9.img"


def test_a_refused_build_fails_before_its_claim_is_accepted(new_stage: NewStage) -> None:
    stage = new_stage(fake_driver={"refusing_hosts": [HOST]})
    stage.start()

    stage.build(build_on(HOST))
    wait_until(lambda: stage.cell.received(BuildFailedInCell))

    assert stage.cell.build_methods() == ["build_failed"]
    assert stage.guests() == []


def test_an_exception_of_the_driver_fails_the_build(new_stage: NewStage) -> None:
    class Broken(FakeDriver):
        def spawn(self, host: str, guest: GuestSpec) -> None:
            super().spawn(host, guest)
            raise ZeroDivisionError

    stage = new_stage()
    stage.start(Broken)

    stage.build(build_on(HOST))
    wait_until(lambda: stage.cell.received(BuildFailedInCell))

    assert "ZeroDivisionError" in stage.cell.received(BuildFailedInCell)[0].reason
    assert stage.guests() == []


def test_an_order_for_a_host_of_another_agent_is_refused(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.start()

    with pytest.raises(errors.HostNotFound):
        stage.build(build_on("nowhere"))
    with pytest.raises(errors.HostNotFound):
        stage.destroy(build_on("nowhere"))


def test_an_agent_of_an_unknown_cell_does_not_start(new_stage: NewStage) -> None:
    stage = new_stage()

    with pytest.raises(errors.CellNotFound):
        ComputeService(stage.conf, "atlantis", FakeDriver(stage.conf, AGENT, "atlantis")).start()


def test_an_agent_whose_driver_does_not_start_serves_nothing(new_stage: NewStage, tmp_path: Path) -> None:
    stage = new_stage(fake_driver={"state_file": str(tmp_path)})

    with pytest.raises(errors.ConfigurationError):
        stage.start()
    with pytest.raises(errors.NoReply):
        stage.peers.bus.client(f"compute.{CELL.uuid}", timeout=0.2).call(build_on(HOST))


def test_an_agent_serves_on_the_bus_of_its_own_cell(new_stage: NewStage) -> None:
    on_main_bus, on_cell_bus = new_stage(), new_stage()
    url = on_cell_bus.conf.transport_url
    on_main_bus.peers.placement.cells = [Cell(uuid=CELL.uuid, name=CELL.name, transport_url=url)]

    on_main_bus.start()
    on_cell_bus.build(build_on(HOST))
    wait_until(lambda: on_cell_bus.cell.received(BuildFinished))

    assert on_main_bus.cell.messages == []


class NamedCell(FakeCell):
    """A cell conductor that answers under which name it is known."""

    @serves(LocateCellInCell)
    def locate_cell(self, message: LocateCellInCell) -> Cell:
        self._take(message)
        return CELL


def test_an_agent_with_the_uuid_of_its_cell_starts_without_the_placement_role(new_stage: NewStage) -> None:
    cell = NamedCell()
    stage = new_stage(cell, compute={"cell_uuid": CELL.uuid})
    stage.peers.placement.cells = []

    stage.start()
    stage.built()

    assert [message.name for message in cell.received(LocateCellInCell)] == [CELL.name]


def test_an_agent_with_the_uuid_of_another_cell_does_not_start_and_reports_nothing(new_stage: NewStage) -> None:
    cell = NamedCell()
    stage = new_stage(cell, compute={"cell_uuid": CELL.uuid})

    with pytest.raises(errors.ConfigurationError) as refused:
        ComputeService(stage.conf, "cell2", FakeDriver(stage.conf, AGENT, "cell2")).start()

    assert refused.value.reason == f"[compute] cell_uuid {CELL.uuid} is cell cell1, and the agent is of cell cell2"
    assert [type(message) for message in cell.messages] == [LocateCellInCell]


def test_an_agent_with_the_uuid_of_its_cell_serves_under_a_conductor_of_the_previous_release(
    new_stage: NewStage,
) -> None:
    stage = new_stage(compute={"cell_uuid": CELL.uuid})
    stage.start()
    stage.built()


def test_log_lines_and_calls_of_a_build_carry_its_request_id(
    new_stage: NewStage, caplog: pytest.LogCaptureFixture
) -> None:
    logged: list[tuple[str, context.Context]] = []

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append((record.getMessage(), context.current()))

    logger = logging.getLogger("compute.agent")
    handler = Recorder()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        stage = new_stage(fake_driver={"failing_hosts": [HOST]})
        stage.start()
        build = build_on(HOST)
        with context.bound(request_id="req-origin"):
            stage.build(build)
        wait_until(lambda: any("has taken the report" in line for line, _ in logged))
    finally:
        logger.removeHandler(handler)

    assert len(logged) >= 3
    assert {(at.request_id, at.attempt_id, at.service) for _, at in logged} == {
        ("req-origin", build.attempt_id, f"compute.{AGENT}")
    }
    request_ids = [
        request_id
        for message, request_id in zip(stage.cell.messages, stage.cell.request_ids, strict=True)
        if isinstance(message, AcceptInCell | BuildFailedInCell)
    ]
    assert request_ids == ["req-origin"] * 2
