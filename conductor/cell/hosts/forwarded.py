"""Records of the host descriptions and heartbeats that the schedulers have, or must still get."""

from collections.abc import Collection, Sequence

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, bindparam, or_, select, tuple_, update

from conductor.schema import cell_hosts
from moorage.db.columns import is_ahead, now
from moorage.db.database import Database
from moorage.messages import NumberedDescription
from moorage.model import HostReport

_DESCRIPTION = tuple_(cell_hosts.c.service_host, cell_hosts.c.nodename, cell_hosts.c.description_number)

#: The conditions that name the row of a node.
OF_NODE = (
    cell_hosts.c.cell_uuid == bindparam("of_cell"),
    cell_hosts.c.service_host == bindparam("of_host"),
    cell_hosts.c.nodename == bindparam("of_node"),
)

_NUMBER_AFTER = (
    update(cell_hosts)
    .where(*OF_NODE, cell_hosts.c.description_number < bindparam("least"))
    .values(description_number=bindparam("of_them") + 1)
)


class ForwardedHosts:
    """Reads descriptions and heartbeats to forward, and records the acknowledged ones.

    :param down_after: the seconds without a report after which a host counts as silent.
    """

    def __init__(self, database: Database, cell_uuid: str, down_after: float) -> None:
        self._database = database
        self._cell_uuid = cell_uuid
        self._down_after = down_after

    def unacknowledged(self, limit: int, after: HostReport | None = None) -> list[tuple[HostReport, int]]:
        """Return the descriptions of hosts that are up which no scheduler has yet, each with its number.

        :param after: return only the descriptions after this one, in the order of their names.
        """
        host, node = cell_hosts.c.service_host, cell_hosts.c.nodename
        query = select(cell_hosts.c.description, cell_hosts.c.description_number).where(
            *self._up(), cell_hosts.c.description_number != cell_hosts.c.acknowledged_number
        )
        if after is not None:
            later_node = and_(host == after.service_host, node > after.nodename)
            query = query.where(host >= after.service_host, or_(host > after.service_host, later_node))
        rows = self._database.read(lambda connection: connection.execute(query.order_by(host, node).limit(limit)).all())
        return [(msgspec.json.decode(row.description, type=HostReport), row.description_number) for row in rows]

    def acknowledge(self, reports: Sequence[tuple[HostReport, int]]) -> None:
        """Record that a scheduler has these descriptions, except those that have changed again meanwhile."""
        had = [(report.service_host, report.nodename, number) for report, number in reports]
        # UPDATE cell_hosts SET acknowledged_number = description_number
        #  WHERE … AND service_host IN (…) AND (service_host, nodename, description_number) IN (…)
        # The names alone too: MariaDB does not use an index for a single tuple.
        names = sorted({report.service_host for report, _number in reports})
        statement = (
            cell_hosts.update()
            .where(self._of_this_cell(), cell_hosts.c.service_host.in_(names), _DESCRIPTION.in_(had))
            .values(acknowledged_number=cell_hosts.c.description_number)
        )
        self._database.write(lambda connection: connection.execute(statement))

    def number_after(self, newer: Sequence[NumberedDescription], reports: Sequence[tuple[HostReport, int]]) -> None:
        """Raise the numbers of descriptions above those of the registry, if the registry has greater numbers.

        :param reports: the descriptions that were reported, each with its number.
        """
        if not newer:
            return
        sent = {(report.service_host, report.nodename): number for report, number in reports}
        rows = [
            {
                "of_cell": self._cell_uuid,
                "of_host": known.service_host,
                "of_node": known.nodename,
                "of_them": known.number,
                # An equal number was refused because another node has the name: it is too small as well.
                "least": known.number + (sent.get((known.service_host, known.nodename)) == known.number),
            }
            for known in newer
        ]
        self._database.write(lambda connection: connection.execute(_NUMBER_AFTER, rows))

    def ask_for(self, hosts: Sequence[str], *, first: Collection[str] = ()) -> None:
        """Mark hosts as undescribed: their agents report providers and descriptions again, as after a start.

        :param first: the hosts that this conductor has not requested before. One of them is left out if its present
            description is still to be reported: another conductor of the cell may have requested it.
        """

        def work(connection: Connection) -> None:
            here = (self._of_this_cell(), cell_hosts.c.service_host.in_(hosts))
            is_new = cell_hosts.c.description_number != cell_hosts.c.acknowledged_number
            described = set(connection.scalars(select(cell_hosts.c.service_host).where(*here, is_new).distinct()))
            wanted = [host for host in hosts if host not in described or host not in first]
            these = (self._of_this_cell(), cell_hosts.c.service_host.in_(wanted))
            connection.execute(update(cell_hosts).where(*these).values(undescribed=True))

        self._database.write(work)

    def seen_since(self, moment: float | None, interval: float) -> tuple[list[str], float]:
        """Return the hosts that are up and were seen since ``moment``, and the current time of the database's clock.

        Silent hosts are left out: they may have died while no scheduler answered.

        :param interval: the seconds to look back if there is no ``moment``.
        """

        def work(connection: Connection) -> tuple[list[str], float]:
            clock: float = connection.scalars(select(now())).one()
            # If the clock was set back, times ahead of it prove nothing: these hosts may have died since.
            since = clock - interval if moment is None else max(min(moment, clock), clock - self._down_after)
            seen = and_(cell_hosts.c.last_seen >= since, ~is_ahead(cell_hosts.c.last_seen))
            names = connection.scalars(select(cell_hosts.c.service_host).where(*self._up(), seen).distinct())
            return list(names), clock

        return self._database.read(work)

    def _up(self) -> list[ColumnElement[bool]]:
        return [self._of_this_cell(), cell_hosts.c.is_returning.is_(False)]

    def _of_this_cell(self) -> ColumnElement[bool]:
        return cell_hosts.c.cell_uuid == self._cell_uuid
