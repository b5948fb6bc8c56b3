"""A host view over a list of hosts: every column is computed from the hosts one by one."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from moorage.plugin import BoolArray, FloatArray, Host, HostView, IntArray

S = TypeVar("S", bound=np.generic)


class ListedHosts(HostView):
    """The view of some hosts, in their order; slower than the scheduler's own, with the same results by construction.

    Its arrays are read-only: a plug-in that writes to one gets a ``ValueError``.
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
        """Return a mask of the hosts that are alive and not forced down."""
        return self._which(lambda host: host.up and not host.forced_down)

    @property
    def enabled(self) -> BoolArray:
        """Return a mask of the hosts that take new servers."""
        return self._which(lambda host: not host.disabled)

    @property
    def flat(self) -> BoolArray:
        """Return a mask of the hosts with a single provider and no pool that shares with it."""
        return self._which(lambda host: host.flat)

    @property
    def group_members_here(self) -> IntArray:
        """Return the number of members of the request's server group on each host; 0 without a group."""
        return self._counts(lambda host: host.group_members_here)

    @property
    def group_members_elsewhere(self) -> IntArray:
        """Return the number of members of that group on other hosts than this one."""
        return self._counts(lambda host: host.group_members_elsewhere)

    @property
    def instances(self) -> IntArray:
        """Return the number of servers placed on each host."""
        return self._counts(lambda host: host.instances)

    @property
    def io_ops(self) -> IntArray:
        """Return the number of servers that are being started, moved or rebuilt on each host right now."""
        return self._counts(lambda host: host.io_ops)

    @property
    def failed_builds(self) -> FloatArray:
        """Return the number of recent failed builds on each host; it decays with time and with successful builds."""
        return self._numbers(lambda host: host.failed_builds)

    def where_attribute(self, path: str, holds: Callable[[Any], bool]) -> BoolArray:
        """Return a mask of the hosts whose driver's value of ``path`` meets ``holds``."""
        return self._which(lambda host: host.where_attribute(path, holds))

    def where_metadata(self, key: str, holds: Callable[[frozenset[str]], bool]) -> BoolArray:
        """Return a mask of the hosts whose aggregates' values of a key meet ``holds``."""
        return self._which(lambda host: host.where_metadata(key, holds))

    def where_metadata_under(self, prefix: str, holds: Callable[[frozenset[str]], bool]) -> BoolArray:
        """Return the same mask for the values of all keys that begin with ``prefix``, taken together."""
        return self._which(lambda host: host.where_metadata_under(prefix, holds))

    def number(self, path: str, absent: float = 0.0) -> FloatArray:
        """Return the drivers' values of ``path`` as numbers.

        :raises BadValue: one of them is not a number.
        """
        return self._numbers(lambda host: host.number(path, absent))

    def number_from(self, path: str, reckon: Callable[[Any], float]) -> FloatArray:
        """Return ``reckon`` of the drivers' values of ``path``."""
        return self._numbers(lambda host: host.number_from(path, reckon))

    def metadata_number(self, key: str, default: float) -> FloatArray:
        """Return for each host the smallest of its aggregates' values of a key.

        :raises BadValue: one of them is not a number.
        """
        return self._numbers(lambda host: host.metadata_number(key, default))

    def has_neighbour(self, instance_uuids: Collection[str]) -> BoolArray:
        """Return a mask of the hosts on which one of these servers, named by the request's hints, is placed."""
        return self._which(lambda host: host.has_neighbour(instance_uuids))

    def servers_with(self, name: str, value: str) -> IntArray:
        """Return the number of servers of each host that run from an image with this property."""
        return self._counts(lambda host: host.servers_with(name, value))

    @property
    def resource_classes(self) -> Collection[str]:
        """Return the resource classes of which any host has inventory."""
        return frozenset().union(*(host.resource_classes for host in self.hosts))

    def capacity(self, resource_class: str) -> FloatArray:
        """Return the amount of a class that can be allocated in all; 0 where a host has no inventory of it."""
        return self._numbers(lambda host: host.capacity(resource_class))

    def used(self, resource_class: str) -> FloatArray:
        """Return the allocated amount of a class."""
        return self._numbers(lambda host: host.used(resource_class))

    def room(self, resource_class: str) -> FloatArray:
        """Return the free amount of a class; an over-allocated provider does not reduce that of the others."""
        return self._numbers(lambda host: host.room(resource_class))

    def fits(self, resource_class: str, amount: int) -> BoolArray:
        """Return a mask of the hosts with a provider that can give ``amount`` to one more consumer."""
        return self._which(lambda host: host.fits(resource_class, amount))

    def fitting(self, resource_class: str, amount: int) -> IntArray:
        """Return the number of providers of each host that can give ``amount`` to one more consumer."""
        return self._counts(lambda host: host.fitting(resource_class, amount))

    def has_trait(self, trait: str) -> BoolArray:
        """Return a mask of the hosts that have a provider with this trait."""
        return self._which(lambda host: host.has_trait(trait))

    def root_has_trait(self, trait: str) -> BoolArray:
        """Return a mask of the hosts that have this trait on the root of their own tree."""
        return self._which(lambda host: host.root_has_trait(trait))

    def in_aggregate(self, aggregate: str) -> BoolArray:
        """Return a mask of the hosts that have a provider in this aggregate."""
        return self._which(lambda host: host.in_aggregate(aggregate))

    def root_in_aggregate(self, aggregate: str) -> BoolArray:
        """Return a mask of the hosts with the root of their own tree in this aggregate."""
        return self._which(lambda host: host.root_in_aggregate(aggregate))

    def has_provider(self, uuid: str) -> BoolArray:
        """Return a mask of the hosts that have this provider, of their own or in a tree that shares with them."""
        return self._which(lambda host: host.has_provider(uuid))

    def in_zone(self, availability_zone: str) -> BoolArray:
        """Return a mask of the hosts in an availability zone."""
        return self._which(lambda host: host.in_zone(availability_zone))

    def in_cell(self, cell_uuid: str) -> BoolArray:
        """Return a mask of the hosts in a cell."""
        return self._which(lambda host: host.in_cell(cell_uuid))

    def named(self, service_hosts: Collection[str]) -> BoolArray:
        """Return a mask of the hosts with one of these names, compared without case."""
        return self._which(lambda host: host.named(service_hosts))

    def nodes_named(self, nodenames: Collection[str]) -> BoolArray:
        """Return a mask of the hosts with a node of one of these names, compared without case."""
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
