"""The inventories of all resource classes: a slot for each provider and class, and the slots of each host."""

from collections.abc import Mapping

from moorage.model import Resources
from moorage.plugin import HostInventory
from scheduler.view.inventory_columns import ClassAmounts, InventoryColumns
from scheduler.view.provider_trees import CachedTree


class InventoryTable:
    """The inventory columns of each resource class; a class gets its columns with its first inventory."""

    def __init__(self) -> None:
        self._length = 0
        self._classes: dict[str, InventoryColumns] = {}

    def frozen(self) -> dict[str, ClassAmounts]:
        """Return the current amounts of each resource class, in arrays that never change."""
        return {name: columns.frozen() for name, columns in self._classes.items()}

    def put(self, slots: Mapping[str, int], inventories: Mapping[str, HostInventory]) -> Mapping[str, int]:
        """Write the inventories of a provider and return its slots; they stay the same while its classes do.

        :param slots: the slots that the provider has had until now.
        """
        if slots.keys() != inventories.keys():
            self.release({name: slot for name, slot in slots.items() if name not in inventories})
            slots = {name: slots[name] if name in slots else self._columns(name).new_slot() for name in inventories}
        for name, inventory in inventories.items():
            self._classes[name].put(slots[name], inventory)
        return slots

    def release(self, slots: Mapping[str, int]) -> None:
        """Free slots. Hosts that have them need new ones (:meth:`set_slots`) before the next snapshot."""
        for name, slot in slots.items():
            self._classes[name].release(slot)

    def use(self, slots: Mapping[str, int], resources: Resources) -> None:
        """Add amounts to the usage of the provider of these slots; classes that it does not have are left out."""
        for name, amount in resources.items():
            if name in slots:
                self._classes[name].use(slots[name], amount)

    def set_slots(self, row: int, before: CachedTree | None, after: CachedTree | None) -> None:
        """Replace the slots of a host: those of the tree ``before`` by those of ``after``."""
        removed = before.slots() if before else {}
        added = after.slots() if after else {}
        for name in removed.keys() | added.keys():
            self._classes[name].set_slots(row, added.get(name, ()))

    def resize(self, length: int) -> None:
        """Cut off hosts at the end, which must have no slots any more, or add hosts without slots."""
        self._length = length
        for columns in self._classes.values():
            columns.resize(length)

    def _columns(self, name: str) -> InventoryColumns:
        if name not in self._classes:
            self._classes[name] = InventoryColumns(self._length)
        return self._classes[name]
