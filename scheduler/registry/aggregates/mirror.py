"""Find the nodes whose provider is missing in an aggregate of their host, and add them.

The changes in this package never leave a node out. A service of an older version may do so during an upgrade, and an
operator who edits the tables may do so, too. A new node of a registered host joins the aggregates of its host in the
same way.
"""

from collections.abc import Collection

from sqlalchemy import Connection, and_, select

from moorage.model import UnmirroredHost
from placement_store.db import bulk, change_feed
from placement_store.providers import host_aggregate_links
from placement_store.providers import rows as providers
from placement_store.schema import (
    aggregates,
    host_aggregate_hosts,
    host_aggregates,
    hosts,
    provider_aggregates,
    resource_providers,
)

# SELECT g.name, ... FROM host_aggregate_hosts m
#   JOIN host_aggregates g ... JOIN aggregates a ... JOIN hosts h ON (h.cell_uuid, h.service_host) = (m. ...)
#   JOIN resource_providers p ON p.uuid = h.compute_node_uuid
#   LEFT JOIN provider_aggregates l ON l.resource_provider_id = p.id AND l.aggregate_id = m.aggregate_id
#  WHERE l.aggregate_id IS NULL
_MEMBER, _OWN, _LINK = host_aggregate_hosts.c, resource_providers.c, provider_aggregates.c
_MISSING = (
    select(
        host_aggregates.c.name,
        aggregates.c.uuid.label("aggregate_uuid"),
        hosts.c.service_host,
        hosts.c.cell_uuid,
        _OWN.uuid.label("provider_uuid"),
    )
    .join_from(host_aggregate_hosts, host_aggregates, host_aggregates.c.aggregate_id == _MEMBER.aggregate_id)
    .join(aggregates, aggregates.c.id == _MEMBER.aggregate_id)
    .join(hosts, and_(hosts.c.cell_uuid == _MEMBER.cell_uuid, hosts.c.service_host == _MEMBER.service_host))
    .join(resource_providers, _OWN.uuid == hosts.c.compute_node_uuid)
    .outerjoin(
        provider_aggregates, and_(_LINK.resource_provider_id == _OWN.id, _LINK.aggregate_id == _MEMBER.aggregate_id)
    )
    .where(_LINK.aggregate_id.is_(None))
)


def missing_nodes(connection: Connection) -> list[UnmirroredHost]:
    """Return all nodes that are missing in an aggregate of their host, ordered by aggregate and host."""
    return [
        UnmirroredHost(
            aggregate=row.name,
            aggregate_uuid=row.aggregate_uuid,
            service_host=row.service_host,
            cell_uuid=row.cell_uuid,
            provider_uuid=row.provider_uuid,
        )
        for row in connection.execute(_MISSING.order_by(host_aggregates.c.name, hosts.c.service_host, hosts.c.id))
    ]


def sync(connection: Connection) -> list[UnmirroredHost]:
    """Add all nodes that are missing in an aggregate of their host, and return them."""
    found = missing_nodes(connection)
    add_missing(connection, {one.provider_uuid for one in found})
    return found


def add_missing(connection: Connection, provider_uuids: Collection[str]) -> None:
    """Add the providers of nodes to all aggregates of their hosts where they are missing.

    :raises StaleRead: a provider was deleted concurrently; a new transaction may succeed.
    """
    ids = [key.id for key in providers.keys_found(connection, provider_uuids).values()]
    providers.lock(connection, ids)
    # Read under the lock: a host may have left its aggregate since the search for missing nodes.
    required = host_aggregate_links.required(connection, ids)
    query = select(_LINK.resource_provider_id, _LINK.aggregate_id)
    held = {tuple(row) for row in bulk.select_in(connection, query, _LINK.resource_provider_id, sorted(ids))}
    wanted = {(id_, number) for id_, numbers in required.items() for number in numbers.values()}
    new = sorted(wanted - held)
    bulk.insert(
        connection, provider_aggregates, [{"resource_provider_id": id_, "aggregate_id": number} for id_, number in new]
    )
    changed = {id_ for id_, _ in new}
    providers.bump_generations(connection, changed, by=1)
    change_feed.record(connection, provider_ids=changed)


def add_new_nodes(connection: Connection, cell_uuid: str, service_hosts: Collection[str]) -> None:
    """Add the new nodes of registered hosts to the aggregates of these hosts.

    :raises StaleRead: a provider was deleted concurrently; a new transaction may succeed.
    """
    if not service_hosts:
        return
    # Serialise with changes of the aggregates of these hosts: such a change locks the rows of the nodes that it finds.
    #
    # SELECT id FROM hosts WHERE cell_uuid = ... AND service_host IN (...) ORDER BY id FOR UPDATE
    locked = select(hosts.c.id).where(hosts.c.cell_uuid == cell_uuid).order_by(hosts.c.id).with_for_update()
    list(bulk.select_in(connection, locked, hosts.c.service_host, sorted(service_hosts)))
    of_cell = _MISSING.where(hosts.c.cell_uuid == cell_uuid)
    found = bulk.select_in(connection, of_cell, hosts.c.service_host, sorted(service_hosts))
    add_missing(connection, {row.provider_uuid for row in found})
