"""The view of all hosts for plug-ins, exported by :mod:`moorage.plugin`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moorage.plugin.host import Host

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class HostView(ABC):
    """All hosts at the start of the decision, in columns: row ``i`` of every column is host ``i``.

    A host consists of its own providers and the pools that share with it. Whether a host can serve all groups of a
    request is computed later, for the best hosts: until then these columns are upper bounds, and exact for :attr:`flat`
    hosts. All arrays are read-only, as all plug-ins share them: to change one, copy it first.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of hosts."""

    @abstractmethod
    def host(self, row: int) -> Host:
        """Return the host of a row."""

    @property
    @abstractmethod
    def up(self) -> BoolArray:
        """Return a mask of the hosts that are alive and not forced down."""

    @property
    @abstractmethod
    def enabled(self) -> BoolArray:
        """Return a mask of the hosts that take new servers."""

    @property
    @abstractmethod
    def flat(self) -> BoolArray:
        """Return a mask of the hosts with a single provider and no pool that shares with it."""

    @property
    @abstractmethod
    def group_members_here(self) -> IntArray:
        """Return the number of members of the request's server group on each host; 0 without a group."""

    @property
    @abstractmethod
    def group_members_elsewhere(self) -> IntArray:
        """Return the number of members of that group on other hosts than this one."""

    @property
    @abstractmethod
    def instances(self) -> IntArray:
        """Return the number of servers placed on each host."""

    @property
    @abstractmethod
    def io_ops(self) -> IntArray:
        """Return the number of servers that are being started, moved or rebuilt on each host right now."""

    @property
    @abstractmethod
    def failed_builds(self) -> FloatArray:
        """Return the number of recent failed builds on each host; it decays with time and with successful builds."""

    @abstractmethod
    def where_attribute(self, path: str, holds: Callable[[Any], bool]) -> BoolArray:
        """Return a mask of the hosts whose driver's value of ``path`` meets ``holds``; called once for each value."""

    @abstractmethod
    def where_metadata(self, key: str, holds: Callable[[frozenset[str]], bool]) -> BoolArray:
        """Return a mask of the hosts whose aggregates' values of a key meet ``holds``; called once for each set."""

    @abstractmethod
    def where_metadata_under(self, prefix: str, holds: Callable[[frozenset[str]], bool]) -> BoolArray:
        """Return the same mask for the values of all keys that begin with ``prefix``, taken together."""

    @abstractmethod
    def number(self, path: str, absent: float = 0.0) -> FloatArray:
        """Return the drivers' values of ``path`` as numbers.

        :raises BadValue: one of them is not a number.
        """

    @abstractmethod
    def number_from(self, path: str, reckon: Callable[[Any], float]) -> FloatArray:
        """Return ``reckon`` of the drivers' values of ``path``; called once for each value.

        :param reckon: a function of a module, not one made for a request: its results are cached.
        """

    @abstractmethod
    def metadata_number(self, key: str, default: float) -> FloatArray:
        """Return for each host the smallest of its aggregates' values of a key.

        :raises BadValue: one of them is not a number.
        """

    @abstractmethod
    def has_neighbour(self, instance_uuids: Collection[str]) -> BoolArray:
        """Return a mask of the hosts on which one of these servers, named by the request's hints, is placed."""

    @abstractmethod
    def servers_with(self, name: str, value: str) -> IntArray:
        """Return the number of servers of each host that run from an image with this property."""

    @property
    @abstractmethod
    def resource_classes(self) -> Collection[str]:
        """Return the resource classes of which any host has inventory."""

    @abstractmethod
    def capacity(self, resource_class: str) -> FloatArray:
        """Return the amount of a class that can be allocated in all; 0 where a host has no inventory of it."""

    @abstractmethod
    def used(self, resource_class: str) -> FloatArray:
        """Return the allocated amount of a class."""

    @abstractmethod
    def room(self, resource_class: str) -> FloatArray:
        """Return the free amount of a class; an over-allocated provider does not reduce that of the others."""

    @abstractmethod
    def fits(self, resource_class: str, amount: int) -> BoolArray:
        """Return a mask of the hosts with a provider that can give ``amount`` to one more consumer."""

    @abstractmethod
    def fitting(self, resource_class: str, amount: int) -> IntArray:
        """Return the number of providers of each host that can give ``amount`` to one more consumer."""

    @abstractmethod
    def has_trait(self, trait: str) -> BoolArray:
        """Return a mask of the hosts that have a provider with this trait."""

    @abstractmethod
    def root_has_trait(self, trait: str) -> BoolArray:
        """Return a mask of the hosts that have this trait on the root of their own tree."""

    @abstractmethod
    def in_aggregate(self, aggregate: str) -> BoolArray:
        """Return a mask of the hosts that have a provider in this aggregate."""

    @abstractmethod
    def root_in_aggregate(self, aggregate: str) -> BoolArray:
        """Return a mask of the hosts with the root of their own tree in this aggregate."""

    @abstractmethod
    def has_provider(self, uuid: str) -> BoolArray:
        """Return a mask of the hosts that have this provider, of their own or in a tree that shares with them."""

    @abstractmethod
    def in_zone(self, availability_zone: str) -> BoolArray:
        """Return a mask of the hosts in an availability zone."""

    @abstractmethod
    def in_cell(self, cell_uuid: str) -> BoolArray:
        """Return a mask of the hosts in a cell."""

    @abstractmethod
    def named(self, service_hosts: Collection[str]) -> BoolArray:
        """Return a mask of the hosts with one of these names, compared without case."""

    @abstractmethod
    def nodes_named(self, nodenames: Collection[str]) -> BoolArray:
        """Return a mask of the hosts whose node has one of these names or uuids, compared without case."""

    def free(self, resource_class: str) -> FloatArray:
        """Return the free amount of a class; negative where an inventory is over-allocated."""
        return self.capacity(resource_class) - self.used(resource_class)
