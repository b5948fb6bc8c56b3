"""The map of all hosts: compact rows from a host view that follows the store, either all rows or the changed ones."""

import threading
from collections.abc import Hashable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from moorage import ids
from scheduler.view.snapshot import Snapshot

H = TypeVar("H", bound=Hashable)

#: The bits of a row's state.
ALIVE, DISABLED, FORCED_DOWN = 1, 2, 4
#: The digits of the largest position. Python refuses to convert some thousand digits.
_DIGITS = 18
#: The number of answers that are kept for other viewers; each contains the changes since another version.
_KEPT = 16


class HostMap:
    """Encodes the hosts of a snapshot as JSON, shared by all viewers. Safe to use from several threads."""

    def __init__(self) -> None:
        #: Identifies this process: feed positions that another process, or this one before a restart, gave out are not
        #: valid.
        self._epoch = ids.fresh()[:8]
        self._lock = threading.Lock()
        self._position = -1
        self._encoded: dict[str | None, msgspec.Raw] = {}

    def encoded(self, snapshot: Snapshot, since: str | None) -> msgspec.Raw:
        """Return the rows as JSON: those that have changed since a version, or all if the changes are not known.

        :param since: the version of the viewer's last answer, if it has one.
        """
        with self._lock:
            if snapshot.position > self._position:
                self._position, self._encoded = snapshot.position, {}
            elif snapshot.position < self._position:
                # This thread is late: its snapshot is older than that of the kept answers.
                return self._encode(snapshot, since)
            if since not in self._encoded:
                if len(self._encoded) >= _KEPT:
                    self._encoded = {}
                self._encoded[since] = self._encode(snapshot, since)
            return self._encoded[since]

    def _encode(self, snapshot: Snapshot, since: str | None) -> msgspec.Raw:
        changed = self._changed(snapshot, since)
        rows = range(len(snapshot)) if changed is None else sorted(row for row in changed if row < len(snapshot))
        content = {
            "version": f"{self._epoch}.{snapshot.position}",
            "whole": changed is None,
            "count": len(snapshot),
            **_columns(snapshot, rows),
        }
        return msgspec.Raw(msgspec.json.encode(content))

    def _changed(self, snapshot: Snapshot, since: str | None) -> set[int] | None:
        """Return the rows that have changed since a version; null if the changes are not known."""
        epoch, _, position = (since or "").partition(".")
        if epoch != self._epoch or not position.isdecimal() or len(position) > _DIGITS:
            return None
        return snapshot.changes.between(int(position), snapshot.position)


def _columns(snapshot: Snapshot, rows: Sequence[int]) -> dict[str, Any]:
    """Return the given rows, and the tables of the names that they refer to by number."""
    classes = sorted(snapshot.resource_classes)
    index = np.fromiter(rows, dtype=np.int64, count=len(rows))
    used = _plain([snapshot.used(name)[index] for name in classes], len(rows))
    capacity = _plain([snapshot.capacity(name)[index] for name in classes], len(rows))
    cells, zones = _Table[str](), _Table[str]()
    traits, aggregates = _Table[frozenset[str]](), _Table[frozenset[str]]()
    encoded = []
    for row, used_of, capacity_of in zip(rows, used, capacity, strict=True):
        host, tree = snapshot.hosts[row], snapshot.trees[row]
        encoded.append(
            (
                row,
                host.service_host,
                # Mostly equal to the name of the service host, and then not repeated.
                None if host.nodename == host.service_host else host.nodename,
                cells.number(host.cell_uuid),
                zones.number(host.availability_zone),
                traits.number(tree.traits() if tree else frozenset()),
                aggregates.number(tree.aggregates() if tree else frozenset()),
                ALIVE * host.up + DISABLED * host.disabled + FORCED_DOWN * host.forced_down,
                int(snapshot.instances[row]),
                host.io_ops,
                round(host.failed_builds, 2),
                used_of,
                capacity_of,
            )
        )
    return {
        "classes": classes,
        "cells": list(cells),
        "zones": list(zones),
        "trait_sets": [sorted(one) for one in traits],
        "aggregate_sets": [sorted(one) for one in aggregates],
        "rows": encoded,
    }


class _Table(dict[H, int]):
    """Numbers values in the order in which they first occur."""

    def number(self, value: H) -> int:
        return self.setdefault(value, len(self))


def _plain(columns: Sequence[Any], rows: int) -> list[list[float]]:
    """Return amounts row by row, whole ones as integers: these are shorter, and nearly all amounts are whole."""
    amounts: Any = np.stack(columns, axis=1) if columns else np.zeros((rows, 0))
    whole = amounts.astype(np.int64)
    plain: list[list[float]] = whole.tolist() if (whole == amounts).all() else amounts.tolist()
    return plain
