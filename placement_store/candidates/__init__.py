"""Search for allocation candidates: sets of providers of a host's tree that serve the groups of a request."""

from placement_store.candidates.search import search
from placement_store.candidates.tree import CandidateProvider, HostTree, parents_first, sharing_with
from placement_store.candidates.validity import check

__all__ = ["CandidateProvider", "HostTree", "check", "parents_first", "search", "sharing_with"]
