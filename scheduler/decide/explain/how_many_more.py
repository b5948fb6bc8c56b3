"""Count how many more instances of a request would fit, in all and by cell, if nothing else were placed.

Hosts with a single provider are counted by their columns, all at once. A binary search then runs the filters with more
servers on each host: a filter that refuses a host does not accept it again with even more servers. Hosts with several
providers are counted by their columns, too, if each amount may come from any of the providers; otherwise, one instance
after another is placed.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from moorage.model import UNSUFFIXED, RequestSpec, WhatIf
from moorage.plugin import BoolArray, FloatArray, IntArray
from placement_store.candidates.search_budget import SearchBudget
from scheduler.decide.funnel import Funnel
from scheduler.decide.host_candidates import CandidateFilters, HostCandidates, only_resources
from scheduler.view.inventory_columns import InventoryArrays
from scheduler.view.planned import PlannedView, filled_up
from scheduler.view.snapshot import Snapshot

#: The count for a request without amounts: it means that there is no limit.
_NO_LIMIT = 1_000_000
#: The most instances that one inventory counts for: no sum of such numbers leaves the range of integers.
_MOST_UNITS = 2**40


@dataclass(frozen=True, slots=True)
class _Count:
    """Hold how many instances would fit on some hosts, and whether that number is exact or a minimum."""

    more: int = 0
    exact: bool = True


class InstanceCounter:
    """Count how many instances of one request would fit.

    :param view: the hosts as the request sees them.
    :param feasible: the hosts that passed all filters.
    :param seconds: the time limit of a search; the number placed until then is a minimum.
    """

    def __init__(
        self, funnel: Funnel, view: Snapshot, request: RequestSpec, feasible: BoolArray, seconds: float
    ) -> None:
        self._funnel = funnel
        self._view = view
        self._request = request
        self._wanted = request.resource_request
        self._candidate_filters = CandidateFilters(funnel, request)
        self._feasible = feasible
        self._deadline = time.monotonic() + seconds
        self._budget = SearchBudget(seconds=seconds)
        self._timed_out = False
        self._totals = self._wanted.totals()
        self._units = {
            name: _units(view.classes[name].slots, amount)
            for name, amount in self._totals.items()
            if name in view.classes
        }

    def count(self) -> WhatIf:
        """Return how many instances would fit, in all and by cell.

        :raises BrokenPlugin: a filter is broken.
        """
        most = self._upper_bounds()
        if self._needs_one_host():
            counted = [(cell, self._count_on_best(rows, most)) for cell, rows in self._cells()]
            total = _Count(max((each.more for _, each in counted), default=0), all(each.exact for _, each in counted))
        else:
            counted = [(cell, self._count_on(rows, most)) for cell, rows in self._cells()]
            total = self._total(counted, most)
        return WhatIf(
            more=total.more,
            cells={cell: each.more for cell, each in counted},
            exact=total.exact and not self._timed_out,
            out_of_time=self._timed_out,
        )

    def _total(self, counted: Sequence[tuple[str, _Count]], most: IntArray) -> _Count:
        rows = np.flatnonzero(self._feasible)
        if any(self._pools_of(rows).values()):
            # The sum over cells would count a pool that they share more than once.
            return self._count_on(rows, most)
        return _Count(sum(each.more for _, each in counted), all(each.exact for _, each in counted))

    def _cells(self) -> list[tuple[str, IntArray]]:
        """Return the feasible hosts of each cell that has any."""
        codes = self._view.cell_codes
        cells = [(cell, np.flatnonzero(self._feasible & (codes == code))) for cell, code in self._view.cells.items()]
        return [(cell, rows) for cell, rows in sorted(cells, key=lambda each: each[0]) if len(rows)]

    def _needs_one_host(self) -> bool:
        """Tell whether all instances must go to one host, which is not fixed yet."""
        group = self._request.server_group
        return group is not None and group.policy == "affinity" and not self._view.group_members_elsewhere.any()

    def _is_timed_out(self) -> bool:
        # Once the time is over, this stays true: the result must be reported as a minimum.
        self._timed_out = self._timed_out or time.monotonic() > self._deadline
        return self._timed_out

    # --- At most, by the columns and the filters ----------------------------------------------------------------------

    def _upper_bounds(self) -> IntArray:
        """Return an upper bound for each host, as if no other host used its pools; it is exact for flat hosts."""
        most = np.where(self._feasible, _NO_LIMIT, 0)
        for name, amount in self._totals.items():
            if sum(name in group.resources for group in self._wanted.groups.values()) > 1:
                # The sum of the groups is bounded by the room of the host, whichever of its providers serve them.
                units = _whole(np.floor(self._view.room(name) / amount))
            else:
                units = self._units_of_hosts(name)
            most = np.minimum(most, units)
        return self._allowed(most)

    def _units_of_hosts(self, name: str) -> IntArray:
        """Return how often a class's amount fits in the providers of each host, pools included."""
        amounts = self._view.classes.get(name)
        if amounts is None:
            return np.zeros(len(self._view), dtype=np.int64)
        units: IntArray = self._units[name][amounts.first]
        np.add.at(units, amounts.further_rows, self._units[name][amounts.further_slots])
        return units

    def _allowed(self, most: IntArray) -> IntArray:
        """Return how many of ``most`` instances the filters allow on each host, by a binary search."""
        # At least one passes, because the hosts are feasible. Most hosts pass with the maximum, so try it first.
        low = np.minimum(most, 1)
        high = np.where(self._passes(np.maximum(most - 1, 0)), most, np.maximum(most - 1, low))
        low = np.where(high == most, most, low)
        while (low < high).any() and not self._is_timed_out():
            middle = (low + high + 1) // 2
            passes = self._passes(np.maximum(middle - 1, 0))
            low, high = np.where(passes, middle, low), np.where(passes, high, np.maximum(middle - 1, low))
        return low

    def _passes(self, there: IntArray) -> BoolArray:
        """Return which hosts pass the filters, each as if it alone had this many more servers of the request."""
        filled = filled_up(self._view, self._totals, there)
        return self._funnel.filter(filled, self._request, self._feasible).left

    # --- Host by host -------------------------------------------------------------------------------------------------

    def _count_on_best(self, rows: IntArray, most: IntArray) -> _Count:
        """Return how many would fit on the one of these hosts that takes most."""
        best = _Count()
        for row in rows[np.argsort(-most[rows], kind="stable")].tolist():
            if best.more >= most[row] or self._timed_out:
                break
            found = self._count_on(np.array([row]), most)
            best = _Count(max(best.more, found.more), best.exact and found.exact)
        return best

    def _count_on(self, rows: IntArray, most: IntArray) -> _Count:
        """Return how many would fit on these hosts together."""
        plain = set(self._wanted.groups) == {UNSUFFIXED} and not self._candidate_filters
        by_columns = self._view.flat[rows] & plain
        counted = int(most[rows[by_columns]].sum())
        others = rows[~by_columns]
        if not len(others):
            return _Count(counted)
        found = (
            self._count_by_placing(others, most)
            if self._candidate_filters or only_resources(self._wanted) is None
            else self._count_by_distribution(others, most)
        )
        return _Count(counted + found.more, found.exact)

    def _count_by_distribution(self, rows: IntArray, most: IntArray) -> _Count:
        """Count on hosts where any provider may serve any amount: each host uses its own providers before its pools."""
        left = {
            name: {slot: int(self._units[name][slot]) for slot in slots} for name, slots in self._pools_of(rows).items()
        }
        # An upper bound by class, for any distribution: a count that reaches one of them is exact.
        bounds = {name: sum(units.values()) for name, units in left.items()}
        more = 0
        for row in rows.tolist():
            own, pools = self._own_units(row), self._pools_of([row])
            for name in self._totals:
                bounds[name] += min(own[name], int(most[row]))
            within_reach = [own[name] + sum(left[name][slot] for slot in pools[name]) for name in self._totals]
            here = min([int(most[row]), *within_reach])
            for name in self._totals:
                _take(left[name], pools[name], here - own[name])
            more += here
        return _Count(more, exact=more == min([int(most[rows].sum()), *bounds.values()]))

    def _own_units(self, row: int) -> Counter[str]:
        """Return how often each amount fits in the host's own providers."""
        tree = self._view.trees[row]
        units: Counter[str] = Counter()
        for member in tree.own if tree else ():
            for name in self._totals.keys() & member.slots.keys():
                units[name] += int(self._units[name][member.slots[name]])
        return units

    def _pools_of(self, rows: Iterable[int]) -> dict[str, set[int]]:
        """Return the slots of the pools that share with these hosts, by class."""
        pools: dict[str, set[int]] = {name: set() for name in self._totals}
        for row in rows:
            tree = self._view.trees[row]
            for member in tree.sharing if tree else ():
                for name in self._totals.keys() & member.slots.keys():
                    pools[name].add(member.slots[name])
        return pools

    def _count_by_placing(self, rows: IntArray, most: IntArray) -> _Count:
        """Place one instance after another on these hosts, until nothing fits or the time is up."""
        planned = PlannedView.of(self._view, self._totals)
        host_candidates = HostCandidates(self._wanted, {}, self._budget, filters=self._candidate_filters)
        more, exact = 0, True
        for row in rows.tolist():
            here = 0
            while (
                here < most[row]
                and not self._is_timed_out()
                and (candidate := host_candidates.first_in_time(planned, row)) is not None
            ):
                planned.claim(row, candidate)
                here += 1
            tree = self._view.trees[row]
            # A count of zero is exact if the search was finished and no other host can have used up a pool there.
            takes_none = here == 0 and row not in host_candidates.undecided and not (tree and tree.sharing)
            exact = exact and (here == most[row] or takes_none)
            more += here
        return _Count(more, exact)


def _take(left: dict[int, int], slots: Iterable[int], units: int) -> None:
    """Take this number of units from some pools, beginning with the pool that has most left."""
    for slot in sorted(slots, key=lambda each: -left[each]):
        taken = max(0, min(units, left[slot]))
        left[slot] -= taken
        units -= taken


def _units(slots: InventoryArrays, amount: int) -> IntArray:
    """Return how often an amount can be allocated from each inventory, each time to another consumer."""
    units = np.maximum(np.floor((slots.capacity - slots.used) / amount), 0.0)
    # The division may be off by one where an allocation ratio is not whole: correct it by the rule of the claim.
    units += slots.used + (units + 1) * amount <= slots.capacity
    units -= (units > 0) & (slots.used + units * amount > slots.capacity)
    allowed = (slots.min_unit <= amount) & (amount <= slots.max_unit)
    allowed &= amount % np.maximum(slots.step_size, 1) == 0
    return _whole(np.where(allowed, units, 0))


def _whole(units: FloatArray) -> IntArray:
    return np.minimum(units, _MOST_UNITS).astype(np.int64)
