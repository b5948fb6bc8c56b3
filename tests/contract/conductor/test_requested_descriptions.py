"""Test that the conductors of a cell request the description of an unknown host once, on each store."""

import itertools
from typing import Any

from msgspec import structs

from conductor.cell.hosts.hosts import CellHosts
from moorage import ids
from moorage.config import options
from moorage.db.database import Database
from moorage.messages import ReportHostsInCell
from moorage.model import HostReport


def described(name: str) -> HostReport:
    return HostReport(
        service_host=name, nodename=name, compute_node_uuid=ids.derived(name), agent="agent", availability_zone="nova"
    )


def test_a_host_that_two_conductors_find_unknown_is_requested_once(database: Database) -> None:
    cell = ids.fresh()
    one, other = (CellHosts(options.new(), database, cell) for _ in range(2))
    incarnation, numbers = ids.fresh(), itertools.count(1)

    def tell(**content: Any) -> tuple[str, ...]:
        message = ReportHostsInCell(
            request_id=ids.fresh(), agent="agent", incarnation=incarnation, number=next(numbers), **content
        )
        return one.report_hosts(message).undescribed

    tell(hosts=(described("h1"), described("h2")))
    one.forwarded.acknowledge(one.forwarded.unacknowledged(1000))
    one.forwarded.ask_for(["h1"], first=["h1"])
    assert tell(alive=("h1", "h2")) == ("h1",)
    tell(hosts=(described("h1"),), started=("h1",))

    # The other conductor has asked the schedulers before they got the description.
    other.forwarded.ask_for(["h1", "h2"], first=["h1", "h2"])
    assert tell(alive=("h1", "h2")) == ("h2",)

    other.forwarded.ask_for(["h1"])
    assert tell(alive=("h1", "h2")) == ("h1", "h2")


def test_a_new_node_does_not_hide_that_its_host_is_requested(database: Database) -> None:
    hosts = CellHosts(options.new(), database, ids.fresh())
    incarnation, numbers = ids.fresh(), itertools.count(1)

    def tell(**content: Any) -> tuple[str, ...]:
        message = ReportHostsInCell(
            request_id=ids.fresh(), agent="agent", incarnation=incarnation, number=next(numbers), **content
        )
        return hosts.report_hosts(message).undescribed

    nodes = [structs.replace(described("h1"), nodename=name, compute_node_uuid=ids.derived(name)) for name in "abc"]
    tell(hosts=(nodes[0],), started=("h1",))
    hosts.forwarded.ask_for(["h1"])

    tell(hosts=(nodes[1],))

    assert tell(alive=("h1",)) == ("h1",)
    tell(hosts=(nodes[0], nodes[1]), started=("h1",))
    assert tell(alive=("h1",)) == ()

    hosts.forwarded.acknowledge(hosts.forwarded.unacknowledged(1000))
    for node in (nodes[2], structs.replace(nodes[2], availability_zone="north")):
        tell(hosts=(node,))
        assert [report for report, _number in hosts.forwarded.unacknowledged(1000)] == [node]


def test_only_the_first_nodes_of_a_host_are_described_under_number_1(database: Database) -> None:
    hosts = CellHosts(options.new(), database, ids.fresh())
    first, second = (
        structs.replace(described("h1"), nodename=name, compute_node_uuid=ids.derived(name)) for name in "ab"
    )
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(first,)))
    hosts.forwarded.acknowledge(hosts.forwarded.unacknowledged(1000))

    # If the host was deleted meanwhile, the schedulers must ask for its other nodes, too.
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(second, described("h2"))))

    assert hosts.forwarded.unacknowledged(1000) == [(second, 2), (described("h2"), 1)]
