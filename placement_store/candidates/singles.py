"""Candidates that take one provider of each tree at most, as clients from before trees were known expect them."""

from collections.abc import Iterator
from dataclasses import replace

from moorage.model import AllocationRequest, ResourceRequest
from placement_store.candidates.search import MAX_STEPS, search
from placement_store.candidates.search_budget import SearchBudget
from placement_store.candidates.tree import HostTree


def search_one_of_each_tree(
    tree: HostTree,
    request: ResourceRequest,
    *,
    seed: int | None = None,
    max_steps: int = MAX_STEPS,
    budget: SearchBudget | None = None,
) -> Iterator[AllocationRequest]:
    """Yield the ways to serve a request that take at most one provider of each tree; one may come more than once.

    They are looked for provider by provider, so that the cross product of a wide tree is not enumerated only to be
    thrown away.

    :raises SearchBoundReached: see :func:`~placement_store.candidates.search.search`.
    """
    budget = budget or SearchBudget()
    root_of = {provider.uuid: provider.root_uuid for provider in (*tree.providers, *tree.sharing)}
    # Where no provider of the tree has anything, what shares with it may still serve the request alone.
    for taken in [provider for provider in tree.providers if provider.inventories] or [tree.root]:
        alone = [one if one is taken else replace(one, inventories={}) for one in tree.providers]
        for candidate in search(
            HostTree(alone, tree.sharing, tree.above_sharing), request, seed=seed, max_steps=max_steps, budget=budget
        ):
            roots = {root_of[uuid] for uuid in candidate.allocations}
            if len(roots) == len(candidate.allocations):
                yield candidate
