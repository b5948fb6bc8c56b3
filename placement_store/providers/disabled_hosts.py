"""Keep the trait COMPUTE_STATUS_DISABLED on the root provider of each disabled host.

The trait is for the request filter ``disabled_hosts`` and for clients of the HTTP API, which select hosts only by
traits. A report of the host's agent leaves the trait in place. A client that replaces the traits of the provider
removes it. If the host is then disabled again, the trait is restored.
"""

from collections.abc import Collection, Mapping

import os_traits
from sqlalchemy import Connection, select

from placement_store.db import bulk, change_feed
from placement_store.db.names import TraitNames
from placement_store.db.retries import StaleRead
from placement_store.providers import links
from placement_store.providers import rows as providers
from placement_store.schema import hosts, provider_traits, resource_providers

TRAIT: str = os_traits.COMPUTE_STATUS_DISABLED

# SELECT p.id FROM resource_providers p JOIN hosts h ON h.compute_node_uuid = p.uuid
#  WHERE h.disabled AND p.root_provider_id = p.id AND p.id IN (...)
_DISABLED = bulk.Lookup(
    select(resource_providers.c.id)
    .select_from(resource_providers)
    .join(hosts, hosts.c.compute_node_uuid == resource_providers.c.uuid)
    .where(hosts.c.disabled, resource_providers.c.root_provider_id == resource_providers.c.id),
    resource_providers.c.id,
)


def among(connection: Connection, ids: Collection[int]) -> set[int]:
    """Return the providers among these that are roots of disabled hosts.

    The result stays true while the providers' rows are locked: disabling or enabling a host locks its nodes' rows.
    """
    return {row.id for row in _DISABLED.rows(connection, sorted(ids))}


def add_created(connection: Connection, created: Mapping[str, int]) -> None:
    """Add the trait to the providers created by this transaction that are roots of disabled hosts.

    The rows of their hosts must be locked. The caller bumps generations and writes the feed.
    """
    if disabled := among(connection, created.values()):
        number = _number(connection)
        rows = [{"resource_provider_id": id_, "trait_id": number} for id_ in sorted(disabled)]
        bulk.insert(connection, provider_traits, rows)


def lock(connection: Connection, node_uuids: Collection[str]) -> Collection[int]:
    """Lock the existing root providers of hosts that are to be disabled or enabled; return their ids.

    :raises StaleRead: one of them has been deleted concurrently; a new transaction may succeed.
    """
    ids = _roots(connection, node_uuids)
    providers.lock(connection, ids)
    return ids


def mark(connection: Connection, node_uuids: Collection[str], locked: Collection[int]) -> None:
    """Add the trait to the roots of these hosts, or remove it, according to the present state of the hosts.

    :param locked: the ids of the roots that were locked before the hosts were changed.
    :raises StaleRead: a root has been created or deleted meanwhile; a new transaction may succeed.
    """
    if sorted(_roots(connection, node_uuids)) != sorted(locked):
        raise StaleRead
    if not locked:
        return
    disabled = among(connection, locked)
    enabled = set(locked) - disabled
    changed = links.add_and_remove(connection, provider_traits.c.trait_id, _number(connection), disabled, enabled)
    providers.bump_generations(connection, changed, by=1)
    change_feed.record(connection, provider_ids=changed)


def _roots(connection: Connection, node_uuids: Collection[str]) -> list[int]:
    # A node that is not a root belongs to no host.
    return [key.id for key in providers.keys_found(connection, node_uuids).values() if key.id == key.root_id]


def _number(connection: Connection) -> int:
    """Return the trait's id, and create the trait if no placement role has written the standard names yet.

    :raises StaleRead: a concurrent transaction is creating it; a new transaction finds it.
    """
    TraitNames.create(connection, [TRAIT])
    return TraitNames.require(connection, [TRAIT])[TRAIT]
