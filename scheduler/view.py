"""The host view of one decision: all hosts as they were at one moment, one array per column.

A :class:`Snapshot` never changes and is shared by all decisions that begin before the picture changes again. A
:class:`PlannedView` belongs to one decision, which notes in it what it is about to claim.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from moorage.model import Resources
from moorage.plugin import BoolArray, FloatArray, Host, HostInventory, HostView
from scheduler.hosts import HostRow

S = TypeVar("S", bound=np.generic)

IntArray = NDArray[np.int64]
CodeArray = NDArray[np.int32]
#: A number for each host that depends on its names alone: ties are broken by it and the request's seed.
TieArray = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class InventoryArrays:
    """The inventories of one resource class; a host that has none of it has a ``max_unit`` of 0."""

    total: IntArray
    reserved: IntArray
    min_unit: IntArray
    max_unit: IntArray
    step_size: IntArray
    allocation_ratio: FloatArray
    capacity: FloatArray
    used: FloatArray

    def fits(self, amount: int) -> BoolArray:
        """Tell which hosts may allocate ``amount`` to one more consumer; the same as :meth:`HostInventory.fits`."""
        fits: BoolArray = self.used + amount <= self.capacity
        fits &= self.min_unit <= amount
        fits &= self.max_unit >= amount
        # An integer division costs more than all the rest, and nearly every inventory counts in steps of one.
        if amount != 1 and (uneven := self.step_size != 1).any():
            fits[uneven] &= amount % self.step_size[uneven] == 0
        elif amount == 1:
            fits &= self.step_size == 1
        return fits

    def of(self, row: int) -> HostInventory | None:
        """Return the inventory of one host."""
        if not self.max_unit[row]:
            return None
        return HostInventory(
            total=int(self.total[row]),
            reserved=int(self.reserved[row]),
            min_unit=int(self.min_unit[row]),
            max_unit=int(self.max_unit[row]),
            step_size=int(self.step_size[row]),
            allocation_ratio=float(self.allocation_ratio[row]),
            used=int(self.used[row]),
        )


class NameIndex:
    """Where hosts and nodes are found by name, upper and lower case alike; built when the first request names one."""

    def __init__(self, hosts: Sequence[HostRow]) -> None:
        self._hosts = hosts

    @cached_property
    def by_host(self) -> Mapping[str, list[int]]:
        """The rows of each service host."""
        return _rows_by_name(host.service_host for host in self._hosts)

    @cached_property
    def by_node(self) -> Mapping[str, list[int]]:
        """The rows of each node."""
        return _rows_by_name(host.nodename for host in self._hosts)


def _rows_by_name(names: Iterable[str]) -> Mapping[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name.casefold(), []).append(row)
    return rows


@dataclass(frozen=True, eq=False)
class Snapshot(HostView):
    """All hosts at one moment."""

    hosts: Sequence[HostRow]
    names: NameIndex
    alive: BoolArray
    forced_down: BoolArray
    disabled: BoolArray
    zones: Mapping[str, int]
    zone_codes: CodeArray
    cells: Mapping[str, int]
    cell_codes: CodeArray
    ties: TieArray
    inventories: Mapping[str, InventoryArrays]

    def __len__(self) -> int:
        """Return the number of hosts."""
        return len(self.hosts)

    def host(self, row: int) -> Host:
        """Return the host of a row."""
        known = self.hosts[row]
        inventories = ((name, arrays.of(row)) for name, arrays in self.inventories.items())
        return Host(
            service_host=known.service_host,
            nodename=known.nodename,
            compute_node_uuid=known.compute_node_uuid,
            cell_uuid=known.cell_uuid,
            availability_zone=known.availability_zone,
            up=known.up,
            disabled=known.disabled,
            forced_down=known.forced_down,
            inventories={name: inventory for name, inventory in inventories if inventory is not None},
            attributes=known.attributes,
        )

    @cached_property
    def up(self) -> BoolArray:
        """Which hosts are alive and not declared down."""
        return _frozen(self.alive & ~self.forced_down)

    @cached_property
    def enabled(self) -> BoolArray:
        """Which hosts take new servers."""
        return _frozen(~self.disabled)

    def capacity(self, resource_class: str) -> FloatArray:
        """How much of a class may be allocated in all; 0 where a host has none of it."""
        arrays = self.inventories.get(resource_class)
        return arrays.capacity if arrays else np.zeros(len(self))

    def used(self, resource_class: str) -> FloatArray:
        """How much of a class is allocated."""
        arrays = self.inventories.get(resource_class)
        return arrays.used if arrays else np.zeros(len(self))

    def fits(self, resource_class: str, amount: int) -> BoolArray:
        """Which hosts may allocate ``amount`` to one more consumer (capacity and unit rules)."""
        arrays = self.inventories.get(resource_class)
        return arrays.fits(amount) if arrays else self._none()

    def in_zone(self, availability_zone: str) -> BoolArray:
        """Which hosts are in an availability zone."""
        return self._coded(self.zone_codes, self.zones.get(availability_zone))

    def in_cell(self, cell_uuid: str) -> BoolArray:
        """Which hosts are in a cell."""
        return self._coded(self.cell_codes, self.cells.get(cell_uuid))

    def named(self, service_hosts: Collection[str]) -> BoolArray:
        """Which hosts have one of these names, upper and lower case alike."""
        return self._indexed(self.names.by_host, service_hosts)

    def nodes_named(self, nodenames: Collection[str]) -> BoolArray:
        """Which hosts have a node of one of these names, upper and lower case alike."""
        return self._indexed(self.names.by_node, nodenames)

    def planned(self, resource_classes: Collection[str]) -> "PlannedView":
        """Return a view of one's own in which these classes may be claimed."""
        used = {name: self.inventories[name].used.copy() for name in resource_classes if name in self.inventories}
        shown = {name: replace(self.inventories[name], used=_frozen(own.view())) for name, own in used.items()}
        fields = {name: getattr(self, name) for name in Snapshot.__dataclass_fields__}
        return PlannedView(**fields | {"inventories": {**self.inventories, **shown}}, planned_use=used)

    def _none(self) -> BoolArray:
        return np.zeros(len(self), dtype=np.bool_)

    def _coded(self, codes: CodeArray, code: int | None) -> BoolArray:
        return self._none() if code is None else codes == code

    def _indexed(self, index: Mapping[str, list[int]], names: Collection[str]) -> BoolArray:
        chosen = self._none()
        for name in names:
            chosen[index.get(name.casefold(), [])] = True
        return chosen


@dataclass(frozen=True, eq=False)
class PlannedView(Snapshot):
    """All hosts at one moment, and what one decision is about to claim of them. For one thread."""

    planned_use: Mapping[str, FloatArray]

    def claim(self, row: int, resources: Resources) -> None:
        """Count ``resources`` as used on a host."""
        for name, amount in resources.items():
            self.planned_use[name][row] += amount


def _frozen(array: NDArray[S]) -> NDArray[S]:
    array.flags.writeable = False
    return array
