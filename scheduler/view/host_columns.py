"""The columns of the host cache other than inventories: a value, or a set of names, for each host."""

import hashlib
import itertools
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
        #: The code of each availability zone and of each cell, by column. Codes are never reused.
        self._codes: dict[str, dict[str, int]] = {"zone_codes": {}, "cell_codes": {}}
        self._next_code = itertools.count()
        #: The columns in which a code may be left without a host.
        self._left: set[str] = set()

    def set_host(self, row: int, host: HostRow) -> None:
        """Write the columns that come from a host's row of the registry."""
        values = {
            "alive": host.up,
            "forced_down": host.forced_down,
            "disabled": host.disabled,
            "zone_codes": self._code("zone_codes", row, host.availability_zone),
            "cell_codes": self._code("cell_codes", row, host.cell_uuid),
            "ties": tie_of(host),
            "io_op_counts": host.io_ops,
            "failed_build_counts": host.failed_builds,
        }
        for name, value in values.items():
            self._values[name].put(row, value)

    def _code(self, column: str, row: int, name: str) -> int:
        """Return the code of a host's zone or cell, a new one for a new name."""
        known = self._codes[column]
        code = known[name] if name in known else known.setdefault(name, next(self._next_code))
        if self._values[column][row] != code:
            self._left.add(column)
        return code

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
        if length < len(self._values["cell_codes"]):
            self._left.update(self._codes)
        for column in self._columns.values():
            column.resize(length)

    def frozen(self) -> dict[str, Any]:
        """Return the current columns by field name, in arrays that never change."""
        for name in self._left:
            # In a new dict: earlier snapshots have the former one.
            present = set(np.unique(self._values[name].frozen()).tolist())
            self._codes[name] = {key: code for key, code in self._codes[name].items() if code in present}
        self._left.clear()
        # The live dicts of codes: no row of the snapshot has a code that is added later.
        codes = {"zones": self._codes["zone_codes"], "cells": self._codes["cell_codes"]}
        return codes | {name: column.frozen() for name, column in self._columns.items()}


def tie_of(host: HostRow) -> int:
    """Return the number that breaks ties between hosts: a hash of the names, the same in every scheduler."""
    names = f"{host.service_host}\0{host.nodename}".encode()
    return int.from_bytes(hashlib.blake2b(names, digest_size=8).digest())
