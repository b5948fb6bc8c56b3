"""A whole compute service on an in-process bus, under a cell conductor that keeps its promises or does not."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from compute_builders import (
    AGENT,
    CELL,
    FakeCell,
    Surroundings,
    build_on,
    destroy_of,
    guest_spec,
    settings,
    wait_until,
)
from oslo_config import cfg

from compute.agent import ComputeAgent
from compute.cell_client import CellClient
from compute.driver import GuestSpec
from compute.fake import FakeDriver
from compute.service import ComputeService
from moorage import context, errors, ids
from moorage.messages import (
    AcceptInCell,
    BuildFailedInCell,
    BuildFinished,
    BuildOnHost,
    ReportHostsInCell,
    ReportProviderTree,
)
from moorage.model import Cell, Guest, ProviderReport
from moorage.wire import Message

HOST = "host-0001"


class SlowDriver(FakeDriver):
    """Its spawns wait until they are let go, and tell when they have begun."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.spawns = 0

    def spawn(self, host: str, guest: GuestSpec) -> None:
        """Wait in the middle of it."""
        self.spawns += 1
        self.begun.set()
        assert self.go_on.wait(10)
        super().spawn(host, guest)


class Stage:
    """A service under test with all that stands around it."""

    def __init__(self, folder: Path, cell: FakeCell, **groups: dict[str, Any]) -> None:
        self.conf: cfg.ConfigOpts = settings(folder, **groups)
        self.cell = cell
        self.around = Surroundings(self.conf, cell)
        self.running: list[ComputeService] = []

    def start(self, kind: type[FakeDriver] = FakeDriver) -> Any:
        driver = kind(self.conf, AGENT, CELL.name)
        service = ComputeService(self.conf, CELL.name, driver)
        service.start()
        self.running.append(service)
        return driver

    def stop(self) -> None:
        while self.running:
            self.running.pop().stop()

    def build(self, build: BuildOnHost) -> None:
        self.around.agent.call(build)

    def destroy(self, build: BuildOnHost) -> None:
        self.around.agent.call(destroy_of(build))

    def guests(self) -> list[Guest]:
        onlooker = FakeDriver(self.conf, AGENT, CELL.name)
        onlooker.start()
        try:
            return [guest for host in onlooker.alive() for guest in onlooker.guests(host)]
        finally:
            onlooker.close()


Begin = Callable[..., Stage]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Begin]:
    begun: list[Stage] = []

    def begin(cell: FakeCell | None = None, **groups: dict[str, Any]) -> Stage:
        begun.append(Stage(tmp_path, cell or FakeCell(), **groups))
        return begun[-1]

    yield begin
    for one in begun:
        one.stop()
        one.around.close()


# --- The straight line ------------------------------------------------------------------------------------------------


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


# --- The gates --------------------------------------------------------------------------------------------------------


def test_nothing_is_started_for_a_released_claim(stage: Begin) -> None:
    now = stage()
    driver = now.start(SlowDriver)
    build = build_on(HOST)
    now.cell.over.add(build.attempt_id)

    now.build(build)
    wait_until(lambda: now.cell.said(AcceptInCell))
    now.build(build)
    wait_until(lambda: len(now.cell.said(AcceptInCell)) == 2)

    assert now.cell.of_builds() == ["accept_claim"] * 2
    assert driver.spawns == 0
    assert now.guests() == []


def test_a_gate_that_breaks_is_a_failed_build_of_which_nothing_was_started(stage: Begin) -> None:
    class Cell(FakeCell):
        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, AcceptInCell):
                raise errors.InvalidState(reason="the cell is not itself")

    now = stage(Cell())
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
    class Cell(FakeCell):
        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, BuildFinished):
                raise errors.InstanceNotFound(name=message.instance_uuid)

    now = stage(Cell())
    now.start()
    build = build_on(HOST)

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
    wait_until(lambda: len(now.cell.said(BuildFinished)) == 2)

    assert [guest.attempt_id for guest in now.guests()] == [build.attempt_id]


