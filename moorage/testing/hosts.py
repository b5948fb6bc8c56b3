"""A host view over a list of hosts: every column is computed from the hosts one by one."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from moorage.plugin import BoolArray, FloatArray, Host, HostView, IntArray

P = ParamSpec("P")
S = TypeVar("S", bound=np.generic)


def _column(
    dtype: type[S], of_host: Callable[Concatenate[Host, P], object]
) -> Callable[Concatenate["ListedHosts", P], NDArray[S]]:
    """Return the method of a view that returns a read-only array with the result of ``of_host`` for each host."""

    def column(view: "ListedHosts", /, *args: P.args, **named: P.kwargs) -> NDArray[S]:
        values = np.array([of_host(host, *args, **named) for host in view.hosts], dtype=dtype)
        values.flags.writeable = False
        return values

    return column


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
        return _column(np.bool_, lambda host: host.up and not host.forced_down)(self)

    @property
    def enabled(self) -> BoolArray:
        """Return a mask of the hosts that take new servers."""
        return _column(np.bool_, lambda host: not host.disabled)(self)

    @property
    def flat(self) -> BoolArray:
        """Return a mask of the hosts with a single provider and no pool that shares with it."""
        return _column(np.bool_, lambda host: host.flat)(self)

    @property
    def group_members_here(self) -> IntArray:
        """Return the number of members of the request's server group on each host; 0 without a group."""
        return _column(np.int64, lambda host: host.group_members_here)(self)

    @property
    def group_members_elsewhere(self) -> IntArray:
        """Return the number of members of that group on other hosts than this one."""
        return _column(np.int64, lambda host: host.group_members_elsewhere)(self)

    @property
    def instances(self) -> IntArray:
        """Return the number of servers placed on each host."""
        return _column(np.int64, lambda host: host.instances)(self)

    @property
    def io_ops(self) -> IntArray:
        """Return the number of servers that are being started, moved or rebuilt on each host right now."""
        return _column(np.int64, lambda host: host.io_ops)(self)

    @property
    def failed_builds(self) -> FloatArray:
        """Return the number of recent failed builds on each host; it decays with time and with successful builds."""
        return _column(np.float64, lambda host: host.failed_builds)(self)

    @property
    def resource_classes(self) -> Collection[str]:
        """Return the resource classes of which any host has inventory."""
        return frozenset().union(*(host.resource_classes for host in self.hosts))

    # The methods of a host, for each host; documented there and in `HostView`.
    where_attribute = _column(np.bool_, Host.where_attribute)
    where_metadata = _column(np.bool_, Host.where_metadata)
    where_metadata_under = _column(np.bool_, Host.where_metadata_under)
    number = _column(np.float64, Host.number)
    number_from = _column(np.float64, Host.number_from)
    metadata_number = _column(np.float64, Host.metadata_number)
    has_neighbour = _column(np.bool_, Host.has_neighbour)
    servers_with = _column(np.int64, Host.servers_with)
    capacity = _column(np.float64, Host.capacity)
    used = _column(np.float64, Host.used)
    room = _column(np.float64, Host.room)
    fits = _column(np.bool_, Host.fits)
    fitting = _column(np.int64, Host.fitting)
    has_trait = _column(np.bool_, Host.has_trait)
    root_has_trait = _column(np.bool_, Host.root_has_trait)
    in_aggregate = _column(np.bool_, Host.in_aggregate)
    root_in_aggregate = _column(np.bool_, Host.root_in_aggregate)
    has_provider = _column(np.bool_, Host.has_provider)
    in_zone = _column(np.bool_, Host.in_zone)
    in_cell = _column(np.bool_, Host.in_cell)
    named = _column(np.bool_, Host.named)
    nodes_named = _column(np.bool_, Host.nodes_named)
