"""Search for candidates by backtracking: the variable with the smallest domain first, infeasible states pruned."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from moorage import errors
from moorage.model import UNSUFFIXED, AllocationRequest, ProviderAmounts, ResourceRequest
from placement_store.candidates.bounds import is_infeasible, narrow_subtrees
from placement_store.candidates.eligibility import Ancestry, root_qualifies, serves_group
from placement_store.candidates.problem import Problem, SearchRequest, compile_problem, members
from placement_store.candidates.search_budget import SearchBudget
from placement_store.candidates.state import State, assign, first_state, next_variable, signature
from placement_store.candidates.tree import HostTree

#: The most states that a search of one tree visits without finding a new candidate. Arbitrary.
MAX_STEPS = 100_000


def search(
    tree: HostTree,
    request: ResourceRequest,
    *,
    seed: int | None = None,
    max_steps: int = MAX_STEPS,
    budget: SearchBudget | None = None,
    folds: bool = True,
    compiled: SearchRequest | None = None,
) -> Iterator[AllocationRequest]:
    """Yield all allocation candidates of a host's tree, and of the pools that share with it, for a request.

    They are generated lazily, in an order that depends only on the arguments. The request must have passed
    :func:`~placement_store.candidates.check`.

    :param seed: decides which of several providers that are equal for this request are tried first; null keeps the
        order of the tree.
    :param max_steps: how many states to visit without finding a new candidate.
    :param budget: the budget of the request, if several trees are searched for it.
    :param folds: yield each set of amounts once, with one of its mappings; otherwise once with each mapping.
    :param compiled: the request as variables, if several trees are searched for it.
    :raises SearchBoundReached: the steps or the budget are used up; there may be more candidates.
    """
    root = tree.root
    if not root_qualifies(root, request):
        return
    if len(tree.providers) == 1 and not tree.sharing and request.groups.keys() == {UNSUFFIXED}:
        # Most hosts are like this: there is only one possible candidate, which needs no search.
        group = request.groups[UNSUFFIXED]
        if serves_group(root, group, Ancestry(tree)):
            allocations = {root.uuid: ProviderAmounts(resources=dict(group.resources))}
            yield AllocationRequest(allocations=allocations, mappings={UNSUFFIXED: (root.uuid,)})
        return
    budget = budget or SearchBudget()
    with budget.running():
        problem = compile_problem(tree, compiled or SearchRequest(request), seed, budget, folds=folds)
    solutions = _solutions(problem, f"allocation candidates of resource provider {root.uuid}", max_steps)
    while True:
        # The caller's work between two candidates is not counted.
        with budget.running():
            if (state := next(solutions, None)) is None:
                return
            candidate = _allocation_request(problem, state)
        yield candidate


def search_one_of_each_tree(tree: HostTree, request: ResourceRequest, **options: Any) -> Iterator[AllocationRequest]:
    """Yield the candidates that take at most one provider of each tree; one may come more than once.

    Clients from before nested providers expect these. The tree is searched once for each provider: otherwise the cross
    product of a wide tree would be enumerated, and most of it discarded. See :func:`search` for the options and the
    error; without a budget each provider has one of its own.
    """
    root_of = {provider.uuid: provider.root_uuid for provider in (*tree.providers, *tree.sharing)}
    # Where no provider of the tree has an inventory, the pools may still serve the request alone.
    for taken in [provider for provider in tree.providers if provider.inventories] or [tree.root]:
        alone = [one if one is taken else replace(one, inventories={}) for one in tree.providers]
        one_provider = HostTree(alone, tree.sharing, tree.above_sharing)
        for candidate in search(one_provider, request, **options):
            roots = {root_of[uuid] for uuid in candidate.allocations}
            if len(roots) == len(candidate.allocations):
                yield candidate


@dataclass(slots=True)
class _Frame:
    """A state on the stack: the successors left to try, and whether it has led to any solution."""

    state: State
    key: Hashable
    untried: Iterator[State]
    solvable: bool = False


class _Memory:
    """Remember visited states: those without a solution, and those whose solutions were already yielded."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._cells = len(problem.providers) + len(problem.variables)
        self._unsolvable: set[Hashable] = set()
        self._done: dict[Hashable, bool] = {}
        self._solutions: set[Hashable] = set()

    def is_new(self, solution: State) -> bool:
        """Record a solution; return whether it is new."""
        key = _distinguishing_key(self._problem, solution)
        if key in self._solutions:
            return False
        self._solutions.add(key)
        return True

    def outcome(self, state: State, key: Hashable) -> bool | None:
        """Return whether a state, or one like it, was found solvable; null if it must be searched."""
        if key in self._done:
            return self._done[key]
        if self._unsolvable and signature(self._problem, state) in self._unsolvable:
            return False
        return None

    def remember(self, frame: _Frame) -> None:
        """Record the outcome of a state while there is memory for it; one that is not recorded is searched again."""
        if not self._problem.budget.may_remember(self._cells):
            return
        self._done[frame.key] = frame.solvable
        if not frame.solvable:
            self._unsolvable.add(signature(self._problem, frame.state))


