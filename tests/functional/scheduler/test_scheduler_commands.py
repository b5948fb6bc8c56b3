"""Test `moorage host list`, `host set` and `host delete` with a scheduler on an in-process bus."""

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from support.scheduler.builders import select
from support.scheduler.operator import Operator, operator_of_hosts, report_scheduler

from harness.waiting import wait_until
from moorage import errors, ids
from moorage.bus.bus import Bus
from moorage.cli import lists
from moorage.config import options
from scheduler.service import SchedulerService

operator = operator_of_hosts


def test_hosts_are_listed_with_the_names_of_their_cells(operator: Operator) -> None:
    listed = operator.types("host", "list")
    assert [(host["host"], host["cell"], host["zone"], host["up"]) for host in listed] == [
        ("host1", "cell0", "nova", True),
        ("host2", "cell0", "nova", True),
        ("host3", "cell1", "b", True),
    ]
    assert [host["host"] for host in operator.types("host", "list", "--cell", "cell1")] == ["host3"]
    assert {(host["instances"], host["io_ops"], host["failed_builds"]) for host in listed} == {(0, 0, 0.0)}


def test_hosts_are_listed_with_their_usage_or_without_it_while_the_placement_role_is_away(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(host["vcpus"]["total"] > host["vcpus"]["used"] == 0 for host in operator.types("host", "list"))

    def away(*_: object) -> NoReturn:
        raise errors.NoReply(topic="placement", method="list_resource_providers", seconds=1.0)

    monkeypatch.setattr(lists, "providers", away)
    status, listed, said = operator.runs("host", "list")
    assert (status, [host["vcpus"] for host in listed]) == (0, [None] * 3)
    assert "What is used of the hosts is not known" in said


def test_hosts_are_listed_and_changed_without_a_placement_role(
    operator_of_hosts: Operator, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moorage.cli.clients._GRACE", 0.1)
    config_file = tmp_path / "alone.conf"
    url = operator_of_hosts.rig.url
    config_file.write_text(
        f"[DEFAULT]\ntransport_url = inproc://{ids.fresh()}/\n[database]\nconnection = {url}\n"
        "[scheduler]\nserve_placement = false\n"
    )
    service = SchedulerService(options.new(files=[config_file]), "alone")
    service.start()
    operator = Operator(config_file, capsys, operator_of_hosts.rig)
    status, listed, said = operator.runs("host", "list")
    assert (status, [host["host"] for host in listed]) == (0, ["host1", "host2", "host3"])
    assert "Nobody serves placement" in said
    assert operator.types("host", "set", "host1", "--forced-down")["forced_down"] is True
    operator.types("aggregate", "create", "west")
    assert [host["host"] for host in operator.types("aggregate", "add-host", "west", "host1")["hosts"]] == ["host1"]
    # The name of a cell must be looked up.
    assert "Nobody serves placement" in operator.is_refused("host", "list", "--cell", "cell0")
    service.stop()


def test_a_host_is_disabled_enabled_and_forced_down(operator: Operator) -> None:
    disabled = operator.types("host", "set", "host1", "--disable", "--reason", "new disks")
    assert (disabled["host"], disabled["disabled"], disabled["reason"]) == ("host1", True, "new disks")
    down = operator.types("host", "set", "host1", "--cell", "cell0", "--enable", "--forced-down")
    assert (down["disabled"], down["reason"], down["forced_down"]) == (False, None, True)
    assert operator.types("host", "set", "host1", "--not-forced-down")["forced_down"] is False


def test_a_host_is_deleted_only_if_it_is_down_and_has_no_allocations(operator: Operator) -> None:
    assert "host1 is up" in operator.is_refused("host", "delete", "host1")
    operator.types("host", "set", "host1", "--forced-down")
    assert operator.types("host", "delete", "host1", "--dry-run") == {"host": "host1", "deleted": False}
    assert operator.types("host", "delete", "host1", "--cell", "cell0") == {"host": "host1", "deleted": True}
    assert [host["host"] for host in operator.types("host", "list")] == ["host2", "host3"]
    assert "There is no host host1" in operator.is_refused("host", "delete", "host1")


def test_an_unknown_host_or_cell_is_refused_by_its_name(operator: Operator) -> None:
    assert "There is no host nobody" in operator.is_refused("host", "set", "nobody", "--disable")
    assert "There is no cell nowhere" in operator.is_refused("host", "list", "--cell", "nowhere")
    said = operator.is_refused("host", "set", "host1", "--disable", "--cell", "cell1")
    assert "There is no host host1 in that cell." in said


def test_a_host_without_a_change_to_make_is_refused(operator: Operator) -> None:
    assert "give at least one change" in operator.is_refused("host", "set", "host1")


def test_a_missing_reason_is_empty_in_a_table_and_null_in_json(operator: Operator) -> None:
    assert "None" not in operator.reads("host", "list")
    assert operator.types("host", "list")[0]["reason"] is None


# --- Waiting for all schedulers -------------------------------------------------------------------------------------


@pytest.fixture
def bus(operator: Operator) -> Iterator[Bus]:
    bus = Bus(options.new(files=[operator.config_file]))
    yield bus
    bus.close()


def disabled(operator: Operator) -> list[str]:
    return [host["host"] for host in operator.types("host", "list") if host["disabled"]]


def test_disabling_a_host_waits_for_the_confirmation_of_each_scheduler_unless_told_not_to(
    operator: Operator, bus: Bus
) -> None:
    report_scheduler(bus, "gone")
    status, host, said = operator.runs("host", "set", "host1", "--disable", "--timeout", "3")
    assert (status, host["disabled"], disabled(operator)) == (1, True, ["host1"])
    assert "Scheduler gone" in said
    assert "scheduler one" not in said
    assert operator.types("host", "set", "host2", "--disable", "--no-wait")["disabled"]
    # Enabling a host and forcing it down need no confirmation.
    assert not operator.types("host", "set", "host1", "--enable")["disabled"]
    assert operator.types("host", "set", "host1", "--forced-down")["forced_down"]


def test_disabling_a_host_waits_for_all_schedulers_if_none_has_reported_recently(operator: Operator, bus: Bus) -> None:
    for name in ("lost", "gone"):
        report_scheduler(bus, name)
    operator.config_file.write_text(
        f"{operator.config_file.read_text()}[service]\nreport_interval = 0.05\nsilent_after = 0.1\n"
    )
    silent = {("gone", "silent"), ("lost", "silent"), ("one", "silent")}
    wait_until(
        lambda: {(line["name"], line["state"]) for line in operator.types("service", "list")} >= silent, seconds=60.0
    )
    status, _, said = operator.runs("host", "set", "host1", "--disable", "--timeout", "3")
    assert status == 1
    assert "Scheduler gone" in said
    assert "Scheduler lost" in said
    assert "Scheduler one" not in said


def test_a_scheduler_that_seldom_reads_the_store_sends_no_servers_to_a_disabled_host(
    operator: Operator, bus: Bus
) -> None:
    seldom = options.new(files=[operator.config_file])
    seldom.set_override("view_max_age", 3600.0, group="scheduler")
    another = SchedulerService(seldom, "two")
    another.start()
    try:
        wait_until(lambda: {"one", "two"} <= {line["name"] for line in operator.types("service", "list")}, seconds=60.0)
        for host in ("host1", "host2"):
            operator.types("host", "set", host, "--disable", "--timeout", "60")
        for number in range(6):
            [[claimed]] = bus.client("scheduler", server="two").call(select(f"r{number}"))
            assert claimed.service_host == "host3"
    finally:
        another.stop()


def test_maintenance_disables_a_host_with_a_reason(operator: Operator) -> None:
    host = operator.types("host", "set", "host1", "--maintenance", "new disks")
    assert (host["disabled"], host["reason"]) == (True, "new disks")
    assert "cannot be combined with --maintenance" in operator.is_refused(
        "host", "set", "host1", "--maintenance", "new disks", "--reason", "old disks"
    )
    assert "not allowed with" in operator.is_refused("host", "set", "host1", "--maintenance", "x", "--enable")
