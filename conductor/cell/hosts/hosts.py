"""Records of a cell's hosts, and the endpoint for the reports of their agents."""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from oslo_config import cfg
from sqlalchemy import ColumnElement, Connection, Select, bindparam, exc, exists, func, select, tuple_, update

from conductor.cell.hosts import agent_reports, owners, renamed_nodes
from conductor.cell.hosts.agent_reports import Kind, MessagePlace
from conductor.cell.hosts.forwarded import OF_NODE, ForwardedHosts
from conductor.cell.hosts.reach import HostReach
from conductor.cell.records.lives import MISSED, SEEN, HostLives, Life
from conductor.engine.rows import batches
from conductor.schema import cell_hosts
from moorage import errors
from moorage.bus.bus import serves
from moorage.db.columns import CLOCK_SET_BACK, is_ahead, now, rows_named
from moorage.db.database import Database
from moorage.messages import HostsReported, ReportHostsInCell
from moorage.model import HostReport
from moorage.model.basis import fault_of_name

#: A heartbeat of a host is recorded once in this fraction of `host_down_after`, or of `silent_after` if that is
#: shorter. Heartbeats are nearly all the writes of an idle cloud. A host has missed several heartbeats in a row before
#: it counts as down, or its agent as silent. So the record of a living host is less than two such intervals old.
_RECORDED_IN = 1 / 6

#: The reason why no build may begin on a host that is returning.
IS_RETURNING = "the host has not yet worked through what ended while it was away"

_NODE = tuple_(cell_hosts.c.service_host, cell_hosts.c.nodename)

# Built once: it takes SQLAlchemy longer to build a statement than to run it, and every agent reports every few seconds.
_OF_AGENT = (cell_hosts.c.cell_uuid == bindparam("of_cell"), cell_hosts.c.agent == bindparam("of_agent"))
_OF_HOST = (_OF_AGENT[0], cell_hosts.c.service_host == bindparam("of_host"))
_LAST_SEEN = select(now(), func.max(cell_hosts.c.last_seen), now() - func.max(cell_hosts.c.last_seen)).where(*_OF_HOST)
_KNOWN = select(cell_hosts.c.service_host, MISSED.label("missed")).where(*_OF_AGENT)

# SELECT COUNT(DISTINCT service_host), :now FROM cell_hosts
#  WHERE cell_uuid = … AND agent = … AND last_seen > :now - :lately AND last_seen is not ahead of the clock
_RECORDED = select(func.count(cell_hosts.c.service_host.distinct()), now()).where(
    *_OF_AGENT, cell_hosts.c.last_seen > now() - bindparam("lately"), ~is_ahead(cell_hosts.c.last_seen)
)


def _undescribed() -> Select[tuple[str]]:
    """Return the query for the hosts of an agent that the agent must describe."""
    # SELECT DISTINCT service_host FROM cell_hosts WHERE cell_uuid = … AND agent = … AND undescribed
    #    AND NOT EXISTS (SELECT * FROM cell_hosts other WHERE … AND NOT other.undescribed) ORDER BY service_host
    column, other = cell_hosts.c.service_host, cell_hosts.alias()
    # A node that the host no longer has is never described again: check whether any node of the host was described.
    is_described = exists().where(
        other.c.cell_uuid == bindparam("of_cell"), other.c.service_host == column, other.c.undescribed.is_(False)
    )
    return select(column).where(*_OF_AGENT, cell_hosts.c.undescribed, ~is_described).distinct().order_by(column)


_UNDESCRIBED = _undescribed()

# SELECT service_host, MIN(undescribed), MAX(acknowledged_number) FROM cell_hosts WHERE … GROUP BY service_host
_OTHER_NODES = select(
    cell_hosts.c.service_host,
    func.min(cell_hosts.c.undescribed).label("is_requested"),
    func.max(cell_hosts.c.acknowledged_number).label("acknowledged"),
).group_by(cell_hosts.c.service_host)

_ALL_SEEN = SEEN.where(_OF_AGENT[1])

_REDESCRIBE = (
    update(cell_hosts)
    .where(*OF_NODE)
    .values(
        agent=bindparam("new_agent"),
        description=bindparam("new_description"),
        undescribed=False,
        description_number=cell_hosts.c.description_number + 1,
    )
)


