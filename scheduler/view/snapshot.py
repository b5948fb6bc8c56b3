"""The host view of one decision: all hosts as they were at one moment, one array per column.

A :class:`Snapshot` never changes and is shared by all decisions that begin before the host cache changes again. What a
decision is about to claim it notes in a view of its own: :mod:`scheduler.view.planned`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from moorage.plugin import BoolArray, FloatArray, Host, HostInventory, HostView, IntArray
from moorage.plugin.attributes import number, smallest
from placement_store.candidates import CandidateProvider, HostTree
from placement_store.providers.rows import InventoryRow
from placement_store.server_groups.rows import OccupiedRoot
from scheduler.registry.hosts import HostRow
from scheduler.view.bitsets import Bits
from scheduler.view.group_members import GroupMembers
from scheduler.view.host_attributes import HostAttributes
from scheduler.view.indexes import NameIndex, ProviderIndex
from scheduler.view.inventory_columns import ClassAmounts
from scheduler.view.provider_trees import CachedProvider, CachedTree

S = TypeVar("S", bound=np.generic)

CodeArray = NDArray[np.int32]
#: So many answers about what fits are kept of one moment: more than a request asks for.
_FITTED = 64
#: A number for each host that depends on its names alone: ties are broken by it and the request's seed.
TieArray = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Snapshot(HostView):
    """All hosts at one moment."""

    hosts: Sequence[HostRow]
    trees: Sequence[CachedTree | None]
    names: NameIndex
    index: ProviderIndex
    alive: BoolArray
    forced_down: BoolArray
    disabled: BoolArray
    single: BoolArray
    zones: Mapping[str, int]
    zone_codes: CodeArray
    cells: Mapping[str, int]
    cell_codes: CodeArray
    ties: TieArray
    traits: Bits
    root_traits: Bits
    aggregates: Bits
    root_aggregates: Bits
    classes: Mapping[str, ClassAmounts]
    host_attributes: HostAttributes
    placed: IntArray
    under_way: IntArray
    failures: FloatArray
    #: Of the server group that one request names; for that request alone.
    members: GroupMembers | None
    #: Where the servers are that its hints name, by the row of their host; for that request alone.
    neighbours: Mapping[int, frozenset[str]]

    def __len__(self) -> int:
        """Return the number of hosts."""
        return len(self.hosts)

    def host(self, row: int) -> Host:
        """Return the host of a row."""
        known, tree = self.hosts[row], self.trees[row]
        return Host(
            service_host=known.service_host,
            nodename=known.nodename,
            compute_node_uuid=known.compute_node_uuid,
            cell_uuid=known.cell_uuid,
            availability_zone=known.availability_zone,
            up=known.up,
            disabled=known.disabled,
            forced_down=known.forced_down,
            inventories=self._inventories(tree) if tree else {},
            attributes=known.attributes,
            traits=tree.traits() if tree else frozenset(),
            root_traits=tree.own[0].traits if tree else frozenset(),
            aggregates=tree.aggregates() if tree else frozenset(),
            root_aggregates=tree.own[0].aggregates if tree else frozenset(),
            providers=frozenset(member.uuid for member in tree.known) if tree else frozenset(),
            flat=tree is not None and tree.is_flat,
            group_members_here=self.members.here_at(row) if self.members else 0,
            group_members_elsewhere=self.members.elsewhere_at(row) if self.members else 0,
            metadata=known.metadata,
            instances=int(self.placed[row]),
            io_ops=int(self.under_way[row]),
            failed_builds=float(self.failures[row]),
            image_properties=known.image_properties,
            neighbours=self.neighbours.get(row, frozenset()),
        )

    def held(self, row: int, resource_class: str) -> list[HostInventory]:
        """Return the inventories of one class of the host of a row."""
        tree = self.trees[row]
        members = [member for member in tree.serving if resource_class in member.slots] if tree else []
        return [self.classes[resource_class].slots.of(member.slots[resource_class]) for member in members]

    def host_tree(self, row: int) -> HostTree | None:
        """Return what can serve the host of a row, as the search for candidates wants it; nothing, if nothing can."""
        tree = self.trees[row]
        if tree is None:
            return None
        uuids = {member.id: member.uuid for member in tree.known}
        own, sharing, beside = (
            [self._candidate(member, uuids) for member in members]
            for members in (tree.own, tree.sharing, tree.beside_sharing)
        )
        return HostTree(own, sharing, beside)

    def limits(self, row: int, resource_classes: Iterable[str]) -> dict[str, float]:
        """Return how much of some classes may be allocated in all on one host."""
        tree = self.trees[row]
        limits: dict[str, float] = {}
        for name in resource_classes:
            slots = [member.slots[name] for member in tree.serving if name in member.slots] if tree else []
            limits[name] = float(sum(self.classes[name].slots.capacity[slot] for slot in slots))
        return limits

    @property
    def flat(self) -> BoolArray:
        """Which hosts are one provider, with which no pool shares."""
        return self.single

    @cached_property
    def up(self) -> BoolArray:
        """Which hosts are alive and not declared down."""
        return frozen(self.alive & ~self.forced_down)

    @cached_property
    def enabled(self) -> BoolArray:
        """Which hosts take new servers."""
        return frozen(~self.disabled)

    @property
    def group_members_here(self) -> IntArray:
        """How many members of the request's server group are on each host; none, where it has no group."""
        return self.members.here if self.members else np.zeros(len(self), dtype=np.int64)

    @property
    def group_members_elsewhere(self) -> IntArray:
        """How many of them are on other hosts than this one."""
        return self.members.elsewhere if self.members else np.zeros(len(self), dtype=np.int64)

    @property
    def instances(self) -> IntArray:
        """How many servers are placed on each host."""
        return self.placed

    @property
    def io_ops(self) -> IntArray:
        """How many servers are being started, moved or rebuilt on each host right now."""
        return self.under_way

    @property
    def failed_builds(self) -> FloatArray:
        """How many builds have failed on each host lately: each counts less with time, and as others succeed."""
        return self.failures

    def where_attribute(self, path: str, holds: Callable[[Any], bool]) -> BoolArray:
        """Which hosts' drivers say under ``path`` what is such as it shall be; each value is asked about once."""
        return self.host_attributes.attribute(path).where(holds)

    def where_metadata(self, key: str, holds: Callable[[frozenset[str]], bool]) -> BoolArray:
        """Which hosts' aggregates give a key values that are such as they shall be; each set is asked about once."""
        return self.host_attributes.metadata(key).where(holds)

    def where_metadata_under(self, prefix: str, holds: Callable[[frozenset[str]], bool]) -> BoolArray:
        """Tell the same of the values of all keys that begin with ``prefix``, taken together."""
        return self.host_attributes.metadata_under(prefix).where(holds)

    def number(self, path: str, absent: float = 0.0) -> FloatArray:
        """Return what the hosts' drivers say under ``path``, as numbers.

        :raises BadValue: one of them is none.
        """
        return self.host_attributes.attribute(path).numbers(lambda value: number(path, value, absent), absent)

    def number_from(self, path: str, reckon: Callable[[Any], float]) -> FloatArray:
        """Return the numbers that stand for what the drivers say under ``path``; each value is asked about once."""
        return self.host_attributes.attribute(path).numbers(reckon, reckon)

    def metadata_number(self, key: str, default: float) -> FloatArray:
        """Return the smallest of the values that each host's aggregates give a key.

        :raises BadValue: one of them is no number.
        """
        return self.host_attributes.metadata(key).numbers(lambda values: smallest(key, values, default), default)

    def has_neighbour(self, instance_uuids: Collection[str]) -> BoolArray:
        """Which hosts have one of these servers, which the request's hints name, placed on them."""
        wanted = set(instance_uuids)
        return self._at([row for row, placed in self.neighbours.items() if placed & wanted])

    def servers_with(self, name: str, value: str) -> IntArray:
        """How many servers of each host run from an image with this property."""
        return self.host_attributes.servers_with(f"{name}={value}").numbers(float, float).astype(np.int64)

    @property
    def resource_classes(self) -> Collection[str]:
        """Of what resource classes any host has inventory."""
        return self.classes.keys()

    def capacity(self, resource_class: str) -> FloatArray:
        """How much of a class may be allocated in all; 0 where a host has none of it."""
        amounts = self.classes.get(resource_class)
        return amounts.capacity() if amounts else np.zeros(len(self))

    def used(self, resource_class: str) -> FloatArray:
        """How much of a class is allocated."""
        amounts = self.classes.get(resource_class)
        return amounts.used() if amounts else np.zeros(len(self))

    def room(self, resource_class: str) -> FloatArray:
        """How much of a class may still be allocated; an over-full provider takes nothing away from the others."""
        amounts = self.classes.get(resource_class)
        return amounts.room() if amounts else np.zeros(len(self))

    def fits(self, resource_class: str, amount: int) -> BoolArray:
        """Which hosts may allocate ``amount`` to one more consumer from one provider (capacity and unit rules)."""
        known = self._fitted.get((resource_class, amount))
        if known is None:
            amounts = self.classes.get(resource_class)
            known = frozen(amounts.fits(amount) if amounts else self._none())
            if len(self._fitted) < _FITTED:
                self._fitted[resource_class, amount] = known
        return known

    @cached_property
    def _fitted(self) -> dict[tuple[str, int], BoolArray]:
        """What :meth:`fits` has answered: the filters ask, and then whoever explains what they have said."""
        return {}

    def fitting(self, resource_class: str, amount: int) -> IntArray:
        """From how many providers of each host ``amount`` may be allocated to one more consumer."""
        amounts = self.classes.get(resource_class)
        return amounts.fitting(amount) if amounts else np.zeros(len(self), dtype=np.int64)

    def has_trait(self, trait: str) -> BoolArray:
        """Which hosts have a provider with this trait."""
        return self.traits.has(trait)

    def root_has_trait(self, trait: str) -> BoolArray:
        """Which hosts have this trait on the root of their own tree."""
        return self.root_traits.has(trait)

    def in_aggregate(self, aggregate: str) -> BoolArray:
        """Which hosts have a provider that belongs to this aggregate."""
        return self.aggregates.has(aggregate)

    def root_in_aggregate(self, aggregate: str) -> BoolArray:
        """Which hosts belong to this aggregate with the root of their own tree."""
        return self.root_aggregates.has(aggregate)

    def has_provider(self, uuid: str) -> BoolArray:
        """Which hosts have this provider for their own, or in a tree that shares with them."""
        return self._at(self.index.by_uuid.get(uuid, []))

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

    def with_members(self, roots: Mapping[str, OccupiedRoot]) -> "Snapshot":
        """Return the same hosts for a request that names a server group, whose members are on these root providers."""
        return replace(self, members=GroupMembers(len(self), self.names.by_compute_node, roots))

    def with_neighbours(self, instances: Mapping[str, Collection[str]]) -> "Snapshot":
        """Return the same hosts for a request whose hints name servers: by compute node, those placed there."""
        row_of_node = self.names.by_compute_node
        rows = {row_of_node[node]: frozenset(uuids) for node, uuids in instances.items() if node in row_of_node}
        return replace(self, neighbours=rows)

    def _inventories(self, tree: CachedTree) -> dict[str, list[HostInventory]]:
        return {name: [self.classes[name].slots.of(slot) for slot in slots] for name, slots in tree.slots().items()}

    def _candidate(self, member: CachedProvider, uuids: Mapping[int, str]) -> CandidateProvider:
        return CandidateProvider(
            uuid=member.uuid,
            root_uuid=uuids.get(member.root_id, member.uuid),
            parent_uuid=None if member.parent_id is None else uuids.get(member.parent_id),
            inventories={
                name: InventoryRow(**self.classes[name].slots.values(slot)) for name, slot in member.slots.items()
            },
            traits=member.traits,
            aggregates=member.aggregates,
        )

    def _none(self) -> BoolArray:
        return np.zeros(len(self), dtype=np.bool_)

    def _coded(self, codes: CodeArray, code: int | None) -> BoolArray:
        return self._none() if code is None else codes == code

    def _indexed(self, index: Mapping[str, list[int]], names: Collection[str]) -> BoolArray:
        return self._at([row for name in names for row in index.get(name.casefold(), [])])

    def _at(self, rows: list[int]) -> BoolArray:
        chosen = self._none()
        chosen[rows] = True
        return chosen


def frozen(array: NDArray[S]) -> NDArray[S]:
    """Return the same array, which nobody may write to from now on."""
    array.flags.writeable = False
    return array
