"""The nearest misses: what the hosts lacked that came nearest to serving a request; and what each of all was short of.

Worked out for an explanation alone, with a look at each column and at a few hosts, however many there are.
"""

from collections.abc import Collection, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from moorage import errors
from moorage.model import UNSUFFIXED, Miss, ResourceGroup, ResourceRequest, Shortage
from moorage.plugin import BoolArray, FloatArray, HostInventory
from placement_store.candidates.search_budget import SearchBudget
from scheduler.decide.funnel import FilterResult
from scheduler.decide.host_candidates import HostCandidates
from scheduler.decide.ranking import RowArray
from scheduler.view.snapshot import Snapshot, TieArray

CountArray = NDArray[np.int16]
#: Enough to see what is lacking; the rest are as full as these, or fuller.
_NEAREST_HOSTS = 5


class RemovedHosts:
    """The hosts that one filter has removed, and what they lack of what a request asks for, by resource class.

    All arrays have a value for each of these hosts, of which there are mostly few.
    """

    def __init__(self, view: Snapshot, rows: RowArray, asked: "RequestedAmounts", infeasible: Collection[int]) -> None:
        self.view = view
        self.rows = rows
        self._asked = asked
        self._infeasible = infeasible
        self._room: dict[str, FloatArray] = {}
        self._nearest: dict[tuple[int, bool], list[int]] = {}

    @cached_property
    def lacking(self) -> dict[str, BoolArray]:
        """By class, which of the hosts cannot serve what is asked of it."""
        return {name: self._lacks(name) for name in self._asked.of_one}

    def room(self, name: str) -> FloatArray:
        """Return how much of a class is free."""
        if name not in self._room:
            amounts = self.view.classes.get(name)
            self._room[name] = np.zeros(len(self.rows)) if amounts is None else amounts.room_at(self.rows)
        return self._room[name]

    @cached_property
    def count(self) -> CountArray:
        """How many classes each host lacks; one that lacks none, but whose providers cannot serve, lacks one."""
        count = np.zeros(len(self.rows), dtype=np.int16)
        for lacking in self.lacking.values():
            count += lacking
        if self._infeasible:
            count += np.isin(self.rows, list(self._infeasible))
        return count

    def shortages(self) -> Iterator[Shortage]:
        """Tell the hosts apart by the one class that each is short of: of several, by the one that most lack."""
        left = dict(self.lacking)
        while left:
            name = max(left, key=lambda each: int(np.count_nonzero(left[each])))
            lacking = left.pop(name)
            if not lacking.any():
                break
            yield from self._told_apart(name, lacking)
            left = {other: mask & ~lacking for other, mask in left.items()}

    def nearest(self, most: int, *, lacking: bool) -> list[int]:
        """Return the rows of the hosts that are nearest to serving, the nearest first, at most so many.

        :param lacking: only of hosts that lack something.
        """
        # Mostly all that a filter about room has removed lack something: then it is the same question twice.
        some = lacking and not self.count.all()
        if (most, some) not in self._nearest:
            places: list[int] = []
            # One class more always weighs more than any share of the others; mostly the first of these is enough.
            for count in range(len(self._asked.of_one) + 2):
                if len(places) < most and (count or not some):
                    places += self._nearest_that_lack(count, most - len(places))
            self._nearest[most, some] = self.rows[places].tolist()
        return self._nearest[most, some]

    def _nearest_that_lack(self, count: int, most: int) -> list[int]:
        """Return the places of hosts that lack so many classes, those first that lack the smallest share of them."""
        places = np.flatnonzero(self.count == count)
        # Of several that lack as little every scheduler names the same one.
        ties = self.view.ties[self.rows[places]]
        if not count:
            order = _first(ties, most)
            order = order[np.argsort(ties[order])]
        else:
            share = self._share_lacking(places)
            chosen = _smallest(share, ties, most)
            order = chosen[np.lexsort((ties[chosen], share[chosen]))]
        nearest: list[int] = places[order].tolist()
        return nearest

    def _share_lacking(self, places: RowArray) -> FloatArray:
        """Return what share of the classes some hosts lack, added up."""
        share = np.zeros(len(places))
        for name, lacking in self.lacking.items():
            if lacking.any():
                asked = self._asked.most(name)
                share += np.maximum(asked - self.room(name)[places], 0.0) / asked
        return share

    def _lacks(self, name: str) -> BoolArray:
        lacking = np.zeros(len(self.rows), dtype=np.bool_)
        for amount in self._asked.of_one[name]:
            fits = self.view.fits(name, amount)
            lacking |= ~(fits if len(fits) == len(self.rows) else fits[self.rows])
        if name in self._asked.together:
            lacking |= self.room(name) < self._asked.together[name]
        return lacking

    def _told_apart(self, name: str, lacking: BoolArray) -> Iterator[Shortage]:
        """Yield how many of some hosts have too little of a class, none of it, or enough in amounts that do not fit."""
        asked, room, rows = self._asked.most(name), self.room(name)[lacking], self.rows[lacking]
        short = room < asked
        none = 0
        if not room.all():
            absent = self.view.capacity(name)[rows] <= 0
            short &= ~absent
            none = int(np.count_nonzero(absent))
        if few := int(np.count_nonzero(short)):
            least = float(room[short].max())
            nearest = rows[short & (room == least)]
            host = self.view.hosts[int(nearest[self.view.ties[nearest].argmin()])].service_host
            by = round(asked - least, 6)
            yield Shortage(resource_class=name, hosts=few, asked=asked, nearest=host, lacking=by)
        if none:
            yield Shortage(resource_class=name, hosts=none, what="absent", asked=asked)
        if uneven := len(room) - few - none:
            yield Shortage(resource_class=name, hosts=uneven, what="uneven", asked=asked)


