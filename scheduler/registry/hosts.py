"""The host registry: rows for the host view and for lists, the operator's changes, and the failure detection."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import structs
from sqlalchemy import Connection, Row, and_, or_, select

from moorage import errors
from moorage.db.columns import is_ahead, now
from moorage.messages import ListHosts, SetHost
from moorage.model import ZONE_KEY, HostState
from placement_store import cells
from placement_store.allocations import placed
from placement_store.db import bulk, change_feed
from placement_store.db.retries import StaleRead
from placement_store.providers import disabled_hosts
from placement_store.schema import host_aggregate_hosts, host_aggregates, hosts

#: The metadata that a host has from all its aggregates together: the set of values of each key.
AggregateMetadata = Mapping[str, frozenset[str]]

# SELECT h.id, m.aggregate_id FROM hosts h
#   JOIN host_aggregate_hosts m ON m.cell_uuid = h.cell_uuid AND m.service_host = h.service_host WHERE h.id IN (...)
_MEMBER = host_aggregate_hosts.c
_MEMBERSHIPS = bulk.Lookup(
    select(hosts.c.id, _MEMBER.aggregate_id)
    .select_from(hosts)
    .join(
        host_aggregate_hosts, (_MEMBER.cell_uuid == hosts.c.cell_uuid) & (_MEMBER.service_host == hosts.c.service_host)
    ),
    hosts.c.id,
)
_DOCUMENTS = bulk.Lookup(
    select(host_aggregates.c.aggregate_id, host_aggregates.c.metadata), host_aggregates.c.aggregate_id
)
_ALL = ListHosts()


@dataclass(frozen=True, slots=True)
class HostRow:
    """A host as the host view needs it; every change except a heartbeat bumps ``seq``."""

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


_VIEW_NAMES = [name for name in HostRow.__dataclass_fields__ if name in hosts.c]
_VIEW_COLUMNS = [hosts.c[name] for name in _VIEW_NAMES]


def rows(connection: Connection, ids: Collection[int]) -> list[HostRow]:
    """Return the hosts of these ids; ids without a row are left out."""
    # Read the hosts first: the metadata can then only be newer than `seq`, and is read again with the next `seq`.
    found = list(bulk.select_in(connection, select(*_VIEW_COLUMNS), hosts.c.id, sorted(ids)))
    metadata = _metadata_of(connection, ids) if found else {}
    return [_host_row(row, metadata.get(row.id, {})) for row in found]


def states(connection: Connection, message: ListHosts = _ALL) -> list[HostState]:
    """Return the hosts that a message selects, ordered by name, or by node uuid if it asks for a page."""
    table = hosts.c
    query = select(hosts, (now() - table.heartbeat_at).label("heartbeat_age"))
    if message.cell_uuid is not None:
        query = query.where(table.cell_uuid == message.cell_uuid)
    if message.service_host is not None:
        query = query.where(table.service_host == message.service_host)
    query = bulk.page(query, table.compute_node_uuid, message.after, message.limit)
    if message.limit is None:
        query = query.order_by(table.service_host, table.nodename, table.cell_uuid)
    found = connection.execute(query).all()
    # Read the instances and the metadata of all hosts together, not host by host.
    instances = placed.instances_of_nodes(connection, [row.compute_node_uuid for row in found])
    metadata = _metadata_of(connection, [row.id for row in found])
    return [_host_state(row, metadata.get(row.id, {}), instances.get(row.compute_node_uuid, 0)) for row in found]


def listed(connection: Connection, message: ListHosts) -> list[HostState]:
    """Return the hosts that a message selects, as :func:`states` does.

    :raises CellNotFound: the cell does not exist.
    """
    if message.cell_uuid is not None:
        cells.by_uuid(connection, message.cell_uuid)
    return states(connection, message)


def by_name(connection: Connection, service_host: str, cell_uuid: str | None) -> list[HostState]:
    """Return the nodes of one service host.

    :raises HostNotFound: no host has the name, or none in that cell.
    :raises InvalidRequest: hosts of several cells have the name, and no cell is given.
    """
    query = ListHosts(cell_uuid=cell_uuid, service_host=service_host)
    # MySQL ignores trailing blanks in comparisons, and finds another host than was named.
    found = [host for host in states(connection, query) if host.service_host == service_host]
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
    :raises StaleRead: a node or provider of the host was created or deleted concurrently; a new transaction may
        succeed.
    """
    found = by_name(connection, message.service_host, message.cell_uuid)
    # Lock order: providers before hosts, as in every write.
    nodes = [] if message.disabled is None else [host.compute_node_uuid for host in found]
    roots = disabled_hosts.lock(connection, nodes)
    locked = _read_again_locked(connection, found)
    changed = [after for host in locked if (after := _wanted(message, host)) != host]
    for host in changed:
        row_ids = connection.scalars(select(hosts.c.id).where(hosts.c.compute_node_uuid == host.compute_node_uuid))
        reason = None if host.disabled_reason is None else host.disabled_reason.encode()
        values = {"disabled": host.disabled, "disabled_reason": reason, "forced_down": host.forced_down}
        update(connection, row_ids.all(), values)
    disabled_hosts.mark(connection, nodes, roots)
    # Read again: it may have been deleted concurrently.
    return by_name(connection, message.service_host, found[0].cell_uuid)[0]


def _read_again_locked(connection: Connection, found: Sequence[HostState]) -> list[HostState]:
    """Lock the nodes of a host, and return their locked state: another operator may have changed them meanwhile.

    :raises HostNotFound: the host was deleted concurrently.
    :raises StaleRead: a node of it was created or deleted concurrently.
    """
    nodes = [host.compute_node_uuid for host in found]
    of_nodes = bulk.select_in(connection, select(hosts.c.id), hosts.c.compute_node_uuid, nodes)
    lock(connection, [row.id for row in of_nodes])
    present = by_name(connection, found[0].service_host, found[0].cell_uuid)
    if [host.compute_node_uuid for host in present] != nodes:
        raise StaleRead
    return present


