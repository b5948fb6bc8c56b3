"""All hosts at once as plug-ins are shown them; they have it from :mod:`moorage.plugin`."""

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
    """All hosts as they were when the decision began: row ``i`` of every column is host ``i``.

    A host is its own providers and the pools that share with it, taken together. Whether the groups of a request can be
    served is worked out later, for the best hosts: until then these columns say what is possible at most, and for
    :attr:`flat` hosts exactly. All arrays are frozen, as others are shown the same ones: to change one, copy it first.
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
        """Which hosts are alive and not declared down."""

    @property
    @abstractmethod
    def enabled(self) -> BoolArray:
        """Which hosts take new servers."""

    @property
    @abstractmethod
    def flat(self) -> BoolArray:
        """Which hosts are one provider, with which no pool shares."""

    @property
    @abstractmethod
    def group_members_here(self) -> IntArray:
        """How many members of the request's server group are on each host; none, where it has no group."""

    @property
    @abstractmethod
    def group_members_elsewhere(self) -> IntArray:
        """How many of them are on other hosts than this one."""

    @property
    @abstractmethod
    def instances(self) -> IntArray:
        """How many servers are placed on each host."""

    @property
    @abstractmethod
    def io_ops(self) -> IntArray:
        """How many servers are being started, moved or rebuilt on each host right now."""

    @property
    @abstractmethod
    def failed_builds(self) -> FloatArray:
        """How many builds have failed on each host lately: each counts less with time, and as others succeed."""

    @abstractmethod
    def where_attribute(self, path: str, holds: Callable[[Any], bool]) -> BoolArray:
        """Which hosts' drivers say under ``path`` what is such as it shall be; each value is asked about once."""

    @abstractmethod
    def where_metadata(self, key: str, holds: Callable[[frozenset[str]], bool]) -> BoolArray:
        """Which hosts' aggregates give a key values that are such as they shall be; each set is asked about once."""

    @abstractmethod
    def where_metadata_under(self, prefix: str, holds: Callable[[frozenset[str]], bool]) -> BoolArray:
        """Tell the same of the values of all keys that begin with ``prefix``, taken together."""

    @abstractmethod
    def number(self, path: str, absent: float = 0.0) -> FloatArray:
        """Return what the hosts' drivers say under ``path``, as numbers.

        :raises BadValue: one of them is none.
        """

    @abstractmethod
    def number_from(self, path: str, reckon: Callable[[Any], float]) -> FloatArray:
        """Return the numbers that stand for what the drivers say under ``path``; each value is asked about once.

        :param reckon: a function of a module, not one that is made for a request: what it has said is kept.
        """

    @abstractmethod
    def metadata_number(self, key: str, default: float) -> FloatArray:
        """Return the smallest of the values that each host's aggregates give a key.

        :raises BadValue: one of them is no number.
        """

    @abstractmethod
    def has_neighbour(self, instance_uuids: Collection[str]) -> BoolArray:
        """Which hosts have one of these servers, which the request's hints name, placed on them."""

    @abstractmethod
    def servers_with(self, name: str, value: str) -> IntArray:
        """How many servers of each host run from an image with this property."""

    @property
    @abstractmethod
    def resource_classes(self) -> Collection[str]:
        """Of what resource classes any host has inventory."""

    @abstractmethod
    def capacity(self, resource_class: str) -> FloatArray:
        """How much of a class may be allocated in all; 0 where a host has none of it."""

    @abstractmethod
    def used(self, resource_class: str) -> FloatArray:
        """How much of a class is allocated."""

    @abstractmethod
    def room(self, resource_class: str) -> FloatArray:
        """How much of a class may still be allocated; an over-full provider takes nothing away from the others."""

    @abstractmethod
    def fits(self, resource_class: str, amount: int) -> BoolArray:
        """Which hosts may allocate ``amount`` to one more consumer from one provider (capacity and unit rules)."""

    @abstractmethod
    def fitting(self, resource_class: str, amount: int) -> IntArray:
        """From how many providers of each host ``amount`` may be allocated to one more consumer."""

    @abstractmethod
    def has_trait(self, trait: str) -> BoolArray:
        """Which hosts have a provider with this trait."""

    @abstractmethod
    def root_has_trait(self, trait: str) -> BoolArray:
        """Which hosts have this trait on the root of their own tree."""

    @abstractmethod
    def in_aggregate(self, aggregate: str) -> BoolArray:
        """Which hosts have a provider that belongs to this aggregate."""

    @abstractmethod
    def root_in_aggregate(self, aggregate: str) -> BoolArray:
        """Which hosts belong to this aggregate with the root of their own tree."""

    @abstractmethod
    def has_provider(self, uuid: str) -> BoolArray:
        """Which hosts have this provider for their own, or in a tree that shares with them."""

    @abstractmethod
    def in_zone(self, availability_zone: str) -> BoolArray:
        """Which hosts are in an availability zone."""

    @abstractmethod
    def in_cell(self, cell_uuid: str) -> BoolArray:
        """Which hosts are in a cell."""

    @abstractmethod
    def named(self, service_hosts: Collection[str]) -> BoolArray:
        """Which hosts have one of these names, upper and lower case alike."""

    @abstractmethod
    def nodes_named(self, nodenames: Collection[str]) -> BoolArray:
        """Which hosts have a node of one of these names, upper and lower case alike."""

    def free(self, resource_class: str) -> FloatArray:
        """How much of a class may still be allocated; negative where an inventory is over-full."""
        return self.capacity(resource_class) - self.used(resource_class)
