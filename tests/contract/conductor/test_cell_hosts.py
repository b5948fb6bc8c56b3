"""Test that a cell stores descriptions and heartbeats of its hosts and reports them to schedulers, on each store."""

import itertools
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import select

from conductor.cell.hosts.forwarder import HostForwarder
from conductor.cell.hosts.hosts import CellHosts
from conductor.cell.hosts.loads import CellLoads
from conductor.schema import cell_hosts
from moorage import errors, ids
from moorage.config import options
from moorage.db.database import Database
from moorage.messages import HostsRegistered, NumberedDescription, ReportHosts, ReportHostsInCell
from moorage.model import HostReport


def described(number: int, agent: str = "agent", **attributes: Any) -> HostReport:
    name = f"h{number}"
    node = ids.derived("cell hosts", number)
    return HostReport(service_host=name, nodename=name, compute_node_uuid=node, agent=agent, attributes=attributes)


def another_node(host: HostReport) -> HostReport:
    return structs.replace(host, nodename="h1.example", compute_node_uuid=ids.fresh())


def report(hosts: CellHosts, *reports: HostReport, agent: str = "agent") -> None:
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent=agent, hosts=reports))


def unacknowledged(hosts: CellHosts) -> dict[str, Any]:
    """Return the host attributes that the schedulers have not acknowledged yet, by host."""
    return {host.service_host: host.attributes for host, _number in hosts.forwarded.unacknowledged(1000)}


def alive(hosts: CellHosts, *names: str) -> None:
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", alive=names))


def last_seen(database: Database) -> dict[str, float]:
    """Return the time of the last heartbeat on record, by host."""
    query = select(cell_hosts.c.service_host, cell_hosts.c.last_seen)
    return {row.service_host: row.last_seen for row in database.read(lambda connection: connection.execute(query))}


def test_only_hosts_with_a_changed_description_are_reported_again(database: Database) -> None:
    hosts = CellHosts(options.new(), database, ids.fresh())
    report(hosts, *(described(number, load=0) for number in range(4)))
    hosts.forwarded.acknowledge(hosts.forwarded.unacknowledged(1000))
    hosts.changed.clear()
    report(hosts, described(0, load=0), described(1, load=1), described(2, load=2))
    assert hosts.changed.is_set()
    assert unacknowledged(hosts) == {"h1": {"load": 1}, "h2": {"load": 2}}
    hosts.forwarded.acknowledge(hosts.forwarded.unacknowledged(1000))
    assert unacknowledged(hosts) == {}
    hosts.changed.clear()
    report(hosts, described(1, load=1))
    assert not hosts.changed.is_set()


def test_a_new_host_that_is_described_twice_in_one_report_gets_the_last_description(database: Database) -> None:
    hosts = CellHosts(options.new(), database, ids.fresh())
    report(hosts, described(1, load=0), described(2, load=0), described(1, load=1))
    assert unacknowledged(hosts) == {"h1": {"load": 1}, "h2": {"load": 0}}


def test_a_description_that_changes_during_a_report_stays_unacknowledged(database: Database) -> None:
    hosts = CellHosts(options.new(), database, ids.fresh())
    report(hosts, *(described(number, load=0) for number in range(3)))
    report(hosts, described(1, load=1))
    reported = hosts.forwarded.unacknowledged(1000)
    report(hosts, described(2, load=2))
    hosts.forwarded.acknowledge(reported)
    assert unacknowledged(hosts) == {"h2": {"load": 2}}
    # As a slower conductor does, which has read the older descriptions.
    hosts.forwarded.acknowledge(hosts.forwarded.unacknowledged(1000))
    hosts.forwarded.acknowledge(reported)
    hosts.forwarded.number_after((NumberedDescription(service_host="h2", nodename="h2", number=2),), reported)
    assert unacknowledged(hosts) == {}


class Registry:
    """A scheduler; with each report that it gets, all hosts change again."""

    def __init__(self, hosts: CellHosts, number: int) -> None:
        self.hosts = hosts
        self.number = number
        self.reports: list[ReportHosts] = []

    def call(self, message: ReportHosts, timeout: float) -> HostsRegistered:
        self.reports.append(message)
        assert len(self.reports) < 50, "one round has no end"
        report(self.hosts, *(described(number, load=len(self.reports)) for number in range(self.number)))
        return HostsRegistered()


