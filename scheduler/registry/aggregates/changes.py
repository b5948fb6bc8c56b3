"""Changes of host aggregates, each in one transaction: rows, the mirroring provider aggregate, and the change feed.

Each change of an existing aggregate raises HostAggregateNotFound if it does not exist, InvalidState if servers are on
a host whose zone would change, and StaleRead if a host or provider of it has changed concurrently: a new transaction
may succeed.
"""

from collections.abc import Collection, Mapping

import msgspec
from msgspec import structs
from sqlalchemy import Connection, exc, select

from moorage import errors, ids
from moorage.db.columns import now
from moorage.messages import (
    AddAggregateHost,
    CreateHostAggregate,
    DeleteHostAggregate,
    RemoveAggregateHost,
    SetHostAggregate,
)
from moorage.model import ZONE_KEY, AggregateHost, HostAggregate
from placement_store.db import bulk, change_feed
from placement_store.db.retries import StaleRead, stale_if_taken
from placement_store.providers import aggregates, links
from placement_store.providers import rows as providers
from placement_store.schema import host_aggregate_hosts, provider_aggregates
from placement_store.schema import host_aggregates as aggregate_table
from scheduler.registry import hosts
from scheduler.registry.aggregates import nodes as aggregate_nodes
from scheduler.registry.aggregates import rows as host_aggregates
from scheduler.registry.aggregates.nodes import Node

#: The maximum number of metadata keys of an aggregate: as many as one message may contain.
MAX_KEYS = 256
#: The maximum length of a zone: that of the column for the zones that agents report.
_MAX_ZONE = 255


def create(connection: Connection, message: CreateHostAggregate) -> HostAggregate:
    """Create a host aggregate without hosts.

    :raises AlreadyExists: the name is taken, or the uuid is another host aggregate's.
    :raises InvalidRequest: the zone is not a valid name.
    :raises StaleRead: the same aggregate was created concurrently; a new transaction finds it.
    """
    _check_zone(message.metadata)
    # Derived from the request id: a repeated request gets the same uuid.
    uuid = message.uuid or ids.derived(message.request_id, "host aggregate")
    number = aggregates.numbers(connection, [uuid])[uuid]
    table = aggregate_table.c
    taken = select(table.aggregate_id).where((table.aggregate_id == number) | (table.name == message.name))
    for row in connection.execute(taken):
        raise _taken(uuid if row.aggregate_id == number else message.name)
    new = {"aggregate_id": number, "name": message.name, "metadata": _document(message.metadata), "seq": 0}
    with stale_if_taken():
        bulk.insert(connection, aggregate_table, [new], stamps=["created_at", "updated_at"])
    return HostAggregate(uuid=uuid, name=message.name, metadata=message.metadata)


def change(connection: Connection, message: SetHostAggregate) -> None:
    """Change the name or some of the metadata of a host aggregate; a key with the value None is removed.

    :raises AlreadyExists: the name is taken.
    :raises InvalidRequest: the zone is not a valid name, or there are too many keys.
    :raises ZoneConflict: another aggregate gives one of its hosts another zone.
    """
    number, before = host_aggregates.lock(connection, message.aggregate)
    changed = {**before.metadata, **message.metadata}
    metadata = {key: value for key, value in changed.items() if value is not None}
    _check_zone(metadata)
    if len(metadata) > MAX_KEYS:
        raise errors.InvalidRequest(path="$.metadata", reason=f"an aggregate has {MAX_KEYS} keys at most")
    after = structs.replace(before, name=message.name or before.name, metadata=metadata)
    if after != before:
        values = {"name": after.name, "metadata": _document(after.metadata), "updated_at": now()}
        try:
            same = aggregate_table.c.aggregate_id == number
            connection.execute(aggregate_table.update().where(same).values(**values))
        except exc.IntegrityError as fault:
            raise _taken(after.name) from fault
    _apply(connection, number, before, after)


def add_host(connection: Connection, message: AddAggregateHost) -> None:
    """Add a host with all its nodes to a host aggregate; if it is already a member, nothing changes.

    :raises HostNotFound: no host has the name, or none in that cell.
    :raises InvalidRequest: hosts of several cells have the name, and no cell is given.
    :raises ZoneConflict: another aggregate gives the host another zone.
    """
    number, before = host_aggregates.lock(connection, message.aggregate)
    [known, *_] = hosts.by_name(connection, message.service_host, message.cell_uuid)
    added = AggregateHost(service_host=message.service_host, cell_uuid=known.cell_uuid)
    after = structs.replace(before, hosts=tuple(host_aggregates.by_cell_and_name({*before.hosts, added})))
    _apply(connection, number, before, after)