def _solutions(problem: Problem, what: str, max_steps: int) -> Iterator[State]:
    memory = _Memory(problem)
    start = first_state(problem)
    propagated = _propagated(problem, start)
    if (first := _without_backtracking(problem, propagated, max_steps)) is not None:
        memory.is_new(first)
        yield first
    # The states visited since the last solution.
    steps = 0
    # Depth-first search with an explicit stack; the first frame has one successor, the propagated start.
    stack = [_Frame(start, _key(problem, start), iter([propagated]))]
    while stack:
        frame = stack[-1]
        if (state := next(frame.untried, None)) is None:
            # All successors are searched: record the outcome, and pass it on to the previous state.
            stack.pop()
            if stack:
                memory.remember(frame)
                stack[-1].solvable |= frame.solvable
            continue
        problem.budget.take_step()
        steps += 1
        if steps > max_steps:
            raise errors.SearchBoundReached(what=what, steps=max_steps)
        if is_infeasible(problem, state):
            continue
        if not state.unassigned:
            frame.solvable = True
            # If `folds`, two mappings with the same amounts are one candidate.
            if memory.is_new(state):
                steps = 0
                yield state
            continue
        # A state that was searched earlier yields nothing new, but its outcome counts for the previous state.
        key = _key(problem, state)
        if (outcome := memory.outcome(state, key)) is None:
            stack.append(_Frame(state, key, _successors(problem, state)))
        else:
            frame.solvable |= outcome


def _without_backtracking(problem: Problem, state: State, max_steps: int) -> State | None:
    """Return the solution that the first successors lead to; null if they lead to none within these steps.

    It is the first one that the search finds, since only states without a solution are pruned. On most hosts there is
    one, and the tests for pruning would take most of the time.
    """
    for _ in range(max_steps):
        problem.budget.take_step()
        if not state.unassigned:
            return None if is_infeasible(problem, state) else state
        if (following := next(_successors(problem, state), None)) is None:
            return None
        state = following
    return None


def _successors(problem: Problem, state: State) -> Iterator[State]:
    number = next_variable(problem, state)
    for provider in members(state.domains[number]):
        yield _propagated(problem, assign(problem, state, number, provider))


def _propagated(problem: Problem, state: State) -> State:
    """Assign every variable that has one provider left, until none has (unit propagation)."""
    state = narrow_subtrees(problem, state)
    while state.unassigned:
        problem.budget.check()
        number = next_variable(problem, state)
        domain = state.domains[number]
        if domain.bit_count() != 1:
            break
        state = narrow_subtrees(problem, assign(problem, state, number, domain.bit_length() - 1))
    return state


def _key(problem: Problem, state: State) -> Hashable:
    """Return a key that is equal for two states that lead to the same candidates."""
    return (state.unassigned, state.domains, state.uncovered, state.subtree_roots, _distinguishing_key(problem, state))


def _distinguishing_key(problem: Problem, state: State) -> Hashable:
    """Return what distinguishes candidates: the amounts of providers or, unfolded, the provider of each group."""
    if problem.folds:
        return frozenset(_amounts(problem, state).items())
    return frozenset(pair for pair in state.assignments if problem.variables[pair[0]].suffix is not None)


def _amounts(problem: Problem, state: State) -> dict[tuple[int, int], int]:
    """Return the amounts assigned so far, by provider and class."""
    amounts: dict[tuple[int, int], int] = {}
    for number, provider in state.assignments:
        for class_number, amount in problem.variables[number].demands:
            pair = (provider, class_number)
            amounts[pair] = amounts.get(pair, 0) + amount
    return amounts


def _allocation_request(problem: Problem, state: State) -> AllocationRequest:
    allocations: dict[str, dict[str, int]] = {}
    mappings: dict[str, dict[str, None]] = {}
    for number, provider in sorted(state.assignments):
        variable = problem.variables[number]
        if variable.suffix is None:
            continue
        uuid = problem.providers[provider].uuid
        mappings.setdefault(variable.suffix, {})[uuid] = None
        for class_number, amount in variable.demands:
            amounts = allocations.setdefault(uuid, {})
            name = problem.classes[class_number]
            amounts[name] = amounts.get(name, 0) + amount
    return AllocationRequest(
        allocations={uuid: ProviderAmounts(resources=amounts) for uuid, amounts in allocations.items()},
        mappings={suffix: tuple(uuids) for suffix, uuids in mappings.items()},
    )
