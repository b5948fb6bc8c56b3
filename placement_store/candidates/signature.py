"""What a position looks like when providers that are alike are told apart no more.

Two positions with one signature are the same up to a swap of providers, so if one has no solution, neither has the
other: this is what keeps 9 groups from being tried on each arrangement of 8 equal devices.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from placement_store.candidates.masks import members
from placement_store.candidates.problem import Problem
from placement_store.candidates.state import NOT_CHOSEN, State


def signature(puzzle: Problem, state: State) -> Hashable:
    """Return what decides whether a position has a solution, whichever providers it is about."""
    labels = _labels(puzzle, state)
    tops = tuple(min(top, 0) for top in state.tops)
    if NOT_CHOSEN in state.tops:
        # Who stands above whom still matters.
        return state.open, state.uncovered, tops, _forest(puzzle.parents, labels)
    return state.open, state.uncovered, tops, tuple(sorted(label for label in labels if label))


def _labels(puzzle: Problem, state: State) -> list[tuple[Any, ...]]:
    """Return, per provider, all that matters of it from here on; nothing for one that no open choice has left."""
    columns = [0] * len(puzzle.providers)
    asked = [0] * len(puzzle.classes)
    for number in members(state.open):
        for provider in members(state.domains[number]):
            columns[provider] |= 1 << number
        for class_number, amount in puzzle.choices[number].demands:
            asked[class_number] += amount
    marks = [0] * len(puzzle.providers)
    for subtree, top in enumerate(state.tops):
        if top >= 0:
            marks[top] |= 1 << subtree
    return [
        (column, marks[provider], puzzle.covers[provider] & state.uncovered, _room(state.room[provider], asked))
        if column
        else ()
        for provider, column in enumerate(columns)
    ]


def _room(room: Sequence[int], asked: Sequence[int]) -> tuple[int, ...]:
    """Return how much room is left, where more than all that is still asked is as good as exactly that."""
    return tuple(map(min, room, asked))


def _forest(parents: Sequence[int], labels: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return a forest in a form that does not depend on the order of children (Aho, Hopcroft and Ullman)."""
    children: list[list[int]] = [[] for _ in parents]
    roots: list[int] = []
    for number, parent in enumerate(parents):
        (children[parent] if parent >= 0 else roots).append(number)

    def form(number: int) -> tuple[Any, ...]:
        return labels[number], _sorted_forms(children[number])

    def _sorted_forms(numbers: Sequence[int]) -> tuple[Any, ...]:
        forms = [form(number) for number in numbers]
        # What has neither a label nor anything below it is as good as not there.
        return tuple(sorted(one for one in forms if one != ((), ())))

    return _sorted_forms(roots)
