"""Indexes of hosts by name and by resource provider, each built at its first use."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from scheduler.registry.hosts import HostRow
from scheduler.view.provider_trees import CachedTree


class NameIndex:
    """The rows of hosts by service host, node name and compute node; names are case-insensitive."""

    def __init__(self, hosts: Sequence[HostRow]) -> None:
        self._hosts = hosts

    @cached_property
    def by_host(self) -> Mapping[str, list[int]]:
        """The rows of each service host, by its name in lower case."""
        return _rows_by_name(host.service_host for host in self._hosts)

    @cached_property
    def by_node(self) -> Mapping[str, list[int]]:
        """The rows of each node, by its name in lower case and by its uuid."""
        rows = _rows_by_name(host.nodename for host in self._hosts)
        for uuid, row in self.by_compute_node.items():
            # The name may be the uuid, as of bare metal nodes.
            if row not in (named := rows.setdefault(uuid, [])):
                named.append(row)
        return rows

    @cached_property
    def by_compute_node(self) -> Mapping[str, int]:
        """The row of each compute node, by its uuid."""
        return {host.compute_node_uuid: row for row, host in enumerate(self._hosts)}


def _rows_by_name(names: Iterable[str]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name.casefold(), []).append(row)
    return rows


class ProviderIndex:
    """The rows of hosts by each provider of their own trees and of the trees that share with them."""

    def __init__(self, trees: Sequence[CachedTree | None]) -> None:
        self._trees = trees

    @cached_property
    def by_uuid(self) -> Mapping[str, list[int]]:
        """The rows of each provider, by its uuid."""
        rows: dict[str, list[int]] = {}
        for row, tree in enumerate(self._trees):
            for provider in tree.providers if tree else ():
                rows.setdefault(provider.uuid, []).append(row)
        return rows
