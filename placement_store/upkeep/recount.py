"""Recount inventories: set `used` to the sum of the allocations, after somebody has changed the tables by hand."""

import logging
from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from moorage.messages import Recounted, RecountInventories
from placement_store.db import bulk, change_feed
from placement_store.db.store import writes
from placement_store.providers import rows as providers
from placement_store.schema import allocations, consumers, inventories

LOG = logging.getLogger(__name__)


def _log(_message: RecountInventories, counted: Recounted) -> None:
    LOG.warning(
        "Recounted: %d inventories corrected, %d allocations without a consumer removed",
        counted.inventories,
        counted.orphans,
    )


@writes(RecountInventories, log=_log)
def recount(connection: Connection, message: RecountInventories) -> Recounted:
    """Delete the allocations of these providers that belong to no consumer, and recount the others.

    Providers that do not exist are skipped.

    :raises StaleRead: one of them has been deleted concurrently; a new transaction may succeed.
    """
    ids = sorted(key.id for key in providers.keys_found(connection, message.provider_uuids).values())
    # The lock on a provider's row protects its allocations: all other writes of them are committed now. A consumer is
    # written in the same transaction as its allocations, so an allocation without a consumer is an orphan.
    providers.bump_generations(connection, ids, by=0)
    orphans = _orphans(connection, ids)
    bulk.change_in(connection, allocations.delete(), allocations.c.id, orphans)
    changed = _count(connection, ids)
    change_feed.record(connection, provider_ids=ids)
    return Recounted(inventories=changed, orphans=len(orphans))


def _orphans(connection: Connection, ids: Sequence[int]) -> list[int]:
    # SELECT a.id FROM allocations a LEFT JOIN consumers c ON c.id = a.consumer_id
    #  WHERE c.id IS NULL AND a.resource_provider_id IN (...)
    query = (
        select(allocations.c.id)
        .select_from(allocations.outerjoin(consumers, consumers.c.id == allocations.c.consumer_id))
        .where(consumers.c.id.is_(None))
    )
    return sorted(row.id for row in bulk.select_in(connection, query, allocations.c.resource_provider_id, ids))


def _count(connection: Connection, ids: Sequence[int]) -> int:
    # UPDATE inventories SET used = (SELECT COALESCE(SUM(used), 0) FROM allocations WHERE ...)
    #  WHERE resource_provider_id IN (...) AND used <> (the same)
    table = inventories.c
    held = (
        select(func.coalesce(func.sum(allocations.c.used), 0))
        .where(
            allocations.c.resource_provider_id == table.resource_provider_id,
            allocations.c.resource_class_id == table.resource_class_id,
        )
        .correlate(inventories)
        .scalar_subquery()
    )
    wrong = inventories.update().where(table.used != held).values(used=held)
    return bulk.change_in(connection, wrong, table.resource_provider_id, ids)
