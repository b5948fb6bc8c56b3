"""Find allocation candidates host by host, for the hosts that are about to be claimed or offered as alternates.

One :class:`HostCandidates` serves one request and one growing plan: a host that is infeasible stays infeasible.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from moorage import errors
from moorage.model import UNSUFFIXED, AllocationRequest, ProviderAmounts, ResourceGroup, ResourceRequest, Resources
from placement_store import candidates
from placement_store.candidates.problem import SearchRequest
from placement_store.candidates.search_budget import SECONDS, SearchBudget
from scheduler.view.provider_trees import CachedTree
from scheduler.view.snapshot import Snapshot

#: Candidates of one host that may be refused before the next host is tried, so that the tries last for other hosts.
MAX_REFUSALS_OF_A_HOST = 4

#: Positions that the search visits on one host: a few tenths of a second. Arbitrary.
MAX_STEPS_ON_A_HOST = 10_000
#: Hosts on which the search may end unfinished before the request fails: thousands of them would take too long.
MAX_UNDECIDED_HOSTS = 5

#: Hosts whose candidate is remembered for the next requests with the same wishes. Arbitrary.
_REMEMBERED = 1_000

#: Seconds of processor time that each instance of a request adds to the budget of its searches. Arbitrary.
_SECONDS_OF_AN_INSTANCE = 0.002

#: The amounts of a claim by provider and class, whichever groups they are for.
Amounts = frozenset[tuple[str, str, int]]


def amounts_of(request: AllocationRequest) -> Amounts:
    """Return the amounts that a claim of this candidate would contain."""
    return frozenset(
        (uuid, name, amount) for uuid, part in request.allocations.items() for name, amount in part.resources.items()
    )


def budget_for(instances: int) -> SearchBudget:
    """Return the budget that all searches for one request share, however often it is planned."""
    return SearchBudget(seconds=SECONDS + _SECONDS_OF_AN_INSTANCE * instances)


@dataclass(slots=True)
class RefusedClaims:
    """Hold the refusals of the store to one request so far, and the rest of the budget for its searches."""

    budget: SearchBudget = field(default_factory=SearchBudget)

    #: The candidates that were refused, by compute node.
    tried: dict[str, set[Amounts]] = field(default_factory=dict)
    #: The number of claims that were refused, by compute node: other decisions were faster. These hosts are not offered
    #: as alternates.
    lost: Counter[str] = field(default_factory=Counter)

    def add(self, node_uuid: str, request: AllocationRequest) -> None:
        """Note that the store has refused the claim of a candidate."""
        self.tried.setdefault(node_uuid, set()).add(amounts_of(request))
        self.lost[node_uuid] += 1

    def try_all_again(self) -> None:
        """Allow the refused candidates again: the view has caught up with the store since."""
        self.tried.clear()


class HostCandidates:
    """Find the first allocation candidate of a host for one request.

    :param tried: candidates to pass over, by compute node.
    :param budget: shared by all searches for the request; by default a new one.
    :param steps: positions that the search visits on one host.
    """

    def __init__(
        self,
        request: ResourceRequest,
        tried: Mapping[str, Collection[Amounts]],
        budget: SearchBudget | None = None,
        steps: int = MAX_STEPS_ON_A_HOST,
    ) -> None:
        self.request = request
        self.budget = budget or SearchBudget()
        self._steps = steps
        self._plain = only_resources(request)
        self._tried = tried
        self._found: dict[int, AllocationRequest] | None = None
        #: The rows of hosts without a candidate.
        self.infeasible: set[int] = set()
        #: The rows among them on which the search was not finished, so that there may be one, with its error.
        self.undecided: dict[int, errors.SearchBoundReached] = {}

    def remember_in(self, found: dict[int, AllocationRequest]) -> None:
        """Use candidates that were found before, by row, and add to them; their owner drops those of changed hosts."""
        self._found = found

    def first(self, view: Snapshot, row: int) -> AllocationRequest | None:
        """Return the first candidate of a host that was not refused yet; None, if there is none or none was found.

        :raises SearchBoundReached: the search was not finished on too many hosts, or the budget is spent.
        """
        if row in self.infeasible:
            return None
        node = view.hosts[row].compute_node_uuid
        tried = self._tried.get(node, ())
        # What was refused is this request's own matter: then nothing is remembered.
        found = None if tried else self._found
        if found is not None and row in found:
            return found[row]
        if len(tried) < MAX_REFUSALS_OF_A_HOST:
            try:
                for candidate in self._candidates(view, row):
                    if not tried or amounts_of(candidate) not in tried:
                        if found is not None and len(found) < _REMEMBERED:
                            found[row] = candidate
                        return candidate
            except errors.SearchBoundReached as fault:
                self.undecided[row] = fault
                if len(self.undecided) >= MAX_UNDECIDED_HOSTS or self.budget.is_spent:
                    raise
        self.infeasible.add(row)
        return None

    def _candidates(self, view: Snapshot, row: int) -> Iterable[AllocationRequest]:
        cached = view.trees[row]
        if cached is None:
            return ()
        if self._plain is not None and cached.is_flat:
            return _candidates_of_flat_host(view, cached, self._plain)
        tree = view.host_tree(row)
        if tree is None:
            return ()
        return candidates.search(tree, self.request, max_steps=self._steps, budget=self.budget, compiled=self._compiled)

    @cached_property
    def _compiled(self) -> SearchRequest:
        return SearchRequest(self.request)


def only_resources(request: ResourceRequest) -> Resources | None:
    """Return the amounts of a request that has no other condition on providers; None for any other request."""
    group = request.groups.get(UNSUFFIXED, ResourceGroup())
    plain = ResourceRequest(groups={UNSUFFIXED: ResourceGroup(resources=group.resources)})
    return group.resources if request == plain else None


def _candidates_of_flat_host(view: Snapshot, tree: CachedTree, resources: Resources) -> Iterable[AllocationRequest]:
    """Return the candidate of a host with a single provider, if it has one: most hosts and requests need no search."""
    node = tree.own[0]
    for name, amount in resources.items():
        if name not in node.slots or not view.classes[name].slots.fits_at(node.slots[name], amount):
            return ()
    part = ProviderAmounts(resources=resources)
    return (AllocationRequest(allocations={node.uuid: part}, mappings={UNSUFFIXED: (node.uuid,)}),)
