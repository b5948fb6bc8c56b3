"""Load the trees of any number of hosts from the store in few statements.

Each statement finds its rows by a key, so the cost of a batch depends on its size and not on the size of the cloud.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from placement_store.candidates.tree import SHARES, CandidateProvider, HostTree, parents_first, sharing_with
from placement_store.db import bulk
from placement_store.db.names import ResourceClassNames
from placement_store.providers import aggregates, traits
from placement_store.providers.rows import InventoryRow, inventories_of
from placement_store.schema import provider_traits, resource_providers
from placement_store.schema import traits as trait_table

# --- The ids of trees, and of the pools that they reach ---------------------------------------------------------------

# SELECT p.id, p.root_provider_id FROM traits t JOIN provider_traits l ON l.trait_id = t.id
#   JOIN resource_providers p ON p.id = l.resource_provider_id WHERE t.name = :shares
_POOLS = (
    select(resource_providers.c.id, resource_providers.c.root_provider_id)
    .join(provider_traits, provider_traits.c.resource_provider_id == resource_providers.c.id)
    .join(trait_table, trait_table.c.id == provider_traits.c.trait_id)
    .where(trait_table.c.name == SHARES)
)
_COLUMNS = resource_providers.c
_PROVIDERS_BY_ROOT = bulk.Lookup(
    select(_COLUMNS.id, _COLUMNS.uuid, _COLUMNS.root_provider_id, _COLUMNS.parent_provider_id).order_by(_COLUMNS.id),
    _COLUMNS.root_provider_id,
)

#: The aggregates of providers by the provider's id: their uuids by their ids.
Aggregates = Mapping[int, Mapping[int, str]]
#: The inventories of a provider by resource class id.
Inventories = Mapping[int, InventoryRow]

#: The most roots whose inventories are all read before the trees are filtered. For so few, a statement that filters
#: costs more than reading the inventories, most of which are needed anyway for a few candidates. Arbitrary.
_READ_WHOLE = 16


@dataclass(frozen=True, slots=True)
class Pools:
    """All sharing providers of a cloud: usually a few."""

    #: By the id of a pool, the id of its root.
    root_of: Mapping[int, int]
    #: The aggregates of the pools and of their roots.
    aggregates_of: Aggregates
    #: By aggregate, the ids of its pools.
    members_of: Mapping[int, frozenset[int]]

    @classmethod
    def read(cls, connection: Connection) -> "Pools":
        """Read all pools."""
        root_of = {row.id: row.root_provider_id for row in connection.execute(_POOLS)}
        aggregates_of = aggregates.with_numbers(connection, {*root_of, *root_of.values()})
        members: dict[int, set[int]] = {}
        for pool_id in root_of:
            for number in aggregates_of.get(pool_id, ()):
                members.setdefault(number, set()).add(pool_id)
        return cls(root_of, aggregates_of, {number: frozenset(ids) for number, ids in members.items()})

    def of(self, aggregate_ids: Iterable[int], root_id: int) -> Iterator[int]:
        """Yield the pools that are in any of these aggregates, except those of one tree."""
        for number in aggregate_ids:
            yield from (id_ for id_ in self.members_of.get(number, ()) if self.root_of[id_] != root_id)


@dataclass(frozen=True, slots=True)
class Batch:
    """The trees of some roots; a root that has been deleted is left out."""

    #: By the id of a root, the rows of the providers of its tree.
    providers: Mapping[int, Sequence[Any]]
    #: By the id of a root, the ids of the pools of other trees that share with it.
    pools: Mapping[int, Collection[int]]
    #: By the id of a root, these pools and their own roots, whose aggregates count for the pools.
    helpers: Mapping[int, Collection[int]]
    #: The aggregates of all these providers.
    aggregates_of: Aggregates
    #: The inventories of all these providers, by provider id; empty if the batch is filtered before they are read.
    inventories: Mapping[int, Inventories]

    @classmethod
    def of(cls, connection: Connection, pools: Pools, root_ids: Collection[int]) -> "Batch":
        """Read the trees of these roots, and the pools that they reach."""
        providers, aggregates_of = _providers_of(connection, root_ids)
        reached = {
            root_id: {pool_id for row in rows for pool_id in pools.of(aggregates_of.get(row.id, ()), root_id)}
            for root_id, rows in providers.items()
        }
        helpers = {root_id: {*ids, *(pools.root_of[id_] for id_ in ids)} for root_id, ids in reached.items()}
        inventories: dict[int, Inventories] = {}
        if len(root_ids) <= _READ_WHOLE:
            ids = {row.id for rows in providers.values() for row in rows}.union(*helpers.values())
            held = inventories_of(connection, ids)
            inventories = {id_: held.get(id_, {}) for id_ in ids}
        return cls(providers, reached, helpers, {**pools.aggregates_of, **aggregates_of}, inventories)


def _providers_of(connection: Connection, root_ids: Collection[int]) -> tuple[dict[int, list[Any]], Aggregates]:
    """Read the rows of the providers of some trees by the root's id, and the aggregates of these providers."""
    found: dict[int, list[Any]] = {}
    for row in _PROVIDERS_BY_ROOT.rows(connection, sorted(root_ids)):
        found.setdefault(row.root_provider_id, []).append(row)
    return found, aggregates.with_numbers(connection, [row.id for rows in found.values() for row in rows])


