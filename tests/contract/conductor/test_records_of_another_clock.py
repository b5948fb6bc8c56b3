"""Test records of conductors that were written before the database's clock was set, on each store."""

import time
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Table, event, select
from support.conductor.record_builders import advance, begin
from support.databases import migrated
from support.moorage.clock import Clock

from conductor.cell.agents import CellAgents
from conductor.cell.hosts.hosts import CellHosts
from conductor.cell.payloads import HostOrderStep
from conductor.engine.operations import Operations
from conductor.engine.steps import Backoff, NoPayload, Wait
from conductor.schema import CELL, cell_hosts, conductor_operations
from moorage import ids
from moorage.bus.bus import Bus
from moorage.config import options
from moorage.db.columns import now
from moorage.db.database import Database
from moorage.messages import ReportHostsInCell
from moorage.model import HostReport

HOUR = 3600.0


def of(database: Database, owner: str) -> Operations:
    return Operations(database, conductor_operations, owner, {}, Backoff(first=0.01, longest=0.05))


def set_back(database: Database, table: Table, *columns: str) -> None:
    """Set the clock back by an hour: all times on record are an hour ahead of it."""
    ahead = table.update().values({name: table.c[name] + HOUR for name in columns})
    database.write(lambda connection: connection.execute(ahead))


def seconds_until(database: Database, column: str) -> float:
    query = select(conductor_operations.c[column] - now())
    found: float = database.read(lambda connection: connection.scalars(query).one())
    return found


def test_a_wait_that_was_recorded_before_the_clock_was_set_back_begins_again(database: Database) -> None:
    operations = of(database, "me")
    advance(operations, begin(database, operations), lambda _connection: Wait("two", NoPayload(), seconds=30.0))
    set_back(database, conductor_operations, "due_at", "updated_at", "created_at")

    operations.restart_waits()

    assert 25.0 < seconds_until(database, "due_at") <= 30.0
    assert list(operations.due(10)) == []


def test_the_lease_of_a_dead_conductor_expires_although_the_clock_was_set_back(database: Database) -> None:
    dead, others = of(database, "dead"), of(database, "other")
    operation = begin(database, dead)
    set_back(database, conductor_operations, "due_at", "lease_until", "updated_at", "created_at")
    assert seconds_until(database, "lease_until") > HOUR

    others.restart_waits()

    assert 0 < seconds_until(database, "lease_until") <= others.lease_seconds, "its owner may be alive and renew it"
    assert others.take(operation.uuid) is None
    database.write(lambda connection: connection.execute(conductor_operations.update().values(lease_until=now() - 1)))
    assert others.take(operation.uuid) is not None


@pytest.mark.parametrize("since", [(), ("updated_at",)])
def test_the_age_of_an_operation_that_began_before_the_clock_was_set_back_is_counted_again(
    database: Database, since: tuple[str, ...]
) -> None:
    operations = of(database, "me")
    operation = begin(database, operations)
    set_back(database, conductor_operations, "created_at", "due_at", "updated_at")
    if since:
        # The step was repeated since then, which must not extend the life of the operation by an hour.
        repeated = conductor_operations.update().values({name: now() for name in since})
        database.write(lambda connection: connection.execute(repeated))

    operations.restart_waits()

    assert 0.0 <= database.read(lambda connection: operations.age(connection, operation)) < 30.0


@pytest.mark.parametrize("seconds", [1.0, 30.0])
def test_a_wait_that_is_ahead_by_a_normal_difference_of_clocks_is_not_changed(
    database: Database, seconds: float
) -> None:
    operations = of(database, "me")
    advance(operations, begin(database, operations), lambda _connection: Wait("two", NoPayload(), seconds=100.0))
    ahead = conductor_operations.update().values(updated_at=now() + seconds, due_at=now() + 100.0 + seconds)
    database.write(lambda connection: connection.execute(ahead))

    operations.restart_waits()

    assert seconds_until(database, "updated_at") > 0


def test_the_time_of_an_order_in_progress_begins_again_after_the_clock_was_set_back(database: Database) -> None:
    cell, conf, bus = ids.fresh(), options.new({"conductor": {"build_timeout": 600.0}}), cast(Bus, None)
    agents = CellAgents(conf, cell, bus, CellHosts(conf, database, cell), Backoff(first=0.01, longest=0.05))
    ahead = HostOrderStep(waited=1, waits_since=time.time() + HOUR)

    wait = database.read(lambda connection: agents.wait_for_order("rebuild", ahead, "a", connection))

    assert isinstance(wait, Wait)
    clock = database.read(lambda connection: connection.scalars(select(now())).one())
    assert isinstance(wait.payload, HostOrderStep)
    assert wait.payload.waits_since is not None
    assert wait.payload.waits_since <= clock


def test_heartbeats_are_recorded_and_forwarded_again_after_the_clock_was_set_back(database: Database) -> None:
    hosts = CellHosts(options.new(), database, ids.fresh())
    reports = tuple(
        HostReport(service_host=name, nodename=name, compute_node_uuid=ids.fresh(), agent="agent")
        for name in ("alive", "dead")
    )
    names = tuple(host.service_host for host in reports)
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=reports, alive=names))
    _, clock = hosts.forwarded.seen_since(None, 60.0)
    set_back(database, cell_hosts, "last_seen")
    assert hosts.forwarded.seen_since(clock + HOUR, 60.0)[0] == [], "no heartbeat has arrived since then"

    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", alive=("alive",)))

    assert hosts.forwarded.seen_since(clock, 60.0)[0] == ["alive"]
    assert hosts.why_returning("alive") is None, "the host was not silent"


def test_a_host_that_failed_before_the_clock_was_set_back_is_silent_after_the_whole_time_out(
    database: Database,
) -> None:
    conf = options.new({"scheduler": {"host_down_after": 2.0}})
    hosts = CellHosts(conf, database, ids.fresh())
    reports = tuple(
        HostReport(service_host=name, nodename=name, compute_node_uuid=ids.fresh(), agent="agent")
        for name in ("alive", "dead")
    )
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=reports))
    time.sleep(2.1)
    set_back(database, cell_hosts, "last_seen")

    assert (hosts.why_silent("alive"), hosts.why_silent("dead")) == (None, None)
    time.sleep(2.1)
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", alive=("alive",)))

    assert hosts.why_silent("alive") is None
    assert "has not reported" in str(hosts.why_silent("dead"))


@pytest.mark.parametrize("known_by", ["heartbeats", "looks"])
def test_no_host_becomes_silent_because_the_clock_was_set_forward(tmp_path: Path, known_by: str) -> None:
    ahead, clock = [0.0], Clock(1e6)
    database = Database(migrated.sqlite(tmp_path / "cell.sqlite", CELL), "cell")

    def set_clock(connection: Any, _record: object) -> None:
        connection.create_function("julianday", -1, lambda *_: 2440587.5 + (clock.now + ahead[0]) / 86400.0)

    event.listen(database.engine, "connect", set_clock)
    hosts = CellHosts(options.new({"scheduler": {"host_down_after": 60.0}}), database, ids.fresh(), clock)
    host = HostReport(service_host="h1", nodename="h1", compute_node_uuid=ids.fresh(), agent="agent")
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(host,)))
    clock.now += 61.0
    hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", alive=("h1",)))
    if known_by == "looks":
        assert hosts.why_silent("h1") is None

    ahead[0] = HOUR

    assert hosts.why_silent("h1") is None
    clock.now += 61.0
    assert "has not reported" in str(hosts.why_silent("h1")), "the host becomes silent after the whole time-out"
    database.close()
