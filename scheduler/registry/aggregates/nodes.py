"""The nodes of the hosts that a change of a host aggregate affects: their locks, and the checks of their zones."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Select, not_, select

from moorage import errors
from moorage.db.forced_index import by_index
from moorage.model import ZONE_KEY, AggregateHost, HostAggregate
from placement_store.claims.residues import IS_RESIDUE
from placement_store.db import bulk
from placement_store.db.retries import StaleRead
from placement_store.providers import rows as providers
from placement_store.schema import consumers, host_aggregate_hosts, host_aggregates, hosts, resource_providers
from scheduler.registry import hosts as registry


class Node(NamedTuple):
    """A node of a host; ``provider_id`` is None if it has no provider (yet)."""

    id: int
    host: AggregateHost
    reported_zone: str
    provider_id: int | None


class AssignedZone(NamedTuple):
    """The zone that another aggregate gives a host."""

    zone: str
    aggregate: str


def lock(connection: Connection, affected: Collection[AggregateHost], *, with_providers: bool) -> list[Node]:
    """Lock the nodes of hosts and return them ordered by id; with ``with_providers``, lock their providers first.

    :raises StaleRead: a node was created or deleted concurrently; a new transaction may succeed.
    """
    found = _nodes(connection, affected)
    if with_providers:
        providers.lock(connection, [node.provider_id for node in found if node.provider_id is not None])
    registry.lock(connection, [node.id for node in found])
    # A transaction that registers a node of such a host, or creates its provider, also locks the host's row. Either it
    # waits for this transaction, or it was first: then this second read finds its node.
    if _nodes(connection, affected) != found:
        raise StaleRead
    return found


def refuse_two_zones(
    others: Mapping[AggregateHost, AssignedZone], members: Collection[AggregateHost], zone: str | None
) -> None:
    """Check that no other aggregate gives a host of an aggregate another zone.

    :raises ZoneConflict: one does.
    """
    for host in members:
        other = others.get(host)
        if zone is not None and other is not None and other.zone != zone:
            raise errors.ZoneConflict(host=host.service_host, zone=other.zone, aggregate=other.aggregate, other=zone)


def refuse_zone_change_with_servers(
    connection: Connection,
    nodes: Collection[Node],
    others: Mapping[AggregateHost, AssignedZone],
    before: HostAggregate,
    after: HostAggregate,
) -> None:
    """Check that no node with servers changes its zone: the servers have requested the zone that they are in.

    The nodes and their providers must be locked.

    :raises InvalidState: one would change.
    """
    given = [dict.fromkeys(aggregate.hosts, aggregate.metadata.get(ZONE_KEY)) for aggregate in (before, after)]
    changed: dict[int, tuple[Node, str, str]] = {}
    for node in nodes:
        zones = [_zone(node, others, own.get(node.host)) for own in given]
        if node.provider_id is not None and zones[0] != zones[1]:
            changed[node.provider_id] = (node, zones[0], zones[1])
    # The error names the first of these nodes with servers: the nodes are locked, and may have very many servers.
    table = consumers.c
    first = _placed(table.root_provider_id).order_by(table.root_provider_id).limit(1)
    for (root_id,) in bulk.select_in(connection, first, table.root_provider_id, sorted(changed)):
        node, was, would_be = changed[root_id]
        uuids = connection.scalars(_placed(table.uuid).where(table.root_provider_id == root_id)).all()
        named = registry.in_short(uuids)
        raise errors.InvalidState(
            reason=f"host {node.host.service_host} would go from zone {was} to {would_be} with {named} on it"
        )


def other_zones(
    connection: Connection, affected: Iterable[AggregateHost], number: int
) -> dict[AggregateHost, AssignedZone]:
    """Return the zones that aggregates other than the one of this number give to hosts."""
    table, member = host_aggregates.c, host_aggregate_hosts.c
    query = (
        select(member.cell_uuid, member.service_host, table.name, table.metadata)
        .join_from(host_aggregate_hosts, host_aggregates, table.aggregate_id == member.aggregate_id)
        .where(table.aggregate_id != number)
        .order_by(table.name)
    )
    zones: dict[str, str | None] = {}
    found: dict[AggregateHost, AssignedZone] = {}
    for cell_uuid, names in by_cell(affected).items():
        of_cell = query.where(member.cell_uuid == cell_uuid)
        for _cell, host, aggregate, document in bulk.select_in(connection, of_cell, member.service_host, names):
            if aggregate not in zones:
                zones[aggregate] = msgspec.json.decode(document, type=dict[str, str]).get(ZONE_KEY)
            if (zone := zones[aggregate]) is not None:
                found[AggregateHost(service_host=host, cell_uuid=cell_uuid)] = AssignedZone(zone, aggregate)
    return found


def _zone(node: Node, others: Mapping[AggregateHost, AssignedZone], own: str | None) -> str:
    """Return the zone of a node: of this aggregate, else of another one, else the zone that its agent reports."""
    if own is not None:
        return own
    other = others.get(node.host)
    return node.reported_zone if other is None else other.zone


def _placed(column: Any) -> Select[Any]:
    """Return the query for consumers that can be placed: servers, and migrations, whose servers may have to return."""
    # SELECT column FROM consumers WHERE NOT (claim_id IS NULL AND accepted_by IS NOT NULL)
    return by_index(select(column).where(not_(IS_RESIDUE)), consumers, "ix_consumers_placed")


def _nodes(connection: Connection, affected: Iterable[AggregateHost]) -> list[Node]:
    # SELECT h.id, h.service_host, h.availability_zone, p.id FROM hosts h
    #   LEFT JOIN resource_providers p ON p.uuid = h.compute_node_uuid
    #  WHERE h.cell_uuid = ... AND h.service_host IN (...)
    own = resource_providers.c
    query = select(hosts.c.id, hosts.c.service_host, hosts.c.availability_zone, own.id).select_from(
        hosts.outerjoin(resource_providers, own.uuid == hosts.c.compute_node_uuid)
    )
    found = [
        Node(id_, AggregateHost(service_host=name, cell_uuid=cell_uuid), zone, provider_id)
        for cell_uuid, names in by_cell(affected).items()
        for id_, name, zone, provider_id in bulk.select_in(
            connection, query.where(hosts.c.cell_uuid == cell_uuid), hosts.c.service_host, names
        )
    ]
    return sorted(found, key=lambda node: node.id)


def by_cell(affected: Iterable[AggregateHost]) -> dict[str, list[str]]:
    """Return the names of hosts by cell, cells and names in order."""
    found: dict[str, list[str]] = {}
    for host in affected:
        found.setdefault(host.cell_uuid, []).append(host.service_host)
    return {cell_uuid: sorted(names) for cell_uuid, names in sorted(found.items())}
