"""The columns of the host cache other than inventories: a value, or a set of names, for each host."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from scheduler.registry.hosts import HostRow
from scheduler.view.bitsets import BitsetColumns
from scheduler.view.column import Column
from scheduler.view.provider_trees import CachedTree


class HostColumns:
    """The columns, by their field names in :class:`scheduler.view.snapshot.Snapshot`. Use under the cache's lock."""

    def __init__(self) -> None:
        self._values: dict[str, Column[Any]] = {
            **{name: Column(np.bool_) for name in ("alive", "forced_down", "disabled", "flat_hosts")},
            **{name: Column(np.int32) for name in ("zone_codes", "cell_codes")},
            **{name: Column(np.int64) for name in ("placed", "io_op_counts")},
            "ties": Column(np.uint64),
            "failed_build_counts": Column(np.float64),
        }
        self._sets = {name: BitsetColumns() for name in ("traits", "root_traits", "aggregates", "root_aggregates")}
        self._columns: Mapping[str, Column[Any] | BitsetColumns] = {**self._values, **self._sets}
        self._zones: dict[str, int] = {}
        self._cells: dict[str, int] = {}

    def set_host(self, row: int, host: HostRow) -> None:
        """Write the columns that come from a host's row of the registry."""
        values = {
            "alive": host.up,
            "forced_down": host.forced_down,
            "disabled": host.disabled,
            "zone_codes": self._zones.setdefault(host.availability_zone, len(self._zones)),
            "cell_codes": self._cells.setdefault(host.cell_uuid, len(self._cells)),
            "ties": tie_of(host),
            "io_op_counts": host.io_ops,
            "failed_build_counts": host.failed_builds,
        }
        for name, value in values.items():
            self._values[name].put(row, value)

    def set_tree(self, row: int, tree: CachedTree | None) -> None:
        """Write the columns that come from a host's provider tree; None if it has no tree."""
        self._values["flat_hosts"].put(row, tree is not None and tree.is_flat)
        self._sets["traits"].put(row, tree.traits() if tree else frozenset())
        self._sets["root_traits"].put(row, tree.own[0].traits if tree else frozenset())
        self._sets["aggregates"].put(row, tree.aggregates() if tree else frozenset())
        self._sets["root_aggregates"].put(row, tree.own[0].aggregates if tree else frozenset())

    def set_instances(self, row: int, instances: int) -> None:
        """Write the number of instances placed on a host."""
        self._values["placed"].put(row, instances)

    def resize(self, length: int) -> None:
        """Cut off rows at the end, or add empty ones."""
        for column in self._columns.values():
            column.resize(length)

    def frozen(self) -> dict[str, Any]:
        """Return the current columns by field name, in arrays that never change."""
        # The live dicts of codes: they only grow, and no row of the snapshot has a code that was added later.
        codes = {"zones": self._zones, "cells": self._cells}
        return codes | {name: column.frozen() for name, column in self._columns.items()}


def tie_of(host: HostRow) -> int:
    """Return the number that breaks ties between hosts: a hash of the names, the same in every scheduler."""
    names = f"{host.service_host}\0{host.nodename}".encode()
    return int.from_bytes(hashlib.blake2b(names, digest_size=8).digest())