def _wanted(message: SetHost, host: HostState) -> HostState:
    """Return a host after a change by the operator."""
    disabled = host.disabled if message.disabled is None else message.disabled
    if message.disabled_reason is not None and not disabled:
        raise errors.InvalidRequest(path="$.disabled_reason", reason="only a disabled host has one")
    reason = host.disabled_reason if message.disabled_reason is None else message.disabled_reason
    forced_down = host.forced_down if message.forced_down is None else message.forced_down
    return structs.replace(
        host, disabled=disabled, disabled_reason=reason if disabled else None, forced_down=forced_down
    )


def lock(connection: Connection, ids: Collection[int]) -> None:
    """Lock the rows of hosts by id."""
    # SELECT id FROM hosts WHERE id IN (...) ORDER BY id FOR UPDATE
    query = select(hosts.c.id).order_by(hosts.c.id).with_for_update()
    list(bulk.select_in(connection, query, hosts.c.id, sorted(ids)))


def in_short(names: Collection[str], most: int = 5) -> str:
    """Return names in one line, and the number of those after the first ``most``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(sorted(names)[:most]) + more


def mark_down(connection: Connection, down_after: float) -> list[str]:
    """Mark all hosts as down that have sent no heartbeat for ``down_after`` seconds; return their names.

    If the clock was set back, the time of hosts that have sent no heartbeat since then starts again.
    """
    ahead, silent = is_ahead(hosts.c.heartbeat_at), hosts.c.heartbeat_at < now() - down_after
    query = select(hosts.c.id, hosts.c.service_host, ahead.label("is_ahead")).where(hosts.c.up, or_(silent, ahead))
    rows = connection.execute(query).all()
    starting_again = hosts.update().where(ahead).values(heartbeat_at=now())
    bulk.change_in(connection, starting_again, hosts.c.id, sorted(row.id for row in rows if row.is_ahead))
    found = [row for row in rows if not row.is_ahead]
    # Repeat the condition in the write: a host whose heartbeat has arrived in between stays up and keeps its `seq`.
    #
    #     UPDATE hosts SET up = false, seq = seq + 1, updated_at = :now
    #      WHERE id IN (...) AND up AND heartbeat_at < :now - :down_after
    update(connection, [row.id for row in found], {"up": False}, also=and_(hosts.c.up, silent))
    return [row.service_host for row in found]


def update(connection: Connection, ids: Collection[int], values: dict[str, Any], also: Any = None) -> None:
    """Write some columns of hosts, raise their ``seq`` and record them in the change feed.

    :param also: a further condition that a host must meet to be changed.
    """
    changing = hosts.update().values(**values, seq=hosts.c.seq + 1, updated_at=now())
    bulk.change_in(connection, changing if also is None else changing.where(also), hosts.c.id, sorted(ids))
    if ids:
        change_feed.record(connection, host_ids=ids)


def _host_row(row: Row[Any], metadata: AggregateMetadata) -> HostRow:
    data = dict(zip(_VIEW_NAMES, row, strict=True))
    data["availability_zone"] = _zone(metadata, row.availability_zone)
    data["attributes"] = msgspec.json.decode(data["attributes"])
    data["image_properties"] = msgspec.json.decode(data["image_properties"] or b"{}")
    return HostRow(**data, metadata=metadata)


def _host_state(row: Row[Any], metadata: AggregateMetadata, instances: int) -> HostState:
    data = {name: value for name, value in row._asdict().items() if name in HostState.__struct_fields__}
    data["availability_zone"] = _zone(metadata, row.availability_zone)
    data["disabled_reason"] = None if row.disabled_reason is None else row.disabled_reason.decode()
    data["attributes"] = msgspec.json.decode(row.attributes)
    # The heartbeat and this query are two statements, whose clocks may differ slightly.
    data["heartbeat_age"] = max(0.0, row.heartbeat_age)
    return HostState(**data, instances=instances)


# --- Metadata of aggregates -----------------------------------------------------------------------------------------


def _metadata_of(connection: Connection, ids: Collection[int]) -> dict[int, AggregateMetadata]:
    """Return the metadata of these hosts, by id; a host without aggregates is left out."""
    numbers: dict[int, set[int]] = {}
    for host_id, number in _MEMBERSHIPS.rows(connection, sorted(ids)):
        numbers.setdefault(host_id, set()).add(number)
    if not numbers:
        return {}
    named = sorted({number for of_host in numbers.values() for number in of_host})
    documents = {
        number: msgspec.json.decode(document, type=dict[str, str])
        for number, document in _DOCUMENTS.rows(connection, named)
    }
    # Hosts in the same aggregates share one object.
    merged: dict[frozenset[int], AggregateMetadata] = {}
    found = {}
    for host_id, of_host in numbers.items():
        key = frozenset(of_host)
        if key not in merged:
            merged[key] = _merged([documents[number] for number in key if number in documents])
        found[host_id] = merged[key]
    return found


def _merged(documents: Collection[Mapping[str, str]]) -> AggregateMetadata:
    values: dict[str, set[str]] = {}
    for document in documents:
        for key, value in document.items():
            values.setdefault(key, set()).add(value)
    return {key: frozenset(of_key) for key, of_key in sorted(values.items())}


def _zone(metadata: AggregateMetadata, reported: str) -> str:
    return min(metadata.get(ZONE_KEY, ()), default=reported)
