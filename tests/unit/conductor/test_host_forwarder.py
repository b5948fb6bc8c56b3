"""Test how a cell's conductor reports its hosts, also to a scheduler that cannot reach its database."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from conductor.cell.hosts.forwarder import HostForwarder
from conductor.cell.hosts.loads import CellLoads
from moorage import errors
from moorage.config import options
from moorage.messages import HostsRegistered, ReportHosts
from moorage.model import HostLoad, HostReport


class Hosts:
    """A cell of two hosts that are alive."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.forwarded = self
        #: The descriptions that no scheduler has, each with its number.
        self.described: list[tuple[HostReport, int]] = []

    def seen_since(self, moment: float | None, interval: float) -> tuple[list[str], float]:
        return ["host-1", "host-2"], 100.0

    def unacknowledged(self, limit: int, after: HostReport | None = None) -> list[tuple[HostReport, int]]:
        return [] if after else list(self.described)

    def acknowledge(self, reports: Sequence[tuple[HostReport, int]]) -> None:
        self.described.clear()

    def number_after(self, newer: Sequence[object], reports: Sequence[object]) -> None:
        assert not newer


class OneLoad(CellLoads):
    """The loads of a cell in which one host has work under way."""

    def __init__(self) -> None:
        self.loads = {"host-1": HostLoad(io_ops=1)}

    def now(self) -> tuple[dict[str, HostLoad], float]:
        return self.loads, 100.0

    def names(self) -> list[str]:
        return ["host-1", "host-2"]


class SilentSchedulers:
    """Schedulers that leave the first heartbeats and loads unanswered, and count the seconds of the timeouts."""

    def __init__(self, heartbeats: int = 0, loads: int = 0) -> None:
        self._unanswered = {"alive": heartbeats, "loads": loads}
        self.seconds = 0.0
        self.taken: list[str] = []
        self.loads: dict[str, HostLoad] = {}

    def call(self, message: ReportHosts, timeout: float) -> HostsRegistered:
        if message.hosts:
            return HostsRegistered(unknown=(), newer=())
        kind = "alive" if message.alive else "loads"
        if self._unanswered[kind]:
            self._unanswered[kind] -= 1
            self.seconds += timeout
            raise errors.StoreUnavailable(schema="main", reason="silent")
        self.taken.append(kind)
        self.loads |= message.loads
        return HostsRegistered(unknown=(), newer=())


def forwarder(scheduler: SilentSchedulers, hosts: Hosts | None = None, loads: OneLoad | None = None) -> HostForwarder:
    conf = options.new()
    cell_hosts: Any = hosts or Hosts()
    client: Any = scheduler
    uuid = "00000000-0000-4000-8000-000000000001"
    return HostForwarder(conf, uuid, cell_hosts, loads or OneLoad(), client, "conductor.cell1")


def test_eight_unanswered_heartbeats_take_at_most_ten_seconds() -> None:
    schedulers = SilentSchedulers(heartbeats=8)
    forwarder(schedulers).forward()
    assert schedulers.taken == ["alive", "loads"]
    assert schedulers.seconds <= 10.0


def test_an_unanswered_load_delays_the_next_heartbeat_by_one_try() -> None:
    schedulers = SilentSchedulers(loads=2)
    reports = forwarder(schedulers)
    with pytest.raises(errors.StoreUnavailable):
        reports.forward()
    assert schedulers.seconds < 5.0
    with pytest.raises(errors.StoreUnavailable):
        reports.forward()
    # A later round reports the load.
    reports.forward()
    assert schedulers.taken == ["alive", "alive", "alive", "loads"]


def test_a_stopping_forwarder_does_not_repeat_a_report() -> None:
    schedulers = SilentSchedulers(heartbeats=8)
    stopping = forwarder(schedulers)
    stopping.stop()
    with pytest.raises(errors.StoreUnavailable):
        stopping.forward()
    assert schedulers.taken == []
    assert schedulers.seconds <= 1.0


def test_an_idle_host_is_reported_as_idle_even_if_its_description_changes_in_the_same_round() -> None:
    schedulers, hosts, loads = SilentSchedulers(), Hosts(), OneLoad()
    reports = forwarder(schedulers, hosts, loads)
    reports.forward()
    assert schedulers.loads["host-1"] == HostLoad(io_ops=1)
    loads.loads = {}
    report = HostReport(
        service_host="host-1",
        nodename="host-1",
        compute_node_uuid="00000000-0000-4000-8000-000000000002",
        agent="agent",
        attributes={"metrics": {"watts": 90.0}},
    )
    hosts.described = [(report, 2)]

    reports.forward()

    assert schedulers.loads["host-1"] == HostLoad()
    before = list(schedulers.taken)
    reports.forward()
    assert schedulers.taken == [*before, "alive"], "once is enough"
