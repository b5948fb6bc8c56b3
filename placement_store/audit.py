"""What the store says of itself: inventories that hold too much, sums that disagree, and who holds what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import os_resource_classes
from sqlalchemy import Connection, Row, and_, func, or_, select

from placement_store.schema import allocations, consumers, inventories, resource_classes, resource_providers


@dataclass(frozen=True, slots=True)
class Finding:
    """One inventory with what it may hold, what it says is used, and what its allocations come to."""

    provider_uuid: str
    resource_class: str
    capacity: float
    used: int
    allocated: int


@dataclass(frozen=True, slots=True)
class Holder:
    """A consumer that holds something; without uuid, allocations whose consumer is gone."""

    uuid: str | None
    consumer_type: str | None
    claim_id: str | None
    allocations: int


@dataclass(frozen=True, slots=True)
class Report:
    """All that an audit has found; nothing is changed by it.

    ``overcommitted`` is what holds more than its capacity, be it that the inventory has shrunk since; ``drifted`` is
    where ``used`` is not the sum of the allocations.
    """

    overcommitted: Sequence[Finding]
    drifted: Sequence[Finding]
    holders: Sequence[Holder]


def report(connection: Connection) -> Report:
    """Read everything once. Each of the lists is of one moment, also while others write."""
    names = {row.id: row.name for row in connection.execute(select(resource_classes))}
    found = [_finding(row, names) for row in connection.execute(_suspects())]
    return Report(
        overcommitted=[finding for finding in found if finding.allocated > finding.capacity],
        drifted=[finding for finding in found if finding.allocated != finding.used],
        holders=_holders(connection),
    )


def _suspects() -> Any:
    """Return the query for inventories whose allocations exceed or contradict them, and for allocations without one.

    SELECT ... FROM (SELECT provider, class FROM inventories UNION SELECT provider, class FROM allocations) pairs
      LEFT JOIN inventories ... LEFT JOIN (SELECT provider, class, SUM(used) FROM allocations GROUP BY ...) sums ...
     WHERE sum > (total - reserved) * allocation_ratio OR sum <> used
    """
    columns = ("resource_provider_id", "resource_class_id")
    pairs = (
        select(*(inventories.c[name] for name in columns)).union(select(*(allocations.c[name] for name in columns)))
    ).subquery()
    sums = (
        select(*(allocations.c[name] for name in columns), func.sum(allocations.c.used).label("allocated"))
        .group_by(*(allocations.c[name] for name in columns))
        .subquery()
    )
    capacity = func.coalesce((inventories.c.total - inventories.c.reserved) * inventories.c.allocation_ratio, 0.0)
    used = func.coalesce(inventories.c.used, 0)
    allocated = func.coalesce(sums.c.allocated, 0)
    source = (
        pairs.outerjoin(resource_providers, resource_providers.c.id == pairs.c.resource_provider_id)
        .outerjoin(inventories, and_(*(inventories.c[name] == pairs.c[name] for name in columns)))
        .outerjoin(sums, and_(*(sums.c[name] == pairs.c[name] for name in columns)))
    )
    return (
        select(
            resource_providers.c.uuid,
            pairs.c.resource_provider_id,
            pairs.c.resource_class_id,
            capacity.label("capacity"),
            used.label("used"),
            allocated.label("allocated"),
        )
        .select_from(source)
        .where(or_(allocated > capacity, allocated != used))
        .order_by(pairs.c.resource_provider_id, pairs.c.resource_class_id)
    )


def _finding(row: Row[Any], names: Mapping[int, str]) -> Finding:
    standard = dict(enumerate(os_resource_classes.STANDARDS))
    number = row.resource_class_id
    return Finding(
        # A provider that is gone, and a class that is unknown, are findings too: by their number.
        provider_uuid=row.uuid or f"#{row.resource_provider_id}",
        resource_class=standard.get(number) or names.get(number) or f"#{number}",
        capacity=float(row.capacity),
        used=int(row.used),
        allocated=int(row.allocated),
    )


def _holders(connection: Connection) -> list[Holder]:
    query = (
        select(
            consumers.c.uuid,
            consumers.c.consumer_type,
            consumers.c.claim_id,
            allocations.c.consumer_id,
            func.count().label("rows"),
        )
        .select_from(allocations.outerjoin(consumers, consumers.c.id == allocations.c.consumer_id))
        .group_by(allocations.c.consumer_id, consumers.c.uuid, consumers.c.consumer_type, consumers.c.claim_id)
        .order_by(allocations.c.consumer_id)
    )
    return [
        Holder(uuid, consumer_type, claim_id, int(count))
        for uuid, consumer_type, claim_id, _, count in connection.execute(query)
    ]