def _smallest(values: FloatArray, ties: TieArray, most: int) -> RowArray:
    """Return the places of the smallest values, so many at most, in no order; of equal ones those of smaller ties."""
    if len(values) <= most:
        return np.arange(len(values))
    # Mostly thousands are as small as the smallest, which is found sooner than the last that is to be taken.
    equal = np.flatnonzero(values == values.min())
    smaller = equal[:0]
    if len(equal) < most:
        last = np.partition(values, most - 1)[most - 1]
        smaller, equal = np.flatnonzero(values < last), np.flatnonzero(values == last)
    return np.concatenate((smaller, equal[_first(ties[equal], most - len(smaller))]))


def _first(ties: TieArray, most: int) -> RowArray:
    """Return the places of the smallest ties, so many at most, in no order."""
    return np.argpartition(ties, most)[:most] if most < len(ties) else np.arange(len(ties))


class RequestedAmounts:
    """What a request asks for: of one provider, and of all together."""

    def __init__(self, request: ResourceRequest) -> None:
        self.together = dict(_asked_together(request))
        self.of_one: dict[str, list[int]] = {}
        for name, amount in _asked_of_one(request):
            self.of_one.setdefault(name, []).append(amount)

    def most(self, name: str) -> int:
        """Return how much of a class a host must have free at least."""
        return max(*self.of_one[name], self.together.get(name, 0))


