"""Read and replace the aggregates of providers; an aggregate is created when first named, and never deleted.

A write reads the id of an aggregate without a lock, and there is no foreign key: if the row was deleted meanwhile, the
provider would be in an aggregate without a uuid, and could not be read. Services of former releases write so too.
"""

from collections.abc import Collection, Mapping

from sqlalchemy import Connection

from moorage.messages import SetAggregates
from placement_store.db import bulk, change_feed
from placement_store.db.retries import stale_if_taken
from placement_store.db.store import writes
from placement_store.providers import host_aggregate_links, links
from placement_store.providers import rows as providers
from placement_store.schema import aggregates, provider_aggregates

_LINK, _UUID = provider_aggregates.c.aggregate_id, aggregates.c.uuid


def of(connection: Connection, ids: Collection[int]) -> dict[int, frozenset[str]]:
    """Return the uuids of the aggregates of these providers by provider id; equal sets are one object."""
    return links.names_by_id(connection, _LINK, _UUID, ids)


def with_numbers(connection: Connection, ids: Collection[int]) -> dict[int, Mapping[int, str]]:
    """Return the aggregates of these providers by provider id: their uuids by their ids."""
    return links.held(connection, _LINK, _UUID, ids)


def replace(connection: Connection, wanted: Mapping[int, Collection[str]]) -> None:
    """Replace the aggregates of providers by these uuids, by provider id; the providers' rows must be locked.

    Compute nodes also stay in the aggregates of their hosts. The caller bumps generations and writes the feed.

    :raises StaleRead: a concurrent transaction is the first to name one of them; a new transaction may find it.
    """
    ids = numbers(connection, {uuid for uuids in wanted.values() for uuid in uuids})
    staying = host_aggregate_links.required(connection, wanted)
    links.rewrite(
        connection,
        _LINK,
        with_numbers(connection, wanted),
        {id_: {ids[uuid] for uuid in uuids}.union(staying.get(id_, {}).values()) for id_, uuids in wanted.items()},
    )


@writes(SetAggregates)
def set_aggregates(connection: Connection, message: SetAggregates) -> None:
    """Replace all aggregates of a provider; its generation is bumped, even if nothing changes. See :func:`replace`.

    :raises ProviderNotFound: the provider does not exist.
    :raises ProviderGenerationConflict: it is at another generation than the one named.
    :raises StaleRead: a concurrent transaction is the first to name one of them; a new transaction may find it.
    """
    id_ = providers.lock_at(connection, message.uuid, message.generation)
    replace(connection, {id_: message.aggregates})
    providers.bump_generations(connection, [id_], by=1)
    change_feed.record(connection, provider_ids=[id_])


def numbers(connection: Connection, uuids: Collection[str]) -> dict[str, int]:
    """Return the ids of aggregates by uuid; those that do not exist are created.

    :raises StaleRead: a concurrent transaction is the first to name one of them; a new transaction may find it.
    """
    found = known(connection, uuids)
    missing = sorted(set(uuids) - found.keys())
    if not missing:
        return found
    with stale_if_taken():
        bulk.insert(connection, aggregates, [{"uuid": uuid} for uuid in missing])
    return found | known(connection, missing)


def known(connection: Connection, uuids: Collection[str]) -> dict[str, int]:
    """Return the ids of these aggregates by uuid; an aggregate that does not exist is omitted."""
    return dict(bulk.pairs(aggregates.c.uuid, aggregates.c.id).rows(connection, sorted(uuids)))