def test_hosts_that_change_faster_than_they_are_reported_are_reported_as_alive(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conductor.cell.hosts.forwarder.BATCH", 2)
    conf, cell = options.new(), ids.fresh()
    hosts = CellHosts(conf, database, cell)
    report(hosts, *(described(number, load=0) for number in range(5)))
    registry = Registry(hosts, 5)
    client: Any = registry
    forwarder = HostForwarder(conf, cell, hosts, CellLoads(conf, database, cell), client, "conductor.cell1")

    forwarder.forward()

    names = [f"h{number}" for number in range(5)]
    assert [host.service_host for message in registry.reports for host in message.hosts] == names
    assert [sorted(message.alive) for message in registry.reports if message.alive] == [names]


class Times:
    """Lets time pass for a conductor and for the times that it has recorded."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._passed = 0.0
        self._cell = ids.fresh()
        self.hosts = self.restarted()

    def restarted(self) -> CellHosts:
        """Return the hosts of the same cell as a conductor sees them that starts now."""
        return CellHosts(options.new(), self._database, self._cell, lambda: self._passed)

    def passes(self, seconds: float = 100.0) -> None:
        self._passed += seconds
        earlier = cell_hosts.update().values(last_seen=cell_hosts.c.last_seen - seconds)
        self._database.write(lambda connection: connection.execute(earlier))


def of_others(hosts: CellHosts, *names: str) -> dict[str, str]:
    """Return what agent ``new`` is told about hosts that it is about to describe."""
    return hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="new", intended=names)).of_others


def test_a_host_belongs_to_the_agent_that_described_it_last_as_long_as_that_agent_is_alive(database: Database) -> None:
    hosts = CellHosts(options.new(), database, ids.fresh())
    report(hosts, described(1), described(2))
    hosts.forwarded.acknowledge(hosts.forwarded.unacknowledged(1000))

    assert of_others(hosts, "h1", "h3") == {"h1": "agent"}
    with pytest.raises(errors.InvalidState, match="h1 belongs to agent agent"):
        report(hosts, described(3, agent="new"), described(1, agent="new"), agent="new")

    assert hosts.agent_of("h1") == "agent"
    assert unacknowledged(hosts) == {}, "a refused report changes nothing"
    alive(hosts, "h1", "h2")


def test_an_agent_takes_over_hosts_of_an_agent_that_is_silent_for_too_long(database: Database) -> None:
    times = Times(database)
    hosts = times.hosts
    report(hosts, described(1), described(2))
    times.passes()
    other = CellHosts(options.new(), database, ids.fresh())
    report(other, described(1))
    alive(hosts, "h2")

    assert of_others(hosts, "h1", "h2") == {"h2": "agent"}
    report(hosts, described(1, agent="new"), agent="new")

    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="new", alive=("h1",)))
    with pytest.raises(errors.HostNotFound):
        alive(hosts, "h1", "h2")
    assert (hosts.agent_of("h1"), hosts.agent_of("h2"), other.agent_of("h1")) == ("new", "agent", "agent")


def test_a_host_that_its_agent_withholds_is_not_taken_over(database: Database) -> None:
    times = Times(database)
    hosts = times.hosts
    report(hosts, described(1))
    times.passes()
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", withheld=("h1",)))

    assert of_others(hosts, "h1") == {"h1": "agent"}


def test_an_agent_that_withholds_a_host_of_a_silent_agent_gets_the_orders_for_it(database: Database) -> None:
    times = Times(database)
    hosts = times.hosts
    report(hosts, described(1), described(2))
    withheld = ReportHostsInCell(request_id=ids.fresh(), agent="new", withheld=("h1",))
    hosts.report_hosts(withheld)
    assert (hosts.is_withheld("h1"), hosts.agent_of("h1")) == (False, "agent"), "its agent is alive"
    times.passes()

    hosts.report_hosts(structs.replace(withheld, request_id=ids.fresh()))

    assert (hosts.is_withheld("h1"), hosts.agent_of("h1")) == (True, "new")
    assert (hosts.is_withheld("h2"), hosts.agent_of("h2")) == (False, "agent")


def test_no_host_is_taken_over_before_its_agent_could_be_heard_again(database: Database) -> None:
    cell = ids.fresh()
    report(CellHosts(options.new(), database, cell), described(1))
    away = cell_hosts.update().values(last_seen=cell_hosts.c.last_seen - 3600.0)
    database.write(lambda connection: connection.execute(away))

    restarted = CellHosts(options.new(), database, cell)

    assert of_others(restarted, "h1") == {"h1": "agent"}


def test_a_host_with_another_node_is_requested_only_until_it_is_described(
    database: Database,
) -> None:
    hosts = CellHosts(options.new(), database, ids.fresh())
    incarnation, numbers = ids.fresh(), itertools.count(1)

    def tell(**content: Any) -> tuple[str, ...]:
        message = ReportHostsInCell(
            request_id=ids.fresh(), agent="agent", incarnation=incarnation, number=next(numbers), **content
        )
        return hosts.report_hosts(message).undescribed

    other = another_node(described(1))
    tell(hosts=(described(1), described(2)), started=("h1", "h2"))
    tell(hosts=(other,), started=("h1",))
    hosts.forwarded.ask_for(["h1"])
    assert tell(alive=("h1", "h2")) == ("h1",)

    tell(hosts=(other,), started=("h1",))

    assert tell(alive=("h1", "h2")) == ()


def test_a_host_returns_with_another_agent_and_another_node(database: Database) -> None:
    times = Times(database)
    hosts = times.hosts
    report(hosts, described(1))
    times.passes()
    other = another_node(described(1, agent="new"))
    message = ReportHostsInCell(request_id=ids.fresh(), agent="new", hosts=(other,), started=("h1",))
    lives = hosts.report_hosts(message).lives
    assert list(lives) == ["h1"]
    assert (hosts.why_returning("h1") is not None, hosts.agent_of("h1")) == (True, "new")

    hosts.returned("another", ["h1"], lives)
    assert hosts.why_returning("h1") is not None, "the host belongs to another agent"
    assert hosts.returned("new", ["h1"], lives) == ["h1"]

    assert (hosts.why_returning("h1"), hosts.agent_of("h1")) == (None, "new")


def test_a_node_of_a_former_agent_does_not_take_the_host_from_its_agent_when_a_conductor_starts(
    database: Database,
) -> None:
    times = Times(database)
    other = another_node(described(1, agent="new"))
    report(times.hosts, described(1))
    times.passes()
    report(times.hosts, other, agent="new")
    times.passes()

    restarted = times.restarted()

    assert of_others(restarted, "h1") == {}
    report(restarted, structs.replace(other, attributes={"load": 1}), agent="new")
    assert restarted.agent_of("h1") == "new"
    with pytest.raises(errors.InvalidState, match="h1 belongs to agent new"):
        report(restarted, described(1))


def test_a_returning_node_of_a_former_agent_does_not_keep_the_host_returning(database: Database) -> None:
    times = Times(database)
    hosts = times.hosts
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(described(1),), started=("h1",)))
    times.passes()
    other = another_node(described(1, agent="new"))
    message = ReportHostsInCell(request_id=ids.fresh(), agent="new", hosts=(other,), started=("h1",))
    lives = hosts.report_hosts(message).lives

    hosts.returned("new", ["h1"], lives)

    assert (hosts.why_returning("h1"), hosts.agent_of("h1")) == (None, "new")


def test_a_former_agent_that_is_heard_again_does_not_get_a_host_back_that_another_agent_has_with_another_node(
    database: Database,
) -> None:
    times = Times(database)
    hosts = times.hosts
    report(hosts, described(1), described(2))
    times.passes()
    other = another_node(described(1, agent="new"))
    message = ReportHostsInCell(request_id=ids.fresh(), agent="new", hosts=(other,), started=("h1",))
    hosts.returned("new", ["h1"], hosts.report_hosts(message).lives)

    with pytest.raises(errors.HostNotFound, match="h1"):
        alive(hosts, "h1", "h2")

    assert (hosts.agent_of("h1"), hosts.why_returning("h1")) == ("new", None)
    assert hosts.why_silent("h2") is None


def test_a_host_whose_former_agent_had_later_lives_with_another_node_returns_after_missed_heartbeats(
    database: Database,
) -> None:
    times = Times(database)
    hosts = times.hosts
    report(hosts, described(1))
    times.passes()
    other = another_node(described(1, agent="new"))
    report(hosts, other, agent="new")
    for _ in range(3):
        times.passes()
        alive(hosts, "h1")
    times.passes()

    message = ReportHostsInCell(request_id=ids.fresh(), agent="new", alive=("h1",))
    lives = hosts.report_hosts(message).lives
    assert hosts.returned("new", ["h1"], lives) == ["h1"]
    assert lives["h1"] > 3

    times.passes()
    alive(hosts, "h1")
    times.passes()
    changed = structs.replace(other, attributes={"load": 1})
    message = ReportHostsInCell(request_id=ids.fresh(), agent="new", hosts=(changed,))
    lives = hosts.report_hosts(message).lives
    assert hosts.returned("new", ["h1"], lives) == ["h1"]


def test_a_heartbeat_within_ten_seconds_of_the_last_one_is_not_recorded(database: Database) -> None:
    hosts = CellHosts(options.new({"scheduler": {"host_down_after": 60.0}}), database, ids.fresh())
    report(hosts, described(1), described(2))
    described_at = last_seen(database)
    alive(hosts, "h1", "h2")
    assert last_seen(database) == described_at
    earlier = cell_hosts.update().values(last_seen=cell_hosts.c.last_seen - 11.0)
    database.write(lambda connection: connection.execute(earlier))
    alive(hosts, "h1", "h2")
    assert all(seen >= described_at[name] for name, seen in last_seen(database).items())


def test_a_heartbeat_of_a_silent_host_is_recorded_at_once_and_one_of_an_unknown_host_is_refused(
    database: Database,
) -> None:
    hosts = CellHosts(options.new({"scheduler": {"host_down_after": 60.0}}), database, ids.fresh())
    report(hosts, described(1), described(2))
    before = last_seen(database)
    silent = cell_hosts.update().where(cell_hosts.c.service_host == "h2")
    database.write(lambda connection: connection.execute(silent.values(last_seen=cell_hosts.c.last_seen - 61.0)))
    alive(hosts, "h1")
    assert last_seen(database)["h1"] == before["h1"]
    alive(hosts, "h1", "h2")
    assert last_seen(database)["h2"] >= before["h2"]
    with pytest.raises(errors.HostNotFound):
        alive(hosts, "h1", "h2", "h3")


def test_all_conductors_of_a_cell_know_which_hosts_an_agent_withholds(database: Database) -> None:
    conf, cell = options.new({"scheduler": {"host_down_after": 60.0}}), ids.fresh()
    one, other, elsewhere = (CellHosts(conf, database, uuid) for uuid in (cell, cell, ids.fresh()))
    report(one, described(1), described(2))
    report(one, described(3, agent="another"), agent="another")
    for hosts in (one, elsewhere):
        hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", withheld=("h1", "h3")))
    assert [name for name in ("h1", "h2", "h3") if other.is_withheld(name)] == ["h1"]
    assert not elsewhere.is_withheld("h1")


@pytest.mark.parametrize("seconds", [-61.0, 3600.0])
def test_a_host_is_not_withheld_any_more_after_some_time_or_after_the_clock_was_set_back(
    database: Database, seconds: float
) -> None:
    hosts = CellHosts(options.new({"scheduler": {"host_down_after": 60.0}}), database, ids.fresh())
    report(hosts, described(1))
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", withheld=("h1",)))
    moved = cell_hosts.update().values(withheld_at=cell_hosts.c.withheld_at + seconds)
    database.write(lambda connection: connection.execute(moved))
    assert not hosts.is_withheld("h1")
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", withheld=("h1",)))
    assert hosts.is_withheld("h1")