class CellHosts:
    """Serves `report_hosts`, and reads and writes the records of one cell's hosts."""

    def __init__(
        self, conf: cfg.ConfigOpts, database: Database, cell_uuid: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._cell_uuid = cell_uuid
        self._monotonic = monotonic
        self.down_after: float = conf.scheduler.host_down_after
        self.reach = HostReach(self.down_after, monotonic)
        self._recorded_in = _RECORDED_IN * min(self.down_after, conf.service.silent_after)
        #: For each host that has not reported since the database's clock was set back: its recorded time, and when it
        #: was first read, by the monotonic clock.
        self._ahead: dict[str, tuple[float, float]] = {}
        self._lives = HostLives(cell_uuid)
        self.forwarded = ForwardedHosts(database, cell_uuid, self.down_after)
        #: Set when there are changes for the schedulers that should not wait for the next round.
        self.changed = threading.Event()

    @serves(ReportHostsInCell)
    def report_hosts(self, message: ReportHostsInCell) -> HostsReported:
        """Record new and changed descriptions, and which hosts are alive; a late report is ignored.

        :raises InvalidRequest: a name in a description ends with a blank or has a control character.
        :raises InvalidState: a described host belongs to another agent, which is alive.
        :raises HostNotFound: a host that is alive was never described to this cell, or only by another agent. The rest
            of the report is recorded; the agent must describe its hosts.
        """
        for number, report in enumerate(message.hosts):
            # After the error, the agent sends the other descriptions again, without this one.
            if field := report.misnamed():
                reason = f"it {fault_of_name(getattr(report, field))}"
                raise errors.InvalidRequest(path=f"$.hosts[{number}].{field}", reason=reason)
        unknown: list[str] = []

        def work(connection: Connection) -> tuple[HostsReported, bool]:
            unknown.clear()
            kind: Kind = "alive" if message.alive or message.withheld else "described"
            place = agent_reports.take(connection, self._cell_uuid, message, kind)
            changed = False
            if place is MessagePlace.NEXT:
                changed = self._record(connection, message)
                unknown.extend(self._alive(connection, message.agent, message.alive))
                self._withhold(connection, message.agent, message.withheld)
            return self._answer(connection, message, place), changed

        try:
            answer, changed = self._database.write(work)
        except exc.IntegrityError as fault:
            # A concurrent report has inserted the same host first: a repetition of this report finds the row.
            raise errors.RequestInProgress(request_id=message.request_id) from fault
        if changed:
            self.changed.set()
        # For an agent of the previous release this error is the only request to describe its hosts again.
        if unknown or (answer.undescribed and message.incarnation is None):
            raise errors.HostNotFound(name=[*unknown, *answer.undescribed][0])
        return answer

    def _record(self, connection: Connection, message: ReportHostsInCell) -> bool:
        """Record descriptions, and new lives of started hosts; return True if the schedulers must get a description."""
        started = frozenset(message.started)
        # A driver may list a node twice: the last description counts, as it does for the agent.
        described = {(host.service_host, host.nodename): host for host in message.hosts}
        of_others = self._of_others(connection, message.agent, {service_host for service_host, _node in described})
        for service_host, agent in of_others.items():
            raise errors.InvalidState(reason=f"host {service_host} belongs to agent {agent}, which is alive")
        changed = [self._describe(connection, part, started) for part in batches(list(described.values()))]
        self._lives.begin(connection, message.agent, message.started)
        return any(changed)

    def _answer(self, connection: Connection, message: ReportHostsInCell, place: MessagePlace) -> HostsReported:
        lives = self._lives.returning(connection, message.agent)
        undescribed: list[str] = []
        if message.alive:
            undescribed = list(connection.scalars(_UNDESCRIBED, self._of_agent(message.agent)))
        return HostsReported(
            returning=tuple(lives),
            lives=lives,
            undescribed=tuple(undescribed),
            superseded=place is MessagePlace.SUPERSEDED,
            of_others=self._of_others(connection, message.agent, message.intended or ()),
        )

    def _of_others(self, connection: Connection, agent: str, hosts: Collection[str]) -> dict[str, str]:
        # As in `why_silent`: an agent that no conductor could hear is not silent.
        heard = self.reach.has_lasted()
        return owners.of_others(connection, self._cell_uuid, agent, hosts, self.down_after, could_be_heard=heard)

    def returned(self, agent: str, hosts: Sequence[str], lives: Mapping[str, int]) -> list[str]:
        """Record that hosts have returned: they have destroyed the ended guests, and count as up from now on.

        :param lives: the life in which each host has returned; a host that has begun another life is still returning.
        :return: the names of the hosts that have returned.
        """

        def work(connection: Connection) -> list[str]:
            found = self._lives.returning_in(connection, hosts, lives, lock=True)
            column = cell_hosts.c.service_host
            for names in batches(found):
                these = (self._of_this_cell(), cell_hosts.c.agent == agent, column.in_(names))
                connection.execute(update(cell_hosts).where(*these).values(is_returning=False, last_seen=now()))
                # A node that only an earlier agent has described must not keep its host returning.
                whole = sorted(set(connection.scalars(select(column).where(*these))))
                left = (self._of_this_cell(), column.in_(whole), cell_hosts.c.is_returning)
                connection.execute(update(cell_hosts).where(*left).values(is_returning=False))
            return found

        returned = self._database.write(work)
        self.changed.set()
        return returned

    def held_up(self, agent: str, hosts: Sequence[str], lives: Mapping[str, int]) -> None:
        """Begin another life of hosts that cannot count as up yet, so that a list of their guests is used only once."""

        def work(connection: Connection) -> None:
            self._lives.begin(connection, agent, self._lives.returning_in(connection, hosts, lives, lock=True))

        self._database.write(work)

    def agent_of(self, service_host: str) -> str | None:
        """Return the agent that reports a host, or None for an unknown host."""
        return self._database.read(lambda connection: owners.agent_of(connection, self._cell_uuid, service_host))

    def why_returning(self, service_host: str) -> str | None:
        """Return the reason if a host is still returning, so that no build may begin there, else None."""
        query = select(func.max(cell_hosts.c.is_returning)).where(
            self._of_this_cell(), cell_hosts.c.service_host == service_host
        )
        returning = self._database.read(lambda connection: connection.scalar(query))
        return IS_RETURNING if returning else None

    def why_silent(self, service_host: str) -> str | None:
        """Return the reason if a host has been silent for longer than `host_down_after`, else None.

        A host is not silent if no conductor could hear it: its time-out begins again when this conductor starts, and
        when the database's clock is set forward.
        """
        named = self._of_host(service_host)
        clock, seen, age = self._database.read(lambda connection: connection.execute(_LAST_SEEN, named).one())
        self.reach.note_clock(clock)
        if not self.reach.has_lasted():
            return None
        if age is not None and age < -CLOCK_SET_BACK:
            age = self._since_set_back(service_host, seen)
        if age is None or age <= self.down_after:
            return None
        return f"the host has not reported for {age:.0f} s"

    def may_live(self, service_host: str) -> bool:
        """Return whether a host may be alive: it is not silent; without a record, it could still report itself."""
        if self.why_silent(service_host) is not None:
            return False
        return self.agent_of(service_host) is not None or not self.reach.has_lasted()

    def is_late(self, service_host: str) -> bool:
        """Return whether a host has missed heartbeats, so that its agent may be dead; see ``_RECORDED_IN``."""
        last = self._database.read(lambda connection: connection.execute(_LAST_SEEN, self._of_host(service_host)).one())
        return last[2] is not None and last[2] > 2 * self._recorded_in

    def has_reported_since(self, service_host: str, moment: float) -> bool:
        """Return whether a host may have reported after a moment of the database's clock; see ``_RECORDED_IN``."""
        last = self._database.read(lambda connection: connection.execute(_LAST_SEEN, self._of_host(service_host)).one())
        return last[1] is not None and last[1] > moment - 2 * self._recorded_in

    def database_clock(self) -> float:
        """Return the time of the database's clock, in seconds.

        :raises StoreUnavailable: the database cannot be reached.
        """
        return self._database.read(lambda connection: connection.execute(select(now())).scalar_one())

    def _since_set_back(self, service_host: str, last_seen: float) -> float:
        """Return the seconds for which a host is known to be silent since the database's clock was set back."""
        present = self._monotonic()
        known, since = self._ahead.get(service_host, (last_seen, present))
        if known != last_seen:
            since = present  # the host has reported since, and the clock was set back again
        self._ahead[service_host] = (last_seen, since)
        return present - since

    def is_withheld(self, service_host: str) -> bool:
        """Return whether a silent host's agent is alive: the host's tree is refused, but guests can be destroyed."""
        withheld = select(func.count()).where(
            self._of_this_cell(),
            cell_hosts.c.service_host == service_host,
            cell_hosts.c.withheld_at >= now() - self.down_after,
            ~is_ahead(cell_hosts.c.withheld_at),
        )
        return bool(self._database.read(lambda connection: connection.scalar(withheld)))

    def _withhold(self, connection: Connection, agent: str, names: Sequence[str]) -> None:
        """Record that an agent withholds hosts: every conductor that has an order for one of them must know it."""
        of_others = self._of_others(connection, agent, names)
        for part in batches([name for name in names if name not in of_others]):
            # The agent may have another name than the one that described the host: orders go to it from now on.
            here = (self._of_this_cell(), cell_hosts.c.service_host.in_(part))
            connection.execute(update(cell_hosts).where(*here).values(agent=agent, withheld_at=now()))

    def _alive(self, connection: Connection, agent: str, names: Sequence[str]) -> list[str]:
        """Record that these hosts of an agent are alive; return those that are unknown or belong to another agent."""
        if not names or self._are_recorded(connection, agent, len(names)):
            return []
        named = self._of_agent(agent) | {"down_after": self.down_after}
        rows = connection.execute(_KNOWN, named).all()
        known = frozenset(row.service_host for row in rows)
        missed = {row.service_host for row in rows if row.missed}.intersection(names)
        # Another agent may have taken a silent host over, with other nodes: then this agent must not get it back.
        others = self._of_others(connection, agent, missed) if missed else {}
        self._lives.catch_up(connection, agent, sorted(missed.difference(others)))
        seen = [name for name in names if name not in others]
        if known.issubset(seen):
            connection.execute(_ALL_SEEN, named)
        else:
            for these in rows_named(cell_hosts.c.service_host, seen, known):
                connection.execute(_ALL_SEEN.where(these), named)
        return [name for name in names if name not in known or name in others]

    def _are_recorded(self, connection: Connection, agent: str, hosts: int) -> bool:
        """Return whether heartbeats of this number of hosts of an agent were recorded a moment ago.

        If the agent now reports other hosts, this is found out when the records are older.
        """
        named = self._of_agent(agent) | {"lately": self._recorded_in}
        count, clock = connection.execute(_RECORDED, named).one()
        self.reach.note_clock(clock)
        return bool(count == hosts)

    def _describe(self, connection: Connection, hosts: Sequence[HostReport], started: Collection[str]) -> bool:
        """Record descriptions; return True if any description is new, has changed or was requested."""
        number = renamed_nodes.follow(connection, self._cell_uuid, hosts, started)
        nodes = [(host.service_host, host.nodename) for host in hosts]
        columns = (cell_hosts.c.service_host, cell_hosts.c.nodename, cell_hosts.c.description, cell_hosts.c.undescribed)
        query = select(*columns, MISSED.label("missed")).where(self._of_this_cell(), _NODE.in_(nodes))
        down_after = {"down_after": self.down_after}
        found = connection.execute(query, down_after).all()
        known: dict[tuple[str, str], bytes | None] = {
            # A requested description counts as changed in any case; see below for one that comes too early.
            (row.service_host, row.nodename): None if row.undescribed else row.description
            for row in found
        }
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
            elif known[node] is None and host.service_host not in started:
                continue  # sent before the agent received the request: it must report the host's providers first
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
            # One statement: drivers that measure their hosts change thousands of descriptions every few seconds.
            connection.execute(_REDESCRIBE, changed)
        names, agents = sorted({host.service_host for host in hosts}), sorted({host.agent for host in hosts})
        missed = sorted({row.service_host for row in found if row.missed})
        for agent in agents:
            self._lives.catch_up(connection, agent, missed)
        seen = SEEN.where(cell_hosts.c.agent.in_(agents), cell_hosts.c.service_host.in_(names))
        connection.execute(seen, {"of_cell": self._cell_uuid} | down_after)
        if new:
            self._add(connection, new, names, started, number + 1)
        return bool(new or changed)

    def _add(
        self,
        connection: Connection,
        new: Sequence[dict[str, Any]],
        names: Sequence[str],
        started: Collection[str],
        number: int,
    ) -> None:
        """Add the rows of new nodes, whose hosts may have other nodes; ``number`` is the first of a description."""
        lives = self._lives.of_hosts(connection, names)
        of_others = _OTHER_NODES.where(self._of_this_cell(), cell_hosts.c.service_host.in_(names))
        others = {row.service_host: row for row in connection.execute(of_others)}
        for row in new:
            host, other = row["service_host"], others.get(row["service_host"])
            row["life"] = lives.get(host, Life()).number
            # Otherwise the host would count as described, and the request would never reach its agent.
            row["undescribed"] = other is not None and other.is_requested and host not in started
            # By a number above the first, the schedulers see that they have had the host, if it was deleted meanwhile.
            row["description_number"] = number + (other is not None and other.acknowledged > 0)
        statement = cell_hosts.insert().values(cell_uuid=self._cell_uuid, acknowledged_number=0, last_seen=now())
        connection.execute(statement, new)

    def _of_agent(self, agent: str) -> dict[str, str | float]:
        return {"of_cell": self._cell_uuid, "of_agent": agent}

    def _of_host(self, service_host: str) -> dict[str, str]:
        return {"of_cell": self._cell_uuid, "of_host": service_host}

    def _of_this_cell(self) -> ColumnElement[bool]:
        return cell_hosts.c.cell_uuid == self._cell_uuid
