"""What hosts are described with, by distinct value: each is asked about once, however many hosts have it.

Drivers may measure their hosts every few seconds. So what was worked out of all hosts is worked out anew only of those
that have changed since, when it is next asked for.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moorage.plugin import BoolArray, FloatArray, IntArray
from moorage.plugin.attributes import attribute, values_under
from scheduler.registry.hosts import HostRow

#: Requests say themselves what is looked at, so no more than this is kept; arbitrary, and more than flavors name.
_KEPT = 500
#: Of one value in this many ways a number is reckoned and kept: more than there are plug-ins that ask about it.
_RECKONED = 4


class DictionaryColumn:
    """One value for each host, kept once, under a code, for all hosts that have it. It does not change once it is made.

    Safe to use from several threads: at worst two of them work the same out.
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        #: By code; None under a code that no host has any more, until another value is given it.
        self._values: list[Any] = []
        self._hosts_with: list[int] = []
        self._free: list[int] = []
        self._code_of: dict[Hashable, int] = {}
        #: By code, and for which codes it is still to be reckoned.
        self._reckoned: dict[Hashable, tuple[FloatArray, Collection[int]]] = {}
        self._codes: NDArray[np.intp] = np.array([self._enter(value) for value in values], dtype=np.intp)

    def changed(self, values: Mapping[int, Any], length: int) -> "DictionaryColumn":
        """Return what it is for ``length`` hosts, some of which have other values: by row, and all new rows among them.

        It costs what there are of those.
        """
        keys = {row: _key(value) for row, value in values.items()}
        if length == len(self._codes) and all(self._has(row, key) for row, key in keys.items()):
            return self
        after = DictionaryColumn()
        after._values, after._hosts_with = self._values.copy(), self._hosts_with.copy()
        after._free, after._code_of = self._free.copy(), self._code_of.copy()
        after._codes = np.empty(length, dtype=np.intp)
        kept = min(length, len(self._codes))
        after._codes[:kept] = self._codes[:kept]
        entered = set()
        for row, value in values.items():
            # First in, then out: a value does not go and come again.
            code = after._codes[row] = after._enter(value, keys[row])
            if self._code_of.get(keys[row]) != code:
                entered.add(code)
            if row < kept:
                after._leave(int(self._codes[row]))
        for code in self._codes[kept:].tolist():
            after._leave(code)
        # Some of these codes may have been another value's.
        after._reckoned = {way: (known, entered.union(open_)) for way, (known, open_) in dict(self._reckoned).items()}
        return after

    @property
    def values(self) -> list[Any]:
        """Every value that any host has."""
        return [value for value, hosts in zip(self._values, self._hosts_with, strict=True) if hosts]

    def where(self, holds: Callable[[Any], bool]) -> BoolArray:
        """Return which hosts have a value that is such as it shall be."""
        said = zip(self._values, self._hosts_with, strict=True)
        return np.array([hosts > 0 and bool(holds(value)) for value, hosts in said], dtype=np.bool_)[self._codes]

    def numbers(self, reckon: Callable[[Any], float], kept_as: Hashable) -> FloatArray:
        """Return a number for each host.

        :param kept_as: what tells this way of reckoning from others: its numbers are kept.
        """
        known, missing = self._reckoned.get(kept_as, (np.zeros(0), range(len(self._values))))
        if missing:
            found = np.zeros(len(self._values))
            found[: len(known)] = known
            for code in missing:
                if self._hosts_with[code]:
                    found[code] = reckon(self._values[code])
            if len(self._reckoned) >= _RECKONED:
                self._reckoned = {}
            known = found
            self._reckoned[kept_as] = known, ()
        return known[self._codes]

    def _has(self, row: int, key: Hashable) -> bool:
        return row < len(self._codes) and self._code_of.get(key) == self._codes[row]

    def _enter(self, value: Any, key: Hashable = None) -> int:
        """Return the code of a value that one host more has."""
        key = key or _key(value)
        code = self._code_of.get(key)
        if code is None:
            if self._free:
                code = self._free.pop()
                self._values[code] = value
            else:
                code = len(self._values)
                self._values.append(value)
                self._hosts_with.append(0)
            self._code_of[key] = code
        self._hosts_with[code] += 1
        return code

    def _leave(self, code: int) -> None:
        """Note that one host less has the value of a code."""
        self._hosts_with[code] -= 1
        if not self._hosts_with[code]:
            del self._code_of[_key(self._values[code])]
            self._values[code] = None
            self._free.append(code)


