"""The hosts of a cell: what their agents report is kept in the cell, and passed on to the schedulers."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from oslo_config import cfg
from sqlalchemy import ColumnElement, Connection, exc, func, select, tuple_

from conductor.schema import cell_hosts
from moorage import context, errors, ids
from moorage.bus import Client, serves
from moorage.columns import now
from moorage.database import Database
from moorage.messages import Done, HostsReported, ReportHosts, ReportHostsInCell, ReportProviders, ReportProviderTree
from moorage.model import HostReport
from moorage.service import Periodic

LOG = logging.getLogger(__name__)

T = TypeVar("T")

_NODE = tuple_(cell_hosts.c.service_host, cell_hosts.c.nodename)

#: Rows of one statement, and descriptions of one report. Arbitrary: below every limit of the databases.
_BATCH = 1000
_ALIVE_BATCH = 20_000
#: Seconds between two looks whether something is to be passed on at once.
_TICK = 0.1
#: A report that is not answered soon is overtaken by the next one.
_LONGEST_WAIT = 10.0


class CellHosts:
    """The records of a cell's hosts, and the endpoint for what their agents report."""

    def __init__(self, conf: cfg.ConfigOpts, database: Database, cell_uuid: str, placement: Client) -> None:
        self._database = database
        self._cell_uuid = cell_uuid
        self._placement = placement
        self._down_after: float = conf.scheduler.host_down_after
        #: Set when there is something that a scheduler should hear without waiting for the next round.
        self.changed = threading.Event()

    @serves(ReportHostsInCell)
    def report_hosts(self, message: ReportHostsInCell) -> HostsReported:
        """Record descriptions that are new or have changed, and which hosts are alive.

        :raises HostNotFound: one that is alive has never been described to this cell, or by another agent; what is said
            of the others is recorded, and the agent is to describe its hosts.
        """
        unknown: list[str] = []

        def work(connection: Connection) -> bool:
            unknown.clear()
            changed = [self._describe(connection, part) for part in _parts(message.hosts, _BATCH)]
            for names in _parts(message.alive, _BATCH):
                unknown.extend(self._alive(connection, message.agent, names))
            return any(changed)

        try:
            if self._database.write(work):
                self.changed.set()
        except exc.IntegrityError as fault:
            # Another report of the same host has come first: repeated, this one finds it there.
            raise errors.RequestInProgress(request_id=message.request_id) from fault
        if unknown:
            raise errors.HostNotFound(name=unknown[0])
        return HostsReported()

    @serves(ReportProviderTree)
    def report_provider_tree(self, message: ReportProviderTree) -> Done:
        """Pass on to the placement role what the providers of an agent's hosts are."""
        return self._placement.call(ReportProviders(request_id=message.request_id, providers=message.providers))

    def why_down(self, service_host: str) -> str | None:
        """Return why this cell takes a host for down, or nothing if it does not."""
        age = self._database.read(
            lambda connection: connection.scalar(
                select(now() - func.max(cell_hosts.c.last_seen)).where(
                    self._here(), cell_hosts.c.service_host == service_host
                )
            )
        )
        if age is None or age <= self._down_after:
            return None
        return f"the host has not reported for {age:.0f} s"

    def unacknowledged(self, limit: int) -> list[tuple[HostReport, int]]:
        """Return descriptions that no scheduler has yet, each with its number."""
        rows = self._database.read(
            lambda connection: connection.execute(
                select(cell_hosts.c.description, cell_hosts.c.description_number)
                .where(self._here(), cell_hosts.c.description_number != cell_hosts.c.acknowledged_number)
                .order_by(cell_hosts.c.service_host, cell_hosts.c.nodename)
                .limit(limit)
            ).all()
        )
        return [(msgspec.json.decode(row.description, type=HostReport), row.description_number) for row in rows]

    def acknowledge(self, reports: Sequence[tuple[HostReport, int]]) -> None:
        """Record that a scheduler has these descriptions; one that has changed again meanwhile stays to be sent."""
        by_number: dict[int, list[tuple[str, str]]] = {}
        for report, number in reports:
            by_number.setdefault(number, []).append((report.service_host, report.nodename))

        def work(connection: Connection) -> None:
            for number, nodes in by_number.items():
                connection.execute(
                    cell_hosts.update().where(self._here(), _NODE.in_(nodes)).values(acknowledged_number=number)
                )

        self._database.write(work)

    def seen_since(self, moment: float | None, interval: float) -> tuple[list[str], float]:
        """Return the hosts seen since a moment of the database's clock, else within ``interval``; and its time now."""

        def work(connection: Connection) -> tuple[list[str], float]:
            clock: float = connection.scalars(select(now())).one()
            since = clock - interval if moment is None else moment
            names = connection.scalars(
                select(cell_hosts.c.service_host).where(self._here(), cell_hosts.c.last_seen >= since).distinct()
            )
            return list(names), clock

        return self._database.read(work)

    def _alive(self, connection: Connection, agent: str, names: Sequence[str]) -> list[str]:
        """Record that these hosts of an agent are alive; return those that are not known as its own."""
        here = (self._here(), cell_hosts.c.agent == agent, cell_hosts.c.service_host.in_(names))
        seen = connection.execute(cell_hosts.update().where(*here).values(last_seen=now())).rowcount
        if seen >= len(names):
            return []
        known = set(connection.scalars(select(cell_hosts.c.service_host).where(*here)))
        return [name for name in names if name not in known]

    def _describe(self, connection: Connection, hosts: Sequence[HostReport]) -> bool:
        """Record descriptions; tell whether any was new or has changed."""
        nodes = [(host.service_host, host.nodename) for host in hosts]
        found = connection.execute(
            select(cell_hosts.c.service_host, cell_hosts.c.nodename, cell_hosts.c.description).where(
                self._here(), _NODE.in_(nodes)
            )
        )
        known: dict[tuple[str, str], bytes] = {(row.service_host, row.nodename): row.description for row in found}
        new: list[dict[str, Any]] = []
        changed = 0
        for host, node in zip(hosts, nodes, strict=True):
            row: dict[str, Any] = {
                "service_host": host.service_host,
                "nodename": host.nodename,
                "agent": host.agent,
                "description": msgspec.json.encode(host, order="sorted"),
            }
            if node not in known:
                new.append(row)
            elif known[node] != row["description"]:
                changed += 1
                row["description_number"] = cell_hosts.c.description_number + 1
                connection.execute(cell_hosts.update().where(self._here(), _NODE.in_([node])).values(**row))
        connection.execute(cell_hosts.update().where(self._here(), _NODE.in_(nodes)).values(last_seen=now()))
        if new:
            statement = cell_hosts.insert().values(
                cell_uuid=self._cell_uuid, description_number=1, acknowledged_number=0, last_seen=now()
            )
            connection.execute(statement, new)
        return bool(new or changed)

    def _here(self) -> ColumnElement[bool]:
        return cell_hosts.c.cell_uuid == self._cell_uuid


