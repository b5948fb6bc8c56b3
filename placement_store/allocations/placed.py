"""Where instances are placed: counted by host, and found by who they are.

An instance is placed on the root provider that its claim names. A residue, which no claim places, is none. Whoever
places one or takes it away changes what it holds of a provider of that host's tree, and with it that provider's
``seq``: whoever follows the providers reads these counts with them, and needs no column that a claim would write.
"""

from collections.abc import Collection

from sqlalchemy import Connection, func, select

from placement_store.db import bulk
from placement_store.providers import rows as providers
from placement_store.schema import consumers, resource_providers
from placement_store.server_groups.rows import MEMBER

INSTANCE = "INSTANCE"

# SELECT root_provider_id, COUNT(*) FROM consumers
#  WHERE root_provider_id IN (...) AND consumer_type = 'INSTANCE' AND migration_of IS NULL AND claim_id IS NOT NULL
#  GROUP BY root_provider_id
# The type alone does not tell a migration: whoever puts allocations on one says which type it shall be.
_COUNTS = bulk.Lookup(
    select(consumers.c.root_provider_id, func.count())
    .where(
        consumers.c.consumer_type == INSTANCE,
        consumers.c.migration_of.is_(None),
        consumers.c.claim_id.is_not(None),
    )
    .group_by(consumers.c.root_provider_id),
    consumers.c.root_provider_id,
)


def instances_on(connection: Connection, root_ids: Collection[int]) -> dict[int, int]:
    """Return how many instances are placed on each of these root providers."""
    counts = dict.fromkeys(root_ids, 0)
    for root_id, count in _COUNTS.rows(connection, sorted(root_ids)):
        counts[root_id] = count
    return counts


def instances_of_nodes(connection: Connection, node_uuids: Collection[str]) -> dict[str, int]:
    """Return how many instances are placed on each of these compute nodes that has a provider, by uuid."""
    keys = providers.keys_found(connection, node_uuids)
    counts = instances_on(connection, [key.id for key in keys.values()])
    return {uuid: counts[key.id] for uuid, key in keys.items()}


# One for each index: with OR a database would read the whole table.
_PLACED = (
    select(MEMBER.label("member"), resource_providers.c.uuid)
    .join_from(consumers, resource_providers, resource_providers.c.id == consumers.c.root_provider_id)
    .where(consumers.c.claim_id.is_not(None))
)
_BY_ITSELF = bulk.Lookup(_PLACED, consumers.c.uuid)
_BY_ITS_MIGRATION = bulk.Lookup(_PLACED, consumers.c.migration_of)


def instances_by_root(connection: Connection, uuids: Collection[str]) -> dict[str, frozenset[str]]:
    """Return which of these instances are placed on each root provider, by its uuid.

    One that moves is on both of its hosts until the move has ended; one that is placed nowhere is left out.
    """
    named = sorted(uuids)
    found: dict[str, set[str]] = {}
    for lookup in (_BY_ITSELF, _BY_ITS_MIGRATION):
        for row in lookup.rows(connection, named):
            found.setdefault(row.uuid, set()).add(row.member)
    return {root_uuid: frozenset(members) for root_uuid, members in found.items()}
