"""Builders for the tests of agents: settings, orders, and an agent with its fake peers."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from oslo_config import cfg

from compute.driver import Driver, GuestSpec
from compute.fake.driver import FakeDriver
from compute.provider_tree import ProviderTree
from compute.service import ComputeService
from harness.cloud import Settings, merged
from harness.waiting import wait_until as wait_until
from moorage import errors, ids
from moorage.bus.bus import Bus
from moorage.config import options
from moorage.messages import (
    BuildFinished,
    BuildOnHost,
    DestroyOnHost,
    MovingGuest,
    RebuildOnHost,
    ReportHostsInCell,
    StartOnHost,
    StopOnHost,
    reports_topic,
)
from moorage.model import Cell, Flavor, Guest, Image, MoveKind, RequestSpec
from support.compute.fake_cell import UNAVAILABLE as UNAVAILABLE
from support.compute.fake_cell import FailingCell as FailingCell
from support.compute.fake_cell import FakeCell as FakeCell
from support.compute.fake_cell import FakePlacement
from support.compute.fake_cell import HoldingCell as HoldingCell

CELL = Cell(uuid=ids.derived("tests", "cell"), name="cell1")
AGENT = "agent1"


def settings(folder: Any, **groups: dict[str, Any]) -> cfg.ConfigOpts:
    """Return a configuration for one agent, with its guests in `folder`."""
    own: Settings = {
        "DEFAULT": {"transport_url": f"inproc://{uuid4().hex}/"},
        "compute": {"agent": AGENT, "report_interval": 0.05},
        "fake_driver": {"hosts": 3, "host_prefix": "host", "state_file": str(folder / "guests.sqlite")},
    }
    return options.new(merged(own, groups))


def request_spec(vcpus: int = 2) -> RequestSpec:
    return RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=vcpus, memory_mb=1024, root_gb=10))


def guest_spec(vcpus: int = 2, **named: Any) -> GuestSpec:
    spec = request_spec(vcpus)
    names: dict[str, Any] = {"instance_uuid": ids.fresh(), "attempt_id": ids.fresh(), "claim_id": ids.fresh()} | named
    return GuestSpec(request_spec=spec, resources=spec.resources, **names)


def build_on(host: str, vcpus: int = 2, **fields: Any) -> BuildOnHost:
    spec = request_spec(vcpus)
    names: dict[str, Any] = {name: ids.fresh() for name in ("request_id", "instance_uuid", "attempt_id", "claim_id")}
    return BuildOnHost(host=host, request_spec=spec, resources=spec.resources, **names | fields)


def move_to(host: str, source: BuildOnHost, kind: MoveKind, vcpus: int = 2) -> BuildOnHost:
    """Return the order to build the guest of `source` on `host`, as part of a move."""
    moving = MovingGuest(
        migration_uuid=ids.fresh(), kind=kind, source_host=source.host, source_attempt_id=source.attempt_id
    )
    return build_on(host, vcpus, instance_uuid=source.instance_uuid, moving=moving)


def stop_of(build: BuildOnHost, **fields: Any) -> StopOnHost:
    return StopOnHost(**_named(build) | fields)


def start_of(build: BuildOnHost, **fields: Any) -> StartOnHost:
    return StartOnHost(**_named(build) | fields)


def rebuild_of(build: BuildOnHost, **fields: Any) -> RebuildOnHost:
    return RebuildOnHost(**_named(build) | {"rebuild_id": ids.fresh(), "image": Image(id="another")} | fields)


def _named(build: BuildOnHost) -> dict[str, Any]:
    names = ("host", "instance_uuid", "attempt_id", "claim_id")
    return {"request_id": ids.fresh()} | {name: getattr(build, name) for name in names}


def destroy_of(build: BuildOnHost, **fields: Any) -> DestroyOnHost:
    return DestroyOnHost(**_named(build) | fields)


def tree_of(driver: Driver, host: str | None = None, tree: ProviderTree | None = None) -> ProviderTree:
    """Return a tree (by default an empty one) as a driver updates it for a host (by default its first one)."""
    reports = {report.service_host: report for report in driver.hosts()}
    made = ProviderTree() if tree is None else tree.copy()
    driver.update_provider_tree(reports[host or next(iter(reports))], made)
    return made


class Peers:
    """The bus of an agent, with a placement role and a cell conductor from the tests."""

    def __init__(self, conf: cfg.ConfigOpts, cell: FakeCell) -> None:
        self.cell = cell
        self.bus = Bus(conf)
        self.placement = FakePlacement(CELL)
        self._servers = [
            self.bus.server("placement", "p1", [self.placement], 2),
            self.bus.server(f"conductor.{CELL.uuid}", "c1", [cell], 8),
            self.bus.server(reports_topic(CELL.uuid), "c1", [cell], 8),
        ]
        for server in self._servers:
            server.start()
        self.agent = self.bus.client(f"compute.{CELL.uuid}", server=AGENT, timeout=10)

    def close(self) -> None:
        self.bus.close()


HOSTS = ("host-0001", "host-0002", "host-0003")
HOST, OTHER_HOST = HOSTS[:2]


class SlowDriver(FakeDriver):
    """Its spawns wait until a test releases them, and set an event when they begin."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.spawns = 0

    def spawn(self, host: str, guest: GuestSpec) -> None:
        self.spawns += 1
        self.begun.set()
        assert self.go_on.wait(10)
        super().spawn(host, guest)


