"""Test the names that pass from one node of a host to another one, on SQLite and on MariaDB."""

import logging

import pytest
from support.scheduler.builders import CELLS
from support.scheduler.rig import Rig, node_uuid, report

from moorage.messages import HostsRegistered, ListHosts, ReportHosts
from moorage.model import HostReport


def nodes(names: str) -> list[HostReport]:
    """Return descriptions of the compute nodes 1, 2, ... of one host, with these names."""
    return [report(number, service_host="host", nodename=name) for number, name in enumerate(names, start=1)]


@pytest.fixture(autouse=True)
def providers(rig: Rig) -> None:
    rig.add_providers(1, 2, 3, 4)


def describe(rig: Rig, names: str, *numbers: int) -> HostsRegistered:
    message = ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[0], hosts=tuple(nodes(names)), numbers=numbers)
    return rig.host_reports.report_hosts(message)


def registered(rig: Rig) -> dict[str, str]:
    """Return the compute node of each node, by node name."""
    return {host.nodename: host.compute_node_uuid for host in rig.serve(ListHosts())}


def expected(names: str) -> dict[str, str]:
    return {name: node_uuid(number) for number, name in enumerate(names, start=1)}


@pytest.mark.parametrize("names", ["bcd", "bac", "bca"], ids=["chain", "swap", "cycle"])
def test_the_nodes_of_a_host_pass_their_names_on_to_each_other(rig: Rig, names: str) -> None:
    scheduler = rig.scheduler()
    rig.report(nodes("abc"))
    scheduler.follow()

    rig.report(nodes(names))

    assert registered(rig) == expected(names)
    scheduler.follow()
    assert {host.nodename: host.compute_node_uuid for host in scheduler.host_cache.snapshot().hosts} == expected(names)
    assert not scheduler.drifted()


@pytest.mark.parametrize("names", ["bcd", "bca"], ids=["chain", "cycle"])
def test_no_name_passes_on_until_each_description_is_numbered_after_that_of_the_registry(rig: Rig, names: str) -> None:
    describe(rig, "abc", 5, 5, 5)

    answer = describe(rig, names, 7, 8, 5)
    assert {node.nodename: node.number for node in answer.newer} == dict(zip(names, (7, 8, 5), strict=True))
    assert registered(rig) == expected("abc")

    assert describe(rig, names, 8, 9, 6) == HostsRegistered()
    assert registered(rig) == expected(names)


def test_a_new_node_gets_the_name_that_another_node_gives_up_in_the_same_report(rig: Rig) -> None:
    describe(rig, "a", 5)

    answer = describe(rig, "ba", 5, 1)
    assert {node.nodename: node.number for node in answer.newer} == {"b": 5, "a": 1}

    assert describe(rig, "ba", 6, 2) == HostsRegistered()
    assert registered(rig) == expected("ba")


def test_no_name_of_a_chain_passes_on_if_the_last_one_is_taken(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    describe(rig, "abcd", 5, 5, 5, 5)

    with caplog.at_level(logging.ERROR):
        answer = describe(rig, "bcd", 6, 6, 6)

    assert registered(rig) == expected("abcd")
    assert len(caplog.records) == 3
    assert {node.nodename: node.number for node in answer.newer} == {"b": 6, "c": 6, "d": 6}


@pytest.mark.parametrize(("node", "least"), [(1, 5), (3, 2)], ids=["renamed", "new"])
def test_a_node_that_waits_for_the_name_of_another_one_is_described_again(rig: Rig, node: int, least: int) -> None:
    def describe_one(number: int, name: str, description: int) -> HostsRegistered:
        host = report(number, service_host="host", nodename=name)
        message = ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[0], hosts=(host,), numbers=(description,))
        return rig.host_reports.report_hosts(message)

    describe(rig, "ab", 5, 5)
    assert describe_one(node, "b", 2).newer[0].number == least
    assert describe_one(node, "b", least + 1).newer[0].number == least + 1
    assert registered(rig) == expected("ab")

    assert describe_one(2, "c", 6) == HostsRegistered()
    assert describe_one(node, "b", least + 2) == HostsRegistered()
    assert registered(rig)["b"] == node_uuid(node)


@pytest.mark.parametrize("known", ["a", "ac"], ids=["new", "renamed"])
def test_of_two_descriptions_of_one_name_in_a_report_the_first_counts(
    rig: Rig, caplog: pytest.LogCaptureFixture, known: str
) -> None:
    describe(rig, known, *(5 for _ in known))

    with caplog.at_level(logging.ERROR):
        assert describe(rig, "bb", 6, 6) == HostsRegistered()

    assert "Node b of host host is described in two ways in one report" in caplog.text
    assert registered(rig) == expected("b" + known[1:])


def test_a_compute_node_of_another_host_is_described_once(rig: Rig) -> None:
    describe(rig, "a", 5)
    others = (report(1, service_host="other", nodename="b"), report(2, service_host="other", nodename="c"))

    message = ReportHosts(request_id=rig.fresh(), cell_uuid=CELLS[0], hosts=others, numbers=(1, 1))
    assert rig.host_reports.report_hosts(message) == HostsRegistered()
