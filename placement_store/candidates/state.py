"""The state of a search: unassigned variables, the providers left to each, and the room left on each provider.

If two states have the same signature and one has no solution, the other has none either (symmetry breaking). Without
this, 9 groups would be tried on each arrangement of 8 equal devices.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from placement_store.candidates.problem import Mask, Problem, Variable, mask_of, members

#: Values of ``State.subtree_roots``: the root is not assigned yet; one of the groups is served by the root.
NOT_CHOSEN, SERVED = -1, -2


@dataclass(frozen=True, slots=True)
class State:
    """A state of the search; it is immutable: each assignment makes a new one."""

    #: The variables that have no provider yet.
    unassigned: Mask
    #: Per variable, the providers that are left to it; none once it is assigned.
    domains: tuple[Mask, ...]
    #: Per provider and class, the amount that is left.
    room: tuple[tuple[int, ...], ...]
    #: The traits of the unsuffixed group that none of its providers has yet.
    uncovered: Mask
    #: Per subtree, its root while no group is served by the root; otherwise one of the two constants above.
    subtree_roots: tuple[int, ...]
    #: Pairs of (variable, provider), in the order in which they were assigned.
    assignments: tuple[tuple[int, int], ...] = ()


def first_state(problem: Problem) -> State:
    """Return the state in which no variable is assigned."""
    return State(
        unassigned=mask_of(range(len(problem.variables))),
        domains=problem.domains,
        room=problem.room,
        uncovered=problem.to_cover,
        subtree_roots=(NOT_CHOSEN,) * len(problem.groups_of_subtree),
    )


def next_variable(problem: Problem, state: State) -> int:
    """Return the unassigned variable with the smallest domain; a subtree's root comes before its groups."""
    best, fewest = -1, 0
    for number in members(state.unassigned):
        variable = problem.variables[number]
        if any(state.subtree_roots[subtree] == NOT_CHOSEN for subtree in variable.subtrees):
            continue
        left = state.domains[number].bit_count()
        if best < 0 or left < fewest:
            best, fewest = number, left
    return best


def assign(problem: Problem, state: State, number: int, provider: int) -> State:
    """Return the state after an assignment, with the others' domains reduced by it (forward checking)."""
    variable = problem.variables[number]
    still_unassigned = state.unassigned & ~(1 << number)
    domains = list(state.domains)
    domains[number] = 0
    room, subtree_roots, uncovered = state.room, list(state.subtree_roots), state.uncovered
    if variable.root_of_subtree is not None:
        subtree_roots[variable.root_of_subtree] = provider
        for other in members(problem.groups_of_subtree[variable.root_of_subtree]):
            domains[other] &= problem.below[provider]
    else:
        room = _taken(state.room, provider, variable)
        _withdraw(problem, variable, provider, room[provider], still_unassigned, domains)
        # Interchangeable variables take providers in ascending order: any other order gives the same amounts.
        for other in members(problem.interchangeable[number] & still_unassigned):
            domains[other] &= -1 << provider
        for subtree in variable.subtrees:
            if subtree_roots[subtree] == provider:
                subtree_roots[subtree] = SERVED
        if variable.suffix == "":
            uncovered &= ~problem.covers[provider]
    assignments = (*state.assignments, (number, provider))
    return State(still_unassigned, tuple(domains), room, uncovered, tuple(subtree_roots), assignments)


def _taken(room: tuple[tuple[int, ...], ...], provider: int, variable: Variable) -> tuple[tuple[int, ...], ...]:
    if not variable.demands:
        return room
    left = list(room[provider])
    for class_number, amount in variable.demands:
        left[class_number] -= amount
    return (*room[:provider], tuple(left), *room[provider + 1 :])


def _withdraw(
    problem: Problem,
    assigned: Variable,
    provider: int,
    left: tuple[int, ...],
    still_unassigned: Mask,
    domains: list[Mask],
) -> None:
    """Remove a provider from the domains of the variables that it can no longer serve."""
    bit = 1 << provider
    for other in members(still_unassigned):
        if not domains[other] & bit:
            continue
        variable = problem.variables[other]
        if assigned.apart & variable.apart or any(amount > left[number] for number, amount in variable.demands):
            domains[other] &= ~bit


# --- The form of a state up to a swap of equal providers --------------------------------------------------------------


def signature(problem: Problem, state: State) -> Hashable:
    """Return the part of a state that decides whether it has a solution, without the identity of providers."""
    labels = _labels(problem, state)
    subtree_roots = tuple(min(subtree_root, 0) for subtree_root in state.subtree_roots)
    if NOT_CHOSEN in state.subtree_roots:
        # The tree structure still matters: a subtree root must be an ancestor of its groups' providers.
        return state.unassigned, state.uncovered, subtree_roots, _canonical_trees(problem.parents, labels)
    return state.unassigned, state.uncovered, subtree_roots, tuple(sorted(label for label in labels if label))


def _labels(problem: Problem, state: State) -> list[tuple[Any, ...]]:
    """Return a label per provider with all that still matters of it; empty if it is in no domain any more."""
    columns = [0] * len(problem.providers)
    demanded = [0] * len(problem.classes)
    for number in members(state.unassigned):
        for provider in members(state.domains[number]):
            columns[provider] |= 1 << number
        for class_number, amount in problem.variables[number].demands:
            demanded[class_number] += amount
    marks = [0] * len(problem.providers)
    for subtree, subtree_root in enumerate(state.subtree_roots):
        if subtree_root >= 0:
            marks[subtree_root] |= 1 << subtree
    return [
        (
            column,
            marks[provider],
            problem.covers[provider] & state.uncovered,
            # Room beyond what is still demanded makes no difference.
            tuple(map(min, state.room[provider], demanded)),
        )
        if column
        else ()
        for provider, column in enumerate(columns)
    ]


def _canonical_trees(parents: Sequence[int], labels: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return trees in a form that does not depend on the order of children (Aho, Hopcroft and Ullman).

    The form of a tree is flat: of each provider, parents first, its label and the number of its children.
    """
    children: list[list[int]] = [[] for _ in parents]
    roots: list[int] = []
    for number, parent in enumerate(parents):
        (children[parent] if parent >= 0 else roots).append(number)
    # Not by recursion: the depth of a tree has no limit.
    parents_first = list(roots)
    for number in parents_first:  # the list grows while it is read
        parents_first.extend(children[number])
    forms: list[tuple[Any, ...]] = [()] * len(parents)

    def forms_of(numbers: Sequence[int]) -> list[tuple[Any, ...]]:
        # A provider with no label and no descendant cannot take part any more.
        return sorted(forms[number] for number in numbers if forms[number] != (((), 0),))

    for number in reversed(parents_first):
        below = forms_of(children[number])
        forms[number] = ((labels[number], len(below)), *chain.from_iterable(below))
    return tuple(forms_of(roots))
