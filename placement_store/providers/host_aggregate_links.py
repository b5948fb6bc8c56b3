"""Keep the compute nodes of hosts in the provider aggregates that mirror their host aggregates.

The compute node of a host is the provider with the uuid of the host's node. It belongs to every aggregate that the host
is in: from the transaction that creates the second of the two, host and provider, until the one that deletes either.
Other writes of the provider's aggregates do not change this.
"""

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, select

from placement_store.db import bulk
from placement_store.schema import (
    aggregates,
    host_aggregate_hosts,
    host_aggregates,
    hosts,
    provider_aggregates,
    resource_providers,
)

# SELECT p.id, a.id, a.uuid FROM resource_providers p
#   JOIN hosts h ON h.compute_node_uuid = p.uuid
#   JOIN host_aggregate_hosts m ON m.cell_uuid = h.cell_uuid AND m.service_host = h.service_host
#   JOIN host_aggregates g ON g.aggregate_id = m.aggregate_id
#   JOIN aggregates a ON a.id = g.aggregate_id
#  WHERE p.id IN (...)
_MEMBER = host_aggregate_hosts.c
_IN = bulk.Lookup(
    select(resource_providers.c.id, aggregates.c.id, aggregates.c.uuid)
    .select_from(resource_providers)
    .join(hosts, hosts.c.compute_node_uuid == resource_providers.c.uuid)
    .join(
        host_aggregate_hosts, (_MEMBER.cell_uuid == hosts.c.cell_uuid) & (_MEMBER.service_host == hosts.c.service_host)
    )
    .join(host_aggregates, host_aggregates.c.aggregate_id == _MEMBER.aggregate_id)
    .join(aggregates, aggregates.c.id == host_aggregates.c.aggregate_id),
    resource_providers.c.id,
)


def required(connection: Connection, ids: Collection[int]) -> dict[int, dict[str, int]]:
    """Return the aggregates that providers must be in as nodes of hosts, by provider id: aggregate ids by uuid.

    The result stays true while the providers' rows are locked: adding a host to an aggregate locks its nodes' rows.
    """
    found: dict[int, dict[str, int]] = {}
    for id_, number, uuid in _IN.rows(connection, sorted(ids)):
        found.setdefault(id_, {})[uuid] = number
    return found


def add_created(connection: Connection, created: Mapping[str, int]) -> bool:
    """Add providers created by this transaction to the aggregates of their hosts.

    Return whether any of them is a node of a host; then the rows of these hosts are locked.
    """
    # A concurrent transaction that adds such a host to an aggregate has not read its provider, and holds the lock on
    # the host's row or waits for it. After this lock, either this transaction sees the aggregate, or that one sees the
    # provider.
    #
    # SELECT id FROM hosts WHERE compute_node_uuid IN (...) ORDER BY id FOR UPDATE
    query = select(hosts.c.id).order_by(hosts.c.id).with_for_update()
    if not list(bulk.select_in(connection, query, hosts.c.compute_node_uuid, sorted(created))):
        return False
    links = [
        {"resource_provider_id": id_, "aggregate_id": number}
        for id_, numbers in sorted(required(connection, created.values()).items())
        for number in sorted(numbers.values())
    ]
    bulk.insert(connection, provider_aggregates, links)
    return True
