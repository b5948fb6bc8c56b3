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
from sqlalchemy import Connection, and_, select

from moorage.columns import now
from moorage.messages import ReportHosts
from moorage.model import HostReport
from placement_store import bulk, cells, feed
from placement_store.schema import hosts
from scheduler import aggregate_mirror, loads
from scheduler.hosts import REDESCRIBE, change, chunks

LOG = logging.getLogger(__name__)


def write(connection: Connection, message: ReportHosts) -> None:
    """Write what a cell reports. A report that brings no news changes nothing but heartbeats.

    :raises CellNotFound: there is no such cell.
    :raises Moved: a provider has just been deleted whose host is new; a new transaction may succeed.
    """
    cells.by_uuid(connection, message.cell_uuid)
    alive = frozenset(message.alive)
    if message.hosts:
        _describe(connection, message, alive)
    if alive:
        _heartbeat(connection, message.cell_uuid, alive)
    if message.loads:
        loads.write(connection, message.cell_uuid, message.loads, message.loads_at)


# --- Descriptions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    """A host as the registry has it; without an id, as this very report is about to bring it."""

    id: int | None
    cell_uuid: str
    service_host: str
    nodename: str
    compute_node_uuid: str
    agent: str
    availability_zone: str
    attributes: bytes

    def is_described_by(self, report: HostReport) -> bool:
        return (self.agent, self.availability_zone, self.attributes) == (
            report.agent,
            report.availability_zone,
            _encoded(report.attributes),
        )


def _describe(connection: Connection, message: ReportHosts, alive: Collection[str]) -> None:
    known = _known(connection, message)
    by_name = {(host.service_host, host.nodename): host for host in known if host.cell_uuid == message.cell_uuid}
    by_node = {host.compute_node_uuid: host for host in known}
    new: list[_Known] = []
    changed: dict[int, HostReport] = {}
    for report in message.hosts:
        if field := report.misnamed():
            LOG.error("The %s of host %r ends with a blank: left out", field, report.service_host)
            continue
        name = (report.service_host, report.nodename)
        host = by_name.get(name)
        if host is not by_node.get(report.compute_node_uuid):
            _refuse(report, host, by_node.get(report.compute_node_uuid))
        elif host is None:
            by_name[name] = by_node[report.compute_node_uuid] = host = _new(message.cell_uuid, report)
            new.append(host)
        elif host.id is not None and not host.is_described_by(report):
            changed[host.id] = report
    _redescribe(connection, changed)
    _insert(connection, new, alive)
    # Another node of a host that is known already belongs where that host does.
    had = {host.service_host for host in known if host.cell_uuid == message.cell_uuid}
    aggregate_mirror.welcome_nodes(connection, message.cell_uuid, had & {host.service_host for host in new})


def _known(connection: Connection, message: ReportHosts) -> list[_Known]:
    """Return every host of the registry that has a name or a compute node of this report."""
    columns = [hosts.c[name] for name in _Known.__dataclass_fields__]
    found: dict[int, _Known] = {}
    for chunk in chunks(message.hosts):
        named = hosts.c.service_host.in_({report.service_host for report in chunk})
        same_node = hosts.c.compute_node_uuid.in_([report.compute_node_uuid for report in chunk])
        # Two statements, each with an index of its own, where one with OR would read the whole table.
        for condition in (and_(hosts.c.cell_uuid == message.cell_uuid, named), same_node):
            found |= {row.id: _Known(*row) for row in connection.execute(select(*columns).where(condition))}
    return list(found.values())


def _refuse(report: HostReport, named: _Known | None, same_node: _Known | None) -> None:
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


def _redescribe(connection: Connection, changed: dict[int, HostReport]) -> None:
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
            }
            for host_id, report in sorted(changed.items(), key=lambda item: item[0])
        ],
    )
    feed.record(connection, host_ids=list(changed))


def _insert(connection: Connection, new: list[_Known], alive: Collection[str]) -> None:
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
                # A host counts as up once it is alive, which its description alone does not say.
                "up": host.service_host in alive,
            }
            for host in chunk
        ]
        bulk.insert(connection, hosts, rows, stamps=("heartbeat_at", "created_at", "updated_at"))
        nodes = [host.compute_node_uuid for host in chunk]
        ids = connection.scalars(select(hosts.c.id).where(hosts.c.compute_node_uuid.in_(nodes))).all()
        feed.record(connection, host_ids=list(ids))


def _new(cell_uuid: str, report: HostReport) -> _Known:
    return _Known(
        id=None,
        cell_uuid=cell_uuid,
        service_host=report.service_host,
        nodename=report.nodename,
        compute_node_uuid=report.compute_node_uuid,
        agent=report.agent,
        availability_zone=report.availability_zone,
        attributes=_encoded(report.attributes),
    )


def _encoded(attributes: dict[str, Any]) -> bytes:
    return msgspec.json.encode(attributes, order="sorted")


# --- Heartbeats -----------------------------------------------------------------------------------------------------


def _heartbeat(connection: Connection, cell_uuid: str, alive: frozenset[str]) -> None:
    # UPDATE hosts SET heartbeat_at = :now WHERE cell_uuid = ... AND service_host IN (...)
    for chunk in chunks(sorted(alive)):
        connection.execute(
            hosts.update()
            .where(hosts.c.cell_uuid == cell_uuid, hosts.c.service_host.in_(chunk))
            .values(heartbeat_at=now())
        )
    # Only after that: a sweep cannot mark them as down any more, so whoever is down here was so before.
    down = connection.execute(
        select(hosts.c.id, hosts.c.service_host).where(hosts.c.cell_uuid == cell_uuid, ~hosts.c.up)
    )
    woken = [row.id for row in down if row.service_host in alive]
    change(connection, woken, {"up": True})
