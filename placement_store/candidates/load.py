"""Load hosts' trees from the store, any number of them in the same few statements."""

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import Connection, select

from placement_store.candidates.batch import Batch, Pools
from placement_store.candidates.tree import CandidateProvider, HostTree, parents_first, sharing_with
from placement_store.db import bulk
from placement_store.db.names import ResourceClassNames
from placement_store.providers import aggregates, traits
from placement_store.providers.rows import inventories_of
from placement_store.schema import resource_providers

_COLUMNS = resource_providers.c
_PROVIDERS_BY_ROOT = bulk.Lookup(
    select(_COLUMNS.id, _COLUMNS.uuid, _COLUMNS.root_provider_id, _COLUMNS.parent_provider_id).order_by(_COLUMNS.id),
    _COLUMNS.root_provider_id,
)


def trees(connection: Connection, names: ResourceClassNames, root_ids: Collection[int]) -> dict[int, HostTree]:
    """Load the trees of these roots by the root's id, with the pools that share with them, without deleted roots."""
    pools = Pools.read(connection)
    return trees_of(connection, names, pools, Batch.of(connection, pools, root_ids), sorted(root_ids))


def trees_of(
    connection: Connection, names: ResourceClassNames, pools: Pools, batch: Batch, root_ids: Sequence[int]
) -> dict[int, HostTree]:
    """Load the trees of some roots of a batch by the root's id, in the order given."""
    pool_roots = {
        root_id: sorted({pools.root_of[pool_id] for pool_id in batch.pools.get(root_id, ())}) for root_id in root_ids
    }
    found = providers_of(connection, names, {*root_ids}.union(*pool_roots.values()))
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


def providers_of(
    connection: Connection, names: ResourceClassNames, root_ids: Collection[int]
) -> dict[int, list[CandidateProvider]]:
    """Load the providers of these trees by the root's id, parents first; a deleted root is left out."""
    rows = list(_PROVIDERS_BY_ROOT.rows(connection, sorted(root_ids)))
    ids = [row.id for row in rows]
    uuids = {row.id: row.uuid for row in rows}
    held = inventories_of(connection, ids)
    traits_of, aggregates_of = traits.of(connection, ids), aggregates.of(connection, ids)
    found: dict[int, list[CandidateProvider]] = {}
    for row in rows:
        if row.root_provider_id not in uuids:  # it has just been moved to another tree
            continue
        provider = CandidateProvider(
            uuid=row.uuid,
            root_uuid=uuids[row.root_provider_id],
            parent_uuid=uuids.get(row.parent_provider_id),
            inventories={names.name_of(number, connection): one for number, one in held.get(row.id, {}).items()},
            traits=frozenset(traits_of.get(row.id, ())),
            aggregates=frozenset(aggregates_of.get(row.id, ())),
        )
        found.setdefault(row.root_provider_id, []).append(provider)
    return {root_id: parents_first(providers) for root_id, providers in found.items()}
