"""The amounts of all resource classes: slots for what a provider has, and the slots that stand for each host."""

from collections.abc import Mapping

from moorage.model import Resources
from moorage.plugin import HostInventory
from scheduler.view.inventory_columns import ClassAmounts, InventoryColumns
from scheduler.view.provider_trees import CachedTree


class InventoryTable:
    """What providers have and use, by resource class; a class has columns as soon as anybody has some of it."""

    def __init__(self) -> None:
        self._length = 0
        self._classes: dict[str, InventoryColumns] = {}

    def frozen(self) -> dict[str, ClassAmounts]:
        """Return all amounts as they are now, for good."""
        return {name: columns.frozen() for name, columns in self._classes.items()}

    def put(self, slots: Mapping[str, int], inventories: Mapping[str, HostInventory]) -> Mapping[str, int]:
        """Write what a provider has; return its slots, which are the same ones where its classes are the same."""
        if slots.keys() != inventories.keys():
            self.give_back({name: slot for name, slot in slots.items() if name not in inventories})
            slots = {name: slots[name] if name in slots else self._columns(name).new_slot() for name in inventories}
        for name, inventory in inventories.items():
            self._classes[name].put(slots[name], inventory)
        return slots

    def give_back(self, slots: Mapping[str, int]) -> None:
        """Take back slots. The hosts that they stand for must be placed anew before anybody looks."""
        for name, slot in slots.items():
            self._classes[name].give_back(slot)

    def use(self, slots: Mapping[str, int], resources: Resources) -> None:
        """Count amounts as used, where the provider of these slots has any."""
        for name, amount in resources.items():
            if name in slots:
                self._classes[name].use(slots[name], amount)

    def place(self, row: int, before: CachedTree | None, after: CachedTree | None) -> None:
        """Let a host be what ``after`` has, no longer what ``before`` had."""
        gone = before.slots() if before else {}
        come = after.slots() if after else {}
        for name in gone.keys() | come.keys():
            self._classes[name].place(row, come.get(name, ()))

    def resize(self, length: int) -> None:
        """Cut off hosts at the end, which have been placed nowhere, or add hosts."""
        self._length = length
        for columns in self._classes.values():
            columns.resize(length)

    def _columns(self, name: str) -> InventoryColumns:
        if name not in self._classes:
            self._classes[name] = InventoryColumns(self._length)
        return self._classes[name]
