"""Test that a cell stores and forwards the descriptions of nodes that get other names, on each store."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from support.databases.statements import statements_of

from conductor.cell.hosts.forwarder import HostForwarder
from conductor.cell.hosts.hosts import CellHosts
from conductor.cell.hosts.loads import CellLoads
from moorage import errors, ids
from moorage.config import options
from moorage.db.database import Database
from moorage.messages import HostsRegistered, NumberedDescription, ReportHosts, ReportHostsInCell
from moorage.model import HostReport


def described(number: int) -> HostReport:
    name = f"h{number}"
    node = ids.derived("renamed nodes", number)
    return HostReport(service_host=name, nodename=name, compute_node_uuid=node, agent="agent")


def another_node(host: HostReport) -> HostReport:
    return structs.replace(host, nodename="h1.example", compute_node_uuid=ids.fresh())


def report(hosts: CellHosts, *reports: HostReport) -> None:
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=reports))


def forwarded(hosts: CellHosts) -> list[tuple[str, int]]:
    """Return the names of the nodes whose descriptions the schedulers have not acknowledged yet, with the numbers."""
    return [(host.nodename, number) for host, number in hosts.forwarded.unacknowledged(1000)]


def start(hosts: CellHosts, *reports: HostReport) -> None:
    names = {host.service_host for host in reports}
    message = ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=reports, started=tuple(names))
    lives = hosts.report_hosts(message).lives
    hosts.returned("agent", sorted(names), lives)


class RefusingSchedulers:
    """Schedulers that refuse each description under its number."""

    def __init__(self) -> None:
        #: The numbers of the refused descriptions.
        self.refused: list[int] = []

    def call(self, message: ReportHosts, timeout: float) -> HostsRegistered:
        self.refused += message.numbers
        return HostsRegistered(
            newer=tuple(
                NumberedDescription(service_host=host.service_host, nodename=host.nodename, number=number)
                for host, number in zip(message.hosts, message.numbers, strict=True)
            )
        )


def forwarder(hosts: CellHosts, database: Database, schedulers: RefusingSchedulers) -> HostForwarder:
    conf, cell = options.new(), ids.fresh()
    client: Any = schedulers
    return HostForwarder(conf, cell, hosts, CellLoads(conf, database, cell), client, "conductor.cell1")


def test_a_node_that_is_described_with_a_new_name_is_forwarded_with_that_name_only(database: Database) -> None:
    hosts = CellHosts(options.new(), database, ids.fresh())
    further = another_node(described(1))
    start(hosts, described(1), further, described(2))
    assert forwarded(hosts) == [("h1", 1), ("h1.example", 1), ("h2", 1)]
    life = hosts.report_hosts(
        ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(described(2),), started=("h1",))
    ).lives["h1"]

    renamed = structs.replace(described(1), nodename="a.example")
    message = ReportHostsInCell(
        request_id=ids.fresh(), agent="agent", hosts=(renamed, described(2)), started=("h1", "h2")
    )
    lives = hosts.report_hosts(message).lives
    hosts.returned("agent", ["h1", "h2"], lives)

    assert forwarded(hosts) == [("a.example", 2), ("h1.example", 1), ("h2", 1)]
    assert lives["h1"] == life + 1


def test_a_node_that_has_records_with_its_former_and_its_new_name_is_forwarded_again_with_the_new_one(
    database: Database,
) -> None:
    hosts = CellHosts(options.new(), database, ids.fresh())
    renamed = structs.replace(described(1), nodename="h1.example")
    start(hosts, described(1))
    report(hosts, renamed)  # a conductor of an earlier release has recorded each name
    hosts.forwarded.acknowledge(hosts.forwarded.unacknowledged(1000))

    start(hosts, renamed)

    assert forwarded(hosts) == [("h1.example", 2)]
    hosts.forwarded.acknowledge(hosts.forwarded.unacknowledged(1000))
    start(hosts, renamed)
    assert forwarded(hosts) == []


@pytest.mark.parametrize("names", ["bcd", "bac", "bca"], ids=["chain", "swap", "cycle"])
def test_nodes_that_pass_their_names_on_are_forwarded_with_numbers_after_all_former_ones(
    database: Database, names: str
) -> None:
    hosts = CellHosts(options.new(), database, ids.fresh())
    former = [structs.replace(another_node(described(1)), nodename=name) for name in "abc"]
    renamed = [structs.replace(host, nodename=name) for host, name in zip(former, names, strict=True)]
    start(hosts, *former)
    report(hosts, structs.replace(former[1], attributes={"rack": 7}))
    hosts.forwarded.acknowledge(hosts.forwarded.unacknowledged(1000))

    start(hosts, *renamed)

    described_again = hosts.forwarded.unacknowledged(1000)
    changed = [host for host in renamed if host not in former]
    assert described_again == [(host, 3) for host in sorted(changed, key=lambda host: host.nodename)]
    hosts.forwarded.acknowledge(described_again)
    start(hosts, *renamed)
    assert forwarded(hosts) == []


def test_a_life_of_a_host_never_falls_when_a_node_takes_the_name_of_one_that_a_former_agent_has_described(
    database: Database,
) -> None:
    hosts = CellHosts(options.new({"scheduler": {"host_down_after": 0.1}}), database, ids.fresh())
    former = structs.replace(another_node(described(1)), agent="former agent")
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="former agent", hosts=(former,)))
    time.sleep(0.25)
    for _ in range(5):
        start(hosts, described(1))
    renamed = structs.replace(described(1), nodename=former.nodename)

    message = ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(renamed,), started=("h1",))

    assert hosts.report_hosts(message).lives["h1"] > 5


def test_a_start_reads_the_description_of_a_single_node_that_keeps_its_name_once(database: Database) -> None:
    hosts = CellHosts(options.new(), database, ids.fresh())
    start(hosts, described(1), described(2))
    renamed = structs.replace(described(2), nodename="h2.example")

    with statements_of(database) as seen:
        start(hosts, described(1))
    assert len([one for one in seen if one.startswith("SELECT") and "cell_hosts.description" in one]) == 1

    start(hosts, described(1), renamed)
    assert forwarded(hosts) == [("h1", 1), ("h2.example", 2)]


def test_a_description_that_schedulers_refuse_under_its_number_gets_a_greater_one(database: Database) -> None:
    hosts = CellHosts(options.new(), database, ids.fresh())
    start(hosts, described(1))
    sent = hosts.forwarded.unacknowledged(1000)
    hosts.forwarded.acknowledge(sent)

    hosts.forwarded.number_after((NumberedDescription(service_host="h1", nodename="h1", number=1),), sent)
    assert forwarded(hosts) == [("h1", 2)]
    hosts.forwarded.number_after((NumberedDescription(service_host="h1", nodename="h1", number=1),), sent)
    assert forwarded(hosts) == [("h1", 2)]


def test_a_new_node_with_the_former_name_of_another_one_is_forwarded_although_that_name_is_acknowledged_late(
    database: Database,
) -> None:
    hosts = CellHosts(options.new(), database, ids.fresh())
    former = structs.replace(described(1), nodename="a")
    start(hosts, former)
    under_way = hosts.forwarded.unacknowledged(1000)
    start(hosts, structs.replace(former, nodename="b"), structs.replace(another_node(described(1)), nodename="a"))

    hosts.forwarded.acknowledge(under_way)

    assert forwarded(hosts) == [("a", 2), ("b", 2)]


def test_a_refused_description_is_not_acknowledged_although_its_new_number_cannot_be_recorded(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise errors.StoreUnavailable(schema="cell", reason="silent")

    hosts = CellHosts(options.new(), database, ids.fresh())
    start(hosts, described(1))
    monkeypatch.setattr(hosts.forwarded, "number_after", fail)

    with pytest.raises(errors.StoreUnavailable):
        forwarder(hosts, database, RefusingSchedulers()).forward()

    assert forwarded(hosts) == [("h1", 1)]


def test_a_description_that_is_refused_under_each_number_is_repeated_once_in_a_while_or_with_others_of_its_host(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, schedulers = CellHosts(options.new(), database, ids.fresh()), RefusingSchedulers()
    start(hosts, described(1))
    reports = forwarder(hosts, database, schedulers)

    for _round in range(4):
        reports.forward()
    assert schedulers.refused == [1, 2]
    assert forwarded(hosts) == [("h1", 3)]

    report(hosts, another_node(described(1)))
    reports.forward()
    assert schedulers.refused[2:] == [3, 1]

    reports.forward()
    reports.forward()
    del schedulers.refused[:]
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 61.0)
    monkeypatch.setattr("conductor.cell.hosts.forwarder.time", later)
    for _round in range(4):
        reports.forward()
    assert schedulers.refused == [5, 3]
