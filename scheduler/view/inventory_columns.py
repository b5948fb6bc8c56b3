"""The amounts of one resource class: a slot for each provider that has it, and for each host which slots are its.

Most hosts have one provider of a class. Its slot stands in a column; the further slots of other hosts stand in a table
beside it, so that a host with many providers costs the others nothing. A pool that shares with thousands of hosts has
one slot all the same: what is claimed of it shows on all of them at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from moorage.plugin import BoolArray, FloatArray, HostInventory, IntArray
from scheduler.view.column import Column

S = TypeVar("S", bound=np.generic)

#: The slot of whoever has none: no amount fits there.
NONE = 0


@dataclass(frozen=True, slots=True)
class InventoryArrays:
    """The inventories of one resource class by slot; where there is none, ``max_unit`` is 0."""

    total: IntArray
    reserved: IntArray
    min_unit: IntArray
    max_unit: IntArray
    step_size: IntArray
    allocation_ratio: FloatArray
    capacity: FloatArray
    used: FloatArray

    def fits(self, amount: int) -> BoolArray:
        """Tell where ``amount`` may be allocated to one more consumer; the same as :meth:`HostInventory.fits`."""
        fits: BoolArray = self.used + amount <= self.capacity
        fits &= self.min_unit <= amount
        fits &= self.max_unit >= amount
        # An integer division costs more than all the rest, and nearly every inventory counts in steps of one.
        if amount != 1 and (uneven := self.step_size != 1).any():
            fits[uneven] &= amount % self.step_size[uneven] == 0
        elif amount == 1:
            fits &= self.step_size == 1
        return fits

    def fits_at(self, slot: int, amount: int) -> bool:
        """Tell the same of one slot."""
        return bool(
            self.used[slot] + amount <= self.capacity[slot]
            and self.min_unit[slot] <= amount <= self.max_unit[slot]
            and amount % self.step_size[slot] == 0
        )

    def of(self, slot: int) -> HostInventory:
        """Return the inventory of one slot."""
        return HostInventory(**self.values(slot))

    def values(self, slot: int) -> dict[str, Any]:
        """Return the same as values by name; those of an :class:`~placement_store.providers.rows.InventoryRow` too."""
        return {
            "total": int(self.total[slot]),
            "reserved": int(self.reserved[slot]),
            "min_unit": int(self.min_unit[slot]),
            "max_unit": int(self.max_unit[slot]),
            "step_size": int(self.step_size[slot]),
            "allocation_ratio": float(self.allocation_ratio[slot]),
            "used": int(self.used[slot]),
        }


_FIELDS = [field.name for field in fields(InventoryArrays)]
_NONE_VALUES: dict[str, float] = {
    **dict.fromkeys(_FIELDS, 0),
    "min_unit": 1,
    "step_size": 1,
    "allocation_ratio": 1.0,
}


@dataclass(frozen=True, slots=True)
class ClassAmounts:
    """One resource class at one moment; every answer is an array with a value for each host."""

    slots: InventoryArrays
    #: The first slot of each host.
    first: IntArray
    #: The hosts that have further slots, and those slots: one pair each, in no order.
    further_rows: IntArray
    further_slots: IntArray
    #: Whether the first slots are all slots in their order, as they are where hosts have come and none has gone.
    in_order: bool

    def fits(self, amount: int) -> BoolArray:
        """Tell on which hosts ``amount`` fits one provider at least."""
        in_slot = self.slots.fits(amount)
        fits = self._of_hosts(in_slot)
        if len(self.further_rows):
            fits[self.further_rows[in_slot[self.further_slots]]] = True
        return fits

    def fitting(self, amount: int) -> IntArray:
        """Return how many providers of each host ``amount`` fits."""
        return self._summed(self.slots.fits(amount).astype(np.int64))

    def capacity(self) -> FloatArray:
        """Return what may be allocated in all."""
        return self._summed(self.slots.capacity)

    def used(self) -> FloatArray:
        """Return what is allocated."""
        return self._summed(self.slots.used)

    def room(self) -> FloatArray:
        """Return what may still be allocated; an over-full provider takes nothing away from the others."""
        return self._summed(np.maximum(self.slots.capacity - self.slots.used, 0.0))

    def room_at(self, rows: IntArray) -> FloatArray:
        """Return what may still be allocated on some hosts."""
        if len(self.further_rows):
            return self.room()[rows]
        slots = self.first[rows]
        return np.maximum(self.slots.capacity[slots] - self.slots.used[slots], 0.0)

    def _summed(self, values: NDArray[S]) -> NDArray[S]:
        sums = self._of_hosts(values)
        if len(self.further_rows):
            sums = sums.copy()
            np.add.at(sums, self.further_rows, values[self.further_slots])
        return sums

    def _of_hosts(self, values: NDArray[S]) -> NDArray[S]:
        """Return the value of each host's first slot."""
        return values[NONE + 1 :] if self.in_order else values[self.first]


