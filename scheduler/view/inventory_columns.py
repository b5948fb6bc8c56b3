"""The inventories of one resource class in columns: a slot for each provider that has it, and the slots of each host.

Most hosts have one provider of a class. Its slot is in a column; the further slots of other hosts are in a separate
table, so that a host with many providers does not slow down the others. A sharing provider, too, has only one slot for
all hosts that it serves: a claim of it is visible on all of them at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from moorage.plugin import BoolArray, FloatArray, HostInventory, IntArray
from scheduler.view.column import Column

S = TypeVar("S", bound=np.generic)

#: The slot of a host that has no inventory of the class: no amount fits there.
NONE = 0


@dataclass(frozen=True, slots=True)
class InventoryArrays:
    """The inventories of one resource class by slot; an empty slot has a ``max_unit`` of 0."""

    total: IntArray
    reserved: IntArray
    min_unit: IntArray
    max_unit: IntArray
    step_size: IntArray
    allocation_ratio: FloatArray
    capacity: FloatArray
    used: FloatArray

    def fits(self, amount: int) -> BoolArray:
        """Return a mask of the slots from which a new consumer may allocate ``amount``.

        The rules are those of :meth:`HostInventory.fits`.
        """
        fits: BoolArray = self.used + amount <= self.capacity
        fits &= self.min_unit <= amount
        fits &= self.max_unit >= amount
        # An integer division costs more than all the rest, and nearly every inventory has a step size of 1.
        if amount != 1 and (uneven := self.step_size != 1).any():
            fits[uneven] &= amount % self.step_size[uneven] == 0
        elif amount == 1:
            fits &= self.step_size == 1
        return fits

    def fits_at(self, slot: int, amount: int) -> bool:
        """Return whether a new consumer may allocate ``amount`` from one slot."""
        # Comparing Python numbers takes a fraction of the time of comparing single numpy numbers.
        return bool(
            self.used.item(slot) + amount <= self.capacity.item(slot)
            and self.min_unit.item(slot) <= amount <= self.max_unit.item(slot)
            and amount % self.step_size.item(slot) == 0
        )

    def of(self, slot: int) -> HostInventory:
        """Return the inventory of one slot."""
        return HostInventory(**self.values(slot))

    def values(self, slot: int) -> dict[str, Any]:
        """Return the inventory of one slot by field name.

        :class:`~placement_store.providers.rows.InventoryRow` has the same fields.
        """
        return {
            "total": self.total.item(slot),
            "reserved": self.reserved.item(slot),
            "min_unit": self.min_unit.item(slot),
            "max_unit": self.max_unit.item(slot),
            "step_size": self.step_size.item(slot),
            "allocation_ratio": self.allocation_ratio.item(slot),
            "used": int(self.used.item(slot)),
        }


_FIELDS = [field.name for field in fields(InventoryArrays)]
_NONE_VALUES: dict[str, float] = {**dict.fromkeys(_FIELDS, 0), "min_unit": 1, "step_size": 1, "allocation_ratio": 1.0}


@dataclass(frozen=True, slots=True)
class ClassAmounts:
    """The amounts of one resource class at one moment; each method returns an array with a value for each host."""

    slots: InventoryArrays
    #: The first slot of each host.
    first: IntArray
    #: The hosts that have further slots, and these slots: pairs at the same index, in no order.
    further_rows: IntArray
    further_slots: IntArray
    #: Whether the first slot of each host is ``row + 1``. This holds while hosts are only added, and saves indexing.
    in_order: bool

    def fits(self, amount: int) -> BoolArray:
        """Return a mask of the hosts with a provider from which a new consumer may allocate ``amount``."""
        in_slot = self.slots.fits(amount)
        fits = self._first_of_hosts(in_slot)
        if len(self.further_rows):
            fits[self.further_rows[in_slot[self.further_slots]]] = True
        return fits

    def fitting(self, amount: int) -> IntArray:
        """Return the number of providers of each host from which a new consumer may allocate ``amount``."""
        return self._summed(self.slots.fits(amount).astype(np.int64))

    def capacity(self) -> FloatArray:
        """Return the amount that may be allocated in all."""
        return self._summed(self.slots.capacity)

    def used(self) -> FloatArray:
        """Return the amount that is allocated."""
        return self._summed(self.slots.used)

    def room(self) -> FloatArray:
        """Return the amount that may still be allocated; an over-full provider counts as 0."""
        return self._summed(np.maximum(self.slots.capacity - self.slots.used, 0.0))

    def room_at(self, rows: IntArray) -> FloatArray:
        """Return the amount that may still be allocated on some hosts; the same as :meth:`room` at these rows."""
        if len(self.further_rows):
            return self.room()[rows]
        slots = self.first[rows]
        return np.maximum(self.slots.capacity[slots] - self.slots.used[slots], 0.0)

    def with_more_used(self, amounts: IntArray) -> "ClassAmounts":
        """Return a copy in which these additional amounts are used of the first provider of each host."""
        used = self.slots.used.copy()
        if self.in_order:
            used[NONE + 1 :] += amounts
        else:
            used[self.first] += amounts
            used[NONE] = 0.0
        return replace(self, slots=replace(self.slots, used=used))

    def _summed(self, values: NDArray[S]) -> NDArray[S]:
        sums = self._first_of_hosts(values)
        if len(self.further_rows):
            sums = sums.copy()
            np.add.at(sums, self.further_rows, values[self.further_slots])
        return sums

    def _first_of_hosts(self, values: NDArray[S]) -> NDArray[S]:
        return values[NONE + 1 :] if self.in_order else values[self.first]


class InventoryColumns:
    """The columns of one resource class, with copy-on-write. Use under the host cache's lock."""

    def __init__(self, length: int) -> None:
        self._columns: dict[str, Column[Any]] = {
            name: Column(np.float64 if name in ("allocation_ratio", "capacity", "used") else np.int64, fill)
            for name, fill in _NONE_VALUES.items()
        }
        self._end = NONE + 1
        self._unused: list[int] = []
        self._resize_slots(self._end)
        self._first = Column(np.int64, NONE)
        self._first.resize(length)
        self._further = _RowSlots()
        self._in_order: tuple[int, IntArray, bool] | None = None

    def frozen(self) -> ClassAmounts:
        """Return the current amounts, in arrays that never change."""
        if self._slots > self._end:
            self._resize_slots(self._end)
        first = self._first.frozen()
        return ClassAmounts(
            slots=InventoryArrays(**{name: column.frozen() for name, column in self._columns.items()}),
            first=first,
            further_rows=self._further.rows.frozen(),
            further_slots=self._further.slots.frozen(),
            in_order=self._are_in_order(first),
        )

    def _are_in_order(self, first: IntArray) -> bool:
        """Return whether the first slots are all slots in order; compared again only after a change of the slots."""
        if self._in_order is None or self._in_order[0] != self._end or self._in_order[1] is not first:
            in_order = np.array_equal(first, np.arange(NONE + 1, self._end))
            self._in_order = self._end, first, in_order
        return self._in_order[2]

    # --- Slots ------------------------------------------------------------------------------------------------------

    def new_slot(self) -> int:
        """Return a free slot, without any inventory."""
        if self._unused:
            return self._unused.pop()
        self._end += 1
        if self._end > self._slots:
            # Double them, since thousands of hosts may be added at once. The next snapshot cuts off the unused ones.
            self._resize_slots(2 * self._end)
        return self._end - 1

    def release(self, slot: int) -> None:
        """Free a slot and clear its inventory."""
        self._write(slot, _NONE_VALUES)
        self._unused.append(slot)

    def put(self, slot: int, inventory: HostInventory) -> None:
        """Write an inventory into its slot."""
        self._write(slot, {name: getattr(inventory, name) for name in _FIELDS})

    def use(self, slot: int, amount: int) -> None:
        """Add ``amount`` to the usage of a slot."""
        used = self._columns["used"]
        used[slot] = used[slot] + amount

    def _write(self, slot: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            # Usually only `used` has changed: `put` does not copy the other columns.
            self._columns[name].put(slot, value)

    def _resize_slots(self, slots: int) -> None:
        self._slots = slots
        for column in self._columns.values():
            column.resize(slots)

    # --- Hosts ------------------------------------------------------------------------------------------------------

    def set_slots(self, row: int, slots: Sequence[int]) -> None:
        """Replace the slots of a host."""
        self._first.put(row, slots[0] if slots else NONE)
        self._further.put(row, slots[1:])

    def resize(self, length: int) -> None:
        """Cut off hosts at the end, which must have no slots any more, or add hosts without slots."""
        self._first.resize(length)


class _RowSlots:
    """A multimap from rows to slots as two columns without gaps, for numpy."""

    def __init__(self) -> None:
        self.rows: Column[np.int64] = Column(np.int64)
        self.slots: Column[np.int64] = Column(np.int64)
        self._indexes: dict[int, list[int]] = {}

    def put(self, row: int, slots: Sequence[int]) -> None:
        """Replace the slots of a row."""
        indexes = self._indexes.get(row, ())
        if [int(self.slots[index]) for index in indexes] == list(slots):
            return
        for index in sorted(indexes, reverse=True):
            self._remove(index)
        self._indexes.pop(row, None)
        for slot in slots:
            index = len(self.rows)
            self.rows.resize(index + 1)
            self.slots.resize(index + 1)
            self.rows[index], self.slots[index] = row, slot
            self._indexes.setdefault(row, []).append(index)

    def _remove(self, index: int) -> None:
        """Remove one pair; the last one moves into the gap."""
        last = len(self.rows) - 1
        if index != last:
            row = int(self.rows[last])
            self.rows[index], self.slots[index] = row, self.slots[last]
            indexes = self._indexes[row]
            indexes[indexes.index(last)] = index
        self.rows.resize(last)
        self.slots.resize(last)
