"""Test which hosts of a cell are purged with their agents, and that others are kept, on SQLite and on MariaDB."""

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest
from sqlalchemy import event, select
from support.conductor.record_builders import CELL_UUID, RECORDS, built

from conductor.cell.hosts import retired
from conductor.cell.hosts.hosts import CellHosts
from conductor.cell.records.attempts import MAY_HAVE_A_GUEST
from conductor.retention import CellEndedRecords
from conductor.schema import cell_agents, cell_attempts, cell_hosts, cell_instances, cell_operations
from moorage import errors, ids
from moorage.config import options
from moorage.db.columns import now
from moorage.db.database import Database
from moorage.messages import HostsReported, ReportHostsInCell
from moorage.model import HostReport

KEPT = 1000.0
NUMBERS = count(1)


class Agent:
    """An agent that reports one host, with one node or more."""

    def __init__(self, database: Database, host: str, nodes: int = 1, name: str | None = None) -> None:
        self.database, self.host, self.name = database, host, name or f"agent of {host}"
        self.incarnation = ids.fresh()
        self._hosts = CellHosts(options.new(), database, CELL_UUID)
        self._nodes = tuple(f"{host}.{number}" for number in range(nodes))
        self.describe()

    def describe(self) -> None:
        """Describe the host, as after a start of the agent."""
        reports = tuple(
            HostReport(
                service_host=self.host, nodename=node, compute_node_uuid=ids.derived("node", node), agent=self.name
            )
            for node in self._nodes
        )
        self._send(hosts=reports, started=(self.host,))

    def beat(self) -> HostsReported:
        """Report that the host is alive."""
        return self._send(alive=(self.host,))

    def grow_old(self, seconds: float = KEPT + 1, nodes: int | None = None) -> None:
        """Make the host silent for so long."""
        these = cell_hosts.c.nodename.in_(self._nodes[:nodes])
        old = cell_hosts.update().where(these).values(last_seen=cell_hosts.c.last_seen - seconds)
        self.database.write(lambda connection: connection.execute(old))

    def _send(self, **content: Any) -> HostsReported:
        return self._hosts.report_hosts(
            ReportHostsInCell(
                request_id=ids.fresh(),
                agent=self.name,
                incarnation=self.incarnation,
                number=next(NUMBERS),
                **content,
            )
        )


def hosts_left(database: Database) -> set[str]:
    query = select(cell_hosts.c.service_host).where(cell_hosts.c.cell_uuid == CELL_UUID)
    return set(database.read(lambda connection: connection.scalars(query).all()))


def agents_left(database: Database) -> set[str]:
    query = select(cell_agents.c.agent).where(cell_agents.c.cell_uuid == CELL_UUID)
    return set(database.read(lambda connection: connection.scalars(query).all()))


def prune(database: Database, cell_uuid: str = CELL_UUID) -> None:
    CellEndedRecords(database, cell_operations, {"cell_uuid": cell_uuid}, KEPT).prune()


def test_a_host_that_has_been_silent_for_long_is_purged_with_its_agent(database: Database) -> None:
    gone, silent, _ = Agent(database, "gone", nodes=2), Agent(database, "silent"), Agent(database, "alive")
    gone.grow_old()
    silent.grow_old(KEPT - 60)

    prune(database, ids.fresh())
    assert hosts_left(database) == {"gone", "silent", "alive"}
    prune(database)

    assert hosts_left(database) == {"silent", "alive"}
    assert agents_left(database) == {"agent of silent", "agent of alive"}


def test_an_agent_of_another_host_is_kept(database: Database) -> None:
    gone = Agent(database, "gone", name="agent")
    Agent(database, "alive", name="agent")
    gone.grow_old()

    prune(database)

    assert hosts_left(database) == {"alive"}
    assert agents_left(database) == {"agent"}


def test_a_silent_host_of_an_instance_or_with_a_guest_that_may_be_left_is_kept(database: Database) -> None:
    placed, left = Agent(database, "placed"), Agent(database, "left")
    (instance, of_instance), (deleted, attempt) = built(database), built(database)
    of_host = {cell_instances: "placed", cell_attempts: "left"}
    for table, host in of_host.items():
        database.write(partial(_execute, table.update().values(host=host)))
    database.write(partial(_execute, cell_instances.update().where(cell_instances.c.uuid == deleted).values(host=None)))
    note_gone(database, of_instance)
    for agent in (placed, left):
        agent.grow_old()

    prune(database)
    assert hosts_left(database) == {"placed", "left"}

    note_gone(database, attempt)
    database.write(
        partial(_execute, cell_instances.update().where(cell_instances.c.uuid == instance).values(host=None))
    )
    prune(database)
    assert hosts_left(database) == set()


def end(database: Database, attempt_id: str, host: str) -> None:
    """End an attempt whose guest may be left on a host, after its instance has left the host."""
    of_attempt = cell_attempts.c.attempt_id == attempt_id
    database.write(partial(_execute, cell_attempts.update().where(of_attempt).values(host=host, state="ended")))
    database.write(partial(_execute, cell_instances.update().values(host=None)))


def may_have_guests(database: Database) -> set[str]:
    query = select(cell_attempts.c.attempt_id).where(MAY_HAVE_A_GUEST)
    return set(database.read(lambda connection: connection.scalars(query).all()))


