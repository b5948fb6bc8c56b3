"""Test that an order to destroy a guest waits only for a probe if its host has missed heartbeats, on each store."""

from typing import Any, cast

import pytest
from sqlalchemy import update
from support.conductor.record_builders import CELL_UUID, RECORDS, built

from conductor.cell.agents import CellAgents
from conductor.cell.hosts.hosts import CellHosts
from conductor.cell.records.attempts import AttemptRecord
from conductor.engine.steps import DELETE, Backoff, Operation
from conductor.schema import cell_hosts
from moorage import errors, ids
from moorage.bus.bus import Bus
from moorage.config import options
from moorage.db.database import Database
from moorage.messages import Done, ReportHostsInCell
from moorage.model import HostReport


class Agent:
    """The bus, and a client of the agent of all hosts; it records what is sent."""

    def __init__(self, *, is_dead: bool) -> None:
        self.is_dead = is_dead
        self.sent: list[str] = []

    def client(self, _topic: str, server: str) -> "Agent":
        assert server == "agent"
        return self

    def ping(self, _seconds: float) -> None:
        self._take("ping")

    def call(self, message: Any) -> Done:
        self._take(message.method)
        return Done()

    def _take(self, method: str) -> None:
        self.sent.append(method)
        if self.is_dead:
            raise errors.NoReply(topic="compute", method=method, seconds=0.0)


class Orders:
    """Orders to the host `a`, which has reported."""

    def __init__(self, database: Database, *, is_dead: bool) -> None:
        self.database = database
        conf = options.new()
        self.hosts = CellHosts(conf, database, CELL_UUID)
        report = HostReport(
            service_host="a", nodename="a", compute_node_uuid=ids.fresh(), agent="agent", availability_zone="nova"
        )
        self.hosts.report_hosts(ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report,)))
        self.agent = Agent(is_dead=is_dead)
        backoff = Backoff(first=0.1, longest=1.0)
        self.agents = CellAgents(conf, CELL_UUID, cast(Bus, self.agent), self.hosts, backoff)
        uuid, attempt_id = built(database)
        self.attempt = cast(
            AttemptRecord, database.read(lambda connection: RECORDS.attempt(connection, uuid, attempt_id))
        )
        self.operation = cast(Operation, _Ordered())

    def pass_seconds(self, seconds: float) -> None:
        statement = update(cell_hosts).values(last_seen=cell_hosts.c.last_seen - seconds)
        self.database.write(lambda connection: connection.execute(statement))

    def destroy(self) -> None:
        self.agents.destroy(self.operation, self.attempt)


class _Ordered:
    """The operation that the orders belong to."""

    kind = DELETE

    def derived(self, *_words: object) -> str:
        return ids.fresh()


def test_the_agent_of_a_host_that_has_missed_heartbeats_is_not_waited_for_if_it_answers_no_probe(
    database: Database,
) -> None:
    orders = Orders(database, is_dead=True)
    orders.pass_seconds(30)

    with pytest.raises(errors.NoReply):
        orders.destroy()

    assert orders.agent.sent == ["ping"]


def test_an_agent_that_answers_the_probe_gets_the_order(database: Database) -> None:
    orders = Orders(database, is_dead=False)
    orders.pass_seconds(30)

    orders.destroy()

    assert orders.agent.sent == ["ping", "destroy_instance"]


def test_the_agent_of_a_host_that_reports_is_not_probed(database: Database) -> None:
    orders = Orders(database, is_dead=False)

    orders.destroy()

    assert orders.agent.sent == ["destroy_instance"]
