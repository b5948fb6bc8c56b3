"""Candidates that take one provider of each tree: what is left of all of them."""

from hypothesis import given, settings
from support.placement_store.candidate_strategies import host_trees, is_valid, requests

from moorage.model import AllocationRequest, ResourceRequest
from placement_store.candidates import HostTree, search
from placement_store.candidates.search import search_one_of_each_tree


def amounts(candidate: AllocationRequest) -> frozenset[tuple[str, str, int]]:
    return frozenset((uuid, n, a) for uuid, part in candidate.allocations.items() for n, a in part.resources.items())


@settings(deadline=None)
@given(host_trees(), requests().filter(is_valid))
def test_they_are_those_of_all_candidates_that_take_no_two_providers_of_a_tree(
    tree: HostTree, request: ResourceRequest
) -> None:
    root_of = {provider.uuid: provider.root_uuid for provider in (*tree.providers, *tree.sharing)}
    expected = {
        amounts(candidate)
        for candidate in search(tree, request)
        if len({root_of[uuid] for uuid in candidate.allocations}) == len(candidate.allocations)
    }

    assert {amounts(candidate) for candidate in search_one_of_each_tree(tree, request)} == expected
