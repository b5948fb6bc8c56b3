"""Audit the store: over-committed inventories, usages that differ from the sum of allocations, and all consumers."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import os_resource_classes
from os_traits import MISC_SHARES_VIA_AGGREGATE
from sqlalchemy import Connection, Row, Select, and_, func, or_, select

from moorage.messages import AuditStore
from moorage.model.inspection import Holder, InventoryFinding, StoreAudit
from placement_store.db import bulk
from placement_store.db.store import Store, handles
from placement_store.schema import (
    allocations,
    consumer_groups,
    consumers,
    inventories,
    provider_traits,
    resource_classes,
    resource_providers,
    tombstones,
    traits,
)

#: The columns of a consumer that the audit shows of each holder, under the same names.
_OF_HOLDER = tuple(consumers.c[name] for name in ("uuid", "consumer_type", "claim_id", "migration_of", "accepted_by"))

# SELECT l.resource_provider_id FROM provider_traits l JOIN traits t ON t.id = l.trait_id WHERE t.name = :shares
_SHARING = select(provider_traits.c.resource_provider_id).where(
    provider_traits.c.trait_id == traits.c.id, traits.c.name == MISC_SHARES_VIA_AGGREGATE
)


@handles(AuditStore)
def _audit_store(store: Store, message: AuditStore) -> StoreAudit:
    read = store.database.read_one_moment if message.amounts else store.read
    return read(lambda connection: report(connection, message))


def report(connection: Connection, part: AuditStore | None = None) -> StoreAudit:
    """Return the audit of the whole store, or one page of it; nothing is locked or changed.

    The inventories are read in one snapshot, and so are the holders, even while others write. With ``amounts``, this
    holds only if the transaction itself reads one snapshot. ``overcommitted`` are the inventories with more allocations
    than capacity, even if the capacity has shrunk since; ``drifted`` are those whose ``used`` differs from the sum of
    the allocations.

    :param part: the page of the holders; inventories are in the first page only.
    """
    part = part or AuditStore()
    names = {row.id: row.name for row in connection.execute(select(resource_classes))}
    found = [_finding(row, names) for row in connection.execute(_suspects())] if part.after == 0 else []
    last = _last_of(connection, part)
    holders = _holders(connection, names, part.after, last, with_amounts=part.amounts)
    return StoreAudit(
        overcommitted=tuple(finding for finding in found if finding.allocated > finding.capacity),
        drifted=tuple(finding for finding in found if finding.allocated != finding.used),
        holders=tuple(holders),
        more_after=last,
        roots=_roots(connection, holders, with_sharing=part.amounts and part.after == 0),
    )


def _suspects() -> Any:
    """Return the query for inventories that are over-committed or have drifted, and for allocations without inventory.

    SELECT ... FROM (SELECT provider, class FROM inventories UNION SELECT DISTINCT ... FROM allocations) pairs
      LEFT JOIN inventories ... LEFT JOIN (SELECT provider, class, SUM(used) FROM allocations GROUP BY ...) sums ...
     WHERE sum > (total - reserved) * allocation_ratio OR sum <> used
    """
    columns = ("resource_provider_id", "resource_class_id")
    # DISTINCT: the database then reads one entry of the index for each pair, and the temporary table of the UNION does
    # not get a row for each allocation.
    allocated_pairs = select(*(allocations.c[name] for name in columns)).distinct()
    pairs = select(*(inventories.c[name] for name in columns)).union(allocated_pairs).subquery()
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


def _finding(row: Row[Any], names: Mapping[int, str]) -> InventoryFinding:
    return InventoryFinding(
        # A deleted provider and an unknown class are findings too: they are named by their id.
        provider_uuid=row.uuid or f"#{row.resource_provider_id}",
        resource_class=_class_name(row.resource_class_id, names),
        capacity=float(row.capacity),
        used=int(row.used),
        allocated=int(row.allocated),
    )


def _class_name(number: int, names: Mapping[int, str]) -> str:
    if number < len(os_resource_classes.STANDARDS):
        return str(os_resource_classes.STANDARDS[number])
    return names.get(number) or f"#{number}"


def _last_of(connection: Connection, part: AuditStore) -> int | None:
    """Return the id of the last consumer of a page, or null if there is no further page."""
    if part.limit is None:
        return None
    # SELECT DISTINCT consumer_id FROM allocations WHERE consumer_id > :after ORDER BY consumer_id LIMIT 1 OFFSET :limit
    query = select(allocations.c.consumer_id).distinct().where(allocations.c.consumer_id > part.after)
    number: int | None = connection.scalar(query.order_by(allocations.c.consumer_id).offset(part.limit - 1).limit(1))
    return number


def _holders(
    connection: Connection, names: Mapping[int, str], after: int, last: int | None, *, with_amounts: bool
) -> list[Holder]:
    """Return the consumers with allocations whose ids are greater than ``after`` and at most ``last``, by id."""
    by_consumer: dict[int, list[Row[Any]]] = {}
    for row in connection.execute(_holders_by_root(after, last)):
        by_consumer.setdefault(row.consumer_id, []).append(row)
    buried = {
        number for number, (row, *_) in by_consumer.items() if row.buried and not (row.claim_id or row.accepted_by)
    }
    amounts = _amounts(connection, by_consumer.keys() if with_amounts else buried, names)
    rows_of = _rows(connection, by_consumer.keys()) if with_amounts else {}
    return [
        Holder(
            **{column.name: getattr(rows[0], column.name) for column in _OF_HOLDER},
            allocations=sum(row.rows for row in rows),
            root_provider_uuids=tuple(row.root_uuid for row in rows if row.root_uuid is not None),
            foreign=amounts.get(number, {}) if number in buried else {},
            held=amounts.get(number, {}) if with_amounts else {},
            **rows_of.get(number, {}),
        )
        for number, rows in by_consumer.items()
    ]


def _holders_by_root(after: int, last: int | None) -> Select[Any]:
    """Return the query for the consumers of a page, one row for each root provider of their allocations."""
    host = resource_providers.alias()
    consumer = (allocations.c.consumer_id, *_OF_HOLDER)
    within = allocations.c.consumer_id > after
    if last is not None:
        within = and_(within, allocations.c.consumer_id <= last)
    # A sharing provider below a host is no part of the host for the consumers of other hosts.
    #
    # SELECT ..., root.uuid, COUNT(*) FROM allocations LEFT JOIN consumers ... LEFT JOIN resource_providers ...
    #   LEFT JOIN resource_providers root ON root.id = root_provider_id AND provider NOT IN (SELECT ...)
    #  WHERE consumer > :after AND consumer <= :last GROUP BY consumer, root
    of_host = and_(host.c.id == resource_providers.c.root_provider_id, resource_providers.c.id.not_in(_SHARING))
    return (
        select(
            *consumer,
            tombstones.c.consumer_uuid.label("buried"),
            host.c.uuid.label("root_uuid"),
            func.count().label("rows"),
        )
        .select_from(
            allocations.outerjoin(consumers, consumers.c.id == allocations.c.consumer_id)
            .outerjoin(tombstones, tombstones.c.consumer_uuid == consumers.c.uuid)
            .outerjoin(resource_providers, resource_providers.c.id == allocations.c.resource_provider_id)
            .outerjoin(host, of_host)
        )
        .where(within)
        .group_by(*consumer, tombstones.c.consumer_uuid, host.c.uuid)
        .order_by(allocations.c.consumer_id, host.c.uuid)
    )


def _rows(connection: Connection, consumer_ids: Collection[int]) -> dict[int, dict[str, Any]]:
    """Return the columns of these consumers that only a comparison with records needs, by id."""
    query = select(
        consumers.c.id,
        consumers.c.generation,
        consumers.c.owner,
        resource_providers.c.uuid.label("placed_on"),
        consumer_groups.c.uuid.label("group_uuid"),
    ).select_from(
        consumers.outerjoin(resource_providers, resource_providers.c.id == consumers.c.root_provider_id).outerjoin(
            consumer_groups, consumer_groups.c.id == consumers.c.consumer_group_id
        )
    )
    found = {row.id: row._asdict() for row in bulk.select_in(connection, query, consumers.c.id, sorted(consumer_ids))}
    for row in found.values():
        del row["id"]
    return found


def _roots(connection: Connection, holders: Sequence[Holder], *, with_sharing: bool) -> dict[str, str]:
    """Return the root of each provider with allocations of these holders, by uuid; roots themselves are omitted.

    :param with_sharing: also those of all sharing providers, from which a reshape may have moved all allocations.
    """
    named = sorted({uuid for holder in holders for uuid in holder.held})
    root = resource_providers.alias()
    query = select(resource_providers.c.uuid, root.c.uuid.label("root_uuid")).join_from(
        resource_providers, root, root.c.id == resource_providers.c.root_provider_id
    )
    rows = [*bulk.select_in(connection, query, resource_providers.c.uuid, named)]
    if with_sharing:
        rows += connection.execute(query.where(resource_providers.c.id.in_(_SHARING))).all()
    return {row.uuid: row.root_uuid for row in rows if row.root_uuid != row.uuid}


def _amounts(
    connection: Connection, consumer_ids: Collection[int], names: Mapping[int, str]
) -> dict[int, dict[str, dict[str, int]]]:
    """Return the allocations of these consumers, by consumer id, provider uuid and resource class."""
    columns = (
        allocations.c.consumer_id,
        allocations.c.resource_class_id,
        allocations.c.used,
        resource_providers.c.uuid,
    )
    query = select(*columns).join_from(
        allocations, resource_providers, resource_providers.c.id == allocations.c.resource_provider_id
    )
    found: dict[int, dict[str, dict[str, int]]] = {}
    for row in bulk.select_in(connection, query, allocations.c.consumer_id, sorted(consumer_ids)):
        held = found.setdefault(row.consumer_id, {}).setdefault(row.uuid, {})
        held[_class_name(row.resource_class_id, names)] = row.used
    return found