def prune_with_deleted(database: Database, *deleted: str) -> list[list[str]]:
    """Purge records while these hosts are deleted; return the names of the hosts that were asked about."""
    asked: list[list[str]] = []

    def among(hosts: Sequence[str]) -> set[str]:
        asked.append(list(hosts))
        return {*hosts} & {*deleted}

    scope = {"cell_uuid": CELL_UUID}
    CellEndedRecords(database, cell_operations, scope, KEPT, deleted_hosts=among).prune()
    return asked


def test_a_silent_host_that_was_deleted_is_purged_although_guests_may_be_left_there(database: Database) -> None:
    gone, kept = Agent(database, "gone", nodes=2), Agent(database, "kept")
    (_one, on_gone), (_other, on_kept) = built(database), built(database)
    end(database, on_gone, "gone")
    end(database, on_kept, "kept")
    for agent in (gone, kept):
        agent.grow_old()

    assert prune_with_deleted(database, "gone") == [["gone", "kept"]]

    assert may_have_guests(database) == {on_kept}
    assert hosts_left(database) == {"kept"}


def test_a_deleted_host_keeps_the_records_of_guests_that_are_not_ended_and_of_a_short_silence(
    database: Database,
) -> None:
    placed, lately = Agent(database, "placed"), Agent(database, "lately")
    (_one, on_placed), (_other, on_lately) = built(database), built(database)
    end(database, on_placed, "placed")
    database.write(partial(_execute, cell_attempts.update().values(state="active")))
    end(database, on_lately, "lately")
    placed.grow_old()
    lately.grow_old(KEPT - 60)

    assert prune_with_deleted(database, "placed", "lately") == []

    assert may_have_guests(database) == {on_placed, on_lately}
    assert hosts_left(database) == {"placed", "lately"}


def test_a_deleted_host_that_is_heard_at_that_moment_keeps_the_records_of_its_guests(database: Database) -> None:
    gone = Agent(database, "gone")
    _instance, attempt_id = built(database)
    end(database, attempt_id, "gone")
    gone.grow_old()

    scope = {"cell_uuid": CELL_UUID}

    def among(hosts: Sequence[str]) -> Sequence[str]:
        gone.beat()
        return hosts

    CellEndedRecords(database, cell_operations, scope, KEPT, deleted_hosts=among).prune()

    assert may_have_guests(database) == {attempt_id}
    assert hosts_left(database) == {"gone"}


def test_all_deleted_hosts_are_found_in_several_parts(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retired, "AT_ONCE", 2)
    agents = [Agent(database, f"host{number}") for number in range(5)]
    for agent in agents:
        end(database, built(database)[1], agent.host)
        agent.grow_old()

    assert [len(names) for names in prune_with_deleted(database, "host1", "host4")] == [2, 2, 1]

    assert hosts_left(database) == {"host0", "host2", "host3"}


def test_a_host_with_a_node_that_was_heard_or_that_its_agent_withholds_is_kept(database: Database) -> None:
    half, withheld = Agent(database, "half", nodes=2), Agent(database, "withheld")
    half.grow_old(nodes=1)
    withheld.grow_old()
    database.write(
        partial(_execute, cell_hosts.update().where(cell_hosts.c.nodename == "withheld.0").values(withheld_at=now()))
    )

    prune(database)

    assert hosts_left(database) == {"half", "withheld"}


def test_hosts_that_are_kept_block_none(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retired, "AT_ONCE", 2)
    halves = [Agent(database, f"half{number}", nodes=2) for number in range(3)]
    gone = [Agent(database, f"zone{number}") for number in range(5)]
    for agent in halves:
        agent.grow_old(nodes=1)
    for agent in gone:
        agent.grow_old()

    assert retired.prune(database, CELL_UUID, KEPT) == len(gone)

    assert hosts_left(database) == {agent.host for agent in halves}


def test_a_purged_host_returns_as_a_new_one_and_must_list_its_guests(database: Database) -> None:
    gone = Agent(database, "gone")
    gone.grow_old()
    prune(database)

    with pytest.raises(errors.HostNotFound):
        gone.beat()
    gone.describe()

    assert gone.beat().returning == ("gone",)
    assert agents_left(database) == {"agent of gone"}


def test_a_host_that_is_heard_at_that_moment_is_kept(database: Database) -> None:
    gone = Agent(database, "gone")
    gone.grow_old()

    with _AmongStatements(
        database, "SELECT DISTINCT cell_hosts.service_host", "UPDATE cell_hosts SET last_seen = 1e12"
    ):
        prune(database)

    assert hosts_left(database) == {"gone"}
    assert agents_left(database) == {"agent of gone"}


def note_gone(database: Database, attempt_id: str) -> None:
    database.write(lambda connection: RECORDS.change_attempt(connection, attempt_id, guest_gone=True))


def _execute(statement: Any, connection: Any) -> None:
    connection.execute(statement)


class _AmongStatements:
    """Run a statement in the same transaction, once a statement with this beginning has been executed."""

    def __init__(self, database: Database, beginning: str, statement: str) -> None:
        self._engine, self._beginning, self._statement = database.engine, beginning, statement
        self._is_done = False

    def __enter__(self) -> None:
        event.listen(self._engine, "after_cursor_execute", self._note)

    def __exit__(self, *_: object) -> None:
        event.remove(self._engine, "after_cursor_execute", self._note)
        assert self._is_done

    def _note(self, _connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(self._beginning) and not self._is_done:
            self._is_done = True
            cursor.connection.cursor().execute(self._statement)
