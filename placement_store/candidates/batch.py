"""Read trees in batches: the ids of their providers, and of the pools that they reach.

Each statement finds its rows by a key, so that the cost of a batch follows its size and not the cloud's.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, select

from placement_store.candidates.tree import SHARES
from placement_store.db import bulk
from placement_store.schema import provider_aggregates, provider_traits, resource_providers, traits

# SELECT p.id, p.root_provider_id FROM traits t JOIN provider_traits l ON l.trait_id = t.id
#   JOIN resource_providers p ON p.id = l.resource_provider_id WHERE t.name = :shares
_POOLS = (
    select(resource_providers.c.id, resource_providers.c.root_provider_id)
    .join(provider_traits, provider_traits.c.resource_provider_id == resource_providers.c.id)
    .join(traits, traits.c.id == provider_traits.c.trait_id)
    .where(traits.c.name == SHARES)
)
_IDS_BY_ROOT = bulk.Lookup(
    select(resource_providers.c.id, resource_providers.c.root_provider_id), resource_providers.c.root_provider_id
)
_AGGREGATES_BY_PROVIDER = bulk.Lookup(
    select(provider_aggregates.c.resource_provider_id, provider_aggregates.c.aggregate_id),
    provider_aggregates.c.resource_provider_id,
)


@dataclass(frozen=True, slots=True)
class Pools:
    """All sharing providers of a cloud: usually a few."""

    #: By the id of a pool, the id of its root.
    root_of: Mapping[int, int]
    #: By the id of a pool or of a pool's root, its aggregates.
    aggregates_of: Mapping[int, frozenset[int]]
    #: By aggregate, the ids of its pools.
    members_of: Mapping[int, frozenset[int]]

    @classmethod
    def read(cls, connection: Connection) -> "Pools":
        """Read all pools."""
        root_of = {row.id: row.root_provider_id for row in connection.execute(_POOLS)}
        aggregates_of = _aggregates_of(connection, {*root_of, *root_of.values()})
        members: dict[int, set[int]] = {}
        for pool_id in root_of:
            for number in aggregates_of.get(pool_id, ()):
                members.setdefault(number, set()).add(pool_id)
        return cls(root_of, aggregates_of, {number: frozenset(ids) for number, ids in members.items()})

    def of(self, aggregates: Iterable[int], root_id: int) -> Iterator[int]:
        """Yield the pools that are in any of these aggregates, except those of one tree."""
        for number in aggregates:
            yield from (id_ for id_ in self.members_of.get(number, ()) if self.root_of[id_] != root_id)


@dataclass(frozen=True, slots=True)
class Batch:
    """The trees of some roots; a root that has been deleted is left out."""

    #: By the id of a root, the ids of the providers of its tree.
    providers: Mapping[int, Collection[int]]
    #: By the id of a root, the ids of the pools of other trees that share with it.
    pools: Mapping[int, Collection[int]]
    #: By the id of a root, these pools and their roots, whose aggregates count for them.
    helpers: Mapping[int, Collection[int]]
    #: By the id of any of these providers, the ids of its aggregates.
    aggregates_of: Mapping[int, frozenset[int]]

    @classmethod
    def of(cls, connection: Connection, pools: Pools, root_ids: Collection[int]) -> "Batch":
        """Read the trees of these roots, and the pools that they reach."""
        providers: dict[int, list[int]] = {}
        for id_, root_id in _IDS_BY_ROOT.rows(connection, sorted(root_ids)):
            providers.setdefault(root_id, []).append(id_)
        aggregates_of = _aggregates_of(connection, [id_ for ids in providers.values() for id_ in ids])
        reached = {
            root_id: {pool_id for id_ in ids for pool_id in pools.of(aggregates_of.get(id_, ()), root_id)}
            for root_id, ids in providers.items()
        }
        helpers = {root_id: {*ids, *(pools.root_of[id_] for id_ in ids)} for root_id, ids in reached.items()}
        return cls(providers, reached, helpers, {**pools.aggregates_of, **aggregates_of})


def _aggregates_of(connection: Connection, provider_ids: Collection[int]) -> dict[int, frozenset[int]]:
    found: dict[int, set[int]] = {}
    for id_, number in _AGGREGATES_BY_PROVIDER.rows(connection, sorted(provider_ids)):
        found.setdefault(id_, set()).add(number)
    return {id_: frozenset(numbers) for id_, numbers in found.items()}
