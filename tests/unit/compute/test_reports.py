"""Test reports of an agent while its heartbeats are sent by another thread."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest
from msgspec import structs

from compute.cell_client import CellClient, Interrupted
from compute.numbering import Numbering
from compute.reports import Reporter
from compute.returns import Returns
from compute.tracker import Tracker
from moorage import errors, ids
from moorage.messages import HostsReported, ListProviderTreesInCell, ReportHostsInCell
from moorage.messages.wire import Message
from moorage.model import HostReport

HOST = HostReport(service_host="h1", nodename="h1", compute_node_uuid=ids.fresh(), agent="agent")


class OneHost:
    """A driver with one host that is alive, and at the same time its empty list of returning hosts."""

    listed: Sequence[HostReport] = (HOST,)

    def hosts(self) -> Sequence[HostReport]:
        return self.listed

    def alive(self) -> Sequence[str]:
        return ["h1"]

    def note(self, hosts: Sequence[str], lives: Mapping[str, int], number: int) -> None:
        pass


class Agent:
    """An agent with nothing in progress."""

    def __init__(self) -> None:
        self.lives: dict[str, int] = {}

    def settle_unanswered(self, _except_on: object) -> None:
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

    def stop(self) -> None:
        pass

    def forget(self, _hosts: Sequence[HostReport] | None = None) -> None:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()


class Cell:
    """A cell that answers the next report as superseded by a later incarnation once `supersedes` is set."""

    supersedes = False

    def __init__(self) -> None:
        self.described: list[str | None] = []
        self.life = 0
        self.before_the_answer: Callable[[], object] = lambda: None

    def once(self, message: ReportHostsInCell, **_how: Any) -> HostsReported:
        superseded, self.supersedes = self.supersedes, False
        if message.hosts:
            self.described.append(message.incarnation)
            self.life += 1
        answer = HostsReported(superseded=superseded, returning=("h1",), lives={"h1": self.life})
        meanwhile, self.before_the_answer = self.before_the_answer, lambda: None
        meanwhile()
        return answer

    def unless_ended(self, message: ReportHostsInCell, _ended: object, **_how: Any) -> HostsReported:
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


@pytest.mark.parametrize("begins_anew", [False, True])
def test_an_answer_that_arrives_after_that_to_a_later_message_does_not_bring_back_an_earlier_life(
    begins_anew: bool,
) -> None:
    cell, trees, numbering, driver = Cell(), Trees(), Numbering("agent"), OneHost()
    agent: Any = Agent()
    made: Any = (driver, cell, trees, Returns(cast(Any, driver), cast(Any, cell), agent), numbering)
    reporter = Reporter(*made)
    reporter.report()
    assert agent.lives == {"h1": 1}

    def describe_again() -> None:
        cell.supersedes = begins_anew
        driver.listed = [structs.replace(HOST, availability_zone="another")]
        reporter.report()
        reporter.report()

    cell.before_the_answer = describe_again
    reporter.beat()

    assert agent.lives == {"h1": cell.life}
    assert cell.life > 1


def many_hosts() -> Any:
    """Return a driver with more hosts than two messages have."""
    driver = OneHost()
    driver.listed = [
        structs.replace(HOST, service_host=f"h{n}", nodename=f"h{n}", compute_node_uuid=ids.derived("host", n))
        for n in range(2500)
    ]
    return driver


class Stopping:
    """A client of a cell that answers a message of a kind only after the agent has begun to stop."""

    def __init__(self, kind: type[Message[Any]], answer: object) -> None:
        self.kind = kind
        self.answer = answer
        self.stop: Callable[[], object] = lambda: None
        self.sent: list[Message[Any]] = []

    def call(self, message: Message[Any], **_how: Any) -> object:
        is_awaited = isinstance(message, self.kind) and not getattr(message, "intended", None)
        if is_awaited:
            self.sent.append(message)
            self.stop()
        return self.answer if is_awaited else HostsReported()


def test_an_agent_that_stops_describes_no_more_hosts_after_the_message_in_progress() -> None:
    driver, client = many_hosts(), Stopping(ReportHostsInCell, HostsReported())
    made: Any = (driver, CellClient(cast(Any, client)), Trees(), driver, Numbering("agent"))
    reporter = Reporter(*made)
    client.stop = reporter.stop

    reporter.report()

    assert len(client.sent) == 1


def test_an_agent_that_stops_reads_no_more_trees_after_the_message_in_progress() -> None:
    driver, client = many_hosts(), Stopping(ListProviderTreesInCell, [])
    tracker = Tracker(driver, CellClient(cast(Any, client)), Numbering("agent"))
    client.stop = tracker.stop

    with pytest.raises(Interrupted):
        tracker.track(driver.hosts())

    assert len(client.sent) == 1


class RefusingCell(Cell):
    """A cell that refuses every description."""

    def once(self, message: ReportHostsInCell, **_how: Any) -> HostsReported:
        if message.hosts:
            raise errors.RequestTooLarge(method="report_hosts", size=2**24, limit=2**23)
        return HostsReported()


class OneLongHost(OneHost):
    """A driver whose host has attributes that are too long for a message."""

    def hosts(self) -> Sequence[HostReport]:
        return [structs.replace(HOST, attributes={"topology": "x" * 2**20})]


def test_a_refused_description_is_logged_by_its_host_and_not_with_its_attributes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made: Any = (OneLongHost(), RefusingCell(), Trees(), OneHost(), Numbering("agent"))
    Reporter(*made).report()
    [record] = caplog.records
    assert "host h1 is refused" in record.getMessage()
    assert "16777216 bytes" in record.getMessage()
    assert len(record.getMessage()) < 1000
