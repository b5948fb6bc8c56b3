"""Test the registry of hosts, on SQLite and on MariaDB: descriptions, heartbeats, and changes for the views."""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from msgspec import structs
from support.scheduler.builders import CELLS
from support.scheduler.rig import Rig, node_uuid, report

from moorage import errors
from moorage.messages import DeleteHost, HostsRegistered, ListHosts, NumberedDescription, ReportHosts
from moorage.messages.wire import decode_strictly, encode
from moorage.model import HostReport, HostState
from placement_store.db import change_feed
from placement_store.db.change_feed import seq_by_id
from placement_store.schema import hosts as host_table
from scheduler.registry import hosts


def states(rig: Rig, cell: int | None = None) -> dict[str, HostState]:
    listed = rig.serve(ListHosts(cell_uuid=None if cell is None else CELLS[cell]))
    return {host.service_host: host for host in listed}


def seqs(rig: Rig) -> dict[int, int]:
    return rig.database.read(lambda connection: seq_by_id(connection, host_table))


def changed_since(rig: Rig, since: int = 0) -> set[int]:
    """Return the ids of the hosts that the change feed has named since a point."""
    return rig.database.read(lambda connection: change_feed.changes_since(connection, since))[2]


def newest(rig: Rig) -> int:
    return rig.database.read(change_feed.newest)


def sweep(rig: Rig) -> list[str]:
    return rig.database.write(lambda connection: hosts.mark_down(connection, 60.0))


# --- Reports --------------------------------------------------------------------------------------------------------


def test_a_new_host_is_up_only_after_its_first_heartbeat(rig: Rig) -> None:
    rig.report([report(1, availability_zone="a", attributes={"rack": 7}), report(2)], ["host2", "never heard of"])
    assert [state.up for state in states(rig).values()] == [False, True]
    first = states(rig)["host1"]
    assert (first.cell_uuid, first.availability_zone, first.attributes) == (CELLS[0], "a", {"rack": 7})
    assert 0 <= first.heartbeat_age < 30
    assert len(changed_since(rig)) == 2
    rig.report([], ["host1"])
    assert states(rig)["host1"].up


def test_a_host_whose_name_ends_with_a_blank_is_left_out_of_the_report(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = [report(1), structs.replace(report(2), service_host="host1 ", nodename=report(1).nodename), report(3)]

    rig.report(hosts, ["host1", "host3"])

    assert set(states(rig)) == {"host1", "host3"}
    assert "'host1 ' ends with a blank: left out" in caplog.text


def test_a_host_whose_name_has_a_line_break_is_left_out_of_the_report(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.report([report(1), structs.replace(report(2), nodename="node\n2")], ["host1"])

    assert set(states(rig)) == {"host1"}
    assert "The nodename of host 'host2' has a control character: left out" in caplog.text


def test_a_heartbeat_is_no_change_and_a_changed_description_is_one(rig: Rig) -> None:
    rig.report([report(1), report(2)], ["host1", "host2"])
    rig.shift_heartbeats(-50)
    before, mark = seqs(rig), newest(rig)
    rig.report([report(1), report(2)], ["host1", "host2"])
    assert (seqs(rig), newest(rig)) == (before, mark)
    assert all(state.heartbeat_age < 30 for state in states(rig).values())
    rig.report([report(1, attributes={"rack": 8}, agent="another"), report(2)], ["host1", "host2"])
    changed = {id_ for id_, seq in seqs(rig).items() if seq != before[id_]}
    assert len(changed) == 1
    assert changed_since(rig, mark) == changed
    assert (states(rig)["host1"].attributes, states(rig)["host1"].agent) == ({"rack": 8}, "another")


def test_a_report_of_an_unknown_cell_writes_nothing(rig: Rig) -> None:
    nowhere = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(errors.CellNotFound):
        rig.host_reports.report_hosts(ReportHosts(request_id="r", cell_uuid=nowhere, hosts=(report(1),)))
    with pytest.raises(errors.CellNotFound):
        rig.serve(ListHosts(cell_uuid=nowhere))
    assert not states(rig)


def test_a_late_copy_of_a_report_changes_nothing(rig: Rig) -> None:
    message = ReportHosts(request_id="once", cell_uuid=CELLS[0], hosts=(report(1),), alive=("host1",))
    rig.host_reports.report_hosts(message)
    rig.shift_heartbeats(-100)
    assert sweep(rig) == ["host1"]
    rig.host_reports.report_hosts(message)
    assert not states(rig)["host1"].up


def numbered(rig: Rig, number: int, zone: str, **more: Any) -> HostsRegistered:
    described = (report(1, availability_zone=zone),)
    return rig.host_reports.report_hosts(
        ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[0], hosts=described, numbers=(number,), **more)
    )


def alive(rig: Rig, at: float, *names: str) -> HostsRegistered:
    return rig.host_reports.report_hosts(
        ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[0], alive=names, alive_at=at)
    )


