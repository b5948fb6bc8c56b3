"""What hosts are described with, by distinct value: each is asked about once, however many hosts have it."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moorage.plugin import BoolArray, FloatArray, attribute
from scheduler.hosts import HostRow


class Distinct:
    """One value for each host, kept once for all hosts that have it."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values: list[Any] = []
        known: dict[Hashable, int] = {}
        codes = []
        for value in values:
            key = _key(value)
            if key not in known:
                known[key] = len(self._values)
                self._values.append(value)
            codes.append(known[key])
        self._codes: NDArray[np.intp] = np.array(codes, dtype=np.intp)

    def where(self, holds: Callable[[Any], bool]) -> BoolArray:
        """Return which hosts have a value that is such as it shall be."""
        return np.array([bool(holds(value)) for value in self._values], dtype=np.bool_)[self._codes]

    def numbers(self, number: Callable[[Any], float]) -> FloatArray:
        """Return a number for each host."""
        return np.array([number(value) for value in self._values], dtype=np.float64)[self._codes]


class HostFacts:
    """What the drivers say of some hosts, and the metadata of their aggregates; worked out when first asked for.

    Safe to use from several threads: at worst two of them work the same out.
    """

    def __init__(self, hosts: Sequence[HostRow]) -> None:
        self._hosts = hosts
        self._attributes: dict[str, Distinct] = {}
        self._metadata: dict[str, Distinct] = {}

    def attribute(self, path: str) -> Distinct:
        """Return what the drivers say under a path."""
        found = self._attributes.get(path)
        if found is None:
            found = self._attributes[path] = Distinct(attribute(host.attributes, path) for host in self._hosts)
        return found

    def metadata(self, key: str) -> Distinct:
        """Return the values that the hosts' aggregates give a key."""
        found = self._metadata.get(key)
        if found is None:
            found = self._metadata[key] = Distinct(host.metadata.get(key, frozenset()) for host in self._hosts)
        return found


def _key(value: Any) -> Hashable:
    """Return what two values that are the same have in common; 1, 1.0 and true are not the same."""
    if isinstance(value, Mapping):
        return dict, tuple(sorted((name, _key(each)) for name, each in value.items()))
    if isinstance(value, list | tuple):
        return list, tuple(map(_key, value))
    return type(value), value
