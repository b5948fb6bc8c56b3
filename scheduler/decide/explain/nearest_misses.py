"""Find the nearest misses: what the hosts nearest to serving a request lacked, and the shortages of all hosts.

This is done for explanations only. It reads whole columns and a few single hosts, however many hosts there are.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from moorage.model import UNSUFFIXED, Miss, ResourceGroup, ResourceRequest, Shortage
from moorage.plugin import BoolArray, FloatArray, HostInventory
from placement_store.candidates.search_budget import SearchBudget
from scheduler.decide.funnel import FilterResult
from scheduler.decide.host_candidates import HostCandidates
from scheduler.decide.ranking import RowArray, best_places, lowest
from scheduler.view.snapshot import Snapshot

CountArray = NDArray[np.int16]
#: Hosts listed as nearest misses: enough to see what is lacking, since the others lack as much or more.
_NEAREST_HOSTS = 5


class RemovedHosts:
    """Compute by resource class which of the requested amounts are lacking on the hosts that one filter has removed.

    All arrays have one value for each of these hosts, which are usually few.
    """

    def __init__(
        self, view: Snapshot, rows: RowArray, requested: "RequestedAmounts", infeasible: Collection[int]
    ) -> None:
        self.view = view
        self.rows = rows
        self._requested = requested
        self._infeasible = infeasible
        self._room: dict[str, FloatArray] = {}
        self._nearest: dict[tuple[int, bool], list[int]] = {}

    @cached_property
    def lacking(self) -> dict[str, BoolArray]:
        """Return which of the hosts cannot serve the requested amounts, by class."""
        return {name: self._lacks(name) for name in self._requested.of_one}

    def room(self, name: str) -> FloatArray:
        """Return the free amount of a class on each host."""
        if name not in self._room:
            amounts = self.view.classes.get(name)
            self._room[name] = np.zeros(len(self.rows)) if amounts is None else amounts.room_at(self.rows)
        return self._room[name]

    @cached_property
    def count(self) -> CountArray:
        """Return how many classes each host lacks; a host without a candidate lacks one more."""
        count = np.zeros(len(self.rows), dtype=np.int16)
        for lacking in self.lacking.values():
            count += lacking
        if self._infeasible:
            count += np.isin(self.rows, list(self._infeasible))
        return count

    def shortages(self) -> Iterator[Shortage]:
        """Yield the shortages; a host that lacks several classes is counted under the one that most hosts lack."""
        left = dict(self.lacking)
        while left:
            name = max(left, key=lambda each: int(np.count_nonzero(left[each])))
            lacking = left.pop(name)
            if not lacking.any():
                break
            yield from self._shortages_of(name, lacking)
            left = {other: mask & ~lacking for other, mask in left.items()}

    def nearest(self, most: int, *, lacking: bool) -> list[int]:
        """Return the rows of the hosts nearest to serving the request, the nearest first, at most ``most``.

        :param lacking: return only hosts that lack something.
        """
        # A filter about room usually removes only hosts that lack something: then both results are the same.
        some = lacking and not self.count.all()
        if (most, some) not in self._nearest:
            places: list[int] = []
            # Fewer lacking classes come first, regardless of their shares; usually the first count yields enough hosts.
            for count in range(len(self._requested.of_one) + 2):
                if len(places) < most and (count or not some):
                    places += self._nearest_that_lack(count, most - len(places))
            self._nearest[most, some] = self.rows[places].tolist()
        return self._nearest[most, some]

    def _nearest_that_lack(self, count: int, most: int) -> list[int]:
        """Return the places of hosts that lack ``count`` classes, those that lack the smallest share of them first."""
        places = np.flatnonzero(self.count == count)
        # Equal hosts are ordered by their ties, so that every scheduler names the same ones.
        ties = self.view.ties[self.rows[places]]
        if not count:
            order = lowest(ties, most)
            order = order[np.argsort(ties[order])]
        else:
            share = self._share_lacking(places)
            chosen = best_places(-share, ties.__getitem__, most)
            order = chosen[np.lexsort((ties[chosen], share[chosen]))]
        nearest: list[int] = places[order].tolist()
        return nearest

    def _share_lacking(self, places: RowArray) -> FloatArray:
        """Return for some hosts which shares of the requested amounts they lack, added up over all classes."""
        share = np.zeros(len(places))
        for name, lacking in self.lacking.items():
            if lacking.any():
                most = self._requested.most(name)
                share += np.maximum(most - self.room(name)[places], 0.0) / most
        return share

    def _lacks(self, name: str) -> BoolArray:
        lacking = np.zeros(len(self.rows), dtype=np.bool_)
        for amount in self._requested.of_one[name]:
            fits = self.view.fits(name, amount)
            lacking |= ~(fits if len(fits) == len(self.rows) else fits[self.rows])
        if name in self._requested.together:
            lacking |= self.room(name) < self._requested.together[name]
        return lacking

    def _shortages_of(self, name: str, lacking: BoolArray) -> Iterator[Shortage]:
        """Yield how many of some hosts have too little of a class, none of it, or enough in amounts that do not fit."""
        requested, room, rows = self._requested.most(name), self.room(name)[lacking], self.rows[lacking]
        short = room < requested
        none = 0
        if not room.all():
            absent = self.view.capacity(name)[rows] <= 0
            short &= ~absent
            none = int(np.count_nonzero(absent))
        if few := int(np.count_nonzero(short)):
            least = float(room[short].max())
            nearest = rows[short & (room == least)]
            host = self.view.hosts[int(nearest[self.view.ties[nearest].argmin()])].service_host
            by = round(requested - least, 6)
            yield Shortage(resource_class=name, hosts=few, asked=requested, nearest=host, lacking=by)
        if none:
            yield Shortage(resource_class=name, hosts=none, what="absent", asked=requested)
        if uneven := len(room) - few - none:
            yield Shortage(resource_class=name, hosts=uneven, what="uneven", asked=requested)


class RequestedAmounts:
    """Hold the requested amounts by class: those that one provider must serve, and the sums over several groups."""

    def __init__(self, request: ResourceRequest) -> None:
        self.of_one: dict[str, list[int]] = {}
        wanted = [item for group in request.groups.values() for item in group.resources.items()]
        for name, amount in dict.fromkeys(wanted):
            self.of_one.setdefault(name, []).append(amount)
        times = Counter(name for name, _ in wanted)
        self.together = {name: total for name, total in request.totals().items() if times[name] > 1}

    def most(self, name: str) -> int:
        """Return the minimum amount of a class that a host must have free."""
        return max(*self.of_one[name], self.together.get(name, 0))


class NearestMisses:
    """Find the nearest misses among the hosts that each filter has removed, filter by filter and on demand."""

    def __init__(self, view: Snapshot, filtered: FilterResult, host_candidates: HostCandidates) -> None:
        self.counts = filtered.counts()
        self._view = view
        self._filtered = filtered
        self._host_candidates = host_candidates
        self._requested = RequestedAmounts(host_candidates.request)
        self._removed: dict[int, RemovedHosts] = {}

    def removed(self, number: int) -> RemovedHosts:
        """Return the hosts that the filter of this number has removed."""
        if number not in self._removed:
            stages = self._filtered.stages
            entered = stages[number - 1].left if number else self._filtered.entered
            rows = np.flatnonzero(entered & ~stages[number].left)
            candidates = self._host_candidates
            # Hosts whose candidates a filter has left out lack nothing. What undecided hosts lack is not known.
            infeasible = candidates.infeasible - candidates.refused.keys() - candidates.undecided.keys()
            self._removed[number] = RemovedHosts(self._view, rows, self._requested, infeasible)
        return self._removed[number]

    def nearest_rows(self, *, lacking: bool) -> Iterator[tuple[int, int]]:
        """Yield the rows of the nearest hosts, nearest first, each with the number of the filter that removed it.

        A host is nearer if it passed more filters; then, if it lacks fewer classes; then, if it lacks a smaller share.

        :param lacking: yield only hosts that lack something.
        """
        left = _NEAREST_HOSTS
        for number in reversed(range(len(self.counts))):
            if self.counts[number].removed and left:
                rows = self.removed(number).nearest(left, lacking=lacking)
                left -= len(rows)
                yield from ((row, number) for row in rows)

    def misses_of(self, row: int, number: int) -> Iterator[Miss]:
        """Yield the misses of a host: amounts that no provider fits, sums over groups, or groups without a provider."""
        removed, requested = self.removed(number), self._requested
        place = int(np.searchsorted(removed.rows, row))
        lacking = [name for name, mask in removed.lacking.items() if mask[place]]
        host = self._view.hosts[row].service_host
        if not lacking:
            yield from _of_groups(self._view, row, host, self._host_candidates.request, self._host_candidates.budget)
        for name in lacking:
            held = self._view.inventories_of(row, name)
            for amount in requested.of_one[name]:
                if not any(inventory.fits(amount) for inventory in held):
                    # The amount and the reason are those of one provider, the one with most of the class.
                    most = max(held, key=lambda each: each.free, default=None)
                    reason = _unfit(most, amount) if most else "has none"
                    yield _miss(host, name, amount, most.free if most else 0.0, reason)
            together = requested.together.get(name, 0)
            if held and (room := float(removed.room(name)[place])) < together:
                yield _miss(host, name, together, room, "not enough room")


def _of_groups(view: Snapshot, row: int, host: str, request: ResourceRequest, budget: SearchBudget) -> Iterator[Miss]:
    """Yield the misses of a host that has room for each amount: the groups that no provider can serve.

    If each group can be served alone, but not all of them together, the misses are the amounts of all groups.
    """
    alone = {
        suffix: group
        for suffix, group in request.groups.items()
        if group.resources and not _may_have_candidate(view, row, _only(request, suffix, group), budget)
    }
    reason = "no provider serves {}" if alone else "its providers cannot serve {} together with the other groups"
    for suffix, group in (alone or request.groups).items():
        what = reason.format(f"group {suffix}" if suffix != UNSUFFIXED else "the unsuffixed group")
        for name, amount in group.resources.items():
            yield _miss(host, name, amount, float(view.room(name)[row]), what)


def _may_have_candidate(view: Snapshot, row: int, request: ResourceRequest, budget: SearchBudget) -> bool:
    """Tell whether a host has a candidate for a request, or the search was not finished."""
    host_candidates = HostCandidates(request, {}, budget)
    return host_candidates.first_in_time(view, row) is not None or row in host_candidates.undecided


def _only(request: ResourceRequest, suffix: str, group: ResourceGroup) -> ResourceRequest:
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
