"""The metadata that hosts have from all their aggregates together, and from it their availability zone."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from moorage.model import ZONE_KEY
from placement_store.db import bulk
from placement_store.schema import host_aggregate_hosts, host_aggregates, hosts


@dataclass(frozen=True, slots=True)
class AggregateMetadata:
    """The merged metadata of some host aggregates: the set of values of each key."""

    metadata: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def zone(self, reported: str) -> str:
        """Return the availability zone of a host whose agent has reported the zone ``reported``."""
        return min(self.metadata.get(ZONE_KEY, ()), default=reported)


#: The metadata of a host that is in no aggregate.
NO_METADATA = AggregateMetadata()

# SELECT h.id, m.aggregate_id FROM hosts h
#   JOIN host_aggregate_hosts m ON m.cell_uuid = h.cell_uuid AND m.service_host = h.service_host [WHERE h.id IN (...)]
_MEMBER = host_aggregate_hosts.c
_MEMBERSHIPS = (
    select(hosts.c.id, _MEMBER.aggregate_id)
    .select_from(hosts)
    .join(
        host_aggregate_hosts,
        (_MEMBER.cell_uuid == hosts.c.cell_uuid) & (_MEMBER.service_host == hosts.c.service_host),
    )
)
_MEMBERSHIPS_OF_HOSTS = bulk.Lookup(_MEMBERSHIPS, hosts.c.id)
_DOCUMENTS = bulk.Lookup(
    select(host_aggregates.c.aggregate_id, host_aggregates.c.metadata), host_aggregates.c.aggregate_id
)


def of_hosts(connection: Connection, ids: Collection[int] | None) -> dict[int, AggregateMetadata]:
    """Return the metadata of these hosts, or of all hosts for None, by id; a host without aggregates is left out.

    Two statements, however many hosts. Hosts in the same aggregates share one object.
    """
    rows: Iterable[Any] = (
        connection.execute(_MEMBERSHIPS).all() if ids is None else _MEMBERSHIPS_OF_HOSTS.rows(connection, sorted(ids))
    )
    numbers: dict[int, set[int]] = {}
    for host_id, number in rows:
        numbers.setdefault(host_id, set()).add(number)
    if not numbers:
        return {}
    documents = _documents(connection, {number for of_host in numbers.values() for number in of_host})
    merged: dict[frozenset[int], AggregateMetadata] = {}
    found = {}
    for host_id, of_host in numbers.items():
        key = frozenset(of_host)
        if key not in merged:
            merged[key] = _merged([documents[number] for number in key if number in documents])
        found[host_id] = merged[key]
    return found


def _documents(connection: Connection, numbers: Collection[int]) -> dict[int, dict[str, str]]:
    return {
        number: msgspec.json.decode(document, type=dict[str, str])
        for number, document in _DOCUMENTS.rows(connection, sorted(numbers))
    }


def _merged(documents: Collection[Mapping[str, str]]) -> AggregateMetadata:
    values: dict[str, set[str]] = {}
    for document in documents:
        for key, value in document.items():
            values.setdefault(key, set()).add(value)
    return AggregateMetadata({key: frozenset(of_key) for key, of_key in sorted(values.items())})
