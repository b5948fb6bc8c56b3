"""List the candidates of a whole cloud, tree by tree, up to a limit."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple

from msgspec import structs
from sqlalchemy import Connection, bindparam, select

from moorage import errors
from moorage.messages import ListAllocationCandidates
from moorage.model import UNSUFFIXED, AllocationCandidates, AllocationRequest, ProviderSummary, ResourceRequest
from placement_store.candidates.load import Batch, Pools, trees_of
from placement_store.candidates.needs import Needs, needs_of, roots_that_meet
from placement_store.candidates.problem import SearchRequest
from placement_store.candidates.search import MAX_STEPS, search, search_one_of_each_tree
from placement_store.candidates.search_budget import SearchBudget
from placement_store.candidates.tree import CandidateProvider, HostTree
from placement_store.candidates.validity import check
from placement_store.db import bulk
from placement_store.db.names import ResourceClassNames
from placement_store.db.store import Store, handles
from placement_store.schema import resource_providers

LOG = logging.getLogger(__name__)

# Roots read in one batch: few at first, for a caller that wants one candidate; then more, for a request that few hosts
# can serve. Both numbers are arbitrary.
_FIRST_BATCH, _LARGEST_BATCH = 16, 512
# The share of each tree in the first pass: states to visit, and the fraction of the remaining time. Arbitrary.
_FIRST_STEPS, _FIRST_SHARE = 10_000, 1 / 16
#: The amounts and mappings of all candidates of one answer together. Arbitrary: an answer of this size has tens of
#: megabytes, while the number of candidates alone says little about the size, because a request may have many groups.
MAX_ENTRIES = 1_000_000


@handles(ListAllocationCandidates)
def _list_allocation_candidates(store: Store, message: ListAllocationCandidates) -> AllocationCandidates:
    return list_candidates(store, message.request, message.limit)


def list_candidates(
    store: Store,
    request: ResourceRequest,
    limit: int,
    *,
    one_of_each_tree: bool = False,
    rng: Random | None = None,
    budget: SearchBudget | None = None,
    folds: bool = True,
) -> AllocationCandidates:
    """Return at most ``limit`` candidates for a request, and all providers of the trees that they come from.

    The trees of a batch take turns, so that a tree with many candidates does not displace the others. The same store
    gives the same answer, unless ``rng`` is given: then trees come in random order, and so do providers that are
    equal for the request. No transaction is open while trees are searched.

    :param one_of_each_tree: whether to leave out candidates that take more than one provider of a tree.
    :param rng: the random numbers that shuffle the answer.
    :param folds: whether to merge candidates that differ only in their mappings.
    :param budget: the budget of all searches together; by default a new one.
    :raises InvalidRequest: the request contradicts itself or lacks a parameter.
    :raises ResourceClassNotFound: one of its classes does not exist.
    :raises TraitNotFound: one of its traits does not exist.
    :raises SearchBoundReached: nothing was found, and at least one tree was not searched to its end.
    """
    check(request, path="$.request")
    read, names = store.read, store.classes
    resolved = read(lambda connection: _resolved(connection, request, names, in_order=rng is None))
    if resolved is None:
        return AllocationCandidates()
    request, needs, pools, only, first, trees = resolved
    of_tree = search_one_of_each_tree if one_of_each_tree else search
    seed = None if rng is None else rng.getrandbits(32)
    find = partial(of_tree, request=request, seed=seed, folds=folds, compiled=SearchRequest(request))
    listing = _Listing(limit, find, budget or SearchBudget(), folds)
    listing.add(trees)
    batches = _batches(store, first) if rng is None else _shuffled_batches(store, rng)
    if only is not None:
        batches = iter([[only]])
    while not listing.is_full and (root_ids := next(batches, None)):
        listing.add(read(partial(_trees, names=names, needs=needs, pools=pools, root_ids=root_ids, rng=rng)))
    listing.add(listing.postponed, first=False)
    return listing.answer()


class _ResolvedRequest(NamedTuple):
    """A request, with the data of the store that its search needs."""

    request: ResourceRequest
    needs: Needs
    pools: Pools
    #: The only root that can serve it; null if any root may.
    only: int | None
    #: The first batch of roots and those of their trees that meet the needs; only if any root may serve it, in order.
    first: Sequence[int]
    trees: Collection[HostTree]


def _resolved(
    connection: Connection, request: ResourceRequest, names: ResourceClassNames, *, in_order: bool
) -> _ResolvedRequest | None:
    """Read what the search needs, and the first trees; null if nothing can serve the request."""
    needs, pools = needs_of(connection, request), Pools.read(connection)
    placed = _in_trees(connection, request, pools)
    # An aggregate that does not exist has no members.
    if placed is None or frozenset() in needs.aggregates:
        return None
    request, only = placed
    first = _next_roots(connection, 0, _FIRST_BATCH) if only is None and in_order else ()
    trees = _trees(connection, names=names, needs=needs, pools=pools, root_ids=first) if first else ()
    return _ResolvedRequest(request, needs, pools, only, first, trees)


@dataclass
class _Listing:
    """Collect candidates, each once, until there are enough.

    Each tree first gets a small share of the budget. If that is not enough, the tree is searched again after all other
    trees have had their share, so that a tree that is hard to search does not displace the easy ones.
    """

    limit: int
    find: Callable[..., Iterator[AllocationRequest]]
    budget: SearchBudget
    folds: bool
    postponed: list[HostTree] = field(default_factory=list)
    found: dict[Hashable, AllocationRequest] = field(default_factory=dict)
    entries: int = 0
    summaries: dict[str, ProviderSummary] = field(default_factory=dict)
    bound_reached: errors.SearchBoundReached | None = None

    @property
    def is_full(self) -> bool:
        return len(self.found) >= self.limit or self.entries >= MAX_ENTRIES

    def add(self, trees: Collection[HostTree], *, first: bool = True) -> None:
        """Take one candidate of each tree in turn.

        :param first: whether each tree gets its first share; otherwise each may use all of the remaining budget.
        """
        turns = deque((tree, self._search(tree, first=first)) for tree in trees)
        while turns and not self.is_full:
            tree, candidates = turns.popleft()
            try:
                candidate = next(candidates, None)
            except errors.SearchBoundReached as fault:
                # A tree that has used up its first share is only postponed: easier trees come first.
                if first and not self.budget.is_spent:
                    self.postponed.append(tree)
                    continue
                # The tree may still have candidates: an empty answer would be wrong now, see answer().
                LOG.warning("A tree is skipped: %s", fault)
                self.bound_reached = fault
                if self.budget.is_spent:
                    return
                continue
            # A tree without a further candidate leaves the queue.
            if candidate is not None:
                with self.budget.running():
                    self._take(tree, candidate)
                turns.append((tree, candidates))

    def _search(self, tree: HostTree, *, first: bool) -> Iterator[AllocationRequest]:
        # A generator, so that the share is computed from the time that is left at the first turn of the tree.
        budget = self.budget.slice(_FIRST_SHARE) if first else self.budget
        yield from self.find(tree, max_steps=_FIRST_STEPS if first else MAX_STEPS, budget=budget)

    def answer(self) -> AllocationCandidates:
        if self.bound_reached is not None and not self.found:
            raise self.bound_reached
        return AllocationCandidates(allocation_requests=tuple(self.found.values()), provider_summaries=self.summaries)

    def _take(self, tree: HostTree, candidate: AllocationRequest) -> None:
        parts = candidate.allocations.items()
        amounts = frozenset((uuid, name, amount) for uuid, part in parts for name, amount in part.resources.items())
        mappings = () if self.folds else frozenset((name, frozenset(u)) for name, u in candidate.mappings.items())
        # A pool that serves the request alone is a candidate of every tree that it shares with, and of its own.
        if (key := (amounts, mappings)) not in self.found:
            self.found[key] = candidate
            self.entries += len(amounts) + sum(len(uuids) for uuids in candidate.mappings.values())
        if not candidate.allocations.keys() <= self.summaries.keys():
            everything = [*tree.providers, *tree.sharing, *tree.above_sharing]
            used = {provider.root_uuid for provider in everything if provider.uuid in candidate.allocations}
            self.summaries |= {p.uuid: _summary(p) for p in everything if p.root_uuid in used}


def _summary(provider: CandidateProvider) -> ProviderSummary:
    return ProviderSummary(
        root_provider_uuid=provider.root_uuid,
        parent_provider_uuid=provider.parent_uuid,
        capacity={name: row.capacity for name, row in sorted(provider.inventories.items())},
        used={name: row.used for name, row in sorted(provider.inventories.items())},
        traits=tuple(sorted(provider.traits)),
    )


# --- The trees to read ----------------------------------------------------------------------------------------------


def _trees(
    connection: Connection,
    *,
    names: ResourceClassNames,
    needs: Needs,
    pools: Pools,
    root_ids: Sequence[int],
    rng: Random | None = None,
) -> Collection[HostTree]:
    batch = Batch.of(connection, pools, root_ids)
    passing = roots_that_meet(connection, needs, batch)
    found = list(trees_of(connection, names, pools, batch, passing).values()) if passing else []
    if rng is not None:
        rng.shuffle(found)
    return found


_ROOTS = select(resource_providers.c.id).where(resource_providers.c.parent_provider_id.is_(None))
# SELECT id FROM resource_providers WHERE parent_provider_id IS NULL AND id > :last ORDER BY id LIMIT :size
_NEXT_ROOTS = (
    _ROOTS.where(resource_providers.c.id > bindparam("last")).order_by(resource_providers.c.id).limit(bindparam("size"))
)


def _shuffled_batches(store: Store, rng: Random) -> Iterator[Sequence[int]]:
    """Yield batches of all roots in random order; this reads the ids of all roots at once."""
    ids = list(store.read(lambda connection: connection.scalars(_ROOTS).all()))
    rng.shuffle(ids)
    start, size = 0, _FIRST_BATCH
    while batch := ids[start : start + size]:
        yield batch
        start, size = start + size, min(size * 2, _LARGEST_BATCH)


def _batches(store: Store, first: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield batches of the ids of all roots after the ``first`` ones."""
    batch, size = first, _FIRST_BATCH
    while batch:
        size = min(size * 2, _LARGEST_BATCH)
        if batch := store.read(partial(_next_roots, last=batch[-1], size=size)):
            yield batch