# --- The providers themselves -----------------------------------------------------------------------------------------


def trees_of(
    connection: Connection, names: ResourceClassNames, pools: Pools, batch: Batch, root_ids: Sequence[int]
) -> dict[int, HostTree]:
    """Load the trees of some roots of a batch by the root's id, in the order given."""
    pool_roots = {
        root_id: sorted({pools.root_of[pool_id] for pool_id in batch.pools.get(root_id, ())}) for root_id in root_ids
    }
    wanted = {*root_ids}.union(*pool_roots.values())
    # The trees of the pools may belong to other batches.
    other_rows, other_aggregates = _providers_of(connection, wanted - batch.providers.keys())
    rows = {root_id: found for root_id, found in {**batch.providers, **other_rows}.items() if root_id in wanted}
    found = _described(connection, names, rows, {**batch.aggregates_of, **other_aggregates}, batch.inventories)
    return {
        root_id: _host_tree(found[root_id], [found.get(pool_root, ()) for pool_root in pool_roots[root_id]])
        for root_id in root_ids
        if root_id in found
    }


def _host_tree(providers: Sequence[CandidateProvider], other_trees: Iterable[Sequence[CandidateProvider]]) -> HostTree:
    others = [provider for tree in other_trees for provider in tree]
    sharing = sharing_with(providers, others)
    shown = {provider.uuid for provider in sharing}
    return HostTree(providers, sharing, [provider for provider in others if provider.uuid not in shown])


def _described(
    connection: Connection,
    names: ResourceClassNames,
    rows: Mapping[int, Sequence[Any]],
    aggregates_of: Aggregates,
    known: Mapping[int, Inventories],
) -> dict[int, list[CandidateProvider]]:
    """Return the providers of these trees with all that they have, by the root's id, parents first."""
    uuids = {row.id: row.uuid for of_tree in rows.values() for row in of_tree}
    held = {**known, **inventories_of(connection, uuids.keys() - known.keys())}
    traits_of = traits.of(connection, uuids.keys())
    found: dict[int, list[CandidateProvider]] = {}
    for root_id, of_tree in rows.items():
        if root_id not in uuids:  # it has just been moved to another tree
            continue
        providers = [
            CandidateProvider(
                uuid=row.uuid,
                root_uuid=uuids[root_id],
                parent_uuid=uuids.get(row.parent_provider_id),
                inventories={names.name_of(number, connection): one for number, one in held.get(row.id, {}).items()},
                traits=traits_of.get(row.id, frozenset()),
                aggregates=frozenset(aggregates_of.get(row.id, {}).values()),
            )
            for row in of_tree
        ]
        found[root_id] = parents_first(providers)
    return found
