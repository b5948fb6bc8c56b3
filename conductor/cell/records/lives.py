"""Records of host lives. A life is a number that is raised each time a host begins to return after an absence.

An agent's message about the guests of a host names the life in which the list was made. The transaction that uses the
list compares this life with the current one, so that a list from an earlier life proves nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, bindparam, case, func, select, true, update

from conductor.engine.rows import batches
from conductor.schema import cell_hosts
from moorage.db.columns import now
from moorage.db.forced_index import by_index


@dataclass(frozen=True, slots=True)
class Life:
    """The current life of a host; number 0 for a host that has never returned, and for an unknown host."""

    number: int = 0
    is_returning: bool = False


_UNKNOWN = Life()
#: The condition that a host was silent for too long: when it is heard, it begins another life.
MISSED = cell_hosts.c.last_seen < now() - bindparam("down_after")
# UPDATE cell_hosts SET is_returning = CASE WHEN last_seen < now - :down_after THEN true ELSE is_returning END,
#  life = CASE WHEN last_seen < now - :down_after THEN life + 1 ELSE life END, last_seen = now WHERE cell_uuid = …
# In this order: MySQL lets a later assignment see the result of an earlier one.
#: Records that hosts were heard; see :meth:`HostLives.catch_up`.
SEEN = (
    update(cell_hosts)
    .where(cell_hosts.c.cell_uuid == bindparam("of_cell"))
    .ordered_values(
        (cell_hosts.c.is_returning, case((MISSED, true()), else_=cell_hosts.c.is_returning)),
        (cell_hosts.c.life, case((MISSED, cell_hosts.c.life + 1), else_=cell_hosts.c.life)),
        (cell_hosts.c.last_seen, now()),
    )
)
# Built once: it takes SQLAlchemy longer to build a query than to run it.
_PRESENT = select(cell_hosts.c.service_host, cell_hosts.c.life, cell_hosts.c.is_returning).where(
    cell_hosts.c.cell_uuid == bindparam("cell_uuid"),
    cell_hosts.c.service_host.in_(bindparam("hosts", expanding=True)),
)
_LOCKED = _PRESENT.with_for_update()
_RETURNING = by_index(
    select(cell_hosts.c.service_host, func.max(cell_hosts.c.life).label("life"))
    .where(
        cell_hosts.c.cell_uuid == bindparam("cell_uuid"),
        cell_hosts.c.agent == bindparam("of_agent"),
        cell_hosts.c.is_returning,
    )
    .group_by(cell_hosts.c.service_host)
    .order_by(cell_hosts.c.service_host),
    # Each report of an agent reads this. MariaDB would read all hosts of the cell, in the order of the primary key.
    cell_hosts,
    "ix_cell_hosts_agent",
)
# SELECT service_host, MAX(other.life) FROM cell_hosts
#  JOIN cell_hosts other ON other.service_host = service_host AND other.life > life AND …
#  WHERE cell_uuid = … AND agent = … AND service_host IN (…) GROUP BY service_host
_OTHER = cell_hosts.alias("other")
_BEHIND = (
    select(cell_hosts.c.service_host, func.max(_OTHER.c.life).label("life"))
    .join(
        _OTHER,
        and_(
            _OTHER.c.cell_uuid == cell_hosts.c.cell_uuid,
            _OTHER.c.service_host == cell_hosts.c.service_host,
            _OTHER.c.life > cell_hosts.c.life,
        ),
    )
    .where(
        cell_hosts.c.cell_uuid == bindparam("cell_uuid"),
        cell_hosts.c.agent == bindparam("of_agent"),
        cell_hosts.c.service_host.in_(bindparam("hosts", expanding=True)),
    )
    .group_by(cell_hosts.c.service_host)
)


class HostLives:
    """Reads and raises the lives of one cell's hosts; each method is a part of the caller's transaction."""

    def __init__(self, cell_uuid: str) -> None:
        self._cell_uuid = cell_uuid

    def of_hosts(self, connection: Connection, hosts: Collection[str], *, lock: bool = False) -> dict[str, Life]:
        """Return the current lives of hosts, keyed by name; an unknown host is left out.

        :param lock: lock these hosts, so that they cannot begin another life before the transaction ends.
        """
        found: dict[str, Life] = {}
        # A service host may have several nodes, each with a row.
        named = {"cell_uuid": self._cell_uuid, "hosts": list(hosts)}
        for host, number, is_returning in connection.execute(_LOCKED if lock else _PRESENT, named):
            known = found.get(host, _UNKNOWN)
            found[host] = Life(max(known.number, number), known.is_returning or is_returning)
        return found

    def of_host(self, connection: Connection, host: str) -> Life:
        """Return the current life of a host."""
        return self.of_hosts(connection, [host]).get(host, _UNKNOWN)

    def returning(self, connection: Connection, agent: str) -> dict[str, int]:
        """Return the current life of each returning host of an agent, keyed by host."""
        found = connection.execute(_RETURNING, {"cell_uuid": self._cell_uuid, "of_agent": agent})
        return {row.service_host: row.life for row in found}

    def returning_in(
        self, connection: Connection, hosts: Sequence[str], lives: Mapping[str, int], *, lock: bool = False
    ) -> list[str]:
        """Return the hosts that are returning and are in the life that ``lives`` names for them, if it names one."""
        found: dict[str, Life] = {}
        for names in batches(hosts):
            found |= self.of_hosts(connection, names, lock=lock)
        return [
            host
            for host in hosts
            if host in found and found[host].is_returning and lives.get(host, found[host].number) == found[host].number
        ]

    def begin(self, connection: Connection, agent: str, hosts: Sequence[str]) -> None:
        """Begin a new life of an agent's hosts: they are returning until :meth:`CellHosts.returned`."""
        self.catch_up(connection, agent, hosts)
        for names in batches(hosts):
            connection.execute(
                update(cell_hosts)
                .where(self._of_this_cell(), cell_hosts.c.agent == agent, cell_hosts.c.service_host.in_(names))
                .values(is_returning=True, life=cell_hosts.c.life + 1)
            )

    def catch_up(self, connection: Connection, agent: str, hosts: Sequence[str]) -> None:
        """Raise the lives of hosts that have had later lives under another agent, with other nodes.

        The life of a host is the greatest of its nodes. Without this, the next life would have a former number, and no
        list of guests would be of the current life. So it is done before each new life.
        """
        for names in batches(hosts):
            named = {"cell_uuid": self._cell_uuid, "of_agent": agent, "hosts": names}
            for row in connection.execute(_BEHIND, named).all():
                these = (
                    self._of_this_cell(),
                    cell_hosts.c.agent == agent,
                    cell_hosts.c.service_host == row.service_host,
                )
                connection.execute(update(cell_hosts).where(*these).values(life=row.life))

    def _of_this_cell(self) -> ColumnElement[bool]:
        return cell_hosts.c.cell_uuid == self._cell_uuid
