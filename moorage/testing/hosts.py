"""A host view that is nothing but a list of hosts: every column is what each host says of itself."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from moorage.plugin import BoolArray, FloatArray, Host, HostView, IntArray

S = TypeVar("S", bound=np.generic)


class ListedHosts(HostView):
    """The view of some hosts, in their order; slower than the scheduler's own, and by its nature never different.

    What it returns cannot be written to: a plug-in that tries gets a ``ValueError``.
    """

    def __init__(self, hosts: Iterable[Host]) -> None:
        self.hosts: Sequence[Host] = tuple(hosts)

    def __len__(self) -> int:
        """Return the number of hosts."""
        return len(self.hosts)

    def host(self, row: int) -> Host:
        """Return the host of a row."""
        return self.hosts[row]

    @property
    def up(self) -> BoolArray:
        """Which hosts are alive and not declared down."""
        return self._which(lambda host: host.up and not host.forced_down)

    @property
    def enabled(self) -> BoolArray:
        """Which hosts take new servers."""
        return self._which(lambda host: not host.disabled)

    @property
    def flat(self) -> BoolArray:
        """Which hosts are one provider, with which no pool shares."""
        return self._which(lambda host: host.flat)

    @property
    def group_members_here(self) -> IntArray:
        """How many members of the request's server group are on each host."""
        return self._counts(lambda host: host.group_members_here)

    @property
    def group_members_elsewhere(self) -> IntArray:
        """How many of them are on other hosts."""
        return self._counts(lambda host: host.group_members_elsewhere)

    @property
    def instances(self) -> IntArray:
        """How many servers are placed on each host."""
        return self._counts(lambda host: host.instances)

    @property
    def io_ops(self) -> IntArray:
        """How many servers are being started, moved or rebuilt on each host."""
        return self._counts(lambda host: host.io_ops)

    @property
    def failed_builds(self) -> FloatArray:
        """How many builds have failed on each host lately."""
        return self._numbers(lambda host: host.failed_builds)

    def where_attribute(self, path: str, holds: Callable[[Any], bool]) -> BoolArray:
        """Which hosts' drivers say under ``path`` what is such as it shall be."""
        return self._which(lambda host: host.where_attribute(path, holds))

    def where_metadata(self, key: str, holds: Callable[[frozenset[str]], bool]) -> BoolArray:
        """Which hosts' aggregates give a key values that are such as they shall be."""
        return self._which(lambda host: host.where_metadata(key, holds))

    def where_metadata_under(self, prefix: str, holds: Callable[[frozenset[str]], bool]) -> BoolArray:
        """Tell the same of the values of all keys that begin with ``prefix``, taken together."""
        return self._which(lambda host: host.where_metadata_under(prefix, holds))

    def number(self, path: str, absent: float = 0.0) -> FloatArray:
        """Return what the hosts' drivers say under ``path``, as numbers.

        :raises BadValue: one of them is none.
        """
        return self._numbers(lambda host: host.number(path, absent))

    def number_from(self, path: str, reckon: Callable[[Any], float]) -> FloatArray:
        """Return the numbers that stand for what the drivers say under ``path``."""
        return self._numbers(lambda host: host.number_from(path, reckon))

    def metadata_number(self, key: str, default: float) -> FloatArray:
        """Return the smallest of the values that each host's aggregates give a key.

        :raises BadValue: one of them is no number.
        """
        return self._numbers(lambda host: host.metadata_number(key, default))

    def has_neighbour(self, instance_uuids: Collection[str]) -> BoolArray:
        """Which hosts have one of these servers placed on them."""
        return self._which(lambda host: host.has_neighbour(instance_uuids))

    def servers_with(self, name: str, value: str) -> IntArray:
        """How many servers of each host run from an image with this property."""
        return self._counts(lambda host: host.servers_with(name, value))

    @property
    def resource_classes(self) -> Collection[str]:
        """Of what resource classes any host has inventory."""
        return frozenset().union(*(host.resource_classes for host in self.hosts))

    def capacity(self, resource_class: str) -> FloatArray:
        """How much of a class may be allocated in all."""
        return self._numbers(lambda host: host.capacity(resource_class))

    def used(self, resource_class: str) -> FloatArray:
        """How much of a class is allocated."""
        return self._numbers(lambda host: host.used(resource_class))

    def room(self, resource_class: str) -> FloatArray:
        """How much of a class may still be allocated; an over-full provider takes nothing away from the others."""
        return self._numbers(lambda host: host.room(resource_class))

    def fits(self, resource_class: str, amount: int) -> BoolArray:
        """Which hosts may allocate ``amount`` to one more consumer from one provider."""
        return self._which(lambda host: host.fits(resource_class, amount))

    def fitting(self, resource_class: str, amount: int) -> IntArray:
        """From how many providers of each host ``amount`` may be allocated."""
        return self._counts(lambda host: host.fitting(resource_class, amount))

    def has_trait(self, trait: str) -> BoolArray:
        """Which hosts have a provider with this trait."""
        return self._which(lambda host: host.has_trait(trait))

    def root_has_trait(self, trait: str) -> BoolArray:
        """Which hosts have this trait on the root of their own tree."""
        return self._which(lambda host: host.root_has_trait(trait))

    def in_aggregate(self, aggregate: str) -> BoolArray:
        """Which hosts have a provider that belongs to this aggregate."""
        return self._which(lambda host: host.in_aggregate(aggregate))

    def root_in_aggregate(self, aggregate: str) -> BoolArray:
        """Which hosts belong to this aggregate with the root of their own tree."""
        return self._which(lambda host: host.root_in_aggregate(aggregate))

    def has_provider(self, uuid: str) -> BoolArray:
        """Which hosts have this provider for their own, or in a tree that shares with them."""
        return self._which(lambda host: host.has_provider(uuid))

    def in_zone(self, availability_zone: str) -> BoolArray:
        """Which hosts are in an availability zone."""
        return self._which(lambda host: host.in_zone(availability_zone))

    def in_cell(self, cell_uuid: str) -> BoolArray:
        """Which hosts are in a cell."""
        return self._which(lambda host: host.in_cell(cell_uuid))

    def named(self, service_hosts: Collection[str]) -> BoolArray:
        """Which hosts have one of these names, upper and lower case alike."""
        return self._which(lambda host: host.named(service_hosts))

    def nodes_named(self, nodenames: Collection[str]) -> BoolArray:
        """Which hosts have a node of one of these names, upper and lower case alike."""
        return self._which(lambda host: host.nodes_named(nodenames))

    def _which(self, ask: Callable[[Host], bool]) -> BoolArray:
        return _frozen(np.array([bool(ask(host)) for host in self.hosts], dtype=np.bool_))

    def _counts(self, ask: Callable[[Host], int]) -> IntArray:
        return _frozen(np.array([ask(host) for host in self.hosts], dtype=np.int64))

    def _numbers(self, ask: Callable[[Host], float]) -> FloatArray:
        return _frozen(np.array([ask(host) for host in self.hosts], dtype=np.float64))


def _frozen(column: NDArray[S]) -> NDArray[S]:
    column.flags.writeable = False
    return column