class InventoryColumns:
    """The columns of one resource class."""

    def __init__(self, length: int) -> None:
        self._columns: dict[str, Column[Any]] = {
            name: Column(np.float64 if name in ("allocation_ratio", "capacity", "used") else np.int64, fill)
            for name, fill in _NONE_VALUES.items()
        }
        self._end = NONE + 1
        self._unused: list[int] = []
        self._resize_slots()
        self._first = Column(np.int64, NONE)
        self._first.resize(length)
        self._further = _Pairs()
        self._in_order: tuple[int, IntArray, bool] | None = None

    def frozen(self) -> ClassAmounts:
        """Return all amounts as they are now, for good."""
        first = self._first.frozen()
        return ClassAmounts(
            slots=InventoryArrays(**{name: column.frozen() for name, column in self._columns.items()}),
            first=first,
            further_rows=self._further.rows.frozen(),
            further_slots=self._further.slots.frozen(),
            in_order=self._are_in_order(first),
        )

    def _are_in_order(self, first: IntArray) -> bool:
        """Tell whether these are all slots in their order, looking only where anything has changed."""
        if self._in_order is None or self._in_order[0] != self._end or self._in_order[1] is not first:
            in_order = np.array_equal(first, np.arange(NONE + 1, self._end))
            self._in_order = self._end, first, in_order
        return self._in_order[2]

    # --- Slots ------------------------------------------------------------------------------------------------------

    def new_slot(self) -> int:
        """Return a slot that nobody has, without any inventory."""
        if self._unused:
            return self._unused.pop()
        self._end += 1
        self._resize_slots()
        return self._end - 1

    def give_back(self, slot: int) -> None:
        """Take back a slot that no host has any more."""
        self._write(slot, _NONE_VALUES)
        self._unused.append(slot)

    def put(self, slot: int, inventory: HostInventory) -> None:
        """Write an inventory into its slot."""
        self._write(slot, {name: getattr(inventory, name) for name in _FIELDS})

    def use(self, slot: int, amount: int) -> None:
        """Count ``amount`` more as used."""
        used = self._columns["used"]
        used[slot] = used[slot] + amount

    def _write(self, slot: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            column = self._columns[name]
            # Writing what is there already would copy a column for nothing: mostly `used` alone has changed.
            if column[slot] != value:
                column[slot] = value

    def _resize_slots(self) -> None:
        for column in self._columns.values():
            column.resize(self._end)

    # --- Hosts ------------------------------------------------------------------------------------------------------

    def place(self, row: int, slots: Sequence[int]) -> None:
        """Make these slots all that a host has."""
        first = slots[0] if slots else NONE
        if self._first[row] != first:
            self._first[row] = first
        self._further.put(row, slots[1:])

    def resize(self, length: int) -> None:
        """Cut off hosts at the end, which have no slots any more, or add hosts without any."""
        self._first.resize(length)


class _Pairs:
    """Rows and slots, any number of slots a row: two columns without gaps, changed row by row."""

    def __init__(self) -> None:
        self.rows: Column[np.int64] = Column(np.int64)
        self.slots: Column[np.int64] = Column(np.int64)
        self._places: dict[int, list[int]] = {}

    def put(self, row: int, slots: Sequence[int]) -> None:
        """Make these slots all that a row has."""
        places = self._places.get(row, ())
        if [int(self.slots[place]) for place in places] == list(slots):
            return
        for place in sorted(places, reverse=True):
            self._remove(place)
        self._places.pop(row, None)
        for slot in slots:
            place = len(self.rows)
            self.rows.resize(place + 1)
            self.slots.resize(place + 1)
            self.rows[place], self.slots[place] = row, slot
            self._places.setdefault(row, []).append(place)

    def _remove(self, place: int) -> None:
        """Take one pair out; the last one moves into the gap."""
        last = len(self.rows) - 1
        if place != last:
            row = int(self.rows[last])
            self.rows[place], self.slots[place] = row, self.slots[last]
            places = self._places[row]
            places[places.index(last)] = place
        self.rows.resize(last)
        self.slots.resize(last)
