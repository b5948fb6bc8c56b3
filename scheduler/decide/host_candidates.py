"""Which providers of a host serve a request: worked out for the hosts that are about to be claimed or offered.

For one request and one growing plan: a host that could not serve it a moment ago cannot now.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from moorage import errors
from moorage.model import UNSUFFIXED, AllocationRequest, ProviderAmounts, ResourceGroup, ResourceRequest, Resources
from placement_store import candidates
from placement_store.candidates.search_budget import SECONDS, SearchBudget
from scheduler.view.provider_trees import CachedTree
from scheduler.view.snapshot import Snapshot

#: How many ways a host may refuse before the next host is tried. More would use up what other hosts are there for.
MAX_REFUSALS_OF_A_HOST = 4

#: How many positions of the search are looked at on one host: a few tenths of a second. Arbitrary.
MAX_STEPS_ON_A_HOST = 10_000
#: On how many hosts the search may be given up before the whole request is: nobody waits for thousands of them.
MAX_UNDECIDED_HOSTS = 5

#: Seconds of processor time that each instance of a request adds to the budget of its searches. Arbitrary.
_SECONDS_OF_AN_INSTANCE = 0.002

#: What a claim asks of the store, whichever groups it is for: amounts by provider and class.
Amounts = frozenset[tuple[str, str, int]]


def amounts_of(request: AllocationRequest) -> Amounts:
    """Return what a claim of this would ask of the store."""
    return frozenset(
        (uuid, name, amount) for uuid, part in request.allocations.items() for name, amount in part.resources.items()
    )


def budget_for(instances: int) -> SearchBudget:
    """Return the budget of all searches for one request, however often it is planned."""
    return SearchBudget(seconds=SECONDS + _SECONDS_OF_AN_INSTANCE * instances)


@dataclass(slots=True)
class RefusedClaims:
    """Hold the refusals of the store to one request so far, and the rest of the budget for its searches."""

    budget: SearchBudget = field(default_factory=SearchBudget)

    #: By compute node, the ways that were tried in vain.
    tried: dict[str, set[Amounts]] = field(default_factory=dict)
    #: The compute nodes of hosts that have refused: they are not to be offered as alternates.
    nodes: set[str] = field(default_factory=set)
    #: By compute node, how many claims were refused there: others were faster.
    lost: Counter[str] = field(default_factory=Counter)

    def add(self, node_uuid: str, request: AllocationRequest) -> None:
        """Note that a host has refused a claim."""
        self.tried.setdefault(node_uuid, set()).add(amounts_of(request))
        self.nodes.add(node_uuid)
        self.lost[node_uuid] += 1

    def try_all_again(self) -> None:
        """Let every way be tried once more: everything has been read anew."""
        self.tried.clear()


class HostCandidates:
    """Finds the providers that serve a request, host by host.

    :param tried: by compute node, the ways that are not to be tried again.
    :param budget: what all searches for the request may cost together; by default a new one.
    :param steps: how many positions of the search are looked at on one host.
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
        #: The rows of hosts that cannot serve the request.
        self.infeasible: set[int] = set()
        #: Those among them of which that is not known for sure: the search was given up, after so many steps.
        self.undecided: dict[int, errors.SearchBoundReached] = {}

    def first(self, view: Snapshot, row: int) -> AllocationRequest | None:
        """Return the first way in which a host's providers can serve the request; nothing, if none is found.

        :raises SearchBoundReached: the search was given up on too many hosts, or the budget is used up.
        """
        if row in self.infeasible:
            return None
        node = view.hosts[row].compute_node_uuid
        tried = self._tried.get(node, ())
        if len(tried) < MAX_REFUSALS_OF_A_HOST:
            try:
                for candidate in self._candidates(view, row):
                    if not tried or amounts_of(candidate) not in tried:
                        return candidate
            except errors.SearchBoundReached as fault:
                self.undecided[row] = fault
                if len(self.undecided) >= MAX_UNDECIDED_HOSTS or self.budget.is_spent:
                    raise
        self.infeasible.add(row)
        return None

    def _candidates(self, view: Snapshot, row: int) -> Iterable[AllocationRequest]:
        known = view.trees[row]
        if known is None:
            return ()
        if self._plain is not None and known.is_flat:
            return _of_flat_host(view, known, self._plain)
        tree = view.host_tree(row)
        return () if tree is None else self._search(tree)

    def _search(self, tree: candidates.HostTree) -> Iterable[AllocationRequest]:
        return candidates.search(tree, self.request, max_steps=self._steps, budget=self.budget)


def only_resources(request: ResourceRequest) -> Resources | None:
    """Return the amounts of a request that asks for nothing but amounts, from wherever; else nothing."""
    group = request.groups.get(UNSUFFIXED, ResourceGroup())
    plain = ResourceRequest(groups={UNSUFFIXED: ResourceGroup(resources=group.resources)})
    return group.resources if request == plain else None


def _of_flat_host(view: Snapshot, tree: CachedTree, resources: Resources) -> Iterable[AllocationRequest]:
    """Return the one way there is, if there is one, without a search: most hosts and most requests are so."""
    node = tree.own[0]
    for name, amount in resources.items():
        if name not in node.slots or not view.classes[name].slots.fits_at(node.slots[name], amount):
            return ()
    part = ProviderAmounts(resources=resources)
    return (AllocationRequest(allocations={node.uuid: part}, mappings={UNSUFFIXED: (node.uuid,)}),)
