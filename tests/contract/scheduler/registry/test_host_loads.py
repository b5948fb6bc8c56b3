"""Test that the host loads reported by cells are stored if they have changed, and shown, on SQLite and on MariaDB."""

from typing import Any

import msgspec
import pytest
from support.scheduler.builders import CELLS
from support.scheduler.rig import OneScheduler, Rig, report

from moorage import errors
from moorage.messages import ListHosts, ReportHosts
from moorage.messages.wire import decode_strictly, encode
from moorage.model import HostLoad, HostState
from placement_store.db import change_feed
from placement_store.db.change_feed import seq_by_id
from placement_store.schema import hosts
from scheduler.view.snapshot import Snapshot

BUSY = HostLoad(io_ops=3, failed_builds=1.5, image_properties={"os_distro=debian": 2})


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.add_hosts(range(3))
    return rig


def report_loads(rig: Rig, loads: dict[str, HostLoad], at: float = 1.0, cell: int = 0) -> None:
    rig.host_reports.report_hosts(ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[cell], loads=loads, loads_at=at))


def state(rig: Rig, name: str) -> HostState:
    [found] = rig.serve(ListHosts(service_host=name))
    return found


def seqs(rig: Rig) -> dict[int, int]:
    return rig.database.read(lambda connection: seq_by_id(connection, hosts))


def view(scheduler: OneScheduler) -> Snapshot:
    scheduler.follow()
    return scheduler.host_cache.snapshot()


def row(snapshot: Snapshot, name: str) -> int:
    return [host.service_host for host in snapshot.hosts].index(name)


def test_the_view_follows_the_loads_that_a_cell_reports(rig: Rig) -> None:
    scheduler = rig.scheduler()
    report_loads(rig, {"host1": BUSY, "host2": HostLoad(io_ops=1)})

    shown = view(scheduler)
    here = row(shown, "host1")
    host = shown.host(here)
    assert (host.io_ops, host.failed_builds, host.image_properties) == (3, 1.5, {"os_distro=debian": 2})
    assert (shown.io_ops[here], shown.failed_builds[here]) == (3, 1.5)
    assert shown.servers_with("os_distro", "debian")[here] == 2
    assert shown.io_ops[row(shown, "host2")] == 1
    assert shown.io_ops.sum() == 4
    assert (state(rig, "host1").io_ops, state(rig, "host1").failed_builds) == (3, 1.5)

    report_loads(rig, {"host1": HostLoad()}, at=2.0)
    shown = view(scheduler)
    assert (shown.io_ops[here], shown.failed_builds[here], shown.servers_with("os_distro", "debian")[here]) == (0, 0, 0)


def test_a_load_that_is_already_stored_is_no_change(rig: Rig) -> None:
    report_loads(rig, {"host1": BUSY})
    before, mark = seqs(rig), rig.database.read(change_feed.newest)
    report_loads(rig, {"host0": HostLoad(), "host1": BUSY, "unheard of": BUSY}, at=2.0)
    assert (seqs(rig), rig.database.read(change_feed.newest)) == (before, mark)
    report_loads(rig, {"host0": HostLoad(), "host1": HostLoad(io_ops=4)}, at=3.0)
    assert sum(seqs(rig).values()) == sum(before.values()) + 1


def test_of_two_loads_that_arrive_in_the_wrong_order_the_later_one_counts(rig: Rig) -> None:
    report_loads(rig, {"host1": HostLoad(io_ops=2)}, at=20.0)
    report_loads(rig, {"host1": HostLoad(io_ops=1)}, at=10.0)
    assert state(rig, "host1").io_ops == 2
    report_loads(rig, {"host1": HostLoad()}, at=20.5)
    assert state(rig, "host1").io_ops == 0


def test_a_load_of_a_cell_whose_clock_was_set_back_counts(rig: Rig) -> None:
    report_loads(rig, {"host1": HostLoad(io_ops=2)}, at=100_000.0)
    report_loads(rig, {"host1": HostLoad(io_ops=1)}, at=10_000.0)
    assert state(rig, "host1").io_ops == 1


def test_a_load_is_stored_for_all_nodes_of_a_host_of_the_reporting_cell(rig: Rig) -> None:
    rig.report([report(1, nodename="second", compute_node_uuid=report(9).compute_node_uuid)], ["host1"])
    report_loads(rig, {"host1": BUSY}, cell=1)
    assert not any(host.io_ops for host in rig.hosts())
    report_loads(rig, {"host1": BUSY})
    found = rig.serve(ListHosts(service_host="host1"))
    assert [(host.nodename, host.io_ops) for host in found] == [("host1", 3), ("second", 3)]


def test_a_load_of_a_host_whose_name_ends_with_a_blank_changes_no_other_host_nor_hinders_it(rig: Rig) -> None:
    report_loads(rig, {"host1 ": BUSY, "host2": BUSY})

    assert state(rig, "host1").io_ops == 0
    assert state(rig, "host2").io_ops == 3


def test_a_host_with_a_new_description_keeps_its_load(rig: Rig) -> None:
    report_loads(rig, {"host1": BUSY})
    rig.report([report(1, attributes={"rack": 1})], ["host1"])
    assert state(rig, "host1").io_ops == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"io_ops": -1},
        {"failed_builds": -0.5},
        {"failed_builds": "many"},
        {"image_properties": {"": 1}},
        {"image_properties": {"a=b": -1}},
        {"unheard_of": 1},
    ],
)
def test_an_invalid_load_is_refused_with_its_path(wrong: dict[str, Any]) -> None:
    message = encode(ReportHosts(request_id="r", cell_uuid=CELLS[0], loads_at=1.0))
    with pytest.raises(errors.InvalidRequest) as caught:
        decode_strictly(ReportHosts, message | {"loads": {"host1": wrong}})
    assert caught.value.path.startswith("$.loads")


def test_only_a_report_with_loads_needs_the_version_with_loads() -> None:
    without = ReportHosts(request_id="r", cell_uuid=CELLS[0], alive=("host1",))
    assert without.lowest_version() == "1.0"
    assert msgspec.structs.replace(without, loads={"host1": BUSY}, loads_at=1.0).lowest_version() == "1.4"


def test_thousands_of_loads_are_written_at_once_and_their_repetition_changes_nothing(rig: Rig) -> None:
    names = [f"host{number}" for number in range(3_000)]
    rig.report([report(number) for number in range(3_000)], names)
    loads = {name: HostLoad(io_ops=number % 3, failed_builds=0.5) for number, name in enumerate(names)}
    report_loads(rig, loads)
    before = seqs(rig)
    report_loads(rig, loads, at=2.0)
    assert seqs(rig) == before
    shown = rig.scheduler().host_cache.snapshot()
    assert (shown.io_ops.sum(), shown.failed_builds.sum()) == (3000, 1500.0)