def test_a_running_guest_is_kept_when_the_first_gate_breaks(stage: Begin) -> None:
    class Cell(FakeCell):
        broken = False

        def before_answer(self, message: Message[Any]) -> None:
            if self.broken and isinstance(message, AcceptInCell):
                raise errors.InvalidState(reason="the cell is not itself")

    cell = Cell()
    now = stage(cell)
    now.start()
    build = build_on(HOST)
    now.build(build)
    wait_until(lambda: cell.said(BuildFinished))
    now.stop()

    cell.broken = True
    now.start()
    now.build(build)
    wait_until(lambda: len(cell.said(AcceptInCell)) == 2)
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

    assert now.cell.of_builds() == ["accept_claim", "build_finished", "accept_claim"]


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


# --- Lost replies, duplicates and restarts ----------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [AcceptInCell, BuildFinished, BuildFailedInCell])
def test_what_nobody_answers_is_repeated_with_the_same_ids(stage: Begin, lost: type[Message[Any]]) -> None:
    class Cell(FakeCell):
        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, lost) and len(self.said(lost)) < 3:
                raise errors.StoreUnavailable(schema="cell", reason="it restarts")

    failing = {"failing_hosts": [HOST]} if lost is BuildFailedInCell else {}
    now = stage(Cell(), fake_driver=failing)
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
    class Cell(FakeCell):
        def before_answer(self, message: Message[Any]) -> None:
            raise errors.StoreUnavailable(schema="cell", reason="it is away")

    now = stage(Cell())
    now.start()
    now.build(build_on(HOST))
    wait_until(lambda: len(now.cell.said(AcceptInCell)) > 3)

    begun = time.monotonic()
    now.stop()

    assert time.monotonic() - begun < 5
    assert now.guests() == []


# --- Destroying -------------------------------------------------------------------------------------------------------


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
    class Cell(FakeCell):
        asked = threading.Event()
        go_on = threading.Event()

        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, AcceptInCell):
                self.asked.set()
                assert self.go_on.wait(10)

    cell = Cell()
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


def test_a_destroy_during_a_spawn_is_answered_when_nothing_is_left(stage: Begin) -> None:
    now = stage()
    driver = now.start(SlowDriver)
    build = build_on(HOST)
    now.build(build)
    assert driver.begun.wait(10)

    destroyed = threading.Thread(target=now.destroy, args=(build,))
    destroyed.start()
    time.sleep(0.2)
    assert destroyed.is_alive()
    driver.go_on.set()
    destroyed.join(10)

    assert not destroyed.is_alive()
    assert now.guests() == []
    assert now.cell.said(BuildFinished) == []


def test_a_destroy_is_told_to_come_again_when_the_spawn_takes_too_long(stage: Begin) -> None:
    now = stage()
    driver = SlowDriver(now.conf, AGENT, CELL.name)
    driver.start()
    cell = CellClient(now.around.bus.client(f"conductor.{CELL.uuid}"))
    agent = ComputeAgent(driver, cell, 1, spawn_patience=0.1)
    agent.start()
    build = build_on(HOST)
    agent.build(build)
    assert driver.begun.wait(10)

    with pytest.raises(errors.RequestInProgress):
        agent.destroy(destroy_of(build))
    driver.go_on.set()
    agent.stop(10)

    assert now.guests() == []
    assert now.cell.said(BuildFinished) == []
    agent.destroy(destroy_of(build))
    driver.close()


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
    class Cell(FakeCell):
        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, AcceptInCell):
                raise errors.StoreUnavailable(schema="cell", reason="it is away")

    now = stage(Cell(), compute={"workers": 1})
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
    stranger = guest_spec()
    driver.spawn(HOST, stranger)
    build = build_on(HOST)
    now.build(build)
    wait_until(lambda: now.cell.said(BuildFinished))

    wrong = destroy_of(build)
    with pytest.raises(errors.InvalidState):
        now.around.agent.call(type(wrong)(**{**_fields(wrong), "claim_id": ids.fresh()}))

    assert {guest.attempt_id for guest in now.guests()} == {build.attempt_id, stranger.attempt_id}


def _fields(message: Message[Any]) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__}


# --- Reports ----------------------------------------------------------------------------------------------------------


def test_hosts_are_described_once_after_their_providers_and_are_alive_from_then_on(stage: Begin) -> None:
    now = stage()
    driver = now.start()
    wait_until(lambda: len([said for said in now.cell.said(ReportHostsInCell) if said.alive]) >= 3)

    reports = [said for said in now.cell.told if isinstance(said, ReportProviderTree | ReportHostsInCell)]
    assert isinstance(reports[0], ReportProviderTree)
    assert list(reports[0].providers) == list(driver.providers())
    assert list(reports[1].hosts) == list(driver.hosts())
    assert all(said.hosts == () for said in reports[2:])
    assert all(said.alive == ("host-0001", "host-0002", "host-0003") for said in reports[2:])
    assert all(said.agent == AGENT for said in reports)
    assert len({said.request_id for said in reports}) == len(reports)


