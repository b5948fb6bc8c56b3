"""The lives of a cell's hosts: each time a host begins to return, its number is raised.

A host's message about its guests names the life in which it is true. Compared in the transaction that acts, it proves
nothing once the host has begun another life.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, func, select, update

from conductor.schema import cell_hosts


@dataclass(frozen=True, slots=True)
class Life:
    """The present life of a host; 0 is that of a host that has never returned, and of one that is not known."""

    number: int = 0
    is_returning: bool = False


_UNKNOWN = Life()


class HostLives:
    """The records of lives; each method is a part of the transaction that it is given."""

    def __init__(self, cell_uuid: str) -> None:
        self._cell_uuid = cell_uuid

    def of_hosts(self, connection: Connection, hosts: Collection[str], *, lock: bool = False) -> dict[str, Life]:
        """Return the present lives of hosts; one that is not known is left out.

        :param lock: whether none of them may begin another life before the transaction ends.
        """
        columns = select(cell_hosts.c.service_host, cell_hosts.c.life, cell_hosts.c.is_returning)
        query = columns.where(self._here(), cell_hosts.c.service_host.in_(hosts))
        found: dict[str, Life] = {}
        # A service host may have several nodes, with a row each.
        for host, number, is_returning in connection.execute(query.with_for_update() if lock else query):
            known = found.get(host, _UNKNOWN)
            found[host] = Life(max(known.number, number), known.is_returning or is_returning)
        return found

    def of_host(self, connection: Connection, host: str) -> Life:
        """Return the present life of a host."""
        return self.of_hosts(connection, [host]).get(host, _UNKNOWN)

    def returning(self, connection: Connection, agent: str) -> dict[str, int]:
        """Return the hosts of an agent that are returning, by name, with their present lives."""
        column = cell_hosts.c.service_host
        query = (
            select(column, func.max(cell_hosts.c.life).label("life"))
            .where(self._here(), cell_hosts.c.agent == agent, cell_hosts.c.is_returning)
            .group_by(column)
            .order_by(column)
        )
        return {row.service_host: row.life for row in connection.execute(query)}

    def returning_in(
        self, connection: Connection, hosts: Sequence[str], lives: Mapping[str, int], *, lock: bool = False
    ) -> list[str]:
        """Return those of ``hosts`` that are returning, and in the life that ``lives`` names, if it names one."""
        found = self.of_hosts(connection, hosts, lock=lock)
        return [
            host
            for host in hosts
            if host in found and found[host].is_returning and lives.get(host, found[host].number) == found[host].number
        ]

    def begin(self, connection: Connection, agent: str, hosts: Collection[str]) -> None:
        """Have hosts of an agent begin a new life: they return before they count as up."""
        connection.execute(
            update(cell_hosts)
            .where(self._here(), cell_hosts.c.agent == agent, cell_hosts.c.service_host.in_(hosts))
            .values(is_returning=True, life=cell_hosts.c.life + 1)
        )

    def _here(self) -> ColumnElement[bool]:
        return cell_hosts.c.cell_uuid == self._cell_uuid
