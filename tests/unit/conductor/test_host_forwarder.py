"""Test how a cell's conductor reports its hosts, also to a scheduler that cannot reach its database."""

import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from conductor.cell.hosts import forwarder as forwarding
from conductor.cell.hosts.forwarder import HostForwarder
from conductor.cell.hosts.loads import CellLoads
from moorage import errors, ids
from moorage.config import options
from moorage.messages import HostsRegistered, ReportHosts, wire
from moorage.model import HostLoad, HostReport


class Hosts:
    """A cell of two hosts that are alive."""

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.forwarded = self
        #: The descriptions that no scheduler has, each with its number.
        self.described: list[tuple[HostReport, int]] = []
        #: The hosts whose agents were asked to describe them.
        self.asked: list[str] = []

    def ask_for(self, hosts: Sequence[str], *, first: Collection[str]) -> None:
        self.asked += hosts

    def seen_since(self, moment: float | None, interval: float) -> tuple[list[str], float]:
        return ["host-1", "host-2"], 100.0

    def unacknowledged(self, limit: int, after: HostReport | None = None) -> list[tuple[HostReport, int]]:
        return [] if after else list(self.described)

    def acknowledge(self, reports: Sequence[tuple[HostReport, int]]) -> None:
        self.described = [report for report in self.described if report not in reports]

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
        #: The names of described hosts, by report; and the host whose description is refused.
        self.described: list[list[str]] = []
        self.refused = ""
        #: The hosts that must be described again.
        self.lacking: tuple[str, ...] = ()
        self.seconds = 0.0
        self.taken: list[str] = []
        self.loads: dict[str, HostLoad] = {}

    def call(self, message: ReportHosts, timeout: float) -> HostsRegistered:
        if message.hosts:
            wire.decode_strictly(ReportHosts, wire.encode(message))
            self.described.append([host.service_host for host in message.hosts])
            if self.refused in self.described[-1]:
                raise errors.InvalidRequest(path="$.hosts", reason="it is odd")
            return HostsRegistered(unknown=self.lacking, newer=())
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


def described(name: str, number: int = 1) -> tuple[HostReport, int]:
    node = ids.derived("forwarded", name)
    return HostReport(service_host=name, nodename=name, compute_node_uuid=node, agent="agent"), number


class CommittedLate(Hosts):
    """A cell with one heartbeat, which is recorded before the clock of the first round, and committed after it."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0

    def seen_since(self, moment: float | None, interval: float) -> tuple[list[str], float]:
        self.rounds += 1
        is_seen = self.rounds > 1 and moment is not None and moment <= 99.5
        return ["host-1"] if is_seen else [], 100.0


def test_a_heartbeat_that_is_committed_after_a_round_has_read_the_clock_is_reported_by_the_next_one() -> None:
    schedulers, hosts = SilentSchedulers(), CommittedLate()
    reports = forwarder(schedulers, hosts)
    reports.forward()
    assert "alive" not in schedulers.taken

    reports.forward()

    assert schedulers.taken.count("alive") == 1


def test_a_host_whose_description_was_sent_before_the_loss_of_a_provider_is_known_is_described_again() -> None:
    schedulers, hosts = SilentSchedulers(), Hosts()
    hosts.described = [described("host-1")]
    schedulers.lacking = ("host-1",)

    forwarder(schedulers, hosts).forward()

    assert (hosts.described, hosts.asked) == ([], ["host-1"])


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
    hosts.described = [described("host-1", 2)]

    reports.forward()

    assert schedulers.loads["host-1"] == HostLoad()
    before = list(schedulers.taken)
    reports.forward()
    assert schedulers.taken == [*before, "alive"], "once is enough"


def test_a_description_that_the_schedulers_refuse_delays_no_heartbeat_and_no_other_description(
    caplog: pytest.LogCaptureFixture,
) -> None:
    schedulers, hosts = SilentSchedulers(), Hosts()
    reports = forwarder(schedulers, hosts)
    schedulers.refused = "host-5"
    hosts.described = [described(f"host-{number}") for number in range(10)]

    reports.forward()

    assert schedulers.taken == ["alive", "loads"]
    assert hosts.described == [described("host-5")]
    assert [record.getMessage() for record in caplog.records if "host-5" in record.getMessage()] == [
        "The schedulers refuse the description of host-5: The request is invalid at $.hosts: it is odd."
    ]
    # The next round does not repeat it, but reports a change of it.
    schedulers.described.clear()
    reports.forward()
    assert schedulers.described == []
    hosts.described, schedulers.refused = [described("host-5", 2)], ""
    reports.forward()
    assert schedulers.described == [["host-5"]]
    assert schedulers.taken == ["alive", "loads", "alive", "alive"]


def test_the_heartbeats_come_soon_although_every_description_is_refused() -> None:
    schedulers, hosts = SilentSchedulers(), Hosts()
    reports = forwarder(schedulers, hosts)
    schedulers.refused = "host-5"
    hosts.described = [described("host-5", number) for number in range(1, 1001)]

    reports.forward()

    assert schedulers.taken == ["alive", "loads"]
    assert len(schedulers.described) <= 100


def test_the_heartbeats_and_loads_come_although_no_scheduler_can_record_a_description() -> None:
    class Locked(SilentSchedulers):
        def call(self, message: ReportHosts, timeout: float) -> HostsRegistered:
            if message.hosts:
                raise errors.StoreUnavailable(schema="main", reason="a row is locked")
            return super().call(message, timeout)

    schedulers, hosts = Locked(), Hosts()
    hosts.described = [described("host-1")]

    with pytest.raises(errors.StoreUnavailable):
        forwarder(schedulers, hosts).forward()

    assert schedulers.taken == ["alive", "loads"]
    assert hosts.described


def test_hundreds_of_refused_descriptions_do_not_keep_out_those_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "_REFUSED_FOR", 0.0)  # each is due again in the next round
    schedulers, hosts = SilentSchedulers(), Hosts()
    reports = forwarder(schedulers, hosts)
    schedulers.refused = "host-5"
    hosts.described = [*(described("host-5", number) for number in range(1, 701)), described("host-6")]

    for _ in range(20):
        reports.forward()

    assert described("host-6") not in hosts.described


def test_changes_of_a_description_after_the_greatest_number_are_reported_too() -> None:
    schedulers, hosts = SilentSchedulers(), Hosts()
    reports = forwarder(schedulers, hosts)
    for number in (2_000_000_000, 2_000_000_001, 2_000_000_002):
        hosts.described = [described("host-1", number)]
        reports.forward()
    assert schedulers.described == [["host-1"]] * 3
    assert hosts.described == []


class UnknownHosts(SilentSchedulers):
    """Schedulers that do not know the first host."""

    def call(self, message: ReportHosts, timeout: float) -> HostsRegistered:
        answer = super().call(message, timeout)
        return HostsRegistered(unknown=("host-1",), newer=()) if message.alive else answer


class AskedHosts(Hosts):
    """A cell that records the requests for descriptions: the hosts, and those that are requested for the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[list[str], set[str]]] = []

    def ask_for(self, hosts: Sequence[str], *, first: Collection[str]) -> None:
        self.requests.append((list(hosts), set(first)))


def test_a_host_that_stays_unknown_is_requested_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, clock = AskedHosts(), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    reports = forwarder(UnknownHosts(), hosts)

    for seconds in (0, 5, 61, 500):
        clock[0] += seconds
        reports.forward()

    assert hosts.requests == [(["host-1"], {"host-1"}), (["host-1"], set()), (["host-1"], {"host-1"})]