def remove_host(connection: Connection, message: RemoveAggregateHost) -> None:
    """Remove a host from a host aggregate.

    :raises HostNotFound: the host is not in the aggregate.
    :raises InvalidRequest: hosts of that name in several cells are in it, and no cell is given.
    """
    number, before = host_aggregates.lock(connection, message.aggregate)
    named = [host for host in before.hosts if host.service_host == message.service_host]
    leaving = [host for host in named if message.cell_uuid in (None, host.cell_uuid)]
    if not leaving:
        raise errors.HostNotFound(name=f"{message.service_host} in aggregate {before.name}")
    if len(leaving) > 1:
        raise errors.InvalidRequest(path="$.cell_uuid", reason="it has hosts of this name in several cells: name one")
    after = structs.replace(before, hosts=tuple(host for host in before.hosts if host not in leaving))
    _apply(connection, number, before, after)


def delete(connection: Connection, message: DeleteHostAggregate) -> HostAggregate:
    """Delete a host aggregate and return its last state. The provider aggregate stays: it is only a uuid.

    :raises InvalidState: also if it has hosts and ``force`` is not set.
    """
    number, before = host_aggregates.lock(connection, message.aggregate)
    if before.hosts and not message.force:
        raise errors.InvalidState(
            reason=f"aggregate {before.name} has {len(before.hosts)} host(s), and is only deleted with force"
        )
    _apply(connection, number, before, structs.replace(before, metadata={}, hosts=()))
    connection.execute(aggregate_table.delete().where(aggregate_table.c.aggregate_id == number))
    return before


# --- The effect on hosts and providers ------------------------------------------------------------------------------


def _apply(connection: Connection, number: int, before: HostAggregate, after: HostAggregate) -> None:
    """Apply a change of an aggregate to its hosts and their nodes' providers, or refuse it."""
    joining, leaving = set(after.hosts).difference(before.hosts), set(before.hosts).difference(after.hosts)
    affected = joining | leaving
    if before.metadata != after.metadata:
        affected |= {*before.hosts, *after.hosts}
    if not affected:
        return
    # Only a change of zones or of members concerns providers; other metadata is for plug-ins alone.
    zone = after.metadata.get(ZONE_KEY)
    zones_may_change = bool(joining or leaving) or zone != before.metadata.get(ZONE_KEY)
    nodes = aggregate_nodes.lock(connection, affected, with_providers=zones_may_change)
    if not joining <= {node.host for node in nodes}:
        # A joining host was deleted after it was looked up.
        raise StaleRead
    changed: set[int] = set()
    if zones_may_change:
        # The rows are locked: check before hosts and providers are written.
        others = aggregate_nodes.other_zones(connection, affected, number)
        aggregate_nodes.refuse_two_zones(others, affected - leaving, zone)
        aggregate_nodes.refuse_zone_change_with_servers(connection, nodes, others, before, after)
        _write_members(connection, number, joining, leaving)
        link = provider_aggregates.c.aggregate_id
        joining_ids, leaving_ids = _providers(nodes, joining), _providers(nodes, leaving)
        changed = links.add_and_remove(connection, link, number, joining_ids, leaving_ids)
        providers.bump_generations(connection, changed, by=1)
    # No column changes, only `seq`: followers read the metadata with the row.
    hosts.update(connection, [node.id for node in nodes], {})
    change_feed.record(connection, provider_ids=changed)


def _write_members(
    connection: Connection, number: int, joining: Collection[AggregateHost], leaving: Collection[AggregateHost]
) -> None:
    # Write after the host rows are locked: the deletion of a host locks its row first, then removes its memberships.
    new = [{"aggregate_id": number, "cell_uuid": host.cell_uuid, "service_host": host.service_host} for host in joining]
    bulk.insert(connection, host_aggregate_hosts, new)
    member = host_aggregate_hosts.c
    for cell_uuid, names in aggregate_nodes.by_cell(leaving).items():
        of_cell = host_aggregate_hosts.delete().where(member.aggregate_id == number, member.cell_uuid == cell_uuid)
        bulk.change_in(connection, of_cell, member.service_host, names)


def _providers(nodes: Collection[Node], of_hosts: Collection[AggregateHost]) -> set[int]:
    return {node.provider_id for node in nodes if node.provider_id is not None and node.host in of_hosts}


# --- Checks and values ------------------------------------------------------------------------------------------------


def _check_zone(metadata: Mapping[str, str]) -> None:
    zone = metadata.get(ZONE_KEY)
    if zone is not None and not 1 <= len(zone) <= _MAX_ZONE:
        raise errors.InvalidRequest(
            path=f"$.metadata[{ZONE_KEY!r}]", reason=f"a zone has a name of 1 to {_MAX_ZONE} characters"
        )


def _taken(name: str) -> errors.AlreadyExists:
    return errors.AlreadyExists(kind="host aggregate", name=name)


def _document(metadata: Mapping[str, str]) -> bytes:
    return msgspec.json.encode(dict(metadata), order="sorted")
