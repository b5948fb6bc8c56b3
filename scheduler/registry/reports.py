"""Write a cell's report of its hosts into the registry: new hosts, changed descriptions, heartbeats and loads.

The first host that reports a compute node keeps it. A second host that reports the same one, and a host that returns
with another compute node, are left out with an error in the log, while the rest of the report is written: one
misconfigured host must not block the reports of its whole cell, and a wrong configuration must not assign guests to
another host. A host that reports its own compute node under a new node name is renamed. A name may pass from one node
of a host to another one, and two nodes may exchange their names, if one report has all of them. A description whose
name another node of its host still has is left out too, but the cell sends it again.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
from msgspec import structs
from sqlalchemy import Connection, and_, bindparam, func, select

from moorage import errors, ids
from moorage.db.columns import now, rows_named
from moorage.messages import MAX_DESCRIPTION_NUMBER, HostsRegistered, NumberedDescription, ReportHosts
from moorage.model import HostReport
from moorage.model.basis import fault_of_name
from placement_store import cells
from placement_store.db import bulk, change_feed
from placement_store.providers import disabled_hosts
from placement_store.providers import rows as providers
from placement_store.schema import INCOMPLETE, hosts
from scheduler.registry import loads
from scheduler.registry.aggregates import mirror
from scheduler.registry.hosts import update

LOG = logging.getLogger(__name__)

#: Repeat the condition in the write: a later description may have been written since the numbers were read.
_IS_NO_LATER = and_(hosts.c.id == bindparam("row_id"), hosts.c.description_number <= bindparam("sent_number"))
_WRITE_DESCRIPTION = (
    hosts.update()
    .where(_IS_NO_LATER)
    .values(
        nodename=bindparam("new_node"),
        agent=bindparam("new_agent"),
        availability_zone=bindparam("new_zone"),
        attributes=bindparam("new_attributes"),
        description_number=bindparam("new_number"),
        seq=hosts.c.seq + 1,
        updated_at=now(),
    )
)
# UPDATE hosts SET nodename = :no_name WHERE id = ... AND description_number <= :sent
_GIVE_UP_NAME = hosts.update().where(_IS_NO_LATER).values(nodename=bindparam("no_name"))
# UPDATE hosts SET description_number = :new WHERE id = ... AND description_number <= :sent
_RENUMBER = hosts.update().where(_IS_NO_LATER).values(description_number=bindparam("new_number"))

#: The columns that the operator sets for a host, with the values of a host that is not registered yet.
_NO_FLAGS: Mapping[str, Any] = {"disabled": False, "disabled_reason": None, "forced_down": False}


def write(connection: Connection, message: ReportHosts) -> HostsRegistered:
    """Write a cell's report. A report without changes writes only heartbeats.

    :return: the hosts that the cell must describe, because they are unknown, their description is from a backup, they
        or a provider were deleted, or they were described without a provider; and the numbers of registered
        descriptions that are newer than those of the report.
    :raises CellNotFound: the cell does not exist.
    :raises InvalidRequest: there is not exactly one description number for each description.
    :raises StaleRead: the provider of a new host was created or deleted concurrently; a new transaction may succeed.
    """
    cells.by_uuid(connection, message.cell_uuid)
    if message.numbers and len(message.numbers) != len(message.hosts):
        raise errors.InvalidRequest(path="$.numbers", reason="not one number for each host")
    alive = frozenset(message.alive)
    if alive and not cells.takes_heartbeats(connection, message.cell_uuid, message.alive_at):
        # This report was overtaken by a newer one. A host that it adds may have been deleted since, so it is not up.
        alive = frozenset()
    # Write the descriptions before the heartbeats: then a host that this report adds is not reported as unknown.
    newer: list[NumberedDescription] = []
    unknown: set[str] = set()
    if message.hosts:
        newer, unknown = _describe(connection, message, alive)
    if alive:
        unknown |= _heartbeat(connection, message.cell_uuid, alive)
    if message.loads:
        loads.write(connection, message.cell_uuid, message.loads, message.loads_at)
    return HostsRegistered(unknown=tuple(sorted(unknown)), newer=tuple(newer))


# --- Descriptions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _RegisteredHost:
    """A host in the registry; ``id`` is 0 for a host that this report is about to add."""

    id: int
    cell_uuid: str
    service_host: str
    nodename: str
    compute_node_uuid: str
    agent: str
    availability_zone: str
    attributes: bytes
    description_number: int

    def is_described_by(self, report: HostReport) -> bool:
        described = report.nodename, report.agent, report.availability_zone, _encoded(report.attributes)
        return (self.nodename, self.agent, self.availability_zone, self.attributes) == described


def _describe(
    connection: Connection, message: ReportHosts, alive: Collection[str]
) -> tuple[list[NumberedDescription], set[str]]:
    """Write the descriptions of a report; return those that must be sent again, and hosts that lack a provider.

    The former need greater numbers: they are older than those of the registry, or wait for names of other nodes.
    """
    known = _registered(connection, message)
    by_name = {(host.service_host, host.nodename): host for host in known if host.cell_uuid == message.cell_uuid}
    by_node = {host.compute_node_uuid: host for host in known}
    reports = _each_name_once(zip(message.hosts, message.numbers or (0,) * len(message.hosts), strict=True))
    renamed, late = _renamed(reports, by_name)
    new: list[_RegisteredHost] = []
    changed: dict[int, tuple[HostReport, int]] = {}
    numbers: dict[int, int] = {}
    newer: list[NumberedDescription] = []
    # Each description is one of: refused, new, older than the registry, changed, or only renumbered.
    for report, number in reports:
        name = (report.service_host, report.nodename)
        host, same_node = by_name.get(name) or renamed.get(_key(report)), by_node.get(report.compute_node_uuid)
        if _key(report) in late:
            # The descriptions that depend on each other are all sent again: names pass on in one report.
            newer.append(_sent_again(report, number, same_node))
        elif host is not same_node:
            newer += _refuse(message.cell_uuid, report, number, host, same_node)
        elif host is None:
            described = {**structs.asdict(report), "attributes": _encoded(report.attributes)}
            host = _RegisteredHost(id=0, cell_uuid=message.cell_uuid, description_number=number, **described)
            by_node[report.compute_node_uuid] = host
            new.append(host)
        elif 0 < number < host.description_number:
            newer.append(NumberedDescription(service_host=name[0], nodename=name[1], number=host.description_number))
        elif not host.is_described_by(report):
            changed[host.id] = report, number or max(host.description_number, 0)
            if host.nodename != report.nodename:
                LOG.info("Node %s of host %s is named %s now", host.nodename, host.service_host, report.nodename)
        elif number > host.description_number:
            numbers[host.id] = number
    cells.keep(connection, {host.cell_uuid for host in new})  # the first lock, as that of a heartbeat
    former = {host.id: (host.service_host, host.nodename) for host in renamed.values()}
    taken = {(report.service_host, report.nodename) for report, _number in reports}
    # A new node of a registered host is disabled and forced down as that host is, and joins its aggregates.
    registered = {host.service_host for host in known if host.cell_uuid == message.cell_uuid}
    extended = registered & {host.service_host for host in new}
    nodes = [host.compute_node_uuid for host in new if host.service_host in extended]
    # Lock order: providers before hosts, as in every write.
    roots = disabled_hosts.lock(connection, nodes)
    redescribed = [host for host in known if host.id in changed or host.id in numbers]
    bare = _without_provider(connection, [*new, *(host for host in redescribed if host.description_number < 0)])
    bare_ids = {host.id for host in redescribed if _key(host) in bare}
    passed_on = [host_id for host_id in changed if former.get(host_id) in taken]
    _write_descriptions(connection, changed, passed_on, bare_ids)
    _write_numbers(connection, numbers, bare_ids)
    # A host whose description has changed before is rarely new: it was deleted, with its providers and its other nodes.
    deleted = {host.service_host for host in new if host.description_number > 1} - registered
    new = [replace(host, description_number=INCOMPLETE) if _key(host) in bare else host for host in new]
    _insert(connection, new, alive, _flags(connection, message.cell_uuid, extended))
    disabled_hosts.mark(connection, nodes, roots)
    mirror.add_new_nodes(connection, message.cell_uuid, extended)
    # These descriptions may have been sent before the agents were asked to report the providers again. A new node alone
    # makes its host count as described. An incomplete host is answered until its providers are there: an answer is lost
    # easily.
    redescribed += [host for host in known if host.service_host in extended]
    asked = {host.service_host for host in redescribed if INCOMPLETE < host.description_number < 0}
    return newer, asked | deleted | {service_host for service_host, _node in bare}


def _without_provider(connection: Connection, described: Sequence[_RegisteredHost]) -> set[tuple[str, str]]:
    """Return the keys of the nodes without a provider: it was deleted, or lost, after the agent had reported it."""
    found = providers.keys_found(connection, [host.compute_node_uuid for host in described])
    return {_key(host) for host in described if host.compute_node_uuid not in found}


def _registered(connection: Connection, message: ReportHosts) -> list[_RegisteredHost]:
    columns = [hosts.c[name] for name in _RegisteredHost.__dataclass_fields__]
    found: dict[int, _RegisteredHost] = {}
    for chunk in bulk.chunks(message.hosts):
        named = hosts.c.service_host.in_({report.service_host for report in chunk})
        same_node = hosts.c.compute_node_uuid.in_([report.compute_node_uuid for report in chunk])
        # Two statements, each with its own index: one statement with OR would read the whole table.
        for condition in (and_(hosts.c.cell_uuid == message.cell_uuid, named), same_node):
            found |= {row.id: _RegisteredHost(*row) for row in connection.execute(select(*columns).where(condition))}
    return list(found.values())


def _is_well_named(report: HostReport) -> bool:
    if field := report.misnamed():
        fault = fault_of_name(getattr(report, field))
        LOG.error("The %s of host %r %s: left out", field, report.service_host, fault)
    return field is None


def _each_name_once(numbered: Iterable[tuple[HostReport, int]]) -> list[tuple[HostReport, int]]:
    """Return the well-named descriptions with their numbers; the first one of each name counts."""
    reports: dict[tuple[str, str], tuple[HostReport, int]] = {}
    for report, number in numbered:
        if not _is_well_named(report):
            continue
        first, _number = reports.setdefault((report.service_host, report.nodename), (report, number))
        if first != report:
            name = report.nodename, report.service_host
            LOG.error("Node %s of host %s is described in two ways in one report: the first counts", *name)
    return list(reports.values())


def _key(host: HostReport | _RegisteredHost) -> tuple[str, str]:
    return host.service_host, host.compute_node_uuid


def _renamed(
    reports: Sequence[tuple[HostReport, int]], by_name: dict[tuple[str, str], _RegisteredHost]
) -> tuple[dict[tuple[str, str], _RegisteredHost], set[tuple[str, str]]]:
    """Return the hosts that a report renames, and those whose descriptions must be sent again with greater numbers.

    Both are keyed by service host and compute node. A new name must be free, or be given up in the same report. A
    report of a compute node with its registered name and another one is a mistake, and renames nothing.

    :param by_name: the registered hosts by name; the names that are given up are removed.
    """
    described = {_key(report): (report, number) for report, number in reports}
    names = {(*_key(report), report.nodename) for report, _number in reports}
    # The nodes that have the described names in the registry.
    holders = {
        key: _key(holder)
        for key, (report, _number) in described.items()
        if (holder := by_name.get((report.service_host, report.nodename))) is not None
    }
    renamed = {
        _key(host): host
        for host in by_name.values()
        if _key(host) in described and (*_key(host), host.nodename) not in names
    }
    # A late description with the former name must not undo a renaming, so the number must be greater then, unless it is
    # the greatest one.
    late = {
        key
        for key, host in renamed.items()
        if 0 < described[key][1] <= min(host.description_number, MAX_DESCRIPTION_NUMBER - 1)
    }
    while waiting := {key for key, holder in holders.items() if holder in late} - late:
        late |= waiting
    for key in late & renamed.keys():
        del renamed[key]
    while taken := [key for key in renamed if key in holders and holders[key] not in renamed]:
        for key in taken:
            del renamed[key]
    for host in renamed.values():
        del by_name[host.service_host, host.nodename]
    return renamed, late


def _sent_again(report: HostReport, number: int, same_node: _RegisteredHost | None) -> NumberedDescription:
    least = max(number, 0 if same_node is None else same_node.description_number)
    return NumberedDescription(service_host=report.service_host, nodename=report.nodename, number=least)


def _refuse(
    cell_uuid: str, report: HostReport, number: int, named: _RegisteredHost | None, same_node: _RegisteredHost | None
) -> list[NumberedDescription]:
    """Log why a description is refused; return it if only its name is not free, so that the cell sends it again.

    The node with that name may give it up in a later report.
    """
    reported = f"(node {report.nodename}) reports compute node {report.compute_node_uuid}"
    if same_node is not None:
        owner = f"host {same_node.service_host} (node {same_node.nodename}) in cell {same_node.cell_uuid}"
        LOG.error("Host %s %s, which belongs to %s: ignored", report.service_host, reported, owner)
    elif named is not None:
        known = named.compute_node_uuid
        LOG.error("Host %s %s, but is known with %s: ignored", report.service_host, reported, known)
    is_own = same_node is None or (same_node.cell_uuid, same_node.service_host) == (cell_uuid, report.service_host)
    if number and is_own and named is not None:
        return [_sent_again(report, number, same_node)]
    return []


def _write_descriptions(
    connection: Connection,
    changed: dict[int, tuple[HostReport, int]],
    passed_on: Sequence[int],
    bare: Collection[int],
) -> None:
    """Write descriptions, each with its number, by host.

    :param passed_on: the hosts whose former names pass to other hosts.
    :param bare: the hosts without a provider.
    """
    if not changed:
        return
    # Names are unique at each statement: one that passes to another host is given up first.
    if given_up := [
        {"row_id": host_id, "sent_number": changed[host_id][1], "no_name": ids.fresh()} for host_id in sorted(passed_on)
    ]:
        connection.execute(_GIVE_UP_NAME, given_up)
    # UPDATE hosts SET nodename = ..., agent = ..., availability_zone = ..., attributes = ...,
    #  description_number = :new, seq = seq + 1, updated_at = :now WHERE id = ... AND description_number <= :sent
    connection.execute(
        _WRITE_DESCRIPTION,
        [
            {
                "row_id": host_id,
                "new_node": report.nodename,
                "new_agent": report.agent,
                "new_zone": report.availability_zone,
                "new_attributes": _encoded(report.attributes),
                "new_number": INCOMPLETE if host_id in bare else number,
                "sent_number": number,
            }
            for host_id, (report, number) in sorted(changed.items(), key=lambda item: item[0])
        ],
    )
    change_feed.record(connection, host_ids=list(changed))


def _write_numbers(connection: Connection, numbers: dict[int, int], bare: Collection[int]) -> None:
    # This is no change of the hosts, so `seq` stays.
    if rows := [
        {"row_id": host_id, "new_number": INCOMPLETE if host_id in bare else number, "sent_number": number}
        for host_id, number in sorted(numbers.items())
    ]:
        connection.execute(_RENUMBER, rows)


def _flags(connection: Connection, cell_uuid: str, service_hosts: Collection[str]) -> dict[str, dict[str, Any]]:
    """Lock the nodes of registered hosts; return the flags that the operator has set for each host."""
    # SELECT service_host, ... FROM hosts WHERE cell_uuid = ... AND service_host IN (...) ORDER BY id FOR UPDATE
    query = select(hosts.c.service_host, *(hosts.c[name] for name in _NO_FLAGS))
    query = query.where(hosts.c.cell_uuid == cell_uuid).order_by(hosts.c.id).with_for_update()
    found = bulk.select_in(connection, query, hosts.c.service_host, sorted(service_hosts))
    return {row.service_host: {name: getattr(row, name) for name in _NO_FLAGS} for row in found}


def _insert(
    connection: Connection, new: list[_RegisteredHost], alive: Collection[str], flags: Mapping[str, Mapping[str, Any]]
) -> None:
    """Insert new hosts.

    :param flags: the flags that the operator has set for registered hosts; their new nodes get them.
    """
    if not new:
        return
    # Insert in the order of a unique key: concurrent reports of the same hosts then wait instead of deadlocking.
    new.sort(key=lambda host: host.compute_node_uuid)
    for chunk in bulk.chunks(new):
        # A description alone does not make a host up; a heartbeat does.
        rows = [
            {**asdict(host), "up": host.service_host in alive, **flags.get(host.service_host, _NO_FLAGS)}
            for host in chunk
        ]
        for row in rows:
            del row["id"]
        bulk.insert(connection, hosts, rows, stamps=("heartbeat_at", "created_at", "updated_at"))
        nodes = [host.compute_node_uuid for host in chunk]
        ids = connection.scalars(select(hosts.c.id).where(hosts.c.compute_node_uuid.in_(nodes)))
        change_feed.record(connection, host_ids=list(ids))


def _encoded(attributes: dict[str, Any]) -> bytes:
    return msgspec.json.encode(attributes, order="sorted")


# --- Heartbeats -----------------------------------------------------------------------------------------------------


def _heartbeat(connection: Connection, cell_uuid: str, alive: frozenset[str]) -> frozenset[str]:
    """Write heartbeats; return the names of hosts without a description."""
    here = hosts.c.cell_uuid == cell_uuid
    names = select(hosts.c.service_host).where(here)
    known = frozenset(connection.scalars(names))
    # UPDATE hosts SET heartbeat_at = :now WHERE cell_uuid = ... AND service_host NOT IN (...)
    for these in rows_named(hosts.c.service_host, alive, known):
        connection.execute(hosts.update().where(here, these).values(heartbeat_at=now()))
    # Read after the heartbeats: now a sweep can no longer mark these hosts as down, so that none is missed here.
    down = connection.execute(select(hosts.c.id, hosts.c.service_host).where(here, ~hosts.c.up))
    recovered = [row.id for row in down if row.service_host in alive]
    update(connection, recovered, {"up": True})
    # Read again: the update may have waited for the deletion of a host, which then has no row any more. One described
    # node is enough, because a node that its host no longer has is never described again; but not if another one was
    # described without its provider.
    number = hosts.c.description_number
    is_complete = and_(func.max(number) >= 0, func.min(number) > INCOMPLETE)
    return alive.difference(connection.scalars(names.group_by(hosts.c.service_host).having(is_complete)))
