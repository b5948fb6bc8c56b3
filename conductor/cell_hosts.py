"""The hosts of a cell: what their agents report, kept in the cell."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from oslo_config import cfg
from sqlalchemy import ColumnElement, Connection, Update, bindparam, case, exc, func, select, true, tuple_, update

from conductor.schema import cell_hosts
from moorage import errors
from moorage.bus import serves
from moorage.columns import now
from moorage.database import Database
from moorage.messages import HostsReported, ReportHostsInCell
from moorage.model import HostReport

T = TypeVar("T")

_NODE = tuple_(cell_hosts.c.service_host, cell_hosts.c.nodename)
_DESCRIPTION = tuple_(cell_hosts.c.service_host, cell_hosts.c.nodename, cell_hosts.c.description_number)

# UPDATE cell_hosts SET agent = …, description = …, description_number = description_number + 1
#  WHERE cell_uuid = … AND service_host = … AND nodename = …
_REDESCRIBE = (
    update(cell_hosts)
    .where(
        cell_hosts.c.cell_uuid == bindparam("of_cell"),
        cell_hosts.c.service_host == bindparam("of_host"),
        cell_hosts.c.nodename == bindparam("of_node"),
    )
    .values(
        agent=bindparam("new_agent"),
        description=bindparam("new_description"),
        description_number=cell_hosts.c.description_number + 1,
    )
)

#: Rows of one statement, and descriptions of one report. Arbitrary: below every limit of the databases.
BATCH = 1000


class CellHosts:
    """The records of a cell's hosts, and the endpoint for what their agents report."""

    def __init__(self, conf: cfg.ConfigOpts, database: Database, cell_uuid: str) -> None:
        self._database = database
        self._cell_uuid = cell_uuid
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
        returning: list[str] = []

        def work(connection: Connection) -> bool:
            unknown.clear()
            changed = [self._describe(connection, part) for part in parts(message.hosts, BATCH)]
            for names in parts(message.alive, BATCH):
                unknown.extend(self._alive(connection, message.agent, names))
            for names in parts(message.started, BATCH):
                connection.execute(self._of(message.agent, names).values(is_returning=True))
            returning[:] = self._returning(connection, message.agent)
            return any(changed)

        try:
            if self._database.write(work):
                self.changed.set()
        except exc.IntegrityError as fault:
            # Another report of the same host has come first: repeated, this one finds it there.
            raise errors.RequestInProgress(request_id=message.request_id) from fault
        if unknown:
            raise errors.HostNotFound(name=unknown[0])
        return HostsReported(returning=tuple(returning))

    def returned(self, agent: str, hosts: Sequence[str]) -> None:
        """Record that hosts have worked through what ended while they were away: from now on they count as up."""

        def work(connection: Connection) -> None:
            for names in parts(hosts, BATCH):
                connection.execute(self._of(agent, names).values(is_returning=False, last_seen=now()))

        self._database.write(work)
        self.changed.set()

    def why_returning(self, service_host: str) -> str | None:
        """Return why no build is to begin on a host that reports, or nothing if it may."""
        returning = self._database.read(
            lambda connection: connection.scalar(
                select(func.max(cell_hosts.c.is_returning)).where(
                    self._here(), cell_hosts.c.service_host == service_host
                )
            )
        )
        return "the host has not yet worked through what ended while it was away" if returning else None

    def why_down(self, service_host: str) -> str | None:
        """Return why no build is to be moved to a host, or nothing if it is up."""
        return self.why_silent(service_host) or self.why_returning(service_host)

    def why_silent(self, service_host: str) -> str | None:
        """Return since when this cell has missed a host, or nothing if it has not."""
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
        """Return descriptions of hosts that are up and that no scheduler has yet, each with its number."""
        rows = self._database.read(
            lambda connection: connection.execute(
                select(cell_hosts.c.description, cell_hosts.c.description_number)
                .where(*self._up(), cell_hosts.c.description_number != cell_hosts.c.acknowledged_number)
                .order_by(cell_hosts.c.service_host, cell_hosts.c.nodename)
                .limit(limit)
            ).all()
        )
        return [(msgspec.json.decode(row.description, type=HostReport), row.description_number) for row in rows]

    def acknowledge(self, reports: Sequence[tuple[HostReport, int]]) -> None:
        """Record that a scheduler has these descriptions; one that has changed again meanwhile stays to be sent."""
        had = [(report.service_host, report.nodename, number) for report, number in reports]
        # UPDATE cell_hosts SET acknowledged_number = description_number
        #  WHERE … AND (service_host, nodename, description_number) IN (…)
        statement = (
            cell_hosts.update()
            .where(self._here(), _DESCRIPTION.in_(had))
            .values(acknowledged_number=cell_hosts.c.description_number)
        )
        self._database.write(lambda connection: connection.execute(statement))

    def seen_since(self, moment: float | None, interval: float) -> tuple[list[str], float]:
        """Return the hosts that are up and seen since a moment of the database's clock, and its time now.

        :param interval: without a moment, the seconds before now.
        """

        def work(connection: Connection) -> tuple[list[str], float]:
            clock: float = connection.scalars(select(now())).one()
            since = clock - interval if moment is None else moment
            names = connection.scalars(
                select(cell_hosts.c.service_host).where(*self._up(), cell_hosts.c.last_seen >= since).distinct()
            )
            return list(names), clock

        return self._database.read(work)

    def _alive(self, connection: Connection, agent: str, names: Sequence[str]) -> list[str]:
        """Record that these hosts of an agent are alive; return those that are not known as its own."""
        here = (self._here(), cell_hosts.c.agent == agent, cell_hosts.c.service_host.in_(names))
        seen = connection.execute(self._seen(*here)).rowcount
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
        changed: list[dict[str, Any]] = []
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
                changed.append(
                    {
                        "of_cell": self._cell_uuid,
                        "of_host": host.service_host,
                        "of_node": host.nodename,
                        "new_agent": host.agent,
                        "new_description": row["description"],
                    }
                )
        if changed:
            # Put together once: drivers that measure their hosts change thousands of descriptions every few seconds.
            connection.execute(_REDESCRIBE, changed)
        connection.execute(self._seen(self._here(), _NODE.in_(nodes)))
        if new:
            statement = cell_hosts.insert().values(
                cell_uuid=self._cell_uuid, description_number=1, acknowledged_number=0, last_seen=now()
            )
            connection.execute(statement, new)
        return bool(new or changed)

    def _returning(self, connection: Connection, agent: str) -> list[str]:
        column = cell_hosts.c.service_host
        hosts = select(column).where(self._here(), cell_hosts.c.agent == agent, cell_hosts.c.is_returning).distinct()
        return list(connection.scalars(hosts.order_by(column)))

    # UPDATE cell_hosts SET is_returning = CASE WHEN last_seen < now - :down_after THEN true ELSE is_returning END,
    #  last_seen = now WHERE …
    # In this order: MySQL lets a later assignment see the result of an earlier one.
    def _seen(self, *where: ColumnElement[bool]) -> Update:
        missed = cell_hosts.c.last_seen < now() - self._down_after
        return (
            update(cell_hosts)
            .where(*where)
            .ordered_values(
                (cell_hosts.c.is_returning, case((missed, true()), else_=cell_hosts.c.is_returning)),
                (cell_hosts.c.last_seen, now()),
            )
        )

    def _of(self, agent: str, names: Sequence[str]) -> Update:
        return update(cell_hosts).where(self._here(), cell_hosts.c.agent == agent, cell_hosts.c.service_host.in_(names))

    def _up(self) -> list[ColumnElement[bool]]:
        return [self._here(), cell_hosts.c.is_returning.is_(False)]

    def _here(self) -> ColumnElement[bool]:
        return cell_hosts.c.cell_uuid == self._cell_uuid


def parts(whole: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield a sequence in pieces of at most ``size``."""
    for start in range(0, len(whole), size):
        yield whole[start : start + size]
