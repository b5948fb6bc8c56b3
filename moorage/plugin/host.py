"""The view of one host for plug-ins, exported by :mod:`moorage.plugin`."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

from moorage.plugin.attributes import attribute, is_one_of, number, smallest, values_under


def added_in_order(amounts: Iterable[float]) -> float:
    """Return the sum of amounts, added one after another as the columns of a view are.

    Since Python 3.12, `sum` makes up for rounding, so that its result can differ from theirs.
    """
    return reduce(add, amounts, 0.0)


@dataclass(frozen=True, slots=True)
class HostInventory:
    """The inventory and use of one resource class on one provider, in the class's own units."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float
    used: int

    @property
    def capacity(self) -> float:
        """The amount that can be allocated in all."""
        return (self.total - self.reserved) * self.allocation_ratio

    @property
    def free(self) -> float:
        """The free amount; negative where the inventory is over-allocated."""
        return self.capacity - self.used

    def fits(self, amount: int) -> bool:
        """Return whether ``amount`` can be given to one more consumer (Placement's capacity and unit rules)."""
        return (
            self.min_unit <= amount <= self.max_unit
            and amount % self.step_size == 0
            and self.used + amount <= self.capacity
        )


@dataclass(frozen=True, slots=True)
class Host:
    """One host at the start of the decision: its providers, and the pools that share with it, taken together.

    It has the methods of :class:`HostView` under the same names. A pool counts in full for every host that it shares
    with.
    """

    service_host: str
    nodename: str
    compute_node_uuid: str
    cell_uuid: str
    availability_zone: str
    up: bool
    disabled: bool
    forced_down: bool
    #: By resource class, one for each provider with inventory of it.
    inventories: Mapping[str, Sequence[HostInventory]]
    attributes: Mapping[str, Any]
    #: The traits of all providers, and those of the root of the host's own tree.
    traits: Collection[str] = frozenset()
    root_traits: Collection[str] = frozenset()
    #: The aggregates of all providers, and those of the root of the host's own tree.
    aggregates: Collection[str] = frozenset()
    root_aggregates: Collection[str] = frozenset()
    #: The uuids of all providers.
    providers: Collection[str] = frozenset()
    #: Whether it has a single provider and no pool: then an amount that fits the host fits that provider.
    flat: bool = True
    #: The number of members of the request's server group on it, and on other hosts. A moving member counts on both of
    #: its hosts, an instance of this request on none. Members on hosts that are forced down do not count elsewhere.
    group_members_here: int = 0
    group_members_elsewhere: int = 0
    #: By key, the values of its host aggregates' metadata.
    metadata: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: The number of servers placed on it, and of those that are being started, moved or rebuilt there right now.
    instances: int = 0
    io_ops: int = 0
    #: The number of recent failed builds on it, which decays with time and with successful builds.
    failed_builds: float = 0.0
    #: The number of its servers by property of their image, as ``name=value``.
    image_properties: Mapping[str, int] = field(default_factory=dict)
    #: The servers named by the request's hints that are placed on it.
    neighbours: frozenset[str] = frozenset()

    def attribute(self, path: str) -> Any:
        """Return an attribute from its driver by name, or by nested names joined by dots; None if absent.

        A name that contains dots itself is found as well.
        """
        return attribute(self.attributes, path)

    def where_attribute(self, path: str, holds: Callable[[Any], bool]) -> bool:
        """Return whether its driver's value of ``path``, which may be None, meets ``holds``."""
        return bool(holds(self.attribute(path)))

    def where_metadata(self, key: str, holds: Callable[[frozenset[str]], bool]) -> bool:
        """Return whether its aggregates' values of a key, which may be empty, meet ``holds``."""
        return bool(holds(self.metadata.get(key, frozenset())))

    def where_metadata_under(self, prefix: str, holds: Callable[[frozenset[str]], bool]) -> bool:
        """Return the same for the values of all keys that begin with ``prefix``, taken together."""
        return bool(holds(values_under(self.metadata, prefix)))

    def number(self, path: str, absent: float = 0.0) -> float:
        """Return its driver's value of ``path`` as a number.

        :raises BadValue: it is not a number.
        """
        return number(path, self.attribute(path), absent)

    def number_from(self, path: str, reckon: Callable[[Any], float]) -> float:
        """Return ``reckon`` of its driver's value of ``path``, which may be None."""
        return reckon(self.attribute(path))

    def metadata_number(self, key: str, default: float) -> float:
        """Return the smallest of its aggregates' values of a key.

        :raises BadValue: one of them is not a number.
        """
        return smallest(key, self.metadata.get(key, frozenset()), default)

    def has_neighbour(self, instance_uuids: Collection[str]) -> bool:
        """Return whether one of these servers, named by the request's hints, is placed on it."""
        return not self.neighbours.isdisjoint(instance_uuids)

    def servers_with(self, name: str, value: str) -> int:
        """Return the number of its servers that run from an image with this property."""
        return self.image_properties.get(f"{name}={value}", 0)

    def fits(self, resource_class: str, amount: int) -> bool:
        """Return whether a provider can give ``amount`` to one more consumer."""
        return any(inventory.fits(amount) for inventory in self._inventories(resource_class))

    def fitting(self, resource_class: str, amount: int) -> int:
        """Return the number of providers that can give ``amount`` to one more consumer."""
        return sum(inventory.fits(amount) for inventory in self._inventories(resource_class))

    def capacity(self, resource_class: str) -> float:
        """Return the amount of a class that can be allocated in all; 0 without inventory of it."""
        return added_in_order(inventory.capacity for inventory in self._inventories(resource_class))

    def used(self, resource_class: str) -> float:
        """Return the allocated amount of a class."""
        return added_in_order(inventory.used for inventory in self._inventories(resource_class))

    def free(self, resource_class: str) -> float:
        """Return the free amount of a class; negative where it is over-allocated."""
        return self.capacity(resource_class) - self.used(resource_class)

    def room(self, resource_class: str) -> float:
        """Return the free amount of a class; an over-allocated provider does not reduce that of the others."""
        return added_in_order(max(inventory.free, 0.0) for inventory in self._inventories(resource_class))

    def has_trait(self, trait: str) -> bool:
        """Return whether any of its providers has a trait."""
        return trait in self.traits

    def root_has_trait(self, trait: str) -> bool:
        """Return whether the root of its tree has a trait."""
        return trait in self.root_traits

    def in_aggregate(self, aggregate: str) -> bool:
        """Return whether any of its providers is in an aggregate."""
        return aggregate in self.aggregates

    def root_in_aggregate(self, aggregate: str) -> bool:
        """Return whether the root of its tree is in an aggregate."""
        return aggregate in self.root_aggregates

    def has_provider(self, uuid: str) -> bool:
        """Return whether a provider is one of its own, or of a tree that shares with it."""
        return uuid in self.providers

    @property
    def resource_classes(self) -> Collection[str]:
        """Return the resource classes of which it has inventory."""
        return self.inventories.keys()

    def in_zone(self, availability_zone: str) -> bool:
        """Return whether it is in an availability zone."""
        return self.availability_zone == availability_zone

    def in_cell(self, cell_uuid: str) -> bool:
        """Return whether it is in a cell."""
        return self.cell_uuid == cell_uuid

    def named(self, service_hosts: Collection[str]) -> bool:
        """Return whether it has one of these names, compared without case."""
        return is_one_of(self.service_host, service_hosts)

    def nodes_named(self, nodenames: Collection[str]) -> bool:
        """Return whether its node has one of these names or uuids, compared without case."""
        return is_one_of(self.nodename, nodenames) or is_one_of(self.compute_node_uuid, nodenames)

    def _inventories(self, resource_class: str) -> Sequence[HostInventory]:
        return self.inventories.get(resource_class, ())
