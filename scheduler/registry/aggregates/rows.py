"""The rows of host aggregates: find, list and lock them."""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, Select, select

from moorage import errors
from moorage.db.columns import now
from moorage.messages import GetHostAggregate, ListHostAggregates
from moorage.model import AggregateHost, HostAggregate
from placement_store.db import bulk
from placement_store.db.retries import StaleRead
from placement_store.schema import aggregates, host_aggregate_hosts, host_aggregates


class NumberedAggregate(NamedTuple):
    """A host aggregate, with the id of the provider aggregate that mirrors it."""

    number: int
    aggregate: HostAggregate


_TABLE, _MEMBER = host_aggregates.c, host_aggregate_hosts.c
_ROWS = select(_TABLE.aggregate_id, aggregates.c.uuid, _TABLE.name, _TABLE.metadata).join_from(
    host_aggregates, aggregates, aggregates.c.id == _TABLE.aggregate_id
)


def find(connection: Connection, reference: str) -> NumberedAggregate:
    """Return a host aggregate by its uuid or, if none has that uuid, by its name.

    :raises HostAggregateNotFound: neither exists.
    """
    # MySQL and MariaDB refuse to compare a column of uuids, which is ASCII, with a text that is not.
    for column in (aggregates.c.uuid, _TABLE.name) if reference.isascii() else (_TABLE.name,):
        for found in _numbered(connection, _ROWS.where(column == reference)):
            # MySQL ignores trailing blanks in comparisons, and finds another aggregate than was named.
            if reference in (found.aggregate.uuid, found.aggregate.name):
                return found
    raise errors.HostAggregateNotFound(name=reference)


def get(connection: Connection, message: GetHostAggregate) -> HostAggregate:
    """Return a host aggregate.

    :raises HostAggregateNotFound: it does not exist.
    """
    return find(connection, message.aggregate).aggregate


def listed(connection: Connection, message: ListHostAggregates) -> list[HostAggregate]:
    """Return the host aggregates that a message selects, ordered by name, or by uuid if it asks for a page."""
    query = bulk.page(_ROWS, aggregates.c.uuid, message.after, message.limit)
    if message.limit is None:
        query = query.order_by(_TABLE.name)
    if message.service_host is not None:
        having = select(_MEMBER.aggregate_id).where(_MEMBER.service_host == message.service_host)
        query = query.where(_TABLE.aggregate_id.in_(having))
    return [found.aggregate for found in _numbered(connection, query)]


def lock(connection: Connection, reference: str) -> NumberedAggregate:
    """Lock a host aggregate until the end of the transaction and return it.

    Lock order: the aggregate first, then providers by id, then hosts by id.

    :raises HostAggregateNotFound: it does not exist.
    :raises StaleRead: it was deleted concurrently; a new transaction does not find it.
    """
    number = find(connection, reference).number
    # An update, not SELECT ... FOR UPDATE: nodes of a Galera cluster do not share row locks.
    locked = host_aggregates.update().where(_TABLE.aggregate_id == number)
    if not connection.execute(locked.values(seq=_TABLE.seq + 1, updated_at=now())).rowcount:
        raise StaleRead
    for found in _numbered(connection, _ROWS.where(_TABLE.aggregate_id == number)):
        return found
    raise StaleRead


def forget_host(connection: Connection, cell_uuid: str, service_host: str) -> None:
    """Remove a host that is being deleted from all aggregates."""
    # DELETE FROM host_aggregate_hosts WHERE cell_uuid = ... AND service_host = ...
    connection.execute(
        host_aggregate_hosts.delete().where(_MEMBER.cell_uuid == cell_uuid, _MEMBER.service_host == service_host)
    )


def by_cell_and_name(hosts: Iterable[AggregateHost]) -> list[AggregateHost]:
    """Return hosts sorted by cell and name."""
    return sorted(hosts, key=lambda host: (host.cell_uuid, host.service_host))


def _numbered(connection: Connection, query: Select[Any]) -> list[NumberedAggregate]:
    rows = connection.execute(query).all()
    members = _members(connection, [row.aggregate_id for row in rows])
    return [NumberedAggregate(row.aggregate_id, _described(row, members.get(row.aggregate_id, []))) for row in rows]


def _members(connection: Connection, numbers: Collection[int]) -> dict[int, list[AggregateHost]]:
    query = select(_MEMBER.aggregate_id, _MEMBER.cell_uuid, _MEMBER.service_host)
    found: dict[int, list[AggregateHost]] = {}
    for number, cell_uuid, name in bulk.select_in(connection, query, _MEMBER.aggregate_id, sorted(numbers)):
        found.setdefault(number, []).append(AggregateHost(service_host=name, cell_uuid=cell_uuid))
    return found


def _described(row: Row[Any], members: Collection[AggregateHost]) -> HostAggregate:
    return HostAggregate(
        uuid=row.uuid,
        name=row.name,
        metadata=msgspec.json.decode(row.metadata, type=dict[str, str]),
        hosts=tuple(by_cell_and_name(members)),
    )