def test_an_older_description_is_left_out_and_the_cell_is_told_the_newer_number(rig: Rig) -> None:
    rig.add_providers(1)
    numbered(rig, 1, "first")
    numbered(rig, 2, "second")
    assert numbered(rig, 4, "second") == HostsRegistered(), "the same under another number counts as well"
    before = seqs(rig)

    answer = numbered(rig, 3, "late")

    assert answer.newer == (NumberedDescription(service_host="host1", nodename="host1", number=4),)
    assert states(rig)["host1"].availability_zone == "second"
    assert seqs(rig) == before
    assert numbered(rig, 5, "third").newer == ()
    assert states(rig)["host1"].availability_zone == "third"
    rig.report([report(1, availability_zone="of a former release")])
    assert states(rig)["host1"].availability_zone == "of a former release"
    assert numbered(rig, 4, "late").newer[0].number == 5


def test_a_report_whose_descriptions_and_numbers_differ_in_count_is_refused(rig: Rig) -> None:
    with pytest.raises(errors.InvalidRequest, match="numbers"):
        rig.host_reports.report_hosts(
            ReportHosts(request_id="r", cell_uuid=CELLS[0], hosts=(report(1),), numbers=(1, 2))
        )
    assert not states(rig)


def test_every_number_that_a_description_may_have_is_stored(rig: Rig) -> None:
    rig.add_providers(1)
    greatest = 2_000_000_000
    numbered(rig, greatest, "last")
    assert numbered(rig, greatest - 1, "late").newer[0].number == greatest
    encoded = encode(ReportHosts(request_id="r", cell_uuid=CELLS[0], hosts=(report(1),), numbers=(greatest,)))
    assert decode_strictly(ReportHosts, encoded)
    with pytest.raises(errors.InvalidRequest, match=r"\$\.numbers\[0\]"):
        decode_strictly(ReportHosts, {**encoded, "numbers": [greatest + 1]})


def test_at_the_greatest_number_the_last_description_counts(rig: Rig) -> None:
    rig.add_providers(1)
    described(rig, (report(1), 1))
    for renamed in (report(1), report(1, availability_zone="north"), report(1, nodename="host1.example")):
        assert described(rig, (renamed, 2_000_000_000)) == HostsRegistered()
        found = states(rig)["host1"]
        assert (found.nodename, found.availability_zone) == (renamed.nodename, renamed.availability_zone)


def test_late_heartbeats_do_not_bring_a_host_up(rig: Rig) -> None:
    rig.report([report(1), report(2)])
    alive(rig, 100.0, "host1", "host2")
    alive(rig, 110.0, "host2")
    rig.shift_heartbeats(-100)
    assert sorted(sweep(rig)) == ["host1", "host2"]

    alive(rig, 100.0, "host1", "host2")

    assert [state.up for state in states(rig).values()] == [False, False]
    alive(rig, 110.0, "host2")
    assert [state.up for state in states(rig).values()] == [False, True]
    alive(rig, 20.0, "host1")
    assert [state.up for state in states(rig).values()] == [True, True], "the cell's clock was set back"