class HostAttributes:
    """What the drivers say of some hosts, and the metadata of their aggregates; worked out when first asked for.

    Safe to use from several threads, as :class:`DictionaryColumn` is.
    """

    def __init__(self, hosts: Sequence[HostRow]) -> None:
        self._hosts = hosts
        #: Facts that follow each other are numbered: since which of them each host is as it is.
        self._number = 0
        self._since: IntArray = np.zeros(len(hosts), dtype=np.int64)
        #: With the number of the facts for which it was worked out.
        self._kept: dict[tuple[str, str], tuple[int, DictionaryColumn]] = {}

    def changed(self, hosts: Sequence[HostRow], rows: Collection[int]) -> "HostAttributes":
        """Return the facts of the hosts as they are now: of these rows something else is said, or they are new."""
        after = HostAttributes(hosts)
        after._number = self._number + 1
        same = min(len(hosts), len(self._since))
        after._since[:same] = self._since[:same]
        after._since[list(rows)] = after._number
        after._kept = dict(self._kept)
        return after

    @property
    def hosts(self) -> int:
        """Of how many hosts this is."""
        return len(self._hosts)

    def attribute(self, path: str) -> DictionaryColumn:
        """Return what the drivers say under a path."""
        return self._distinct("attribute", path, lambda host: attribute(host.attributes, path))

    def metadata(self, key: str) -> DictionaryColumn:
        """Return the values that the hosts' aggregates give a key."""
        if key not in self.metadata_keys:
            # Requests may name any number of these, and none of them needs a column of its own.
            return self._distinct("no metadata", "", lambda _: frozenset())
        return self._distinct("metadata", key, lambda host: host.metadata.get(key, frozenset()))

    @cached_property
    def metadata_keys(self) -> frozenset[str]:
        """The keys that any host's aggregates give a value."""
        return frozenset().union(*self._distinct("metadata keys", "", lambda host: frozenset(host.metadata)).values)

    def metadata_under(self, prefix: str) -> DictionaryColumn:
        """Return the values that the hosts' aggregates give all keys with a prefix together."""
        return self._distinct("metadata under", prefix, lambda host: values_under(host.metadata, prefix))

    def servers_with(self, image_property: str) -> DictionaryColumn:
        """Return how many servers of each host run from an image with a property: ``name=value``."""
        return self._distinct(
            "image property", image_property, lambda host: host.image_properties.get(image_property, 0)
        )

    def _distinct(self, what: str, name: str, of: Callable[[HostRow], Any]) -> DictionaryColumn:
        number, found = self._kept.get((what, name), (-1, None))
        if found is None or number < self._number:
            rows = np.flatnonzero(self._since > number).tolist()
            if found is None or len(rows) > len(self._hosts) // 2:
                found = DictionaryColumn(map(of, self._hosts))
            else:
                found = found.changed({row: of(self._hosts[row]) for row in rows}, len(self._hosts))
            if len(self._kept) >= _KEPT:
                self._kept = {}
            self._kept[what, name] = self._number, found
        return found


def _key(value: Any) -> Hashable:
    """Return what two values that are the same have in common; 1, 1.0 and true are not the same."""
    if isinstance(value, str | int | float | frozenset | None):
        return type(value), value
    if isinstance(value, Mapping):
        return dict, tuple(sorted((name, _key(each)) for name, each in value.items()))
    if isinstance(value, list | tuple):
        return list, tuple(map(_key, value))
    return type(value), value
