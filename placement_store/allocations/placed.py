"""Count the instances placed on root providers, and find the root providers of instances.

An instance is placed on the root provider that its claim names. A residue does not count, since no claim places it. A
write that places or removes an instance bumps the ``seq`` of a provider in the tree of the host: one whose allocations
change or, if pools of other trees serve the instance alone, the root. A follower of the change feed therefore reads
these counts together with the providers, and a claim does not need to write a counter.
"""

from collections.abc import Collection

from sqlalchemy import Connection, func, select

from moorage.db.forced_index import by_index
from placement_store.db import bulk
from placement_store.providers import rows as providers
from placement_store.schema import consumers, resource_providers
from placement_store.server_groups.rows import MEMBER

INSTANCE = "INSTANCE"

# SELECT root_provider_id, COUNT(*) FROM consumers
#  WHERE root_provider_id IN (...) AND consumer_type = 'INSTANCE' AND migration_of IS NULL AND claim_id IS NOT NULL
#  GROUP BY root_provider_id
# The consumer type does not identify a migration: every put of allocations may change it.
_COUNTS = bulk.Lookup(
    select(consumers.c.root_provider_id, func.count())
    .where(consumers.c.consumer_type == INSTANCE, consumers.c.migration_of.is_(None), consumers.c.claim_id.is_not(None))
    .group_by(consumers.c.root_provider_id),
    consumers.c.root_provider_id,
)


def instances_on(connection: Connection, root_ids: Collection[int]) -> dict[int, int]:
    """Return the number of instances placed on each of these root providers, by its id."""
    return dict.fromkeys(root_ids, 0) | dict(_COUNTS.rows(connection, sorted(root_ids)))


def instances_of_nodes(connection: Connection, node_uuids: Collection[str]) -> dict[str, int]:
    """Return the number of instances placed on each of these compute nodes that has a provider, by uuid."""
    keys = providers.keys_found(connection, node_uuids)
    counts = instances_on(connection, [key.id for key in keys.values()])
    return {uuid: counts[key.id] for uuid, key in keys.items()}


# One query for each index: with OR a database would scan the whole table.
_PLACED = (
    select(MEMBER.label("member"), resource_providers.c.uuid)
    .join_from(consumers, resource_providers, resource_providers.c.id == consumers.c.root_provider_id)
    .where(consumers.c.claim_id.is_not(None))
)
_BY_ITSELF = bulk.Lookup(_PLACED, consumers.c.uuid)
# For many instances MariaDB estimates their migrations by the average of the index, in which all consumers that are no
# migrations count as those of one instance; then it would read the consumers on all providers.
_BY_ITS_MIGRATION = bulk.Lookup(by_index(_PLACED, consumers, "ix_consumers_migration_of"), consumers.c.migration_of)


def instances_by_root(connection: Connection, uuids: Collection[str]) -> dict[str, frozenset[str]]:
    """Return the instances among these that are placed on each root provider, by the uuid of the root.

    An instance that is being moved is on both of its hosts until the move has ended; one that is not placed is omitted.
    """
    named = sorted(uuids)
    found: dict[str, set[str]] = {}
    for lookup in (_BY_ITSELF, _BY_ITS_MIGRATION):
        for row in lookup.rows(connection, named):
            found.setdefault(row.uuid, set()).add(row.member)
    return {root_uuid: frozenset(members) for root_uuid, members in found.items()}