class HostForwarder:
    """Tells the schedulers of a cell's hosts, round by round. Nothing of a build depends on it."""

    def __init__(self, conf: cfg.ConfigOpts, cell_uuid: str, hosts: CellHosts, scheduler: Client, service: str) -> None:
        self._cell_uuid = cell_uuid
        self._hosts = hosts
        self._scheduler = scheduler
        self._service = service
        self._interval: float = conf.conductor.report_interval
        self._timeout: float = min(conf.rpc.call_timeout, _LONGEST_WAIT)
        self._told_at: float | None = None
        self._next_round = 0.0
        self._periodic = Periodic("host reports", self._tick, min(_TICK, self._interval))

    def start(self) -> None:
        """Begin with a round."""
        self._periodic.start()

    def stop(self) -> None:
        """End with the round under way."""
        self._periodic.stop()

    def _tick(self) -> None:
        if time.monotonic() < self._next_round and not self._hosts.changed.is_set():
            return
        # A round that fails is not repeated before the next one is due.
        self._next_round = time.monotonic() + self._interval
        self._hosts.changed.clear()
        with context.bound(service=self._service):
            self.forward()

    def forward(self) -> None:
        """Tell a scheduler what has changed, and who has been alive since it was last told.

        :raises Unavailable: no scheduler answers, or the records cannot be reached; the next round says it all again.
        """
        alive, clock = self._hosts.seen_since(self._told_at, self._interval)
        while reports := self._hosts.unacknowledged(_BATCH):
            self._report(hosts=tuple(report for report, _number in reports))
            self._hosts.acknowledge(reports)
        for names in _parts(alive, _ALIVE_BATCH):
            self._report(alive=tuple(names))
        self._told_at = clock

    def _report(self, hosts: tuple[HostReport, ...] = (), alive: tuple[str, ...] = ()) -> None:
        message = ReportHosts(request_id=ids.fresh(), cell_uuid=self._cell_uuid, hosts=hosts, alive=alive)
        self._scheduler.call(message, timeout=self._timeout)


def _parts(whole: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(whole), size):
        yield whole[start : start + size]
