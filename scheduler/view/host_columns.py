"""The columns of the host cache beside inventories: for each host one value, or one set of names, a column."""

import hashlib
from typing import Any

import numpy as np

from scheduler.registry.hosts import HostRow
from scheduler.view.bitsets import BitColumns
from scheduler.view.column import Column
from scheduler.view.provider_trees import CachedTree


class HostColumns:
    """The columns, by their field names in :class:`scheduler.view.snapshot.Snapshot`. Use under the cache's lock."""

    def __init__(self) -> None:
        self._alive = Column(np.bool_)
        self._forced_down = Column(np.bool_)
        self._disabled = Column(np.bool_)
        self._single = Column(np.bool_)
        self._zones: dict[str, int] = {}
        self._zone_codes = Column(np.int32)
        self._cells: dict[str, int] = {}
        self._cell_codes = Column(np.int32)
        self._ties = Column(np.uint64)
        self._placed = Column(np.int64)
        self._under_way = Column(np.int64)
        self._failures = Column(np.float64)
        self._traits = BitColumns()
        self._root_traits = BitColumns()
        self._aggregates = BitColumns()
        self._root_aggregates = BitColumns()

    def describe(self, row: int, host: HostRow) -> None:
        """Take over what is known of a host."""
        self._alive[row] = host.up
        self._forced_down[row] = host.forced_down
        self._disabled[row] = host.disabled
        self._zone_codes[row] = _code(self._zones, host.availability_zone)
        self._cell_codes[row] = _code(self._cells, host.cell_uuid)
        self._ties[row] = tie_of(host)
        self._under_way[row] = host.io_ops
        self._failures[row] = host.failed_builds

    def plant(self, row: int, tree: CachedTree | None) -> None:
        """Take over the tree that serves a host, or that none does."""
        self._single[row] = tree is not None and tree.is_flat
        self._traits.put(row, tree.traits() if tree else frozenset())
        self._root_traits.put(row, tree.own[0].traits if tree else frozenset())
        self._aggregates.put(row, tree.aggregates() if tree else frozenset())
        self._root_aggregates.put(row, tree.own[0].aggregates if tree else frozenset())

    def count(self, row: int, instances: int) -> None:
        """Take over how many instances are placed on a host."""
        self._placed[row] = instances

    def resize(self, length: int) -> None:
        """Cut off rows at the end, or add empty ones."""
        columns: list[Column[Any]] = [self._alive, self._forced_down, self._disabled, self._single, self._zone_codes]
        columns += [self._cell_codes, self._ties, self._placed, self._under_way, self._failures]
        for column in columns:
            column.resize(length)
        for names in (self._traits, self._root_traits, self._aggregates, self._root_aggregates):
            names.resize(length)

    def frozen(self) -> dict[str, Any]:
        """Return all columns as they are now, for good."""
        return {
            "alive": self._alive.frozen(),
            "forced_down": self._forced_down.frozen(),
            "disabled": self._disabled.frozen(),
            "single": self._single.frozen(),
            # Both only ever grow, and a code that is newer than the snapshot stands in none of its rows.
            "zones": self._zones,
            "zone_codes": self._zone_codes.frozen(),
            "cells": self._cells,
            "cell_codes": self._cell_codes.frozen(),
            "ties": self._ties.frozen(),
            "placed": self._placed.frozen(),
            "under_way": self._under_way.frozen(),
            "failures": self._failures.frozen(),
            "traits": self._traits.frozen(),
            "root_traits": self._root_traits.frozen(),
            "aggregates": self._aggregates.frozen(),
            "root_aggregates": self._root_aggregates.frozen(),
        }


def tie_of(host: HostRow) -> int:
    """Return the number by which a host's ties are broken: the same in every scheduler, whatever was read first."""
    names = f"{host.service_host}\0{host.nodename}".encode()
    return int.from_bytes(hashlib.blake2b(names, digest_size=8).digest())


def _code(codes: dict[str, int], name: str) -> int:
    return codes.setdefault(name, len(codes))
