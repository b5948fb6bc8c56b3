"""Reasons to give a position up before it is tried: each is a proof that it has no solution."""

from collections.abc import Sequence
from itertools import accumulate

from placement_store.candidates.masks import Mask, members
from placement_store.candidates.problem import Problem
from placement_store.candidates.state import NOT_CHOSEN, State


def hopeless(puzzle: Problem, state: State) -> bool:
    """Tell whether a position can be proved to have no solution; a no proves nothing."""
    return (
        any(not state.domains[number] for number in members(state.open))
        or _traits_out_of_reach(puzzle, state)
        or _tops_out_of_reach(puzzle, state)
        or _too_little_room(puzzle, state)
        or _too_few_seats(puzzle, state)
    )


def narrowed(puzzle: Problem, state: State) -> State:
    """Return a position without those tops, and those providers of their groups, that go with no choice of the others.

    A top must be a provider of one of its groups, and each of its groups must have a provider at or below it.
    """
    if NOT_CHOSEN not in state.tops:
        return state
    domains = list(state.domains)
    changed = True
    while changed:
        changed = False
        for subtree, groups in enumerate(puzzle.groups_of_subtree):
            puzzle.budget.check()
            if state.tops[subtree] != NOT_CHOSEN:
                continue
            top = puzzle.top_of_subtree[subtree]
            tops, reach = _possible_tops(puzzle, domains, groups, domains[top])
            changed |= tops != domains[top]
            domains[top] = tops
            for group in members(groups):
                changed |= bool(domains[group] & ~reach)
                domains[group] &= reach
    if domains == list(state.domains):
        return state
    return State(state.open, tuple(domains), state.room, state.uncovered, state.tops, state.chosen)


def _possible_tops(puzzle: Problem, domains: Sequence[Mask], groups: Mask, tops: Mask) -> tuple[Mask, Mask]:
    """Return those of ``tops`` that all groups of a subtree allow, and the providers that stand at or below them."""
    possible = reach = served = 0
    for group in members(groups):
        served |= domains[group]
    for top in members(tops & served):
        if all(domains[group] & puzzle.below[top] for group in members(groups)):
            possible |= 1 << top
            reach |= puzzle.below[top]
    return possible, reach


def _traits_out_of_reach(puzzle: Problem, state: State) -> bool:
    uncovered = state.uncovered
    if not uncovered:
        return False
    for number in members(state.open):
        if puzzle.choices[number].suffix == "":
            for provider in members(state.domains[number]):
                uncovered &= ~puzzle.covers[provider]
    return bool(uncovered)


def _tops_out_of_reach(puzzle: Problem, state: State) -> bool:
    """Tell whether a subtree's top has been chosen that none of its groups can be served by any more."""
    for subtree, top in enumerate(state.tops):
        if top >= 0:
            groups = members(puzzle.groups_of_subtree[subtree] & state.open)
            if not any(state.domains[group] >> top & 1 for group in groups):
                return True
    return False


def _too_little_room(puzzle: Problem, state: State) -> bool:
    """Tell whether of some class more is asked than all the providers asked have left together.

    Counted in several units, of which an amount has as many as fit into it whole: 17 amounts of 3 are 17 units of 3,
    and 16 providers with 5 left have room for 16 of those, though for more than 17 * 3 single ones.
    """
    asked: dict[int, list[tuple[int, Mask]]] = {}
    for number in members(state.open):
        for class_number, amount in puzzle.choices[number].demands:
            asked.setdefault(class_number, []).append((amount, state.domains[number]))
    return any(
        _too_little_of(class_number, unit, demands, state)
        for class_number, demands in asked.items()
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


# --- Seats: a matching of groups and providers ----------------------------------------------------------------------


def _too_few_seats(puzzle: Problem, state: State) -> bool:
    """Tell whether the suffixed groups cannot all be seated (Hall's condition).

    A provider has one seat for those groups of a set that are kept apart; otherwise as many as there are groups that
    could share it if the smallest came first.
    """
    groups = [
        number
        for number in members(state.open)
        if puzzle.choices[number].apart or (puzzle.choices[number].suffix and puzzle.choices[number].demands)
    ]
    if len(groups) < 2:  # a domain that is not empty has a seat for one
        return False
    seating = _Seating(puzzle, state, groups)
    return not all(seating.seat(number) for number in groups)


class _Seating:
    """Seats one group after the other, moving those that sit already where that helps (augmenting paths)."""

    def __init__(self, puzzle: Problem, state: State, groups: Sequence[int]) -> None:
        self._puzzle = puzzle
        self._state = state
        self._groups = groups
        self._seated: dict[int, list[int]] = {}
        self._seats: dict[int, int] = {}
        self._full: Mask = 0

    def seat(self, group: int) -> bool:
        """Find a seat for one more group; tell whether there was one."""
        self._tried: Mask = 0
        return self._seat(group)

    def _seat(self, group: int) -> bool:
        self._puzzle.budget.check()
        domain = self._state.domains[group]
        if free := domain & ~self._full:
            self._sit(group, (free & -free).bit_length() - 1)
            return True
        for provider in members(domain):
            if self._tried >> provider & 1:
                continue
            self._tried |= 1 << provider
            seated = self._seated[provider]
            for place, other in enumerate(seated):
                if self._seat(other):
                    seated[place] = group
                    return True
        return False

    def _sit(self, group: int, provider: int) -> None:
        seated = self._seated.setdefault(provider, [])
        seated.append(group)
        if provider not in self._seats:
            self._seats[provider] = self._seats_of(provider)
        if len(seated) >= self._seats[provider]:
            self._full |= 1 << provider

    def _seats_of(self, provider: int) -> int:
        choices = [self._puzzle.choices[n] for n in self._groups if self._state.domains[n] >> provider & 1]
        # Whichever sets a group is in, of those that are in the same ones a provider takes one.
        seats = sum(not choice.apart for choice in choices) + len({choice.apart for choice in choices if choice.apart})
        for class_number, left in enumerate(self._state.room[provider]):
            amounts = sorted(n for choice in choices for number, n in choice.demands if number == class_number)
            fitting = sum(total <= left for total in accumulate(amounts))
            seats = min(seats, len(choices) - len(amounts) + fitting)
        return seats
