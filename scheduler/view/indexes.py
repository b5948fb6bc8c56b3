"""Where hosts are found by their names, and by the providers that serve them; built when a request first asks."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from scheduler.registry.hosts import HostRow
from scheduler.view.provider_trees import CachedTree


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

    @cached_property
    def by_compute_node(self) -> Mapping[str, int]:
        """The row of each compute node, by its uuid."""
        return {host.compute_node_uuid: row for row, host in enumerate(self._hosts)}


def _rows_by_name(names: Iterable[str]) -> Mapping[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name.casefold(), []).append(row)
    return rows


class ProviderIndex:
    """Which hosts a provider serves, or stands in the tree of one that does; built when a request first names one."""

    def __init__(self, trees: Sequence[CachedTree | None]) -> None:
        self._trees = trees

    @cached_property
    def by_uuid(self) -> Mapping[str, list[int]]:
        """The rows of each provider."""
        rows: dict[str, list[int]] = {}
        for row, tree in enumerate(self._trees):
            for member in tree.known if tree else ():
                rows.setdefault(member.uuid, []).append(row)
        return rows
