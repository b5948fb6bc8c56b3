"""Dealing: which of its new places each consumer's part of a moved inventory goes to, so that every part fits whole.

Pure: providers and consumers go by their uuids, resource classes by their names, and nothing is read or written.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moorage import errors
from placement_store.claims.isolated_groups import Groups

#: A provider and a resource class: what one inventory, and the room in it, goes by.
Pair = tuple[str, str]
#: A consumer, a provider and a resource class.
Held = tuple[str, str, str]

#: So many places an error tells of, each with what it lacks.
_PLACES_TOLD = 4


@dataclass(frozen=True, slots=True)
class Bin:
    """An inventory as it will be: how much it takes in all, what of that is not dealt again, and its unit rules."""

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
    """What one consumer holds of a provider and what goes together: all of it goes to one of ``places``.

    The provider itself is one of the places if it keeps some of the inventory.
    """

    consumer: str
    source: str
    #: By resource class.
    amounts: Mapping[str, int]
    places: tuple[str, ...]

    @property
    def pairs(self) -> list[Pair]:
        """The rooms that it may come to use."""
        return [(place, name) for place in self.places for name in self.amounts]


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionProblem:
    """A question to :func:`placement_store.reshapes.distribution_search.distribute`."""

    units: Sequence[Item]
    #: Each place of each unit has a room for each of the unit's classes.
    rooms: Mapping[Pair, Bin]
    #: What the consumers hold there now, the units included. Unit rules are asked only of sums that become others.
    held: Mapping[Held, int]
    #: What the providers are called, for whoever reads an error.
    names: Mapping[str, str]
    #: By consumer, the providers of its isolated groups by suffix: what is of one comes to no provider of another.
    isolated: Mapping[str, Groups] = field(default_factory=dict)


class PartialDistribution:
    """Where the units lie that have been dealt so far. Cheap to change and to change back."""

    def __init__(self, deal: DistributionProblem) -> None:
        self._rooms = deal.rooms
        self._held = deal.held
        self._names = deal.names
        self._used = {pair: room.used for pair, room in deal.rooms.items()}
        self._isolated = deal.isolated
        #: By consumer and provider, how much of each isolated group is there: its provider itself, and units put there.
        self._groups = {
            (consumer, provider): Counter({suffix: 1})
            for consumer, groups in deal.isolated.items()
            for suffix, providers in groups.items()
            for provider in providers
        }
        self._sums = Counter(deal.held)
        for unit in deal.units:
            self._sums.subtract({(unit.consumer, unit.source, name): amount for name, amount in unit.amounts.items()})

    def put(self, unit: Item, place: str) -> None:
        """Lay a unit down."""
        self._move(unit, place, 1)

    def take_back(self, unit: Item, place: str) -> None:
        """Undo :meth:`put`."""
        self._move(unit, place, -1)

    def _move(self, unit: Item, place: str, sign: int) -> None:
        for name, amount in unit.amounts.items():
            self._used[place, name] += sign * amount
            self._sums[unit.consumer, place, name] += sign * amount
        for suffix in self._suffixes(unit):
            self._groups.setdefault((unit.consumer, place), Counter())[suffix] += sign

    def _suffixes(self, unit: Item) -> set[str]:
        groups = self._isolated.get(unit.consumer, {})
        return {suffix for suffix, providers in groups.items() if unit.source in providers}

    def used(self, pair: Pair) -> int:
        """Return how much of a room is taken."""
        return self._used[pair]

    def free(self, pair: Pair) -> int:
        """Return how much of a room is left."""
        return max(0, math.floor(self._rooms[pair].capacity - self._used[pair]))

    def holds(self, unit: Item, place: str) -> bool:
        """Tell whether a place already has something of a unit's consumer and classes, or an isolated group of it."""
        if (unit.consumer, place) in self._groups:
            return True
        return any(self._sums[unit.consumer, place, name] for name in unit.amounts)

    def fits(self, unit: Item, place: str) -> bool:
        """Tell whether a unit may be put there, as far as that can be said before its consumer's last one is."""
        return all(self._lack(unit, place, name) is None for name in unit.amounts)

    def looseness(self, unit: Item, place: str) -> float:
        """Return the share of the room that is left once a unit that fits has been put there, summed over classes."""
        return sum(
            (self._rooms[place, name].capacity - self._used[place, name] - amount) / self._rooms[place, name].capacity
            for name, amount in unit.amounts.items()
        )

    def broken_rules(self, units: Iterable[Item]) -> Iterable[str]:
        """Yield what is wrong with the sums of a consumer of whom all units have been put."""
        touched = {(unit.consumer, place, name) for unit in units for place in unit.places for name in unit.amounts}
        for consumer, place, name in sorted(touched):
            amount = self._sums[consumer, place, name]
            if amount and amount != self._held.get((consumer, place, name), 0):
                rule = self._rooms[place, name].broken_rule(amount)
                if rule is not None:
                    yield f"{self._called(place)} takes no {amount} of {name}: {rule}"

    def refusals(self, unit: Item) -> list[str]:
        """Return what each place lacks that a unit does not fit into."""
        lacks = ((self._lack(unit, place, name) for name in unit.amounts) for place in unit.places)
        return [found for of_place in lacks if (found := next(filter(None, of_place), None))]

    def _lack(self, unit: Item, place: str, name: str) -> str | None:
        room, amount = self._rooms[place, name], unit.amounts[name]
        if (other := self._isolated_from(unit, place)) is not None:
            return f"{self._called(place)} serves group {other} of the same consumer, whose groups are isolated"
        if self._used[place, name] + amount > room.capacity:
            return f"{self._called(place)} has {self.free((place, name))} of {amount} {name} free"
        total = self._sums[unit.consumer, place, name] + amount
        # What stays as it was may be more than rules that came later would let pass.
        if total > max(room.max_unit, self._held.get((unit.consumer, place, name), 0)):
            return f"{self._called(place)} takes no {total} of {name}: its max_unit is {room.max_unit}"
        return None

    def _isolated_from(self, unit: Item, place: str) -> str | None:
        """Return the isolated group that keeps a unit away from a place, if one does."""
        if not self._isolated or not (own := self._suffixes(unit)):
            return None
        there = self._groups.get((unit.consumer, place), Counter[str]())
        return next((suffix for suffix, count in sorted(there.items()) if count > 0 and suffix not in own), None)

    def _called(self, place: str) -> str:
        return self._names.get(place, place)


def impossible(unit: Item, refusals: Sequence[str]) -> errors.ImpossibleDeal:
    """Return the error that says that a unit fits nowhere, and what each place lacks."""
    told = "; ".join(refusals[:_PLACES_TOLD])
    more = f"; and {len(refusals) - _PLACES_TOLD} more" if len(refusals) > _PLACES_TOLD else ""
    return errors.ImpossibleDeal(consumer_uuid=unit.consumer, provider_uuid=unit.source, reason=f"{told}{more}")
