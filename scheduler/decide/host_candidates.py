"""Find allocation candidates host by host, for the hosts that are about to be claimed or offered as alternates.

One :class:`HostCandidates` is for one request and one plan. The plan only grows: an infeasible host stays infeasible.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Self

from moorage import errors
from moorage.model import (
    UNSUFFIXED,
    AllocationRequest,
    ProviderAmounts,
    RequestSpec,
    ResourceGroup,
    ResourceRequest,
    Resources,
)
from placement_store import candidates
from placement_store.candidates.problem import SearchRequest
from placement_store.candidates.search_budget import SECONDS, SearchBudget
from scheduler.decide.funnel import Funnel, reason_of
from scheduler.view.provider_trees import CachedTree
from scheduler.view.snapshot import Snapshot

#: The number of refused candidates of one host after which the next host is tried, so that tries are left for it.
MAX_REFUSALS_OF_A_HOST = 4

#: The maximum number of positions that the search visits on one host: a few tenths of a second. Arbitrary.
MAX_STEPS_ON_A_HOST = 10_000
#: The number of hosts with an unfinished search at which the request fails: thousands of them would take too long.
MAX_UNDECIDED_HOSTS = 5

#: The maximum number of hosts whose candidates are remembered for later requests with an equal request spec. Arbitrary.
_REMEMBERED = 1_000

#: Why a host that passed every filter is left out: it has no candidate, or the search for one was not finished.
NO_CANDIDATE = "has no providers that can serve all groups of the request together"
TOO_MANY_COMBINATIONS = "has too many combinations of providers to try them all in time"

#: Seconds of processor time that each instance of a request adds to the budget of its searches. Arbitrary.
_SECONDS_OF_AN_INSTANCE = 0.002

#: The amounts of a claim by provider and class, regardless of the groups that they are for.
ClaimedAmounts = frozenset[tuple[str, str, int]]


def amounts_of(request: AllocationRequest) -> ClaimedAmounts:
    """Return the amounts that a claim of this candidate would contain."""
    return frozenset(
        (uuid, name, amount) for uuid, part in request.allocations.items() for name, amount in part.resources.items()
    )


@dataclass(slots=True)
class RefusedClaims:
    """Hold the claims of one request that the store has refused so far, and the rest of its search budget."""

    budget: SearchBudget = field(default_factory=SearchBudget)

    #: The candidates that were refused, by compute node.
    tried: dict[str, set[ClaimedAmounts]] = field(default_factory=dict)
    #: The number of claims that were refused, by compute node: other decisions were faster. These hosts are not offered
    #: as alternates.
    lost: Counter[str] = field(default_factory=Counter)

    @classmethod
    def none(cls, instances: int) -> Self:
        """Return those of a new request: none yet, and the budget of all its searches, however often it is planned."""
        return cls(SearchBudget(seconds=SECONDS + _SECONDS_OF_AN_INSTANCE * instances))

    def add(self, node_uuid: str, request: AllocationRequest) -> None:
        """Note that the store has refused the claim of a candidate."""
        self.tried.setdefault(node_uuid, set()).add(amounts_of(request))
        self.lost[node_uuid] += 1

    def try_all_again(self) -> None:
        """Allow the refused candidates again: the view has caught up with the store since."""
        self.tried.clear()


class CandidateFilters:
    """Run the filters that leave out candidates of a host, for one request.

    :raises BrokenPlugin: a filter has raised.
    """

    def __init__(self, funnel: Funnel, request: RequestSpec) -> None:
        self._funnel = funnel
        self._request = request
        self._filters = funnel.candidate_filters(request)

    def __bool__(self) -> bool:
        return bool(self._filters)

    def judged(
        self, view: Snapshot, row: int, found: Iterable[AllocationRequest], budget: SearchBudget
    ) -> Iterable[tuple[AllocationRequest, str | None]]:
        """Yield each candidate of a host, with the name of the filter that leaves it out, if one does.

        :raises BrokenPlugin: a filter has raised, or has returned no boolean.
        :raises SearchBoundReached: the calls of the filters have used up the budget.
        """
        host = view.host(row)
        for candidate in found:
            refused_by = None
            for each in self._filters:
                with budget.running():
                    budget.take_step()
                    refuses = self._funnel.refuses_candidate(each, host, candidate, self._request)
                if refuses:
                    refused_by = each.name
                    break
            yield candidate, refused_by

    def reason(self, name: str) -> str:
        """Return the reason of the filter of this name."""
        return next(reason_of(plugin) for each, plugin in self._filters if each == name)


class _Searched(NamedTuple):
    """Hold the result of a search, and all of the host that it depends on; the candidate is null if there is none."""

    tree: CachedTree
    #: See :meth:`.Snapshot.inventory_values`.
    inventories: Sequence[tuple[float, ...]]
    candidate: AllocationRequest | None


class FoundCandidates:
    """The first candidates of hosts, for requests with an equal request spec. For one thread."""

    def __init__(self) -> None:
        #: By row; null for a host without one. The owner drops those of changed hosts.
        self.valid: dict[int, AllocationRequest | None] = {}
        #: A claim changes the host when it is planned, and again when it is written: then nothing differs any more.
        self.searched: dict[int, _Searched] = {}

    def put(self, row: int, candidate: AllocationRequest | None, searched: _Searched | None) -> None:
        """Remember the candidate of a host, and the search for it, if one was needed."""
        for kept in (self.valid, self.searched):
            # Rows from long ago would otherwise stay for ever, and take the room of new ones.
            if len(kept) >= _REMEMBERED:
                kept.clear()
        self.valid[row] = candidate
        if searched is not None:
            self.searched[row] = searched


class HostCandidates:
    """Find the first allocation candidate of a host for one request.

    :param tried: candidates to pass over, by compute node.
    :param budget: shared by all searches for the request; by default a new one.
    :param steps: the maximum number of positions that the search visits on one host.
    :param filters: leave out candidates; null for none.
    """

    def __init__(
        self,
        request: ResourceRequest,
        tried: Mapping[str, Collection[ClaimedAmounts]],
        budget: SearchBudget | None = None,
        steps: int = MAX_STEPS_ON_A_HOST,
        filters: CandidateFilters | None = None,
    ) -> None:
        self.filters = filters or None
        self.request = request
        self.budget = budget or SearchBudget()
        self._steps = steps
        self._plain = only_resources(request)
        self._tried = tried
        self._found: FoundCandidates | None = None
        #: The rows of hosts without a candidate.
        self.infeasible: set[int] = set()
        #: The rows on which the search was not finished, with its error: these hosts may have a candidate.
        self.undecided: dict[int, errors.SearchBoundReached] = {}
        #: Whether the search for this request was given up.
        self.is_given_up = False
        #: The infeasible rows whose last candidate was left out by a filter, with the filter's name.
        self.refused: dict[int, str] = {}

    def remember_in(self, found: FoundCandidates) -> None:
        """Use the results of earlier searches, and add new ones."""
        self._found = found

    def first(self, view: Snapshot, row: int) -> AllocationRequest | None:
        """Return the first candidate of a host that was not refused yet; None, if there is none or none was found.

        :raises SearchBoundReached: the search was not finished on too many hosts, or the budget is spent.
        """
        if row in self.infeasible:
            return None
        tried = self._tried.get(view.hosts[row].compute_node_uuid, ())
        # Refusals concern this request only, and each request runs the filters again: then remember nothing.
        if self._found is None or tried or self.filters is not None:
            candidate = self._first_untried(view, row, tried)
        elif row in self._found.valid:
            candidate = self._found.valid[row]
        else:
            candidate = self._first_remembered(self._found, view, row)
        if candidate is None:
            self.infeasible.add(row)
        return candidate

    def _first_remembered(self, found: FoundCandidates, view: Snapshot, row: int) -> AllocationRequest | None:
        """Return the first candidate of a host, and remember it; a search is not repeated if it would find the same.

        :raises SearchBoundReached: the search was not finished on too many hosts, or the budget is spent.
        """
        tree, last = view.trees[row], found.searched.get(row)
        inventories: Sequence[tuple[float, ...]] | None = None
        if tree is not None and not self._needs_no_search(tree):
            inventories = view.inventory_values(tree, self._compiled.classes)
            if last is not None and last.tree is tree and last.inventories == inventories:
                found.put(row, last.candidate, last)
                return last.candidate
        candidate = self._first_untried(view, row, ())
        # An unfinished search does not show that there is none.
        if row not in self.undecided:
            searched = None if tree is None or inventories is None else _Searched(tree, inventories, candidate)
            found.put(row, candidate, searched)
        return candidate

    def _first_untried(self, view: Snapshot, row: int, tried: Collection[ClaimedAmounts]) -> AllocationRequest | None:
        """Search for the first candidate of a host that was not tried; None, if there is none or none was found.

        :raises SearchBoundReached: the search was not finished on too many hosts, or the budget is spent.
        """
        if len(tried) >= MAX_REFUSALS_OF_A_HOST:
            return None
        try:
            for candidate, refused_by in self._filtered(view, row):
                if refused_by is not None:
                    self.refused[row] = refused_by
                elif not tried or amounts_of(candidate) not in tried:
                    self.refused.pop(row, None)
                    return candidate
        except errors.SearchBoundReached as fault:
            self.undecided[row] = fault
            if len(self.undecided) >= MAX_UNDECIDED_HOSTS or self.budget.is_spent:
                self.is_given_up = True
                raise
        return None

    def first_in_time(self, view: Snapshot, row: int) -> AllocationRequest | None:
        """Return the same as :meth:`first`, but None instead of an error if the search is not finished."""
        with suppress(errors.SearchBoundReached):
            return self.first(view, row)
        return None

    def reason(self, row: int) -> str:
        """Return why a host has no candidate, as text that follows its name."""
        if row in self.undecided:
            return TOO_MANY_COMBINATIONS
        if self.filters is not None and row in self.refused:
            return self.filters.reason(self.refused[row])
        return NO_CANDIDATE

    def _filtered(self, view: Snapshot, row: int) -> Iterable[tuple[AllocationRequest, str | None]]:
        if self.filters is None:
            return ((candidate, None) for candidate in self._candidates(view, row))
        return self.filters.judged(view, row, self._candidates(view, row), self.budget)

    def _candidates(self, view: Snapshot, row: int) -> Iterable[AllocationRequest]:
        cached = view.trees[row]
        if cached is None:
            return ()
        if self._plain is not None and self._needs_no_search(cached):
            return _candidates_of_flat_host(view, cached, self._plain)
        tree = view.host_tree(row, self._compiled.classes)
        if tree is None:
            return ()
        return candidates.search(tree, self.request, max_steps=self._steps, budget=self.budget, compiled=self._compiled)

    def _needs_no_search(self, tree: CachedTree) -> bool:
        return self._plain is not None and tree.is_flat

    @cached_property
    def _compiled(self) -> SearchRequest:
        return SearchRequest(self.request)


def only_resources(request: ResourceRequest) -> Resources | None:
    """Return the amounts of a request that has no other condition on providers; None for any other request."""
    group = request.groups.get(UNSUFFIXED, ResourceGroup())
    plain = ResourceRequest(groups={UNSUFFIXED: ResourceGroup(resources=group.resources)})
    return group.resources if request == plain else None


def _candidates_of_flat_host(view: Snapshot, tree: CachedTree, resources: Resources) -> Iterable[AllocationRequest]:
    """Return the candidate of a host with a single provider, if it has one; this usual case needs no search."""
    node = tree.own[0]
    for name, amount in resources.items():
        if name not in node.slots or not view.classes[name].slots.fits_at(node.slots[name], amount):
            return ()
    part = ProviderAmounts(resources=resources)
    return (AllocationRequest(allocations={node.uuid: part}, mappings={UNSUFFIXED: (node.uuid,)}),)
