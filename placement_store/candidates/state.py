"""How far a search has come: what is still to be chosen, from which providers, with how much room left."""

from dataclasses import dataclass

from placement_store.candidates.masks import Mask, mask_of, members
from placement_store.candidates.problem import Problem
from placement_store.candidates.variables import Variable

#: What stands in ``State.tops`` of a subtree whose top is not yet chosen, and of one with a group on its top.
NOT_CHOSEN, SERVED = -1, -2


@dataclass(frozen=True, slots=True)
class State:
    """A position of the search; it is never changed, each choice makes a new one."""

    #: The choices still to be made.
    open: Mask
    #: Per choice, the providers that it has left; none for a choice that has been made.
    domains: tuple[Mask, ...]
    #: Per provider and class, how much is left.
    room: tuple[tuple[int, ...], ...]
    #: The traits of the unsuffixed group that none of its providers has yet.
    uncovered: Mask
    #: Per subtree, its top as long as no group is served by it, else one of the two numbers above.
    tops: tuple[int, ...]
    #: Pairs of (choice, provider), in the order in which they were made.
    chosen: tuple[tuple[int, int], ...] = ()


def first_state(puzzle: Problem) -> State:
    """Return the position in which nothing has been chosen."""
    return State(
        open=mask_of(range(len(puzzle.choices))),
        domains=puzzle.domains,
        room=puzzle.room,
        uncovered=puzzle.to_cover,
        tops=(NOT_CHOSEN,) * len(puzzle.groups_of_subtree),
    )


def next_choice(puzzle: Problem, state: State) -> int:
    """Return the open choice that has the fewest providers left; a subtree's top comes before its groups."""
    best, fewest = -1, 0
    for number in members(state.open):
        choice = puzzle.choices[number]
        if any(state.tops[subtree] == NOT_CHOSEN for subtree in choice.subtrees):
            continue
        left = state.domains[number].bit_count()
        if best < 0 or left < fewest:
            best, fewest = number, left
    return best


def choose(puzzle: Problem, state: State, number: int, provider: int) -> State:
    """Return the position after a choice, with all that it takes from the others' domains (forward checking)."""
    choice = puzzle.choices[number]
    still_open = state.open & ~(1 << number)
    domains = list(state.domains)
    domains[number] = 0
    room, tops, uncovered = state.room, list(state.tops), state.uncovered
    if choice.top_of is not None:
        tops[choice.top_of] = provider
        for other in members(puzzle.groups_of_subtree[choice.top_of]):
            domains[other] &= puzzle.below[provider]
    else:
        room = _taken(state.room, provider, choice)
        _withdraw(puzzle, choice, provider, room[provider], still_open, domains)
        # Twins are served in the order of their providers: any other order would give the same amounts.
        for twin in members(puzzle.twins[number] & still_open):
            domains[twin] &= -1 << provider
        for subtree in choice.subtrees:
            if tops[subtree] == provider:
                tops[subtree] = SERVED
        if choice.suffix == "":
            uncovered &= ~puzzle.covers[provider]
    return State(still_open, tuple(domains), room, uncovered, tuple(tops), (*state.chosen, (number, provider)))


def _taken(room: tuple[tuple[int, ...], ...], provider: int, choice: Variable) -> tuple[tuple[int, ...], ...]:
    if not choice.demands:
        return room
    left = list(room[provider])
    for class_number, amount in choice.demands:
        left[class_number] -= amount
    return (*room[:provider], tuple(left), *room[provider + 1 :])


def _withdraw(
    puzzle: Problem, chosen: Variable, provider: int, left: tuple[int, ...], still_open: Mask, domains: list[Mask]
) -> None:
    """Take a provider out of the domains of those choices that it can no longer serve."""
    bit = 1 << provider
    for other in members(still_open):
        if not domains[other] & bit:
            continue
        choice = puzzle.choices[other]
        if chosen.apart & choice.apart or any(amount > left[number] for number, amount in choice.demands):
            domains[other] &= ~bit
