"""The host view of one decision: all hosts as they were at one moment, one array per column.

A :class:`Snapshot` is immutable and shared by all decisions that begin before the host cache changes again. A decision
keeps its planned claims in a view of its own: :mod:`scheduler.view.planned`. What has changed between two snapshots is
in :class:`RowChanges`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.model import Resources
from moorage.plugin import BoolArray, FloatArray, Host, HostInventory, HostView, IntArray
from moorage.plugin.attributes import number, smallest
from moorage.plugin.host import added_in_order
from placement_store.candidates import CandidateProvider, HostTree
from placement_store.providers.rows import InventoryRow
from placement_store.server_groups.rows import OccupiedRoot
from scheduler.registry.hosts import HostRow
from scheduler.view.bitsets import Bitsets
from scheduler.view.column import frozen
from scheduler.view.group_members import GroupMembers
from scheduler.view.host_attributes import HostAttributes
from scheduler.view.indexes import NameIndex, ProviderIndex
from scheduler.view.inventory_columns import ClassAmounts
from scheduler.view.provider_trees import CachedProvider, CachedTree

CodeArray = NDArray[np.int32]
#: The maximum number of cached results of `fits` for each snapshot: more than a request needs.
_MAX_FITS = 64
#: The maximum number of changes in the log: after more of them, evaluations are not updated but redone. Arbitrary.
_MOST_CHANGES = 1024
#: A number for each host, a hash of its names: it breaks ties together with the request's seed.
TieArray = NDArray[np.uint64]


class RowChanges:
    """The log of the rows of the host cache that have changed; a snapshot has the position at which it was taken.

    Written under the host cache's lock; :meth:`between` may be called from any thread.
    """

    def __init__(self) -> None:
        #: The position of the first row in the list, and the list. Both are replaced together; the list only grows.
        self._log: tuple[int, list[int]] = 0, []

    @property
    def position(self) -> int:
        """The present end of the log."""
        start, rows = self._log
        return start + len(rows)

    def add(self, row: int) -> None:
        """Note that the host of a row has changed."""
        if len(self._log[1]) >= _MOST_CHANGES:
            self.forget()
        self._log[1].append(row)

    def forget(self) -> None:
        """Note that any host may have changed, or have another row now."""
        # One position further: evaluations at the present end are out of date as well.
        self._log = self.position + 1, []

    def between(self, one: int, other: int) -> set[int] | None:
        """Return the rows that have changed between two positions, in either order; null if they are not known."""
        start, rows = self._log
        first, last = min(one, other), max(one, other)
        return None if first < start else set(rows[first - start : last - start])


class ChangedHosts(NamedTuple):
    """The hosts that a planned claim has changed: its own, or all those that share a provider."""

    rows: Collection[int]
    #: The amounts of the claim if it takes them from the only provider of a single host; null for any other claim.
    resources: Resources | None


@dataclass(frozen=True, eq=False)
class Snapshot(HostView):
    """All hosts at one moment; row ``i`` of every column is host ``i``. Immutable."""

    hosts: Sequence[HostRow]
    trees: Sequence[CachedTree | None]
    names: NameIndex
    index: ProviderIndex
    alive: BoolArray
    forced_down: BoolArray
    disabled: BoolArray
    flat_hosts: BoolArray
    zones: Mapping[str, int]
    zone_codes: CodeArray
    cells: Mapping[str, int]
    cell_codes: CodeArray
    ties: TieArray
    traits: Bitsets
    root_traits: Bitsets
    aggregates: Bitsets
    root_aggregates: Bitsets
    classes: Mapping[str, ClassAmounts]
    host_attributes: HostAttributes
    placed: IntArray
    io_op_counts: IntArray
    failed_build_counts: FloatArray
    #: The members of the request's server group; only in a copy for one request.
    members: GroupMembers | None
    #: The instances that the request's hints name, by the row of their host; only in a copy for one request.
    neighbours: Mapping[int, frozenset[str]]
    #: The log of changes of the host cache, and the position in it of this snapshot.
    changes: RowChanges
    position: int
    #: The hosts that planned claims have changed, in the order of the claims; empty except in the view of a plan.
    planned_changes: Sequence[ChangedHosts]
    #: The number of claims that are expected to be planned in this view.
    expected_claims: int

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
            inventories={name: self._inventories(name, slots) for name, slots in tree.slots().items()} if tree else {},
            attributes=known.attributes,
            traits=tree.traits() if tree else frozenset(),
            root_traits=tree.own[0].traits if tree else frozenset(),
            aggregates=tree.aggregates() if tree else frozenset(),
            root_aggregates=tree.own[0].aggregates if tree else frozenset(),
            providers=frozenset(provider.uuid for provider in tree.providers) if tree else frozenset(),
            flat=tree is not None and tree.is_flat,
            group_members_here=self.members.here_at(row) if self.members else 0,
            group_members_elsewhere=self.members.elsewhere_at(row) if self.members else 0,
            metadata=known.metadata,
            instances=int(self.placed[row]),
            io_ops=int(self.io_op_counts[row]),
            failed_builds=float(self.failed_build_counts[row]),
            image_properties=known.image_properties,
            neighbours=self.neighbours.get(row, frozenset()),
        )

    def inventories_of(self, row: int, resource_class: str) -> list[HostInventory]:
        """Return the inventories of one resource class of the host of a row, one for each provider."""
        tree = self.trees[row]
        return self._inventories(resource_class, tree.slots().get(resource_class, ()) if tree else ())

    def host_tree(self, row: int, resource_classes: Collection[str]) -> HostTree | None:
        """Return the providers of the host of a row for the candidate search, or None if it has no providers.

        :param resource_classes: the classes of the request; inventories of other classes are left out.
        """
        tree = self.trees[row]
        if tree is None:
            return None
        uuids = {provider.id: provider.uuid for provider in tree.providers}
        own, sharing, beside = (
            [self._candidate_provider(provider, uuids, resource_classes) for provider in providers]
            for providers in (tree.own, tree.sharing, tree.beside_sharing)
        )
        return HostTree(own, sharing, beside)

    def inventory_values(self, tree: CachedTree, resource_classes: Collection[str]) -> list[tuple[float, ...]]:
        """Return the values of all inventories that :meth:`host_tree` would read; equal ones give an equal tree."""
        return [
            tuple(self.classes[name].slots.values(provider.slots[name]).values())
            for provider in tree.serving
            for name in resource_classes
            if name in provider.slots
        ]

    def limits(self, row: int, resource_classes: Iterable[str]) -> dict[str, float]:
        """Return the capacity of one host for each of these resource classes."""
        tree = self.trees[row]
        serving = tree.serving if tree else ()
        return {
            name: added_in_order(
                self.classes[name].slots.capacity.item(one.slots[name]) for one in serving if name in one.slots
            )
            for name in resource_classes
        }

    @property
    def flat(self) -> BoolArray:
        """A mask of the hosts that a single provider serves."""
        return self.flat_hosts

    @cached_property
    def up(self) -> BoolArray:
        """A mask of the hosts that send heartbeats and are not forced down."""
        return frozen(self.alive & ~self.forced_down)

    @cached_property
    def enabled(self) -> BoolArray:
        """A mask of the hosts that are not disabled for new servers."""
        return frozen(~self.disabled)

    @property
    def group_members_here(self) -> IntArray:
        """The number of members of the request's server group on each host; 0 without a server group."""
        return self.members.here if self.members else np.zeros(len(self), dtype=np.int64)

    @property
    def group_members_elsewhere(self) -> IntArray:
        """The number of members of the server group on all hosts but this one."""
        return self.members.elsewhere if self.members else np.zeros(len(self), dtype=np.int64)

    @property
    def instances(self) -> IntArray:
        """The number of servers placed on each host."""
        return self.placed

    @property
    def io_ops(self) -> IntArray:
        """The number of servers that each host is starting, moving or rebuilding now."""
        return self.io_op_counts

    @property
    def failed_builds(self) -> FloatArray:
        """The weighted number of recent failed builds on each host; it decays with time and with successful builds."""
        return self.failed_build_counts

    def where_attribute(self, path: str, holds: Callable[[Any], bool]) -> BoolArray:
        """Return a mask of the hosts whose driver attribute under ``path`` satisfies a predicate."""
        return self.host_attributes.attribute(path).where(holds)

    def where_metadata(self, key: str, holds: Callable[[frozenset[str]], bool]) -> BoolArray:
        """Return a mask of the hosts whose aggregates give a metadata key values that satisfy a predicate."""
        return self.host_attributes.metadata(key).where(holds)

    def where_metadata_under(self, prefix: str, holds: Callable[[frozenset[str]], bool]) -> BoolArray:
        """Return the same for the union of the values of all keys that begin with ``prefix``."""
        return self.host_attributes.metadata_under(prefix).where(holds)

    def number(self, path: str, absent: float = 0.0) -> FloatArray:
        """Return the driver attribute under ``path`` of each host as a number.

        :raises BadValue: a value is not a number.
        """
        return self.host_attributes.attribute(path).numbers(lambda value: number(path, value, absent), absent)

    def number_from(self, path: str, reckon: Callable[[Any], float]) -> FloatArray:
        """Return the driver attribute under ``path`` of each host, converted to a number."""
        return self.host_attributes.attribute(path).numbers(reckon, reckon)

    def metadata_number(self, key: str, default: float) -> FloatArray:
        """Return the smallest value that the aggregates of each host give a metadata key, as a number.

        :raises BadValue: a value is not a number.
        """
        return self.host_attributes.metadata(key).numbers(lambda values: smallest(key, values, default), default)

    def has_neighbour(self, instance_uuids: Collection[str]) -> BoolArray:
        """Return a mask of the hosts with one of these servers, which the request's hints must name."""
        wanted = set(instance_uuids)
        return self._mask([row for row, placed in self.neighbours.items() if placed & wanted])

    def servers_with(self, name: str, value: str) -> IntArray:
        """Return the number of servers of each host whose image has a property with this value."""
        return self.host_attributes.servers_with(f"{name}={value}").numbers(float, float).astype(np.int64)

    @property
    def resource_classes(self) -> Collection[str]:
        """The resource classes of which any host has an inventory."""
        return self.classes.keys()

    def capacity(self, resource_class: str) -> FloatArray:
        """Return the capacity of each host for a resource class; 0 for a host without an inventory of it."""
        amounts = self.classes.get(resource_class)
        return amounts.capacity() if amounts else np.zeros(len(self))

    def used(self, resource_class: str) -> FloatArray:
        """Return the usage of a resource class on each host."""
        amounts = self.classes.get(resource_class)
        return amounts.used() if amounts else np.zeros(len(self))

    def room(self, resource_class: str) -> FloatArray:
        """Return the amount of a class that each host can still allocate; an over-full provider counts as 0."""
        amounts = self.classes.get(resource_class)
        return amounts.room() if amounts else np.zeros(len(self))

    def fits(self, resource_class: str, amount: int) -> BoolArray:
        """Return a mask of the hosts with one provider that can allocate ``amount`` to a new consumer."""
        known = self._fits_cache.get((resource_class, amount))
        if known is None:
            amounts = self.classes.get(resource_class)
            known = frozen(amounts.fits(amount) if amounts else self._none())
            if len(self._fits_cache) < _MAX_FITS:
                self._fits_cache[resource_class, amount] = known
        return known

    @cached_property
    def _fits_cache(self) -> dict[tuple[str, int], BoolArray]:
        """Results of :meth:`fits`: the filters need them, and the explanation of a refusal needs them again."""
        return {}

    def fitting(self, resource_class: str, amount: int) -> IntArray:
        """Return the number of providers of each host that can allocate ``amount`` to a new consumer."""
        amounts = self.classes.get(resource_class)
        return amounts.fitting(amount) if amounts else np.zeros(len(self), dtype=np.int64)

    def has_trait(self, trait: str) -> BoolArray:
        """Return a mask of the hosts with a provider that has a trait."""
        return self.traits.has(trait)

    def root_has_trait(self, trait: str) -> BoolArray:
        """Return a mask of the hosts whose own root provider has a trait."""
        return self.root_traits.has(trait)

    def in_aggregate(self, aggregate: str) -> BoolArray:
        """Return a mask of the hosts with a provider in an aggregate."""
        return self.aggregates.has(aggregate)

    def root_in_aggregate(self, aggregate: str) -> BoolArray:
        """Return a mask of the hosts whose own root provider is in an aggregate."""
        return self.root_aggregates.has(aggregate)

    def has_provider(self, uuid: str) -> BoolArray:
        """Return a mask of the hosts with a provider in their own tree, or in a tree that shares with them."""
        return self._mask(self.index.by_uuid.get(uuid, []))

    def in_zone(self, availability_zone: str) -> BoolArray:
        """Return a mask of the hosts in an availability zone."""
        return self._rows_with_code(self.zone_codes, self.zones.get(availability_zone))

    def in_cell(self, cell_uuid: str) -> BoolArray:
        """Return a mask of the hosts in a cell."""
        return self._rows_with_code(self.cell_codes, self.cells.get(cell_uuid))

    def named(self, service_hosts: Collection[str]) -> BoolArray:
        """Return a mask of the hosts with one of these names; case-insensitive."""
        return self._rows_named(self.names.by_host, service_hosts)

    def nodes_named(self, nodenames: Collection[str]) -> BoolArray:
        """Return a mask of the hosts whose node has one of these names or uuids; case-insensitive."""
        return self._rows_named(self.names.by_node, nodenames)

    # A copy for one request shares all columns with this snapshot.

    def with_members(self, roots: Mapping[str, OccupiedRoot]) -> "Snapshot":
        """Return a copy for a request with a server group, whose members are on these root providers."""
        return replace(self, members=GroupMembers(len(self), self.names.by_compute_node, roots))

    def with_neighbours(self, instances: Mapping[str, Collection[str]]) -> "Snapshot":
        """Return a copy for a request whose hints name servers.

        :param instances: the servers that the hints name, by the compute node that they are placed on.
        """
        row_of_node = self.names.by_compute_node
        rows = {row_of_node[node]: frozenset(uuids) for node, uuids in instances.items() if node in row_of_node}
        return replace(self, neighbours=rows)

    def _inventories(self, resource_class: str, slots: Iterable[int]) -> list[HostInventory]:
        return [self.classes[resource_class].slots.of(slot) for slot in slots]

    def _candidate_provider(
        self, provider: CachedProvider, uuids: Mapping[int, str], resource_classes: Collection[str]
    ) -> CandidateProvider:
        return CandidateProvider(
            uuid=provider.uuid,
            # A sharing provider's root or parent may be unknown: the change feed may bring it later.
            root_uuid=uuids.get(provider.root_id, provider.uuid),
            parent_uuid=None if provider.parent_id is None else uuids.get(provider.parent_id),
            inventories={
                name: InventoryRow(**self.classes[name].slots.values(provider.slots[name]))
                for name in resource_classes
                if name in provider.slots
            },
            traits=provider.traits,
            aggregates=provider.aggregates,
        )

    def _none(self) -> BoolArray:
        return np.zeros(len(self), dtype=np.bool_)

    def _rows_with_code(self, codes: CodeArray, code: int | None) -> BoolArray:
        return self._none() if code is None else codes == code

    def _rows_named(self, index: Mapping[str, list[int]], names: Collection[str]) -> BoolArray:
        return self._mask([row for name in names for row in index.get(name.casefold(), [])])

    def _mask(self, rows: list[int]) -> BoolArray:
        chosen = self._none()
        chosen[rows] = True
        return chosen
