"""The signature of a state: its form up to a swap of equal providers (symmetry breaking).

Of two states with one signature, if one has no solution, neither has the other: without it, 9 groups would be tried on
each arrangement of 8 equal devices.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from placement_store.candidates.problem import Problem
from placement_store.candidates.state import NOT_CHOSEN, State
from placement_store.candidates.variables import members


def signature(problem: Problem, state: State) -> Hashable:
    """Return the part of a state that decides whether it has a solution, without the identity of providers."""
    labels = _labels(problem, state)
    subtree_roots = tuple(min(subtree_root, 0) for subtree_root in state.subtree_roots)
    if NOT_CHOSEN in state.subtree_roots:
        # The tree structure still matters: a subtree root must be an ancestor of its groups' providers.
        return state.unassigned, state.uncovered, subtree_roots, _canonical_trees(problem.parents, labels)
    return state.unassigned, state.uncovered, subtree_roots, tuple(sorted(label for label in labels if label))


def _labels(problem: Problem, state: State) -> list[tuple[Any, ...]]:
    """Return a label per provider: all of it that still matters; empty for one that is in no domain any more."""
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
        (column, marks[provider], problem.covers[provider] & state.uncovered, _room(state.room[provider], demanded))
        if column
        else ()
        for provider, column in enumerate(columns)
    ]


def _room(room: Sequence[int], demanded: Sequence[int]) -> tuple[int, ...]:
    """Return the room that is left, capped at the amount that is still demanded: more makes no difference."""
    return tuple(map(min, room, demanded))


def _canonical_trees(parents: Sequence[int], labels: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return trees in a form that does not depend on the order of children (Aho, Hopcroft and Ullman)."""
    children: list[list[int]] = [[] for _ in parents]
    roots: list[int] = []
    for number, parent in enumerate(parents):
        (children[parent] if parent >= 0 else roots).append(number)

    def form(number: int) -> tuple[Any, ...]:
        return labels[number], _sorted_forms(children[number])

    def _sorted_forms(numbers: Sequence[int]) -> tuple[Any, ...]:
        forms = [form(number) for number in numbers]
        # A provider with no label and no descendant cannot take part any more.
        return tuple(sorted(one for one in forms if one != ((), ())))

    return _sorted_forms(roots)
