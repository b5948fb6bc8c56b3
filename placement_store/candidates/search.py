"""The search for candidates: choice after choice, the narrowest first, with what is proved hopeless left out."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from moorage import errors
from moorage.model import UNSUFFIXED, AllocationRequest, ProviderAmounts, ResourceGroup, ResourceRequest
from placement_store.candidates.bounds import hopeless, narrowed
from placement_store.candidates.eligibility import Ancestry, is_right_root, serves_group
from placement_store.candidates.masks import members
from placement_store.candidates.problem import Problem, problem_of
from placement_store.candidates.search_budget import SearchBudget
from placement_store.candidates.signature import signature
from placement_store.candidates.state import State, choose, first_state, next_choice
from placement_store.candidates.tree import HostTree
from placement_store.candidates.variables import SearchRequest

#: How many positions a search of one tree looks at without finding anything new before it gives up. Arbitrary.
MAX_STEPS = 100_000


def search(
    tree: HostTree,
    request: ResourceRequest,
    *,
    seed: int | None = None,
    max_steps: int = MAX_STEPS,
    budget: SearchBudget | None = None,
) -> Iterator[AllocationRequest]:
    """Yield every way in which a host's tree, and what shares with it, can serve a request.

    Lazily, in an order that depends on the arguments alone. Each set of amounts comes once, with one of the mappings
    that lead to it. The request must have passed :func:`~placement_store.candidates.check`.

    :param seed: decides which of several providers that are equal for this request are tried first; null keeps the
        order of the tree.
    :param max_steps: how many positions to look at without finding anything new.
    :param budget: the budget of the request, where several trees are searched for it.
    :raises SearchBoundReached: one of the two was not enough; whether there are more candidates is not known.
    """
    root = tree.root
    if not is_right_root(root, request):
        return
    if len(tree.providers) == 1 and not tree.sharing and request.groups.keys() == {UNSUFFIXED}:
        yield from _of_flat_host(tree, request.groups[UNSUFFIXED])
        return
    budget = budget or SearchBudget()
    with budget.running():
        puzzle = problem_of(tree, SearchRequest(request), seed, budget)
    solutions = _solutions(puzzle, _Steps(f"allocation candidates of resource provider {root.uuid}", max_steps, budget))
    while True:
        # What the caller does between two candidates is not paid by the budget.
        with budget.running():
            state = next(solutions, None)
        if state is None:
            return
        yield _answer(puzzle, state)


def _of_flat_host(tree: HostTree, group: ResourceGroup) -> Iterator[AllocationRequest]:
    """Yield the one way there may be where there is one provider, without a search: most hosts are so."""
    if serves_group(tree.root, group, Ancestry.of(tree)):
        allocations = {tree.root.uuid: ProviderAmounts(resources=dict(group.resources))}
        yield AllocationRequest(allocations=allocations, mappings={UNSUFFIXED: (tree.root.uuid,)})


class _Steps:
    """Counts the positions looked at since the last one that was a solution."""

    def __init__(self, what: str, most: int, budget: SearchBudget) -> None:
        self._what = what
        self._most = most
        self._budget = budget
        self._steps = 0

    def take(self) -> None:
        self._budget.take_step()
        self._steps += 1
        if self._steps > self._most:
            raise errors.SearchBoundReached(what=self._what, steps=self._most)

    def found(self) -> None:
        self._steps = 0


@dataclass(slots=True)
class _Frame:
    """A position under way: what is left to try of its next choice, and whether it has led to any solution."""

    state: State
    key: Hashable
    untried: Iterator[State]
    solvable: bool = False


class _Memory:
    """What the search has learnt of positions: which have no solution, and which have given theirs already."""

    def __init__(self, puzzle: Problem) -> None:
        self._puzzle = puzzle
        self._cells = len(puzzle.providers) + len(puzzle.choices)
        self._unsolvable: set[Hashable] = set()
        self._done: dict[Hashable, bool] = {}
        self._solutions: set[Hashable] = set()

    def is_new(self, solution: State) -> bool:
        """Tell whether these amounts have not been found before, and remember them."""
        amounts = frozenset(_amounts(self._puzzle, solution).items())
        if amounts in self._solutions:
            return False
        self._solutions.add(amounts)
        return True

    def outcome(self, state: State, key: Hashable) -> bool | None:
        """Return whether a position, or one like it, was found solvable; null if it must be looked at."""
        if key in self._done:
            return self._done[key]
        if self._unsolvable and signature(self._puzzle, state) in self._unsolvable:
            return False
        return None

    def remember(self, frame: _Frame) -> None:
        """Note the outcome of a position, while there is room for it; one that is not noted is tried again."""
        if not self._puzzle.budget.may_remember(self._cells):
            return
        self._done[frame.key] = frame.solvable
        if not frame.solvable:
            self._unsolvable.add(signature(self._puzzle, frame.state))


def _solutions(puzzle: Problem, steps: _Steps) -> Iterator[State]:
    memory = _Memory(puzzle)
    start = first_state(puzzle)
    # The first position is like any other one, but that nobody has chosen anything to reach it.
    stack = [_Frame(start, _key(puzzle, start), iter([_settled(puzzle, start)]))]
    while stack:
        frame = stack[-1]
        state = next(frame.untried, None)
        if state is None:
            stack.pop()
            if stack:
                memory.remember(frame)
                stack[-1].solvable |= frame.solvable
            continue
        steps.take()
        if hopeless(puzzle, state):
            continue
        if not state.open:
            frame.solvable = True
            if memory.is_new(state):
                steps.found()
                yield state
            continue
        key = _key(puzzle, state)
        outcome = memory.outcome(state, key)
        if outcome is None:
            stack.append(_Frame(state, key, _following(puzzle, state)))
        else:
            frame.solvable |= outcome


def _following(puzzle: Problem, state: State) -> Iterator[State]:
    number = next_choice(puzzle, state)
    for provider in members(state.domains[number]):
        yield _settled(puzzle, choose(puzzle, state, number, provider))


def _settled(puzzle: Problem, state: State) -> State:
    """Return the position in which every choice has been made that had only one provider left."""
    state = narrowed(puzzle, state)
    while state.open:
        puzzle.budget.check()
        number = next_choice(puzzle, state)
        domain = state.domains[number]
        if domain.bit_count() != 1:
            break
        state = narrowed(puzzle, choose(puzzle, state, number, domain.bit_length() - 1))
    return state


def _key(puzzle: Problem, state: State) -> Hashable:
    """Return what two positions have in common that lead to the same sets of amounts."""
    return state.open, state.domains, state.uncovered, state.tops, frozenset(_amounts(puzzle, state).items())


def _amounts(puzzle: Problem, state: State) -> dict[tuple[int, int], int]:
    """Return what has been chosen so far: amounts by provider and class."""
    amounts: dict[tuple[int, int], int] = {}
    for number, provider in state.chosen:
        for class_number, amount in puzzle.choices[number].demands:
            pair = (provider, class_number)
            amounts[pair] = amounts.get(pair, 0) + amount
    return amounts


def _answer(puzzle: Problem, state: State) -> AllocationRequest:
    allocations: dict[str, dict[str, int]] = {}
    mappings: dict[str, dict[str, None]] = {}
    for number, provider in sorted(state.chosen):
        choice = puzzle.choices[number]
        if choice.suffix is None:
            continue
        uuid = puzzle.providers[provider].uuid
        mappings.setdefault(choice.suffix, {})[uuid] = None
        for class_number, amount in choice.demands:
            amounts = allocations.setdefault(uuid, {})
            name = puzzle.classes[class_number]
            amounts[name] = amounts.get(name, 0) + amount
    return AllocationRequest(
        allocations={uuid: ProviderAmounts(resources=amounts) for uuid, amounts in allocations.items()},
        mappings={suffix: tuple(uuids) for suffix, uuids in mappings.items()},
    )
