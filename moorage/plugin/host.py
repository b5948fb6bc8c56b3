"""One host as plug-ins are shown it; they have it from :mod:`moorage.plugin`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moorage.plugin.attributes import attribute, is_one_of, number, smallest, values_under


@dataclass(frozen=True, slots=True)
class HostInventory:
    """What one provider has of one resource class, and how much of it is used, in the class's own units."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float
    used: int

    @property
    def capacity(self) -> float:
        """How much may be allocated in all."""
        return (self.total - self.reserved) * self.allocation_ratio

    @property
    def free(self) -> float:
        """How much may still be allocated; negative where the inventory is over-full."""
        return self.capacity - self.used

    def fits(self, amount: int) -> bool:
        """Tell whether ``amount`` may be allocated to one more consumer (Placement's capacity and unit rules)."""
        return (
            self.min_unit <= amount <= self.max_unit
            and amount % self.step_size == 0
            and self.used + amount <= self.capacity
        )


@dataclass(frozen=True, slots=True)
class Host:
    """One host, as it was when the decision began: its providers, and the pools that share with it, taken together.

    What may be asked of it is what may be asked of all hosts at once (:class:`HostView`), by the same names. A pool
    counts in full for every host that it shares with.
    """

    service_host: str
    nodename: str
    compute_node_uuid: str
    cell_uuid: str
    availability_zone: str
    up: bool
    disabled: bool
    forced_down: bool
    #: Of each resource class one for every provider that has it.
    inventories: Mapping[str, Sequence[HostInventory]]
    attributes: Mapping[str, Any]
    #: All traits of all of them, and those of the root of the host's own tree.
    traits: Collection[str] = frozenset()
    root_traits: Collection[str] = frozenset()
    #: All aggregates that any of them belongs to, and those of the root of the host's own tree.
    aggregates: Collection[str] = frozenset()
    root_aggregates: Collection[str] = frozenset()
    #: The uuids of all of them.
    providers: Collection[str] = frozenset()
    #: Whether one provider is all there is: then whatever fits the host fits that provider.
    flat: bool = True
    #: How many members of the request's server group are on it, and how many on other hosts. A member that moves counts
    #: on both of its hosts, one that is asked for itself on none. On hosts that are forced down none counts elsewhere.
    group_members_here: int = 0
    group_members_elsewhere: int = 0
    #: Of each key of the metadata of its host aggregates, the values that they give it.
    metadata: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: How many servers are placed on it, and how many of them are being started, moved or rebuilt there right now.
    instances: int = 0
    io_ops: int = 0
    #: How many builds have failed on it lately: each counts less as time goes by, and as others succeed.
    failed_builds: float = 0.0
    #: How many of its servers run from an image with a property, by ``name=value``.
    image_properties: Mapping[str, int] = field(default_factory=dict)
    #: Those of the servers that the request's hints name which are placed on it.
    neighbours: frozenset[str] = frozenset()

    def attribute(self, path: str) -> Any:
        """Return what its driver says of it under a name, or under names within each other joined by dots, or None.

        A name that has dots itself is found as well.
        """
        return attribute(self.attributes, path)

    def where_attribute(self, path: str, holds: Callable[[Any], bool]) -> bool:
        """Tell whether what its driver says under ``path`` is such as it shall be; it may be None."""
        return bool(holds(self.attribute(path)))

    def where_metadata(self, key: str, holds: Callable[[frozenset[str]], bool]) -> bool:
        """Tell whether the values that its host aggregates give a key are such as they shall be; there may be none."""
        return bool(holds(self.metadata.get(key, frozenset())))

    def where_metadata_under(self, prefix: str, holds: Callable[[frozenset[str]], bool]) -> bool:
        """Tell the same of the values of all keys that begin with ``prefix``, taken together."""
        return bool(holds(values_under(self.metadata, prefix)))

    def number(self, path: str, absent: float = 0.0) -> float:
        """Return what its driver says under ``path``, as a number.

        :raises BadValue: it is none.
        """
        return number(path, self.attribute(path), absent)

    def number_from(self, path: str, reckon: Callable[[Any], float]) -> float:
        """Return the number that stands for what its driver says under ``path``, which may be None."""
        return reckon(self.attribute(path))

    def metadata_number(self, key: str, default: float) -> float:
        """Return the smallest of the values that its host aggregates give a key.

        :raises BadValue: one of them is no number.
        """
        return smallest(key, self.metadata.get(key, frozenset()), default)

    def has_neighbour(self, instance_uuids: Collection[str]) -> bool:
        """Tell whether one of these servers, which the request's hints name, is placed on it."""
        return not self.neighbours.isdisjoint(instance_uuids)

    def servers_with(self, name: str, value: str) -> int:
        """Return how many of its servers run from an image with this property."""
        return self.image_properties.get(f"{name}={value}", 0)

    def fits(self, resource_class: str, amount: int) -> bool:
        """Tell whether ``amount`` may be allocated to one more consumer from one provider at least."""
        return any(inventory.fits(amount) for inventory in self._inventories(resource_class))

    def fitting(self, resource_class: str, amount: int) -> int:
        """Return from how many providers ``amount`` may be allocated to one more consumer."""
        return sum(inventory.fits(amount) for inventory in self._inventories(resource_class))

    def capacity(self, resource_class: str) -> float:
        """Return how much of a class may be allocated in all; 0 where there is none of it."""
        return sum((inventory.capacity for inventory in self._inventories(resource_class)), 0.0)

    def used(self, resource_class: str) -> float:
        """Return how much of a class is allocated."""
        return sum((inventory.used for inventory in self._inventories(resource_class)), 0.0)

    def free(self, resource_class: str) -> float:
        """Return how much of a class may still be allocated; negative where it is over-full."""
        return self.capacity(resource_class) - self.used(resource_class)

    def room(self, resource_class: str) -> float:
        """Return the same, where an over-full provider takes nothing away from the others."""
        return sum((max(inventory.free, 0.0) for inventory in self._inventories(resource_class)), 0.0)

    def has_trait(self, trait: str) -> bool:
        """Tell whether any of its providers has a trait."""
        return trait in self.traits

    def root_has_trait(self, trait: str) -> bool:
        """Tell whether the root of its tree has a trait."""
        return trait in self.root_traits

    def in_aggregate(self, aggregate: str) -> bool:
        """Tell whether any of its providers belongs to an aggregate."""
        return aggregate in self.aggregates

    def root_in_aggregate(self, aggregate: str) -> bool:
        """Tell whether the root of its tree belongs to an aggregate."""
        return aggregate in self.root_aggregates

    def has_provider(self, uuid: str) -> bool:
        """Tell whether a provider is one of its own, or of a tree that shares with it."""
        return uuid in self.providers

    @property
    def resource_classes(self) -> Collection[str]:
        """Of what resource classes it has any inventory."""
        return self.inventories.keys()

    def in_zone(self, availability_zone: str) -> bool:
        """Tell whether it is in an availability zone."""
        return self.availability_zone == availability_zone

    def in_cell(self, cell_uuid: str) -> bool:
        """Tell whether it is in a cell."""
        return self.cell_uuid == cell_uuid

    def named(self, service_hosts: Collection[str]) -> bool:
        """Tell whether it has one of these names, upper and lower case alike."""
        return is_one_of(self.service_host, service_hosts)

    def nodes_named(self, nodenames: Collection[str]) -> bool:
        """Tell whether its node has one of these names, upper and lower case alike."""
        return is_one_of(self.nodename, nodenames)

    def _inventories(self, resource_class: str) -> Sequence[HostInventory]:
        return self.inventories.get(resource_class, ())
