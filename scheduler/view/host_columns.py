"""The columns of the host cache other than inventories: a value, or a set of names, for each host."""

import hashlib
from typing import Any

import numpy as np

from scheduler.registry.hosts import HostRow
from scheduler.view.bitsets import BitsetColumns
from scheduler.view.column import Column
from scheduler.view.provider_trees import CachedTree


class HostColumns:
    """The columns, by their field names in :class:`scheduler.view.snapshot.Snapshot`. Use under the cache's lock."""

    def __init__(self) -> None:
        self._alive = Column(np.bool_)
        self._forced_down = Column(np.bool_)
        self._disabled = Column(np.bool_)
        self._flat_hosts = Column(np.bool_)
        self._zones: dict[str, int] = {}
        self._zone_codes = Column(np.int32)
        self._cells: dict[str, int] = {}
        self._cell_codes = Column(np.int32)
        self._ties = Column(np.uint64)
        self._placed = Column(np.int64)
        self._io_op_counts = Column(np.int64)
        self._failed_build_counts = Column(np.float64)
        self._traits = BitsetColumns()
        self._root_traits = BitsetColumns()
        self._aggregates = BitsetColumns()
        self._root_aggregates = BitsetColumns()

    def set_host(self, row: int, host: HostRow) -> None:
        """Write the columns that come from a host's row of the registry."""
        self._alive[row] = host.up
        self._forced_down[row] = host.forced_down
        self._disabled[row] = host.disabled
        self._zone_codes[row] = _code(self._zones, host.availability_zone)
        self._cell_codes[row] = _code(self._cells, host.cell_uuid)
        self._ties[row] = tie_of(host)
        self._io_op_counts[row] = host.io_ops
        self._failed_build_counts[row] = host.failed_builds

    def set_tree(self, row: int, tree: CachedTree | None) -> None:
        """Write the columns that come from a host's provider tree; None if it has no tree."""
        self._flat_hosts[row] = tree is not None and tree.is_flat
        self._traits.put(row, tree.traits() if tree else frozenset())
        self._root_traits.put(row, tree.own[0].traits if tree else frozenset())
        self._aggregates.put(row, tree.aggregates() if tree else frozenset())
        self._root_aggregates.put(row, tree.own[0].aggregates if tree else frozenset())

    def set_instances(self, row: int, instances: int) -> None:
        """Write the number of instances placed on a host."""
        self._placed[row] = instances

    def resize(self, length: int) -> None:
        """Cut off rows at the end, or add empty ones."""
        columns: list[Column[Any]] = [self._alive, self._forced_down, self._disabled, self._flat_hosts, self._ties]
        columns += [self._zone_codes, self._cell_codes, self._placed, self._io_op_counts, self._failed_build_counts]
        for column in columns:
            column.resize(length)
        for names in (self._traits, self._root_traits, self._aggregates, self._root_aggregates):
            names.resize(length)

    def frozen(self) -> dict[str, Any]:
        """Return the current columns by field name, in arrays that never change."""
        return {
            "alive": self._alive.frozen(),
            "forced_down": self._forced_down.frozen(),
            "disabled": self._disabled.frozen(),
            "flat_hosts": self._flat_hosts.frozen(),
            # The live dicts: they only grow, and a code that is newer than the snapshot is in none of its rows.
            "zones": self._zones,
            "zone_codes": self._zone_codes.frozen(),
            "cells": self._cells,
            "cell_codes": self._cell_codes.frozen(),
            "ties": self._ties.frozen(),
            "placed": self._placed.frozen(),
            "io_op_counts": self._io_op_counts.frozen(),
            "failed_build_counts": self._failed_build_counts.frozen(),
            "traits": self._traits.frozen(),
            "root_traits": self._root_traits.frozen(),
            "aggregates": self._aggregates.frozen(),
            "root_aggregates": self._root_aggregates.frozen(),
        }


def tie_of(host: HostRow) -> int:
    """Return the number that breaks ties between hosts: a hash of the names, the same in every scheduler."""
    names = f"{host.service_host}\0{host.nodename}".encode()
    return int.from_bytes(hashlib.blake2b(names, digest_size=8).digest())


def _code(codes: dict[str, int], name: str) -> int:
    return codes.setdefault(name, len(codes))