class HangingDestroys(FakeDriver):
    """Destroys of guests in ``hanging`` wait until a test releases them."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.hanging: set[str] = set()
        self.go_on = threading.Event()
        self.begun = 0

    def destroy(self, host: str, instance_uuid: str, attempt_id: str, claim_id: str) -> None:
        if attempt_id in self.hanging:
            self.begun += 1
            self.go_on.wait()
        super().destroy(host, instance_uuid, attempt_id, claim_id)

    def close(self) -> None:
        self.go_on.set()
        super().close()


class AgentUnderTest:
    """An agent under test, with its fake peers."""

    def __init__(self, folder: Path, cell: FakeCell, **groups: dict[str, Any]) -> None:
        self.conf: cfg.ConfigOpts = settings(folder, **groups)
        self.cell = cell
        self.peers = Peers(self.conf, cell)
        self.services: list[ComputeService] = []

    def start(self, kind: type[FakeDriver] = FakeDriver) -> Any:
        """Start the agent, and return its driver."""
        driver = kind(self.conf, AGENT, CELL.name)
        service = ComputeService(self.conf, CELL.name, driver)
        service.start()
        self.services.append(service)
        return driver

    def stop(self) -> None:
        while self.services:
            self.services.pop().stop()

    def restart(self, kind: type[FakeDriver] = FakeDriver, **fake_driver: Any) -> Any:
        """Stop the agent, change options of its driver, and start it again; return the new driver."""
        self.stop()
        for option, value in fake_driver.items():
            self.conf.set_override(option, value, group="fake_driver")
        return self.start(kind)

    def build(self, build: BuildOnHost) -> None:
        self.peers.agent.call(build)

    def built(self, host: str = HOST) -> BuildOnHost:
        """Build a guest, and return its order when the build is reported."""
        build = build_on(host)
        self.build(build)
        wait_until(lambda: build.attempt_id in {report.attempt_id for report in self.cell.received(BuildFinished)})
        return build

    def destroy(self, build: BuildOnHost) -> None:
        self.peers.agent.call(destroy_of(build))

    def order(self, order: StopOnHost | StartOnHost | RebuildOnHost | DestroyOnHost, seconds: float = 60.0) -> None:
        """Repeat an order until it is no longer in progress."""
        end = time.monotonic() + seconds
        while True:
            try:
                self.peers.agent.call(order)
            except errors.RequestInProgress:
                assert time.monotonic() < end, "it stays in progress"
                time.sleep(0.01)
            else:
                return

    def wait_for_reports(self, count: int = 1) -> None:
        """Wait until ``count`` more reports have named hosts that are alive."""
        before = self._alive_reports()
        wait_until(lambda: self._alive_reports() >= before + count)

    def _alive_reports(self) -> int:
        return sum(bool(message.alive) for message in self.cell.received(ReportHostsInCell))

    def stopped(self) -> list[str]:
        """Return the attempts whose guests exist but do not run."""
        with self._second_driver() as driver:
            return [attempt_id for host in driver.alive() for attempt_id in driver.stopped(host)]

    def guests(self) -> list[Guest]:
        with self._second_driver() as driver:
            return [guest for host in driver.alive() for guest in driver.guests(host)]

    def attempts(self) -> list[str]:
        """Return the attempts of all guests."""
        return [guest.attempt_id for guest in self.guests()]

    @contextmanager
    def _second_driver(self) -> Iterator[FakeDriver]:
        """Yield another driver of the same guests."""
        with closing(FakeDriver(self.conf, AGENT, CELL.name)) as driver:
            driver.start()
            yield driver


NewStage = Callable[..., AgentUnderTest]