class NearestMisses:
    """What each filter has removed, looked into when it is asked for."""

    def __init__(self, view: Snapshot, filtered: FilterResult, host_candidates: HostCandidates) -> None:
        self.counts = filtered.counts()
        self._view = view
        self._filtered = filtered
        self._host_candidates = host_candidates
        self._asked = RequestedAmounts(host_candidates.request)
        self._removed: dict[int, RemovedHosts] = {}

    def removed(self, number: int) -> RemovedHosts:
        """Return what the filter of this number has removed."""
        if number not in self._removed:
            stages = self._filtered.stages
            entered = stages[number - 1].left if number else self._filtered.entered
            rows = np.flatnonzero(entered & ~stages[number].left)
            self._removed[number] = RemovedHosts(self._view, rows, self._asked, self._host_candidates.infeasible)
        return self._removed[number]

    def nearest_rows(self, *, lacking: bool) -> Iterator[tuple[int, int]]:
        """Yield the hosts that came nearest, each with the number of the filter that removed it; the nearest first.

        They came through most filters and, among those, lacked the fewest classes and the smallest share of them.

        :param lacking: only hosts that lack something.
        """
        left = _NEAREST_HOSTS
        for number in reversed(range(len(self.counts))):
            if self.counts[number].removed and left:
                rows = self.removed(number).nearest(left, lacking=lacking)
                left -= len(rows)
                yield from ((row, number) for row in rows)

    def of_host(self, row: int, number: int) -> Iterator[Miss]:
        """Yield what a host lacked that lacks something: of each class, or of all together, or of a group."""
        removed, asked = self.removed(number), self._asked
        place = int(np.searchsorted(removed.rows, row))
        lacking = [name for name, mask in removed.lacking.items() if mask[place]]
        host = self._view.hosts[row].service_host
        if not lacking:
            yield from _of_groups(self._view, row, host, self._host_candidates.request, self._host_candidates.budget)
        for name in lacking:
            held = self._view.held(row, name)
            for amount in asked.of_one[name]:
                if not any(inventory.fits(amount) for inventory in held):
                    free = max((inventory.free for inventory in held), default=0.0)
                    yield _miss(host, name, amount, free, _unfit(held[0], amount) if held else "has none")
            together = asked.together.get(name, 0)
            if held and (room := float(removed.room(name)[place])) < together:
                yield _miss(host, name, together, room, "not enough room")


def _asked_of_one(request: ResourceRequest) -> list[tuple[str, int]]:
    """Return the amounts that must each come from one provider, without repetition."""
    return list(dict.fromkeys(item for group in request.groups.values() for item in group.resources.items()))


def _asked_together(request: ResourceRequest) -> list[tuple[str, int]]:
    """Return the sums of what several groups ask for."""
    amounts: dict[str, list[int]] = {}
    for group in request.groups.values():
        for name, amount in group.resources.items():
            amounts.setdefault(name, []).append(amount)
    return [(name, sum(each)) for name, each in amounts.items() if len(each) > 1]


def _of_groups(view: Snapshot, row: int, host: str, request: ResourceRequest, budget: SearchBudget) -> Iterator[Miss]:
    """Yield what is lacking of a host that has room for each amount: a group that no provider of it serves alone.

    Where each can be served, but not all together, it is what the groups ask for together.
    """
    alone = {
        suffix: group
        for suffix, group in request.groups.items()
        if group.resources and not _may_be_served(view, row, _only(request, suffix, group), budget)
    }
    reason = "no provider serves {}" if alone else "its providers cannot serve {} together with the other groups"
    for suffix, group in (alone or request.groups).items():
        what = reason.format(f"group {suffix}" if suffix != UNSUFFIXED else "the unsuffixed group")
        for name, amount in group.resources.items():
            yield _miss(host, name, amount, float(view.room(name)[row]), what)


def _may_be_served(view: Snapshot, row: int, request: ResourceRequest, budget: SearchBudget) -> bool:
    """Tell whether a host serves a request, or whether that was not found out."""
    host_candidates = HostCandidates(request, {}, budget)
    try:
        return host_candidates.first(view, row) is not None or row in host_candidates.undecided
    except errors.SearchBoundReached:
        return True


def _only(request: ResourceRequest, suffix: str, group: ResourceGroup) -> ResourceRequest:
    """Return a request for one group alone, of the same hosts."""
    return ResourceRequest(
        groups={suffix: group}, root_required=request.root_required, root_forbidden=request.root_forbidden
    )


def _miss(host: str, name: str, asked: int, free: float, reason: str) -> Miss:
    return Miss(host=host, resource_class=name, asked=asked, free=free, reason=reason)


def _unfit(inventory: HostInventory, amount: int) -> str:
    if inventory.used + amount > inventory.capacity:
        return "not enough room"
    if amount < inventory.min_unit:
        return f"less than the smallest unit, {inventory.min_unit}"
    if amount > inventory.max_unit:
        return f"more than the largest unit, {inventory.max_unit}"
    return f"not a multiple of the step, {inventory.step_size}"
