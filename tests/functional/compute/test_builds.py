"""Test how an agent carries out builds, reports them, and cleans up after failed ones."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support.compute.builders import AGENT, CELL, HOST, Begin, FakeCell, SlowDriver, build_on, wait_until

from compute.driver import GuestSpec
from compute.fake.driver import FakeDriver
from compute.service import ComputeService
from moorage import context, errors
from moorage.messages import AcceptInCell, BuildFailedInCell, BuildFinished
from moorage.messages.wire import Message
from moorage.model import Cell, Guest, Image


def test_a_build_is_accepted_before_it_starts_and_reported_when_it_runs(stage: Begin) -> None:
    class Cell(FakeCell):
        guests_at_the_gate: list[Guest] | None = None

        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, AcceptInCell):
                self.guests_at_the_gate = now.guests()

    cell = Cell()
    now = stage(cell)
    now.start()
    build = build_on(HOST)

    now.build(build)
    wait_until(lambda: cell.said(BuildFinished))

    assert cell.of_builds() == ["accept_claim", "build_finished"]
    assert cell.guests_at_the_gate == []
    (accepted,) = cell.said(AcceptInCell)
    assert (accepted.claim_id, accepted.attempt_id, accepted.host) == (build.claim_id, build.attempt_id, HOST)
    (finished,) = cell.said(BuildFinished)
    assert (finished.claim_id, finished.attempt_id) == (build.claim_id, build.attempt_id)
    (guest,) = now.guests()
    assert (guest.attempt_id, guest.claim_id, guest.resources) == (build.attempt_id, build.claim_id, build.resources)


def test_a_build_is_answered_before_its_spawn_is_over(stage: Begin) -> None:
    now = stage()
    driver = now.start(SlowDriver)

    now.build(build_on(HOST))

    assert now.cell.said(BuildFinished) == []
    driver.go_on.set()
    wait_until(lambda: now.cell.said(BuildFinished))


def test_a_failed_spawn_is_logged_with_its_instance_and_its_host(
    stage: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    now = stage(fake_driver={"failing_hosts": [HOST]})
    now.start()
    build = build_on(HOST)
    now.build(build)
    wait_until(lambda: now.cell.said(BuildFailedInCell))

    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    [line] = [record.getMessage() for record in warnings if record.name == "compute.agent"]
    assert line.startswith(f"The spawn of instance {build.instance_uuid} on host {HOST} has failed: ")


def test_a_failed_spawn_is_cleaned_up_before_it_is_reported_with_its_reason(stage: Begin) -> None:
    class Cell(FakeCell):
        guests_when_it_failed: list[Guest] | None = None

        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, BuildFailedInCell):
                self.guests_when_it_failed = now.guests()

    cell = Cell()
    now = stage(cell, fake_driver={"failing_hosts": [HOST]})
    now.start()

    now.build(build_on(HOST))
    wait_until(lambda: cell.guests_when_it_failed is not None)

    assert cell.of_builds() == ["accept_claim", "build_failed"]
    assert cell.said(BuildFailedInCell)[0].reason == "every spawn fails here"
    assert cell.guests_when_it_failed == []


def test_a_spawn_from_a_broken_image_is_reported_as_one_that_fails_on_every_host(stage: Begin) -> None:
    now = stage(fake_driver={"broken_images": ["torn"]})
    now.start()
    build = build_on(HOST)

    now.build(structs.replace(build, request_spec=structs.replace(build.request_spec, image=Image(id="torn"))))
    wait_until(lambda: now.cell.said(BuildFailedInCell))

    [report] = now.cell.said(BuildFailedInCell)
    assert (report.reason, report.no_other_host) == ("image torn is broken", True)
    assert now.guests() == []


def test_a_driver_may_give_a_reason_with_a_name_that_is_not_written_in_utf8(stage: Begin) -> None:
    class WithOldFiles(FakeDriver):
        def spawn(self, host: str, guest: GuestSpec) -> None:
            reason = "there is no room for " + os.fsdecode(b"caf\xe9.img")
            raise errors.BuildFailed(instance_uuid=guest.instance_uuid, host=host, reason=reason)

    now = stage()
    now.start(WithOldFiles)

    now.build(build_on(HOST))
    wait_until(lambda: now.cell.said(BuildFailedInCell))

    assert now.cell.said(BuildFailedInCell)[0].reason == r"there is no room for caf\udce9.img"


def test_a_refusing_host_accepts_nothing(stage: Begin) -> None:
    now = stage(fake_driver={"refusing_hosts": [HOST]})
    now.start()

    now.build(build_on(HOST))
    wait_until(lambda: now.cell.said(BuildFailedInCell))

    assert now.cell.of_builds() == ["build_failed"]
    assert now.guests() == []


def test_a_driver_that_breaks_is_a_failed_build(stage: Begin) -> None:
    class Broken(FakeDriver):
        def spawn(self, host: str, guest: GuestSpec) -> None:
            super().spawn(host, guest)
            raise ZeroDivisionError

    now = stage()
    now.start(Broken)

    now.build(build_on(HOST))
    wait_until(lambda: now.cell.said(BuildFailedInCell))

    assert "ZeroDivisionError" in now.cell.said(BuildFailedInCell)[0].reason
    assert now.guests() == []


def test_a_host_of_somebody_else_is_not_found(stage: Begin) -> None:
    now = stage()
    now.start()

    with pytest.raises(errors.HostNotFound):
        now.build(build_on("nowhere"))
    with pytest.raises(errors.HostNotFound):
        now.destroy(build_on("nowhere"))


def test_a_cell_that_does_not_exist_is_refused_at_the_start(stage: Begin, tmp_path: Path) -> None:
    now = stage()

    with pytest.raises(errors.CellNotFound):
        ComputeService(now.conf, "atlantis", FakeDriver(now.conf, AGENT, "atlantis")).start()


def test_a_driver_that_does_not_start_leaves_nothing_behind(stage: Begin, tmp_path: Path) -> None:
    now = stage(fake_driver={"state_file": str(tmp_path)})

    with pytest.raises(errors.ConfigurationError):
        now.start()
    with pytest.raises(errors.NoReply):
        now.around.bus.client(f"compute.{CELL.uuid}", timeout=0.2).call(build_on(HOST))


def test_an_agent_serves_on_the_bus_of_its_own_cell(stage: Begin, tmp_path: Path) -> None:
    main = stage()
    apart = stage(FakeCell())
    main.around.placement.cells = [Cell(uuid=CELL.uuid, name=CELL.name, transport_url=apart.conf.transport_url)]

    main.start()
    build = build_on(HOST)
    apart.build(build)
    wait_until(lambda: apart.cell.said(BuildFinished))

    assert main.cell.told == []


def test_the_request_and_the_attempt_are_on_the_log_lines_of_a_build_and_on_its_calls(
    stage: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, context.Context]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append((record.getMessage(), context.current()))

    logger = logging.getLogger("compute.agent")
    handler = Keep()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        now = stage(fake_driver={"failing_hosts": [HOST]})
        now.start()
        build = build_on(HOST)
        with context.bound(request_id="req-origin"):
            now.build(build)
        wait_until(lambda: any("has taken the report" in line for line, _ in seen))
    finally:
        logger.removeHandler(handler)

    assert len(seen) >= 3
    assert {(at.request_id, at.attempt_id, at.service) for _, at in seen} == {
        ("req-origin", build.attempt_id, f"compute.{AGENT}")
    }
    of_builds = [
        request_id
        for message, request_id in zip(now.cell.told, now.cell.request_ids, strict=True)
        if isinstance(message, AcceptInCell | BuildFailedInCell)
    ]
    assert of_builds == ["req-origin"] * 2