def _next_roots(connection: Connection, last: int, size: int) -> Sequence[int]:
    return connection.scalars(_NEXT_ROOTS, {"last": last, "size": size}).all()


def _in_trees(
    connection: Connection, request: ResourceRequest, pools: Pools
) -> tuple[ResourceRequest, int | None] | None:
    """Resolve ``in_tree`` of each group to a root; return the request and the only root that can serve it.

    The root is null if any root may serve it. The result is null if no root can: for example, a tree does not exist.
    """
    named = {group.in_tree for group in request.groups.values() if group.in_tree is not None}
    if not named:
        return request, None
    own, root = resource_providers.alias("own"), resource_providers.alias("root")
    query = select(own.c.uuid, root.c.id, root.c.uuid.label("root_uuid")).join(
        root, root.c.id == own.c.root_provider_id
    )
    found = {row.uuid: row for row in bulk.select_in(connection, query, own.c.uuid, sorted(named))}
    if found.keys() != named:
        return None
    groups = {
        suffix: structs.replace(group, in_tree=group.in_tree and found[group.in_tree].root_uuid)
        for suffix, group in request.groups.items()
    }
    # If the tree that a suffixed group names has a pool, the group does not bind the host: any that the pool shares
    # with may serve the request.
    shared = set(pools.root_of.values())
    bound = {
        found[group.in_tree].id
        for suffix, group in request.groups.items()
        if group.in_tree is not None and (suffix == UNSUFFIXED or found[group.in_tree].id not in shared)
    }
    if len(bound) > 1:
        return None
    return structs.replace(request, groups=groups), next(iter(bound), None)
