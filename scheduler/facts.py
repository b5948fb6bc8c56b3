"""What hosts are described with, by distinct value: each is asked about once, however many hosts have it."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moorage.described import attribute, values_under
from moorage.plugin import BoolArray, FloatArray
from scheduler.hosts import HostRow

#: Requests say themselves what is looked at, so no more than this is kept; arbitrary, and more than flavors name.
_KEPT = 500
#: Of one value in this many ways a number is reckoned and kept: more than there are plug-ins that ask about it.
_RECKONED = 4


class Distinct:
    """One value for each host, kept once for all hosts that have it."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values: list[Any] = []
        self._reckoned: dict[Hashable, FloatArray] = {}
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

    def numbers(self, reckon: Callable[[Any], float], kept_as: Hashable) -> FloatArray:
        """Return a number for each host.

        :param kept_as: what tells this way of reckoning from others: its numbers are kept.
        """
        found = self._reckoned.get(kept_as)
        if found is None:
            if len(self._reckoned) >= _RECKONED:
                self._reckoned = {}
            found = np.array([reckon(value) for value in self._values], dtype=np.float64)[self._codes]
            found.flags.writeable = False
            self._reckoned[kept_as] = found
        return found


class HostFacts:
    """What the drivers say of some hosts, and the metadata of their aggregates; worked out when first asked for.

    Safe to use from several threads: at worst two of them work the same out.
    """

    def __init__(self, hosts: Sequence[HostRow]) -> None:
        self._hosts = hosts
        self._kept: dict[tuple[str, str], Distinct] = {}

    def attribute(self, path: str) -> Distinct:
        """Return what the drivers say under a path."""
        return self._distinct("attribute", path, lambda host: attribute(host.attributes, path))

    def metadata(self, key: str) -> Distinct:
        """Return the values that the hosts' aggregates give a key."""
        if key not in self.metadata_keys:
            # Requests may name any number of these, and none of them needs a column of its own.
            return self._distinct("no metadata", "", lambda _: frozenset())
        return self._distinct("metadata", key, lambda host: host.metadata.get(key, frozenset()))

    @cached_property
    def metadata_keys(self) -> frozenset[str]:
        """The keys that any host's aggregates give a value."""
        # Hosts of the same aggregates share what these say.
        different = {id(host.metadata): host.metadata for host in self._hosts}
        return frozenset().union(*different.values())

    def metadata_under(self, prefix: str) -> Distinct:
        """Return the values that the hosts' aggregates give all keys with a prefix together."""
        return self._distinct("metadata under", prefix, lambda host: values_under(host.metadata, prefix))

    def _distinct(self, what: str, name: str, of: Callable[[HostRow], Any]) -> Distinct:
        found = self._kept.get((what, name))
        if found is None:
            if len(self._kept) >= _KEPT:
                self._kept = {}
            found = self._kept[what, name] = Distinct(map(of, self._hosts))
        return found


def _key(value: Any) -> Hashable:
    """Return what two values that are the same have in common; 1, 1.0 and true are not the same."""
    if isinstance(value, Mapping):
        return dict, tuple(sorted((name, _key(each)) for name, each in value.items()))
    if isinstance(value, list | tuple):
        return list, tuple(map(_key, value))
    return type(value), value
