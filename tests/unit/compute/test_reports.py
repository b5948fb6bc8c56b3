"""Test reports of an agent while its heartbeats are sent by another thread."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compute.numbering import Numbering
from compute.reports import Reporter
from moorage import ids
from moorage.messages import HostsReported, ReportHostsInCell
from moorage.model import HostReport

HOST = HostReport(service_host="h1", nodename="h1", compute_node_uuid=ids.fresh(), agent="agent")


class OneHost:
    """A driver with one host that is alive, and at the same time its empty list of returning hosts."""

    def hosts(self) -> Sequence[HostReport]:
        return [HOST]

    def alive(self) -> Sequence[str]:
        return ["h1"]

    def note(self, hosts: Sequence[str], lives: Mapping[str, int]) -> None:
        pass


class Trees:
    """A tracker that has reported all trees; something may happen while it forgets them."""

    refused: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None

    def track(self, _hosts: Sequence[HostReport]) -> None:
        pass

    def is_reported(self, _host: HostReport) -> bool:
        return True

    def forget(self, _hosts: Sequence[HostReport] | None = None) -> None:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()


class Cell:
    """A cell that answers the next report as superseded by a later incarnation once `supersedes` is set."""

    supersedes = False

    def __init__(self) -> None:
        self.described: list[str | None] = []

    def once(self, message: ReportHostsInCell, **_how: Any) -> HostsReported:
        superseded, self.supersedes = self.supersedes, False
        if message.hosts:
            self.described.append(message.incarnation)
        return HostsReported(superseded=superseded)

    def until_answered(self, message: ReportHostsInCell, _interrupt: object, **_how: Any) -> HostsReported:
        return self.once(message)


def test_hosts_are_described_again_if_a_heartbeat_is_superseded_while_a_report_begins() -> None:
    cell, trees, numbering = Cell(), Trees(), Numbering("agent")
    made: Any = (OneHost(), cell, trees, OneHost(), numbering)
    reporter = Reporter(*made)
    reporter.report()
    assert cell.described == [numbering.incarnation]
    cell.supersedes = True
    trees.meanwhile = reporter.beat

    reporter.report()
    reporter.report()

    assert cell.described[1:] == [numbering.incarnation]
    assert cell.described[0] != numbering.incarnation
