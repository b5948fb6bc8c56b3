"""The search for a deal: depth first, the largest first, and back again from where nothing fits."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from operator import itemgetter

from placement_store.candidates.search_budget import SECONDS, SearchBudget
from placement_store.reshapes.distribution import DistributionProblem, Item, Pair, PartialDistribution, impossible

_NARROW = "allow more steps, or say for some of the consumers where their amounts go"


def distribute(asked: DistributionProblem, *, max_steps: int, max_seconds: float = SECONDS) -> list[str]:
    """Return the place of each unit, such that all fit; the same for the same question.

    A unit stays where it is if it can. Otherwise it goes where its consumer has nothing of its classes, if it can, and
    there where it leaves the least room. Units that have no room in common are dealt apart.

    :param max_steps: how many units to lay down.
    :param max_seconds: a limit of processor time: the providers may be locked as long as the search goes on.
    :raises ImpossibleDeal: there is no such deal; of a consumer that could not be placed beside the others.
    :raises SearchBoundReached: within these limits no deal was found, nor that there is none.
    """
    sources = sorted({unit.source for unit in asked.units})
    what = f"a deal of what is held of {', '.join(asked.names.get(source, source) for source in sources)}"
    budget = SearchBudget(what, steps=max_steps, seconds=max_seconds, narrow=_NARROW)
    with budget.running():
        return _dealt(asked, budget)


def _dealt(asked: DistributionProblem, steps: SearchBudget) -> list[str]:
    table = PartialDistribution(asked)
    places: dict[int, str] = {}
    for component in _components(asked):
        found = _Search(asked, table, [asked.units[number] for number in component], steps).run()
        places.update(zip(component, found, strict=True))
    return [places[number] for number in range(len(asked.units))]


# --- What is dealt apart, and in which order --------------------------------------------------------------------------


def _components(asked: DistributionProblem) -> list[list[int]]:
    """Return the numbers of the units that compete, directly or through others, for a room; in the order to deal in."""
    leader: dict[Pair, Pair] = {}

    def find(pair: Pair) -> Pair:
        while leader.setdefault(pair, pair) != pair:
            leader[pair] = leader[leader[pair]]
            pair = leader[pair]
        return pair

    for unit in asked.units:
        first, *others = unit.pairs
        for other in others:
            leader[find(other)] = find(first)
    # The groups of one consumer keep each other away, whatever they hold.
    isolated: dict[str, Pair] = {}
    for unit in asked.units:
        if unit.consumer in asked.isolated:
            leader[find(unit.pairs[0])] = find(isolated.setdefault(unit.consumer, unit.pairs[0]))
    components: dict[Pair, list[int]] = {}
    for number, unit in enumerate(asked.units):
        components.setdefault(find(unit.pairs[0]), []).append(number)
    return [_in_order(asked, component) for component in components.values()]


def _in_order(asked: DistributionProblem, component: Sequence[int]) -> list[int]:
    """Return numbers consumer by consumer: first those without a choice, then the largest; those alike by uuid."""
    by_consumer: dict[str, list[int]] = {}
    for number in component:
        by_consumer.setdefault(asked.units[number].consumer, []).append(number)

    def rank(consumer: str) -> tuple[bool, float, list[list[tuple[str, int]]], str]:
        own = [asked.units[number] for number in by_consumer[consumer]]
        has_choice = any(len(unit.places) > 1 for unit in own)
        return (
            has_choice,
            -sum(_size(asked, unit) for unit in own),
            [sorted(unit.amounts.items()) for unit in own],
            consumer,
        )

    return [number for consumer in sorted(by_consumer, key=rank) for number in by_consumer[consumer]]


def _size(asked: DistributionProblem, unit: Item) -> float:
    """Return which share of its largest room a unit needs, of the class of which that is most."""
    largest = {name: max(asked.rooms[place, name].capacity for place in unit.places) for name in unit.amounts}
    return max(amount / largest[name] if largest[name] > 0 else math.inf for name, amount in unit.amounts.items())


# --- One component --------------------------------------------------------------------------------------------------

#: How many units have been dealt, and what is taken of the places: of those alike in no particular order.
_State = tuple[int, tuple[tuple[tuple[int, ...], ...], ...]]


class _Search:
    """The search for the places of units that compete.

    Two things keep it from trying the same thing twice under other names. Of places that are alike and have as much
    taken, one is tried for all. And what is left to deal once some consumers have been dealt with depends on what is
    taken alone: where that has led nowhere before, be it by other ways, it is not tried again.
    """

    def __init__(
        self, asked: DistributionProblem, table: PartialDistribution, units: Sequence[Item], steps: SearchBudget
    ) -> None:
        self._table = table
        self._units = units
        self._steps = steps
        self._kinds = _kinds(asked, units)
        self._kind_of = {place: kind for kind, places in enumerate(self._kinds) for place in places}
        self._pairs = _pairs_by_place(units)
        self._is_hopeless = _asks_too_much(table, units)
        self._failed: set[_State] = set()
        self._deepest = -1
        self._dead_end = impossible(units[0], [])

    def run(self) -> list[str]:
        """Return the place of each unit; the table then has them there.

        :raises ImpossibleDeal: there is no deal.
        :raises SearchBoundReached: the steps were used up.
        """
        chosen: list[str] = []
        options = [self._options(0)]
        while len(chosen) < len(self._units):
            unit = self._units[len(chosen)]
            place = next(options[-1], None)
            if place is not None:
                self._steps.take_step()
                self._table.put(unit, place)
                chosen.append(place)
                if self._may_go_on(len(chosen)):
                    options.append(self._options(len(chosen)))
                    continue
            else:
                self._note_failure(len(chosen))
                options.pop()
                if not chosen:
                    raise self._dead_end
            self._table.take_back(self._units[len(chosen) - 1], chosen.pop())
        return chosen

    def _options(self, number: int) -> Iterator[str]:
        """Yield the places where a unit fits, the best first."""
        unit, seen = self._units[number], set[object]()
        fitting: list[tuple[bool, bool, float, str]] = []
        for place in unit.places:
            if not self._table.fits(unit, place):
                continue
            # One that has something of the same consumer is like no other: its rules are asked of the sum.
            if not (shared := self._table.holds(unit, place)):
                same = (self._kind_of[place], self._taken_of(place))
                if same in seen:
                    continue
                seen.add(same)
            fitting.append((place != unit.source, shared, self._table.looseness(unit, place), place))
        if not fitting:
            self._note_dead_end(number, self._table.refusals(unit))
        # What a consumer holds of two providers may be two groups, which the store knows only where they are isolated:
        # it stays apart where there is room. Places that are as good as each other keep the order of their names.
        for *_, place in sorted(fitting, key=itemgetter(0, 1, 2)):
            yield place

    def _may_go_on(self, dealt: int) -> bool:
        """Tell whether the unit just put, the ``dealt``-th, leaves it possible that all are."""
        if not self._begins_a_consumer(dealt):
            return True
        consumer = self._units[dealt - 1].consumer
        own = takewhile(
            lambda unit: unit.consumer == consumer, (self._units[number] for number in range(dealt - 1, -1, -1))
        )
        broken = list(self._table.broken_rules(own))
        if broken:
            self._note_dead_end(dealt - 1, broken)
            return False
        return not self._failed or self._state(dealt) not in self._failed

    def _begins_a_consumer(self, number: int) -> bool:
        if number in (0, len(self._units)):
            return True
        return self._units[number].consumer != self._units[number - 1].consumer

    # --- What has failed --------------------------------------------------------------------------------------------

    def _note_failure(self, number: int) -> None:
        if self._begins_a_consumer(number):
            self._failed.add(self._state(number))

    def _state(self, number: int) -> _State:
        return number, tuple(tuple(sorted(self._taken_of(place) for place in places)) for places in self._kinds)

    def _taken_of(self, place: str) -> tuple[int, ...]:
        return tuple(self._table.used(pair) for pair in self._pairs[place])

    def _note_dead_end(self, number: int, refusals: Sequence[str]) -> None:
        if number > self._deepest:
            self._deepest = number
            self._dead_end = impossible(self._units[number], refusals)
        if self._is_hopeless:
            raise self._dead_end


def _pairs_by_place(units: Sequence[Item]) -> dict[str, list[Pair]]:
    pairs: dict[str, set[Pair]] = {}
    for unit in units:
        for pair in unit.pairs:
            pairs.setdefault(pair[0], set()).add(pair)
    return {place: sorted(found) for place, found in pairs.items()}


def _kinds(asked: DistributionProblem, units: Sequence[Item]) -> list[list[str]]:
    """Return the places, those together that are the same to every unit but for what is taken of them."""
    choices = sorted({(unit.places, tuple(sorted(unit.amounts))) for unit in units})
    distinct = {unit.source for unit in units} | {provider for _, provider, _ in asked.held}
    distinct |= {one for groups in asked.isolated.values() for providers in groups.values() for one in providers}
    kinds: dict[object, list[str]] = {}
    for place, pairs in _pairs_by_place(units).items():
        rooms = tuple((name, replace(asked.rooms[place, name], used=0)) for _, name in pairs)
        chosen_by = tuple(number for number, (places, _) in enumerate(choices) if place in places)
        kinds.setdefault(place if place in distinct else (rooms, chosen_by), []).append(place)
    return list(kinds.values())


def _asks_too_much(table: PartialDistribution, units: Sequence[Item]) -> bool:
    """Tell whether there is less room in all than is to be dealt; then nobody need try every way of finding out."""
    asked: Counter[str] = Counter()
    for unit in units:
        asked.update(unit.amounts)
    free: Counter[str] = Counter()
    for pair in {pair for unit in units for pair in unit.pairs}:
        free[pair[1]] += table.free(pair)
    return any(amount > free[name] for name, amount in asked.items())
