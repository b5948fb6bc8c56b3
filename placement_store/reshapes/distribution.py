"""Distribute moved allocations, as items into bins: each part of a consumer goes as a whole to one of its places.

Here are only plain values: providers and consumers are given by their uuids, resource classes by their names, and
nothing is read or written.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moorage import errors
from placement_store.claims.isolated_groups import Groups

#: A provider and a resource class: the key of an inventory, and of its bin.
InventoryKey = tuple[str, str]
#: A consumer, a provider and a resource class: the key of an allocation.
AllocationKey = tuple[str, str, str]

#: The most places that an error lists, each with the reason why it is refused.
_PLACES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Bin:
    """An inventory after the reshape: its capacity, its usage without the items, and its unit rules."""

    capacity: float
    used: int = 0
    min_unit: int = 1
    max_unit: int = 2**31 - 1
    step_size: int = 1

    def broken_rule(self, amount: int) -> str | None:
        """Return which unit rule an amount breaks, if any."""
        if amount < self.min_unit:
            return f"its min_unit is {self.min_unit}"
        if amount > self.max_unit:
            return f"its max_unit is {self.max_unit}"
        return f"its step_size is {self.step_size}" if amount % self.step_size else None


@dataclass(frozen=True, slots=True)
class Item:
    """A part of a consumer's allocations of one provider that stays together: all of it goes to one of ``places``.

    The provider itself is one of the places if some of its inventory stays.
    """

    consumer: str
    source: str
    #: By resource class.
    amounts: Mapping[str, int]
    places: tuple[str, ...]

    @property
    def pairs(self) -> list[InventoryKey]:
        """The keys of the bins that it may use."""
        return [(place, name) for place in self.places for name in self.amounts]


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionProblem:
    """The input of :func:`placement_store.reshapes.distribution_search.distribute`."""

    items: Sequence[Item]
    #: Each place of each item has a bin for each of the item's classes.
    bins: Mapping[InventoryKey, Bin]
    #: The consumers' present allocations, the items included. Unit rules are checked only for sums that change.
    held: Mapping[AllocationKey, int]
    #: The names of the providers, for errors.
    names: Mapping[str, str]
    #: By consumer, the providers of its isolated groups by suffix: no two groups may end up on one provider.
    isolated: Mapping[str, Groups] = field(default_factory=dict)
    #: By instance and provider, the migration whose isolated groups are served there by amounts of the instance: when
    #: the move is reverted, the instance has these amounts and those of the migration.
    of_migrations: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def group_owners(self, item: Item) -> list[str]:
        """Return the consumers whose isolated groups an item can belong to: its own, and the migration of that."""
        if not self.isolated:
            return []
        found = (item.consumer, self.of_migrations.get((item.consumer, item.source)))
        return [owner for owner in found if owner is not None and owner in self.isolated]


class PartialDistribution:
    """The places of the items that have been placed so far. Cheap to change and to undo."""

    def __init__(self, problem: DistributionProblem) -> None:
        self._bins = problem.bins
        self._held = problem.held
        self._names = problem.names
        self._used = {pair: bin_.used for pair, bin_ in problem.bins.items()}
        self._problem = problem
        #: By consumer and provider, a count for each isolated group there: 1 for its present provider, 1 for each item.
        self._groups = {
            (consumer, provider): Counter({suffix: 1})
            for consumer, groups in problem.isolated.items()
            for suffix, providers in groups.items()
            for provider in providers
        }
        self._sums = Counter(problem.held)
        for item in problem.items:
            self._sums.subtract({(item.consumer, item.source, name): amount for name, amount in item.amounts.items()})

    def put(self, item: Item, place: str) -> None:
        """Place an item."""
        self._move(item, place, 1)

    def take_back(self, item: Item, place: str) -> None:
        """Undo :meth:`put`."""
        self._move(item, place, -1)

    def _move(self, item: Item, place: str, sign: int) -> None:
        for name, amount in item.amounts.items():
            self._used[place, name] += sign * amount
            self._sums[item.consumer, place, name] += sign * amount
        for owner in self._problem.group_owners(item):
            for suffix in self._suffixes(owner, item):
                self._groups.setdefault((owner, place), Counter())[suffix] += sign

    def _suffixes(self, owner: str, item: Item) -> set[str]:
        groups = self._problem.isolated[owner]
        return {suffix for suffix, providers in groups.items() if item.source in providers}

    def used(self, pair: InventoryKey) -> int:
        """Return how much of a bin is used."""
        return self._used[pair]

    def free(self, pair: InventoryKey) -> int:
        """Return how much of a bin is free."""
        return max(0, math.floor(self._bins[pair].capacity - self._used[pair]))

    def holds(self, item: Item, place: str) -> bool:
        """Return whether a place already has amounts of an item's consumer and classes, or an isolated group of it."""
        if any((owner, place) in self._groups for owner in self._problem.group_owners(item)):
            return True
        return any(self._sums[item.consumer, place, name] for name in item.amounts)

    def fits(self, item: Item, place: str) -> bool:
        """Return whether an item fits into a place; unit rules are checked once its consumer's last item is placed."""
        return all(self._lack(item, place, name) is None for name in item.amounts)

    def slack(self, item: Item, place: str) -> float:
        """Return the free share of a place after placing an item that fits, summed over classes."""
        return sum(
            (self._bins[place, name].capacity - self._used[place, name] - amount) / self._bins[place, name].capacity
            for name, amount in item.amounts.items()
        )

    def broken_rules(self, items: Iterable[Item]) -> Iterable[str]:
        """Yield the unit rules that the sums of a consumer break, once all its items have been placed."""
        touched = {(item.consumer, place, name) for item in items for place in item.places for name in item.amounts}
        for consumer, place, name in sorted(touched):
            amount = self._sums[consumer, place, name]
            if amount and amount != self._held.get((consumer, place, name), 0):
                rule = self._bins[place, name].broken_rule(amount)
                if rule is not None:
                    yield f"{self._name_of(place)} takes no {amount} of {name}: {rule}"

    def refusals(self, item: Item) -> list[str]:
        """Return, for each place that an item does not fit into, the reason."""
        lacks = ((self._lack(item, place, name) for name in item.amounts) for place in item.places)
        return [found for of_place in lacks if (found := next(filter(None, of_place), None))]

    def _lack(self, item: Item, place: str, name: str) -> str | None:
        bin_, amount = self._bins[place, name], item.amounts[name]
        if (other := self._isolated_from(item, place)) is not None:
            return f"{self._name_of(place)} serves group {other} of the same consumer, whose groups are isolated"
        if self._used[place, name] + amount > bin_.capacity:
            return f"{self._name_of(place)} has {self.free((place, name))} of {amount} {name} free"
        total = self._sums[item.consumer, place, name] + amount
        # A sum that does not change may exceed a max_unit that was set later.
        if total > max(bin_.max_unit, self._held.get((item.consumer, place, name), 0)):
            return f"{self._name_of(place)} takes no {total} of {name}: its max_unit is {bin_.max_unit}"
        return None

    def _isolated_from(self, item: Item, place: str) -> str | None:
        """Return the isolated group of the same consumer that excludes an item from a place, if there is one."""
        for owner in self._problem.group_owners(item):
            if own := self._suffixes(owner, item):
                there = self._groups.get((owner, place), Counter[str]())
                for suffix, count in sorted(there.items()):
                    if count > 0 and suffix not in own:
                        return suffix
        return None

    def _name_of(self, place: str) -> str:
        return self._names.get(place, place)


def impossible(item: Item, refusals: Sequence[str]) -> errors.ImpossibleDeal:
    """Build the error for an item that fits nowhere, with the reason for each place."""
    shown = "; ".join(refusals[:_PLACES_SHOWN])
    more = f"; and {len(refusals) - _PLACES_SHOWN} more" if len(refusals) > _PLACES_SHOWN else ""
    return errors.ImpossibleDeal(consumer_uuid=item.consumer, provider_uuid=item.source, reason=f"{shown}{more}")