def test_thousands_of_hosts_are_reported_in_batches(stage: Begin) -> None:
    now = stage(fake_driver={"hosts": 2300})
    now.start()
    wait_until(lambda: any(said.alive for said in now.cell.said(ReportHostsInCell)), seconds=30)

    assert [len(said.providers) for said in now.cell.said(ReportProviderTree)] == [500, 500, 500, 500, 300]
    assert [len(said.hosts) for said in now.cell.said(ReportHostsInCell) if said.hosts] == [1000, 1000, 300]
    assert next(len(said.alive) for said in now.cell.said(ReportHostsInCell) if said.alive) == 2300


def test_a_description_is_repeated_with_the_same_id_until_it_is_answered(stage: Begin) -> None:
    class Cell(FakeCell):
        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, ReportProviderTree) and len(self.said(ReportProviderTree)) < 3:
                raise errors.StoreUnavailable(schema="main", reason="it restarts")

    now = stage(Cell())
    now.start()
    wait_until(lambda: now.cell.said(ReportHostsInCell))

    first, *others = now.cell.said(ReportProviderTree)
    assert others == [first] * 2


def test_a_changed_description_is_told_in_full_and_alone(stage: Begin) -> None:
    class Growing(FakeDriver):
        grown = False

        def providers(self) -> list[ProviderReport]:
            first, *others = super().providers()
            if self.grown:
                first = ProviderReport(uuid=first.uuid, name=first.name)
            return [first, *others]

    now = stage()
    driver = now.start(Growing)
    wait_until(lambda: any(said.alive for said in now.cell.said(ReportHostsInCell)))
    driver.grown = True
    wait_until(lambda: len(now.cell.said(ReportProviderTree)) == 2)

    assert list(now.cell.said(ReportProviderTree)[1].providers) == [driver.providers()[0]]


def test_a_provider_that_is_refused_keeps_none_of_the_others_out(stage: Begin) -> None:
    bad = ids.derived("fake-node", CELL.name, "host-0002")

    class Cell(FakeCell):
        def before_answer(self, message: Message[Any]) -> None:
            if isinstance(message, ReportProviderTree) and any(report.uuid == bad for report in message.providers):
                raise errors.InventoryInUse(provider_uuid=bad, resource_class="VCPU")

    now = stage(Cell())
    now.start()
    wait_until(lambda: any(said.alive for said in now.cell.said(ReportHostsInCell)))

    described = {report.service_host for said in now.cell.said(ReportHostsInCell) for report in said.hosts}
    assert described == {"host-0001", "host-0003"}
    assert all("host-0002" not in said.alive for said in now.cell.said(ReportHostsInCell))


def test_a_dead_host_is_described_and_not_said_to_be_alive(stage: Begin) -> None:
    class HalfDead(FakeDriver):
        def alive(self) -> list[str]:
            return ["host-0002"]

    now = stage()
    now.start(HalfDead)
    wait_until(lambda: any(said.alive for said in now.cell.said(ReportHostsInCell)))

    described = {report.service_host for said in now.cell.said(ReportHostsInCell) for report in said.hosts}
    assert described == {"host-0001", "host-0002", "host-0003"}
    assert {said.alive for said in now.cell.said(ReportHostsInCell) if said.alive} == {("host-0002",)}


def test_hosts_that_the_cell_has_lost_are_described_anew(stage: Begin) -> None:
    class Cell(FakeCell):
        lost = False

        def before_answer(self, message: Message[Any]) -> None:
            if self.lost and isinstance(message, ReportHostsInCell) and message.alive:
                self.lost = False
                raise errors.HostNotFound(name=message.alive[0])

    cell = Cell()
    now = stage(cell)
    now.start()
    wait_until(lambda: any(said.alive for said in cell.said(ReportHostsInCell)))
    cell.lost = True
    wait_until(lambda: len([said for said in cell.said(ReportHostsInCell) if said.hosts]) == 2)


# --- Starting, and the log --------------------------------------------------------------------------------------------


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