def test_a_late_report_registers_a_host_that_is_down(rig: Rig) -> None:
    rig.add_providers(1)
    numbered(rig, 1, "a", alive=("host1",), alive_at=100.0)
    alive(rig, 110.0, "host2")
    rig.shift_heartbeats(-100)
    assert sweep(rig) == ["host1"]
    rig.serve(DeleteHost(request_id=rig.fresh(), service_host="host1"))
    rig.add_providers(1)

    assert numbered(rig, 1, "a", alive=("host1",), alive_at=105.0) == HostsRegistered()

    assert not states(rig)["host1"].up
    alive(rig, 120.0, "host1")
    assert states(rig)["host1"].up


def test_the_answer_to_heartbeats_names_unknown_hosts(rig: Rig) -> None:
    rig.add_providers(1, 2, 3)
    rig.report([report(1), report(2), report(3, service_host="host2")])
    assert alive(rig, 1.0, "host1", "host2", "gone", "also gone").unknown == ("also gone", "gone")
    assert alive(rig, 2.0, "host1", "host2") == HostsRegistered()


@pytest.mark.parametrize("deleted", [1, 2])
def test_a_host_with_a_node_whose_provider_is_deleted_is_unknown_until_it_is_described_again(
    rig: Rig, deleted: int
) -> None:
    nodes = [report(number, service_host="host") for number in (1, 2)]
    rig.add_providers(1, 2, 3)
    assert described(rig, *((node, 1) for node in nodes), (report(3), 1)) == HostsRegistered()
    assert alive(rig, 1.0, "host", "host3") == HostsRegistered()

    rig.delete_provider(node_uuid(deleted))

    assert alive(rig, 2.0, "host", "host3").unknown == ("host",)
    # A description that was sent before the agent was asked for it does not hide the loss.
    assert described(rig, (nodes[2 - deleted], 6)).unknown == ("host",)
    assert described(rig, (nodes[2 - deleted], 7)) == HostsRegistered()
    assert alive(rig, 3.0, "host", "host3") == HostsRegistered()


def test_a_new_node_does_not_hide_that_a_provider_of_its_host_is_deleted(rig: Rig) -> None:
    rig.add_providers(1)
    described(rig, (report(1, service_host="host"), 1))
    rig.delete_provider(node_uuid(1))

    assert described(rig, (report(2, service_host="host"), 1)).unknown == ("host",)


@pytest.mark.parametrize("known", [0, 1], ids=["new host", "new node"])
def test_a_host_described_without_a_provider_is_unknown_until_the_provider_is_there(rig: Rig, known: int) -> None:
    rig.add_providers(1)
    nodes = [report(number, service_host="host") for number in (1, 2)]
    rig.report(nodes[:known])

    # The store was restored after the agent had reported the provider of the second node.
    late = [described(rig, *((node, number) for node in nodes)).unknown for number in (1, 2, 2)]
    assert [*late, alive(rig, 1.0, "host").unknown, alive(rig, 2.0, "host").unknown] == [("host",)] * 5

    rig.add_providers(2)
    assert described(rig, *((node, 3) for node in nodes)) == HostsRegistered()
    assert alive(rig, 3.0, "host") == HostsRegistered()
    assert [state.nodename for state in rig.hosts()] == ["host1", "host2"]


