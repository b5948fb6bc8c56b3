"""Prune the search: tests that prove that a state has no solution, and domains reduced before a state is tried."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

from placement_store.candidates.problem import Mask, Problem, members
from placement_store.candidates.state import NOT_CHOSEN, State


def is_infeasible(problem: Problem, state: State) -> bool:
    """Return whether a state is proved to have no solution; false proves nothing."""
    return (
        any(not state.domains[number] for number in members(state.unassigned))
        or _traits_out_of_reach(problem, state)
        or _roots_out_of_reach(problem, state)
        or _too_little_room(problem, state)
        or _has_no_matching(problem, state)
    )


def narrow_subtrees(problem: Problem, state: State) -> State:
    """Reduce the domains of subtree roots and of their groups to providers that are consistent with each other.

    A subtree root must be a provider of one of its groups, and each of its groups must have a provider at or below it.
    """
    if NOT_CHOSEN not in state.subtree_roots:
        return state
    domains = list(state.domains)
    changed = True
    while changed:
        changed = False
        for subtree, groups in enumerate(problem.groups_of_subtree):
            problem.budget.check()
            if state.subtree_roots[subtree] != NOT_CHOSEN:
                continue
            subtree_root = problem.root_variables[subtree]
            subtree_roots, reach = _possible_roots(problem, domains, groups, domains[subtree_root])
            changed |= subtree_roots != domains[subtree_root]
            domains[subtree_root] = subtree_roots
            for group in members(groups):
                changed |= bool(domains[group] & ~reach)
                domains[group] &= reach
    if domains == list(state.domains):
        return state
    return State(state.unassigned, tuple(domains), state.room, state.uncovered, state.subtree_roots, state.assignments)


def _possible_roots(problem: Problem, domains: Sequence[Mask], groups: Mask, subtree_roots: Mask) -> tuple[Mask, Mask]:
    """Return the ``subtree_roots`` that all groups of a subtree allow, and the providers at or below them."""
    possible = reach = served = 0
    for group in members(groups):
        served |= domains[group]
    for subtree_root in members(subtree_roots & served):
        if all(domains[group] & problem.below[subtree_root] for group in members(groups)):
            possible |= 1 << subtree_root
            reach |= problem.below[subtree_root]
    return possible, reach


def _traits_out_of_reach(problem: Problem, state: State) -> bool:
    uncovered = state.uncovered
    if not uncovered:
        return False
    for number in members(state.unassigned):
        if problem.variables[number].suffix == "":
            for provider in members(state.domains[number]):
                uncovered &= ~problem.covers[provider]
    return bool(uncovered)


def _roots_out_of_reach(problem: Problem, state: State) -> bool:
    """Return whether an assigned subtree root can no longer serve any of its groups."""
    for subtree, subtree_root in enumerate(state.subtree_roots):
        if subtree_root >= 0:
            groups = members(problem.groups_of_subtree[subtree] & state.unassigned)
            if not any(state.domains[group] >> subtree_root & 1 for group in groups):
                return True
    return False


def _too_little_room(problem: Problem, state: State) -> bool:
    """Return whether more of some class is demanded than all providers in the domains have left together.

    The sums are compared in several units, and only whole units count. Example: 17 amounts of 3 are 17 units of 3. 16
    providers with 5 left have room for only 16 such units, although 16 * 5 is more than 17 * 3.
    """
    demanded: dict[int, list[tuple[int, Mask]]] = {}
    for number in members(state.unassigned):
        for class_number, amount in problem.variables[number].demands:
            demanded.setdefault(class_number, []).append((amount, state.domains[number]))
    return any(
        _too_little_of(class_number, unit, demands, state)
        for class_number, demands in demanded.items()
        if len(demands) > 1  # a domain that is not empty has room for one
        for unit in {1, *(amount for amount, _ in demands)}
    )


def _too_little_of(class_number: int, unit: int, demands: Sequence[tuple[int, Mask]], state: State) -> bool:
    units = reach = 0
    for amount, domain in demands:
        if amount >= unit:
            units += amount // unit
            reach |= domain
    return units > sum(state.room[provider][class_number] // unit for provider in members(reach))


# --- A matching of groups and providers -----------------------------------------------------------------------------


def _has_no_matching(problem: Problem, state: State) -> bool:
    """Return whether the suffixed groups cannot all be matched with providers (Hall's condition).

    The slots of a provider bound the number of groups that it can serve: one slot for all groups of a set that are kept
    apart and one for each other group, but of each class no more than fit if the smallest amounts come first.
    """
    groups = [
        number
        for number in members(state.unassigned)
        if problem.variables[number].apart or (problem.variables[number].suffix and problem.variables[number].demands)
    ]
    if len(groups) < 2:  # a domain that is not empty has a slot for one
        return False
    matching = _Matching(problem, state, groups)
    return not all(matching.add(number) for number in groups)


class _Matching:
    """A bipartite matching of groups and providers' slots, grown one group at a time along augmenting paths."""

    def __init__(self, problem: Problem, state: State, groups: Sequence[int]) -> None:
        self._problem = problem
        self._state = state
        self._groups = groups
        #: The provider of each group that is matched, and the groups of each such provider.
        self._provider_of: dict[int, int] = {}
        self._groups_of: dict[int, set[int]] = {}
        self._slots: dict[int, int] = {}
        self._full: Mask = 0

    def add(self, group: int) -> bool:
        """Match one more group, rematching others if that helps; return whether it succeeded."""
        # Breadth first and not by recursion, since an augmenting path may be as long as the number of providers. The
        # key is a provider, the value the group that takes its slot if one of its own groups can be matched elsewhere.
        wanted_by: dict[int, int] = {}
        reached = [group]
        tried: Mask = 0
        for one in reached:  # the list grows while it is read
            self._problem.budget.check()
            domain = self._state.domains[one]
            if free := domain & ~self._full:
                self._pass_on(one, (free & -free).bit_length() - 1, wanted_by)
                return True
            for provider in members(domain & ~tried):
                wanted_by[provider] = one
                reached += self._groups_of[provider]
            tried |= domain
        return False

    def _pass_on(self, group: int, free: int, wanted_by: Mapping[int, int]) -> None:
        """Match a group with a provider that has a free slot; each earlier group of the path takes the slot freed."""
        left, provider = self._provider_of.get(group), free
        while left is not None:
            self._groups_of[left].remove(group)
            self._put(group, provider)
            group, provider = wanted_by[left], left
            left = self._provider_of.get(group)
        self._put(group, provider)

    def _put(self, group: int, provider: int) -> None:
        self._provider_of[group] = provider
        groups = self._groups_of.setdefault(provider, set())
        groups.add(group)
        if provider not in self._slots:
            self._slots[provider] = self._slots_of(provider)
        if len(groups) >= self._slots[provider]:
            self._full |= 1 << provider

    def _slots_of(self, provider: int) -> int:
        variables = [self._problem.variables[n] for n in self._groups if self._state.domains[n] >> provider & 1]
        # Of the groups that are in the same sets, a provider takes only one.
        sets = {variable.apart for variable in variables if variable.apart}
        slots = sum(not variable.apart for variable in variables) + len(sets)
        for class_number, left in enumerate(self._state.room[provider]):
            amounts = sorted(n for variable in variables for number, n in variable.demands if number == class_number)
            fitting = sum(total <= left for total in accumulate(amounts))
            slots = min(slots, len(variables) - len(amounts) + fitting)
        return slots
