"""Search for a distribution: depth first, the largest items first, backtracking from dead ends."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from operator import itemgetter

from placement_store.candidates.search_budget import SECONDS, SearchBudget
from placement_store.reshapes.distribution import (
    DistributionProblem,
    InventoryKey,
    Item,
    PartialDistribution,
    impossible,
)

_NARROW = "allow more steps, or say for some of the consumers where their amounts go"


def distribute(problem: DistributionProblem, *, max_steps: int, max_seconds: float = SECONDS) -> list[str]:
    """Return a place for each item, such that all fit; deterministic.

    An item stays where it is if it can. Otherwise the search prefers a place where its consumer has nothing of its
    classes, and among such places the one with the least room left (best fit). Items that have no bin in common are
    searched separately.

    :param max_steps: how many times to place an item.
    :param max_seconds: the limit of processor time: the providers may be locked while the search runs.
    :raises ImpossibleDeal: there is no distribution; the error names a consumer that did not fit beside the others.
    :raises SearchBoundReached: within these limits, none was found, and none was proved impossible.
    """
    sources = sorted({item.source for item in problem.items})
    what = f"a deal of what is held of {', '.join(problem.names.get(source, source) for source in sources)}"
    budget = SearchBudget(what, steps=max_steps, seconds=max_seconds, narrow=_NARROW)
    places: dict[int, str] = {}
    with budget.running():
        distribution = PartialDistribution(problem)
        for component in _components(problem):
            found = _Search(problem, distribution, [problem.items[number] for number in component], budget).run()
            places.update(zip(component, found, strict=True))
    return [places[number] for number in range(len(problem.items))]


# --- Independent parts of the problem, and their order ----------------------------------------------------------------


def _components(problem: DistributionProblem) -> list[list[int]]:
    """Partition the items into components that compete, directly or through others, for bins; each in search order."""
    leader: dict[InventoryKey, InventoryKey] = {}

    def find(pair: InventoryKey) -> InventoryKey:
        while leader.setdefault(pair, pair) != pair:
            leader[pair] = leader[leader[pair]]
            pair = leader[pair]
        return pair

    for item in problem.items:
        first, *others = item.pairs
        for other in others:
            leader[find(other)] = find(first)
    # Isolated groups of one consumer exclude each other, regardless of their classes.
    isolated: dict[str, InventoryKey] = {}
    for item in problem.items:
        for owner in problem.group_owners(item):
            leader[find(item.pairs[0])] = find(isolated.setdefault(owner, item.pairs[0]))
    components: dict[InventoryKey, list[int]] = {}
    for number, item in enumerate(problem.items):
        components.setdefault(find(item.pairs[0]), []).append(number)
    return [_in_order(problem, component) for component in components.values()]


def _in_order(problem: DistributionProblem, component: Sequence[int]) -> list[int]:
    """Sort items consumer by consumer: those with one place first, then the largest; equal ones by uuid."""
    migrations = _migrations(problem)
    by_consumer: dict[str, list[int]] = {}
    for number in component:
        consumer = problem.items[number].consumer
        by_consumer.setdefault(migrations.get(consumer, consumer), []).append(number)

    def rank(consumer: str) -> tuple[bool, float, list[list[tuple[str, int]]], str]:
        own = [problem.items[number] for number in by_consumer[consumer]]
        has_choice = any(len(item.places) > 1 for item in own)
        return (
            has_choice,
            -sum(_size(problem, item) for item in own),
            [sorted(item.amounts.items()) for item in own],
            consumer,
        )

    return [number for consumer in sorted(by_consumer, key=rank) for number in by_consumer[consumer]]


def _migrations(problem: DistributionProblem) -> dict[str, str]:
    """Return the migration of each instance that serves groups of one: the two are placed as if they were one."""
    return {instance: migration for (instance, _), migration in problem.of_migrations.items()}


def _size(problem: DistributionProblem, item: Item) -> float:
    """Return the share of its largest bin that an item needs, for the class where that is highest."""
    largest = {name: max(problem.bins[place, name].capacity for place in item.places) for name in item.amounts}
    return max(amount / largest[name] if largest[name] > 0 else math.inf for name, amount in item.amounts.items())


# --- One component --------------------------------------------------------------------------------------------------

#: The number of items placed, and the amounts used of the places, sorted within each kind of equal places.
_State = tuple[int, tuple[tuple[tuple[int, ...], ...], ...]]


class _Search:
    """The search for the places of one component.

    Two rules break symmetries. First, of equal places with equal usage, only one is tried. Second, once all items of
    some consumers are placed, the rest of the search depends only on the usage of the places. So a state that has
    failed is not tried again, no matter how it is reached.
    """

    def __init__(
        self,
        problem: DistributionProblem,
        distribution: PartialDistribution,
        items: Sequence[Item],
        steps: SearchBudget,
    ) -> None:
        self._distribution = distribution
        self._items = items
        self._steps = steps
        self._migrations = _migrations(problem)
        self._kinds = _kinds(problem, items)
        self._kind_of = {place: kind for kind, places in enumerate(self._kinds) for place in places}
        self._pairs = _pairs_by_place(items)
        self._is_infeasible = _exceeds_capacity(distribution, items)
        self._failed: set[_State] = set()
        self._deepest = -1
        self._dead_end = impossible(items[0], [])

    def run(self) -> list[str]:
        """Return the place of each item; they stay placed in the distribution.

        :raises ImpossibleDeal: there is no distribution.
        :raises SearchBoundReached: the budget is used up.
        """
        chosen: list[str] = []
        options = [self._options(0)]
        while len(chosen) < len(self._items):
            item = self._items[len(chosen)]
            place = next(options[-1], None)
            if place is not None:
                # Descend: place the item, and go on to the next unless a unit rule or a failed state forbids it.
                self._steps.take_step()
                self._distribution.put(item, place)
                chosen.append(place)
                if self._may_go_on(len(chosen)):
                    options.append(self._options(len(chosen)))
                    continue
            else:
                # Backtrack: no place is left for this item, so the one before must be placed elsewhere.
                if self._begins_a_consumer(len(chosen)):
                    self._failed.add(self._state(len(chosen)))
                options.pop()
                if not chosen:
                    raise self._dead_end
            self._distribution.take_back(self._items[len(chosen) - 1], chosen.pop())
        return chosen

    def _options(self, number: int) -> Iterator[str]:
        """Yield the places where an item fits, the best first."""
        item, seen = self._items[number], set[object]()
        fitting: list[tuple[bool, bool, float, str]] = []
        for place in item.places:
            if not self._distribution.fits(item, place):
                continue
            # A place with allocations of the same consumer is equal to no other: its unit rules apply to the sum.
            if not (shared := self._distribution.holds(item, place)):
                same = (self._kind_of[place], self._taken_of(place))
                if same in seen:
                    continue
                seen.add(same)
            fitting.append((place != item.source, shared, self._distribution.slack(item, place), place))
        if not fitting:
            self._record_dead_end(number, self._distribution.refusals(item))
        # A consumer's allocations of two providers may be two groups, which the store records only if they are
        # isolated. So they stay apart if there is room. Equally good places keep the order of their uuids.
        for *_, place in sorted(fitting, key=itemgetter(0, 1, 2)):
            yield place

    def _may_go_on(self, placed: int) -> bool:
        """Return whether the search can go on after placing the ``placed``-th item."""
        if not self._begins_a_consumer(placed):
            return True
        consumer = self._consumer(placed - 1)
        numbers = takewhile(lambda number: self._consumer(number) == consumer, range(placed - 1, -1, -1))
        own = [self._items[number] for number in numbers]
        broken = list(self._distribution.broken_rules(own))
        if broken:
            self._record_dead_end(placed - 1, broken)
            return False
        return not self._failed or self._state(placed) not in self._failed

    def _begins_a_consumer(self, number: int) -> bool:
        if number in (0, len(self._items)):
            return True
        return self._consumer(number) != self._consumer(number - 1)

    def _consumer(self, number: int) -> str:
        """Return the consumer of an item; its migration if that counts as one with it."""
        consumer = self._items[number].consumer
        return self._migrations.get(consumer, consumer)

    # --- Failures ---------------------------------------------------------------------------------------------------

    def _state(self, number: int) -> _State:
        return number, tuple(tuple(sorted(self._taken_of(place) for place in places)) for places in self._kinds)

    def _taken_of(self, place: str) -> tuple[int, ...]:
        return tuple(self._distribution.used(pair) for pair in self._pairs[place])

    def _record_dead_end(self, number: int, refusals: Sequence[str]) -> None:
        if number > self._deepest:
            self._deepest = number
            self._dead_end = impossible(self._items[number], refusals)
        if self._is_infeasible:
            raise self._dead_end


def _pairs_by_place(items: Sequence[Item]) -> dict[str, list[InventoryKey]]:
    pairs: dict[str, set[InventoryKey]] = {}
    for item in items:
        for pair in item.pairs:
            pairs.setdefault(pair[0], set()).add(pair)
    return {place: sorted(found) for place, found in pairs.items()}


def _kinds(problem: DistributionProblem, items: Sequence[Item]) -> list[list[str]]:
    """Group the places that are equal for every item, apart from their usage."""
    choices = sorted({(item.places, tuple(sorted(item.amounts))) for item in items})
    distinct = {item.source for item in items} | {provider for _, provider, _ in problem.held}
    distinct |= {one for groups in problem.isolated.values() for providers in groups.values() for one in providers}
    kinds: dict[object, list[str]] = {}
    for place, pairs in _pairs_by_place(items).items():
        bins = tuple((name, replace(problem.bins[place, name], used=0)) for _, name in pairs)
        chosen_by = tuple(number for number, (places, _) in enumerate(choices) if place in places)
        kinds.setdefault(place if place in distinct else (bins, chosen_by), []).append(place)
    return list(kinds.values())


def _exceeds_capacity(distribution: PartialDistribution, items: Sequence[Item]) -> bool:
    """Return whether the items need more than all bins have free: then the first dead end is the answer."""
    demanded: Counter[str] = Counter()
    for item in items:
        demanded.update(item.amounts)
    free: Counter[str] = Counter()
    for pair in {pair for item in items for pair in item.pairs}:
        free[pair[1]] += distribution.free(pair)
    return any(amount > free[name] for name, amount in demanded.items())
