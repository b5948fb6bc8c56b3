"""The host registry: rows for the host view and for lists, the operator's changes, and the failure detection."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, and_, select

from moorage import errors
from moorage.db.columns import now
from moorage.messages import ListHosts, SetHost
from moorage.model import HostState
from placement_store.allocations import placed
from placement_store.db import bulk, change_feed
from placement_store.providers import disabled_hosts
from placement_store.schema import hosts
from scheduler.registry import metadata as host_metadata
from scheduler.registry.metadata import AggregateMetadata

#: SQLite takes 32,766 parameters in one statement, and no statement should be longer than a few hundred kilobytes.
_CHUNK = 10_000

_ALL = ListHosts()


@dataclass(frozen=True, slots=True)
class HostRow:
    """A host as the host view needs it; ``seq`` is bumped by every change but a heartbeat."""

    id: int
    seq: int
    cell_uuid: str
    service_host: str
    nodename: str
    compute_node_uuid: str
    agent: str
    #: The zone that its host aggregates give it, or else the one that its agent reports.
    availability_zone: str
    attributes: dict[str, Any]
    up: bool
    disabled: bool
    forced_down: bool
    #: The metadata of its host aggregates: the values of each key.
    metadata: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: The load that its cell reports; see :class:`moorage.plugin.Host`.
    io_ops: int = 0
    failed_builds: float = 0.0
    image_properties: Mapping[str, int] = field(default_factory=dict)


_VIEW_COLUMNS = [hosts.c[name] for name in HostRow.__dataclass_fields__ if name in hosts.c]


def rows(connection: Connection, ids: Collection[int] | None) -> list[HostRow]:
    """Return the hosts of these ids, or all hosts for None; ids without a row are left out."""
    # The hosts first: the metadata may then be newer than `seq`, and is read again with the next `seq`.
    if ids is None:
        found = list(connection.execute(select(*_VIEW_COLUMNS)))
    else:
        found = list(bulk.select_in(connection, select(*_VIEW_COLUMNS), hosts.c.id, sorted(ids)))
    metadata = host_metadata.of_hosts(connection, ids) if found else {}
    return [_host_row(row, metadata.get(row.id, host_metadata.NO_METADATA)) for row in found]


def states(connection: Connection, message: ListHosts = _ALL) -> list[HostState]:
    """Return the hosts that a message selects, ordered by name, or by node uuid if it asks for a page."""
    table = hosts.c
    query = select(hosts, (now() - table.heartbeat_at).label("heartbeat_age"))
    if message.cell_uuid is not None:
        query = query.where(table.cell_uuid == message.cell_uuid)
    if message.service_host is not None:
        query = query.where(table.service_host == message.service_host)
    if message.after is not None:
        query = query.where(table.compute_node_uuid > message.after)
    name_order = (table.service_host, table.nodename, table.cell_uuid)
    order = name_order if message.limit is None else (table.compute_node_uuid,)
    found = connection.execute(query.order_by(*order).limit(message.limit)).all()
    # Read the instances and the metadata of all hosts together, not host by host.
    instances = placed.instances_of_nodes(connection, [row.compute_node_uuid for row in found])
    metadata = host_metadata.of_hosts(connection, [row.id for row in found])
    return [
        _host_state(row, metadata.get(row.id, host_metadata.NO_METADATA), instances.get(row.compute_node_uuid, 0))
        for row in found
    ]


def by_name(connection: Connection, service_host: str, cell_uuid: str | None) -> list[HostState]:
    """Return the nodes of one service host.

    :raises HostNotFound: no host has the name, or none in that cell.
    :raises InvalidRequest: hosts of several cells have the name, and no cell is given.
    """
    found = states(connection, ListHosts(cell_uuid=cell_uuid, service_host=service_host))
    if not found:
        raise errors.HostNotFound(name=service_host if cell_uuid is None else f"{service_host} in that cell")
    if len({host.cell_uuid for host in found}) > 1:
        raise errors.InvalidRequest(path="$.cell_uuid", reason="several cells have a host of this name: name one")
    return found


# --- Changes --------------------------------------------------------------------------------------------------------


def set_host(connection: Connection, message: SetHost) -> HostState:
    """Disable or enable a host, or set or clear its forced-down flag; return the host after the change.

    A disabled host has the trait COMPUTE_STATUS_DISABLED on its root provider, an enabled one does not. If a service
    host has several nodes, all of them change and the first is returned.

    :raises HostNotFound: no host has the name, or none in that cell.
    :raises InvalidRequest: hosts of several cells have the name and no cell is given, or a reason is given for a host
        that is not disabled.
    :raises StaleRead: a provider of the host was created or deleted concurrently; a new transaction may succeed.
    """
    found = by_name(connection, message.service_host, message.cell_uuid)
    changed = [host for host in found if _wanted(message, host) != _settings(host)]
    # Lock order: providers before hosts, as in every write.
    nodes = [] if message.disabled is None else [host.compute_node_uuid for host in found]
    roots = disabled_hosts.lock(connection, nodes)
    for host in changed:
        row_ids = connection.scalars(select(hosts.c.id).where(hosts.c.compute_node_uuid == host.compute_node_uuid))
        disabled, reason, forced_down = _wanted(message, host)
        update(
            connection,
            row_ids.all(),
            {
                "disabled": disabled,
                "disabled_reason": None if reason is None else reason.encode(),
                "forced_down": forced_down,
            },
        )
    disabled_hosts.mark(connection, nodes, roots)
    # Read again: it may have been deleted concurrently.
    return by_name(connection, message.service_host, found[0].cell_uuid)[0]


#: Disabled, the reason for it, forced down.
_Settings = tuple[bool, str | None, bool]


def _settings(host: HostState) -> _Settings:
    return host.disabled, host.disabled_reason, host.forced_down


def _wanted(message: SetHost, host: HostState) -> _Settings:
    disabled = host.disabled if message.disabled is None else message.disabled
    if message.disabled_reason is not None and not disabled:
        raise errors.InvalidRequest(path="$.disabled_reason", reason="only a disabled host has one")
    reason = host.disabled_reason if message.disabled_reason is None else message.disabled_reason
    if not disabled:
        reason = None
    return disabled, reason, host.forced_down if message.forced_down is None else message.forced_down


def mark_down(connection: Connection, down_after: float) -> list[str]:
    """Mark all hosts as down that have sent no heartbeat for ``down_after`` seconds; return their names."""
    silent = hosts.c.heartbeat_at < now() - down_after
    found = connection.execute(select(hosts.c.id, hosts.c.service_host).where(hosts.c.up, silent)).all()
    # The same condition again in the write: a host whose heartbeat has come in between stays up and keeps its `seq`.
    #
    #     UPDATE hosts SET up = false, seq = seq + 1, updated_at = :now
    #      WHERE id IN (...) AND up AND heartbeat_at < :now - :down_after
    update(connection, [row.id for row in found], {"up": False}, also=and_(hosts.c.up, silent))
    return [row.service_host for row in found]


def any_host(connection: Connection) -> int | None:
    """Return the id of any host, or None if there are no hosts."""
    return connection.scalar(select(hosts.c.id).limit(1))


def update(connection: Connection, ids: Collection[int], values: dict[str, Any], also: Any = None) -> None:
    """Write some columns of hosts, raise their ``seq`` and record them in the change feed.

    :param also: a further condition that a host must meet to be changed.
    """
    for chunk in chunks(sorted(ids)):
        condition = hosts.c.id.in_(chunk) if also is None else and_(hosts.c.id.in_(chunk), also)
        connection.execute(hosts.update().where(condition).values(**values, seq=hosts.c.seq + 1, updated_at=now()))
    if ids:
        change_feed.record(connection, host_ids=ids)


def chunks(values: Iterable[Any]) -> Iterable[list[Any]]:
    """Yield ``values`` in lists that fit into one statement."""
    everything = list(values)
    for start in range(0, len(everything), _CHUNK):
        yield everything[start : start + _CHUNK]


def _host_row(row: Row[Any], metadata: AggregateMetadata) -> HostRow:
    data = row._asdict()
    data["availability_zone"] = metadata.zone(row.availability_zone)
    data["attributes"] = msgspec.json.decode(data["attributes"])
    data["image_properties"] = msgspec.json.decode(data["image_properties"] or b"{}")
    return HostRow(**data, metadata=metadata.metadata)


def _host_state(row: Row[Any], metadata: AggregateMetadata, instances: int) -> HostState:
    return HostState(
        service_host=row.service_host,
        nodename=row.nodename,
        compute_node_uuid=row.compute_node_uuid,
        cell_uuid=row.cell_uuid,
        agent=row.agent,
        availability_zone=metadata.zone(row.availability_zone),
        up=row.up,
        disabled=row.disabled,
        disabled_reason=None if row.disabled_reason is None else row.disabled_reason.decode(),
        forced_down=row.forced_down,
        attributes=msgspec.json.decode(row.attributes),
        # The heartbeat and this query are two statements, whose clocks may differ slightly.
        heartbeat_age=max(0.0, row.heartbeat_age),
        instances=instances,
        io_ops=row.io_ops,
        failed_builds=row.failed_builds,
    )