def test_the_first_to_report_a_compute_node_keeps_it(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.report([report(1)], ["host1"])
    before = states(rig)["host1"]
    with caplog.at_level(logging.ERROR):
        # From another cell, under another name in the same cell, and twice in one report.
        rig.report([report(1)], ["host1"], cell=1)
        rig.report([report(1, service_host="impostor"), report(2)], ["impostor", "host2", "host1"])
        rig.report([report(3), report(3, service_host="twin")], ["host3", "twin"])
    assert list(states(rig)) == ["host1", "host2", "host3"]
    assert states(rig)["host1"].compute_node_uuid == before.compute_node_uuid
    assert states(rig)["host2"].up
    assert [record.args[0] for record in caplog.records if record.args] == ["host1", "impostor", "twin"]  # type: ignore[index]


def test_a_host_that_reports_another_compute_node_keeps_the_first_one(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.report([report(1)], ["host1"])
    before = states(rig)["host1"]
    other = report(2).compute_node_uuid
    with caplog.at_level(logging.ERROR):
        rig.report([report(1, compute_node_uuid=other, agent="new")], ["host1"])
    assert states(rig)["host1"].compute_node_uuid == before.compute_node_uuid
    assert states(rig)["host1"].agent == "agent"
    assert other in caplog.text


def described(rig: Rig, *reports: tuple[HostReport, int]) -> HostsRegistered:
    hosts, numbers = zip(*reports, strict=True)
    return rig.host_reports.report_hosts(
        ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[0], hosts=hosts, numbers=numbers)
    )


def test_a_host_that_reports_its_compute_node_with_a_new_name_is_renamed(rig: Rig) -> None:
    rig.add_providers(1, 2)
    described(rig, (report(1), 5), (report(2), 1))
    rig.report([], ["host1", "host2"])
    rig.set_host("host1", disabled=True)
    renamed = report(1, nodename="host1.example", availability_zone="north")

    # A cell that has no record with the former name begins to count anew.
    answer = described(rig, (renamed, 5))
    assert answer.newer == (NumberedDescription(service_host="host1", nodename="host1.example", number=5),)
    assert states(rig)["host1"].nodename == "host1"
    mark = newest(rig)
    assert described(rig, (renamed, 6)) == HostsRegistered()

    found = states(rig)["host1"]
    assert (found.nodename, found.availability_zone) == ("host1.example", "north")
    assert (found.compute_node_uuid, found.up, found.disabled) == (node_uuid(1), True, True)
    assert len(changed_since(rig, mark)) == 1


def test_a_late_description_does_not_undo_the_renaming_of_a_node(rig: Rig) -> None:
    rig.add_providers(1)
    described(rig, (report(1), 5))
    described(rig, (report(1, nodename="host1.example"), 6))

    for number in (5, 6):
        assert described(rig, (report(1), number)).newer[0].number == 6
    assert states(rig)["host1"].nodename == "host1.example"

    described(rig, (report(1), 7))
    assert states(rig)["host1"].nodename == "host1"


def test_a_node_is_not_renamed_if_its_former_name_is_reported_too_or_its_new_name_is_taken(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.report([report(1), report(2, service_host="host1")])
    with caplog.at_level(logging.ERROR):
        rig.report([report(1), report(1, nodename="twin")])
        rig.report([report(1, nodename="host2")])

    listed = rig.serve(ListHosts())
    assert {host.nodename: host.compute_node_uuid for host in listed} == {"host1": node_uuid(1), "host2": node_uuid(2)}
    assert len(caplog.records) == 2


def test_a_host_is_identified_by_its_cell_and_its_case_sensitive_name(rig: Rig) -> None:
    rig.report([report(1), report(2, service_host="HOST1")], ["host1"])
    rig.report([report(3, service_host="host1")], [], cell=1)
    assert [(state.service_host, state.up) for state in states(rig, cell=0).values()] == [
        ("HOST1", False),
        ("host1", True),
    ]
    assert [state.up for state in states(rig, cell=1).values()] == [False]


def test_new_hosts_in_concurrent_reports_are_stored_once(rig: Rig) -> None:
    reported = [report(number) for number in range(50)]
    endpoints = [rig.scheduler().host_reports for _ in range(4)]

    def bring(number: int) -> None:
        endpoints[number].report_hosts(
            ReportHosts(request_id=f"r{number}", cell_uuid=CELLS[0], hosts=tuple(reported), alive=("host1",))
        )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(bring, range(4)))
    assert len(states(rig)) == 50


def test_ten_thousand_hosts_are_reported_at_once_and_stay_alive_by_one_report(rig: Rig) -> None:
    names = [f"host{number}" for number in range(10_001)]
    rig.report([report(number) for number in range(10_001)], names)
    assert len(changed_since(rig)) == 10_001
    rig.shift_heartbeats(-100)
    rig.report([], names)
    assert sweep(rig) == []


# --- Up and down ----------------------------------------------------------------------------------------------------


def test_a_silent_host_goes_down_once_and_comes_back_with_its_next_heartbeat(rig: Rig) -> None:
    rig.report([report(1), report(2)], ["host1", "host2"])
    before, mark = seqs(rig), newest(rig)
    assert sweep(rig) == []
    rig.shift_heartbeats(-61)
    rig.report([], ["host2"])
    assert sweep(rig) == ["host1"]
    assert sweep(rig) == []
    assert [state.up for state in states(rig).values()] == [False, True]
    assert len(changed_since(rig, mark)) == 1
    rig.report([], ["host1"])
    assert states(rig)["host1"].up
    assert sorted(seqs(rig)[id_] - seq for id_, seq in before.items()) == [0, 2]


# --- Settings of operators ------------------------------------------------------------------------------------------


def test_a_host_is_disabled_with_a_reason_and_enabled_again(rig: Rig) -> None:
    rig.report([report(1)], ["host1"])
    mark = newest(rig)
    disabled = rig.set_host("host1", disabled=True, disabled_reason="new disks: ü")
    assert (disabled.disabled, disabled.disabled_reason, disabled.up) == (True, "new disks: ü", True)
    assert len(changed_since(rig, mark)) == 1
    # Fields that are not named stay as they are.
    assert rig.set_host("host1", forced_down=True).disabled_reason == "new disks: ü"
    assert rig.set_host("host1", disabled=True).disabled_reason == "new disks: ü"
    assert rig.set_host("host1", disabled_reason="another").disabled_reason == "another"
    enabled = rig.set_host("host1", disabled=False)
    assert (enabled.disabled, enabled.disabled_reason, enabled.forced_down) == (False, None, True)
    assert not rig.set_host("host1", forced_down=False).forced_down


def test_setting_what_is_already_set_changes_nothing(rig: Rig) -> None:
    rig.report([report(1)], ["host1"])
    rig.set_host("host1", disabled=True, disabled_reason="why")
    before, mark = seqs(rig), newest(rig)
    rig.set_host("host1", disabled=True, disabled_reason="why", forced_down=False)
    assert (seqs(rig), newest(rig)) == (before, mark)


def test_a_report_keeps_the_settings_of_operators(rig: Rig) -> None:
    rig.report([report(1)], ["host1"])
    rig.set_host("host1", disabled=True, forced_down=True)
    rig.report([report(1, agent="restarted")], ["host1"])
    state = states(rig)["host1"]
    assert (state.disabled, state.forced_down, state.agent) == (True, True, "restarted")


def test_the_settings_of_an_unknown_or_ambiguous_host_are_refused(rig: Rig) -> None:
    rig.report([report(1)])
    rig.report([report(2, service_host="host1")], cell=1)
    with pytest.raises(errors.HostNotFound):
        rig.set_host("nobody", disabled=True)
    with pytest.raises(errors.InvalidRequest) as caught:
        rig.set_host("host1", disabled=True)
    assert caught.value.path == "$.cell_uuid"
    with pytest.raises(errors.InvalidRequest) as caught:
        rig.set_host("host1", cell_uuid=CELLS[0], disabled_reason="of what?")
    assert caught.value.path == "$.disabled_reason"
    assert rig.set_host("host1", cell_uuid=CELLS[1], disabled=True).disabled
    assert [state.disabled for state in states(rig, cell=0).values()] == [False]
