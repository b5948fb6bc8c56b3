"""A cell's report of its hosts, written into the registry: who is new, who has changed, who is alive, and how busy.

The first to report a compute node keeps it. A second host that reports the same one, and a host that comes back with
another compute node, are left out and named in the log, while the rest of the report counts: one misconfigured host
must not silence its whole cell, and guests must not change hosts because a configuration did.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, and_, bindparam, func, select

from moorage import errors
from moorage.db.columns import now
from moorage.messages import HostsRegistered, NumberedDescription, ReportHosts
from moorage.model import HostReport
from placement_store import cells
from placement_store.db import bulk, change_feed
from placement_store.schema import hosts
from scheduler.registry import loads
from scheduler.registry.aggregates import mirror
from scheduler.registry.hosts import REDESCRIBE, change, chunks

LOG = logging.getLogger(__name__)

_RENUMBER = hosts.update().where(hosts.c.id == bindparam("row_id")).values(description_number=bindparam("new_number"))


def write(connection: Connection, message: ReportHosts) -> HostsRegistered:
    """Write what a cell reports. A report that brings no news changes nothing but heartbeats.

    :return: the hosts that the cell is to describe, and the descriptions that are newer than those of the report.
    :raises CellNotFound: there is no such cell.
    :raises InvalidRequest: there are numbers, and not as many as descriptions.
    :raises StaleRead: a provider has just been deleted whose host is new; a new transaction may succeed.
    """
    cells.by_uuid(connection, message.cell_uuid)
    if message.numbers and len(message.numbers) != len(message.hosts):
        raise errors.InvalidRequest(path="$.numbers", reason="not one number for each host")
    alive = frozenset(message.alive)
    newer: list[NumberedDescription] = []
    unknown: list[str] = []
    if message.hosts:
        newer = _describe(connection, message, alive)
    if alive and cells.takes_heartbeats(connection, message.cell_uuid, message.alive_at):
        unknown = _heartbeat(connection, message.cell_uuid, alive)
    if message.loads:
        loads.write(connection, message.cell_uuid, message.loads, message.loads_at)
    return HostsRegistered(unknown=tuple(unknown), newer=tuple(newer))


# --- Descriptions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _RegisteredHost:
    """A host as the registry has it; without an id, as this very report is about to bring it."""

    id: int | None
    cell_uuid: str
    service_host: str
    nodename: str
    compute_node_uuid: str
    agent: str
    availability_zone: str
    attributes: bytes
    description_number: int

    def is_described_by(self, report: HostReport) -> bool:
        return (self.agent, self.availability_zone, self.attributes) == (
            report.agent,
            report.availability_zone,
            _encoded(report.attributes),
        )


def _describe(connection: Connection, message: ReportHosts, alive: Collection[str]) -> list[NumberedDescription]:
    """Write descriptions; return those that the registry has and that are newer."""
    known = _known(connection, message)
    by_name = {(host.service_host, host.nodename): host for host in known if host.cell_uuid == message.cell_uuid}
    by_node = {host.compute_node_uuid: host for host in known}
    new: list[_RegisteredHost] = []
    changed: dict[int, tuple[HostReport, int]] = {}
    numbers: dict[int, int] = {}
    newer: list[NumberedDescription] = []
    for report, number in zip(message.hosts, message.numbers or (0,) * len(message.hosts), strict=True):
        if field := report.misnamed():
            LOG.error("The %s of host %r ends with a blank: left out", field, report.service_host)
            continue
        name = (report.service_host, report.nodename)
        host = by_name.get(name)
        if host is not by_node.get(report.compute_node_uuid):
            _refuse(report, host, by_node.get(report.compute_node_uuid))
        elif host is None:
            by_name[name] = by_node[report.compute_node_uuid] = host = _new(message.cell_uuid, report, number)
            new.append(host)
        elif host.id is None:
            continue  # named twice
        elif 0 < number < host.description_number:
            newer.append(NumberedDescription(service_host=name[0], nodename=name[1], number=host.description_number))
        elif not host.is_described_by(report):
            changed[host.id] = report, number or host.description_number
        elif number > host.description_number:
            numbers[host.id] = number
    _redescribe(connection, changed)
    _renumber(connection, numbers)
    _insert(connection, new, alive)
    # Another node of a host that is known already belongs where that host does.
    had = {host.service_host for host in known if host.cell_uuid == message.cell_uuid}
    mirror.welcome_nodes(connection, message.cell_uuid, had & {host.service_host for host in new})
    return newer


def _known(connection: Connection, message: ReportHosts) -> list[_RegisteredHost]:
    """Return every host of the registry that has a name or a compute node of this report."""
    columns = [hosts.c[name] for name in _RegisteredHost.__dataclass_fields__]
    found: dict[int, _RegisteredHost] = {}
    for chunk in chunks(message.hosts):
        named = hosts.c.service_host.in_({report.service_host for report in chunk})
        same_node = hosts.c.compute_node_uuid.in_([report.compute_node_uuid for report in chunk])
        # Two statements, each with an index of its own, where one with OR would read the whole table.
        for condition in (and_(hosts.c.cell_uuid == message.cell_uuid, named), same_node):
            found |= {row.id: _RegisteredHost(*row) for row in connection.execute(select(*columns).where(condition))}
    return list(found.values())


def _refuse(report: HostReport, named: _RegisteredHost | None, same_node: _RegisteredHost | None) -> None:
    if same_node is not None:
        LOG.error(
            "Host %s (node %s) reports compute node %s, which is that of host %s (node %s) in cell %s: left out",
            report.service_host,
            report.nodename,
            report.compute_node_uuid,
            same_node.service_host,
            same_node.nodename,
            same_node.cell_uuid,
        )
    elif named is not None:
        LOG.error(
            "Host %s (node %s) reports compute node %s and has been known by %s: left out",
            report.service_host,
            report.nodename,
            report.compute_node_uuid,
            named.compute_node_uuid,
        )


def _redescribe(connection: Connection, changed: dict[int, tuple[HostReport, int]]) -> None:
    if not changed:
        return
    # UPDATE hosts SET agent = ..., availability_zone = ..., attributes = ..., seq = seq + 1, updated_at = :now
    #  WHERE id = ...
    connection.execute(
        REDESCRIBE,
        [
            {
                "row_id": host_id,
                "new_agent": report.agent,
                "new_zone": report.availability_zone,
                "new_attributes": _encoded(report.attributes),
                "new_number": number,
            }
            for host_id, (report, number) in sorted(changed.items(), key=lambda item: item[0])
        ],
    )
    change_feed.record(connection, host_ids=list(changed))


def _renumber(connection: Connection, numbers: dict[int, int]) -> None:
    """Record that descriptions are the same under greater numbers, which is no change of their hosts."""
    if numbers:
        # UPDATE hosts SET description_number = ... WHERE id = ...
        rows = [{"row_id": host_id, "new_number": number} for host_id, number in sorted(numbers.items())]
        connection.execute(_RENUMBER, rows)


def _insert(connection: Connection, new: list[_RegisteredHost], alive: Collection[str]) -> None:
    if not new:
        return
    # In the order of a unique key, so that two reports of the same hosts at once wait for each other and no more.
    new.sort(key=lambda host: host.compute_node_uuid)
    for chunk in chunks(new):
        rows = [
            {
                "cell_uuid": host.cell_uuid,
                "service_host": host.service_host,
                "nodename": host.nodename,
                "compute_node_uuid": host.compute_node_uuid,
                "agent": host.agent,
                "availability_zone": host.availability_zone,
                "attributes": host.attributes,
                "description_number": host.description_number,
                # A host counts as up once it is alive, which its description alone does not say.
                "up": host.service_host in alive,
            }
            for host in chunk
        ]
        bulk.insert(connection, hosts, rows, stamps=("heartbeat_at", "created_at", "updated_at"))
        nodes = [host.compute_node_uuid for host in chunk]
        ids = connection.scalars(select(hosts.c.id).where(hosts.c.compute_node_uuid.in_(nodes))).all()
        change_feed.record(connection, host_ids=list(ids))


def _new(cell_uuid: str, report: HostReport, number: int) -> _RegisteredHost:
    return _RegisteredHost(
        id=None,
        cell_uuid=cell_uuid,
        service_host=report.service_host,
        nodename=report.nodename,
        compute_node_uuid=report.compute_node_uuid,
        agent=report.agent,
        availability_zone=report.availability_zone,
        attributes=_encoded(report.attributes),
        description_number=number,
    )


def _encoded(attributes: dict[str, Any]) -> bytes:
    return msgspec.json.encode(attributes, order="sorted")


# --- Heartbeats -----------------------------------------------------------------------------------------------------


def _heartbeat(connection: Connection, cell_uuid: str, alive: frozenset[str]) -> list[str]:
    """Record heartbeats; return the names of hosts that are not known."""
    unknown: list[str] = []
    # UPDATE hosts SET heartbeat_at = :now WHERE cell_uuid = ... AND service_host IN (...)
    for chunk in chunks(sorted(alive)):
        connection.execute(
            hosts.update()
            .where(hosts.c.cell_uuid == cell_uuid, hosts.c.service_host.in_(chunk))
            .values(heartbeat_at=now())
        )
        unknown += _unknown(connection, cell_uuid, chunk)
    # Only after that: a sweep cannot mark them as down any more, so whoever is down here was so before.
    down = connection.execute(
        select(hosts.c.id, hosts.c.service_host).where(hosts.c.cell_uuid == cell_uuid, ~hosts.c.up)
    )
    woken = [row.id for row in down if row.service_host in alive]
    change(connection, woken, {"up": True})
    return unknown


def _unknown(connection: Connection, cell_uuid: str, names: list[str]) -> list[str]:
    """Return those of some service hosts of a cell that have no row."""
    here = (hosts.c.cell_uuid == cell_uuid, hosts.c.service_host.in_(names))
    # Counted first: reading twenty thousand names at each heartbeat would take longer than all the rest of it.
    if connection.scalar(select(func.count(hosts.c.service_host.distinct())).where(*here)) == len(names):
        return []
    known = set(connection.scalars(select(hosts.c.service_host).where(*here)))
    return [name for name in names if name not in known]
