"""Attributes and metadata of hosts as dictionary-encoded columns: each distinct value is tested once, not once a host.

Drivers may measure their hosts every few seconds. So a column is updated lazily, at its next use, and only in the rows
of the hosts that have changed since.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.plugin import BoolArray, FloatArray, IntArray
from moorage.plugin.attributes import attribute, paths, values_under
from scheduler.registry.hosts import HostRow

#: The maximum number of cached columns: requests name the paths and keys. Arbitrary: more than flavors name.
_MAX_COLUMNS = 500
#: The maximum number of cached conversions for each column: more than there are plug-ins that read the same path.
_MAX_CONVERSIONS = 4


class DictionaryColumn:
    """A dictionary-encoded column: a code for each host, and each distinct value once. Immutable after construction.

    Safe to use from several threads: at worst, two of them compute the same result.
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        #: The value of each code; None for a free code: no host has it any more, and the next new value gets it.
        self._values: list[Any] = []
        self._hosts_with: list[int] = []
        self._free: list[int] = []
        self._code_of: dict[Hashable, int] = {}
        #: By conversion: the number of each code, and the codes whose number is still missing.
        self._numbers: dict[Hashable, tuple[FloatArray, Collection[int]]] = {}
        self._codes: NDArray[np.intp] = np.array([self._enter(value) for value in values], dtype=np.intp)

    def updated(self, values: Mapping[int, Any], length: int) -> "DictionaryColumn":
        """Return the column for ``length`` hosts with some values replaced; the same object if nothing changes.

        Only the changed rows are encoded; the rest is copied.

        :param values: the new values by row; a row beyond the present length must be among them.
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
            # Enter before leaving: an unchanged value that only one host has must not lose its code.
            code = after._codes[row] = after._enter(value, keys[row])
            if self._code_of.get(keys[row]) != code:
                entered.add(code)
            if row < kept:
                after._leave(int(self._codes[row]))
        for code in self._codes[kept:].tolist():
            after._leave(code)
        # Codes are reused: the known number of an entered code may belong to another value.
        after._numbers = {
            conversion: (known, entered.union(missing)) for conversion, (known, missing) in dict(self._numbers).items()
        }
        return after

    @property
    def values(self) -> list[Any]:
        """The distinct values of all hosts."""
        return [value for value, hosts in zip(self._values, self._hosts_with, strict=True) if hosts]

    def where(self, holds: Callable[[Any], bool]) -> BoolArray:
        """Return a mask of the hosts whose value satisfies a predicate; it is called once for each distinct value."""
        counted = zip(self._values, self._hosts_with, strict=True)
        return np.array([hosts > 0 and bool(holds(value)) for value, hosts in counted], dtype=np.bool_)[self._codes]

    def numbers(self, convert: Callable[[Any], float], conversion: Hashable) -> FloatArray:
        """Return a number for each host; ``convert`` is called once for each distinct value.

        :param conversion: the cache key of ``convert``; the same key must always mean the same conversion.
        """
        known, missing = self._numbers.get(conversion, (np.zeros(0), range(len(self._values))))
        if missing:
            found = np.zeros(len(self._values))
            found[: len(known)] = known
            for code in missing:
                if self._hosts_with[code]:
                    found[code] = convert(self._values[code])
            if len(self._numbers) >= _MAX_CONVERSIONS:
                self._numbers = {}
            known = found
            self._numbers[conversion] = known, ()
        return known[self._codes]

    def _has(self, row: int, key: Hashable) -> bool:
        return row < len(self._codes) and self._code_of.get(key) == self._codes[row]

    def _enter(self, value: Any, key: Hashable = None) -> int:
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
        """Count one host less for a code; free the code if no host has it any more."""
        self._hosts_with[code] -= 1
        if not self._hosts_with[code]:
            del self._code_of[_key(self._values[code])]
            self._values[code] = None
            self._free.append(code)


class HostAttributes:
    """Driver attributes and aggregate metadata of all hosts, as columns that are built at their first use.

    Safe to use from several threads, as :class:`DictionaryColumn` is.
    """

    def __init__(self, hosts: Sequence[HostRow]) -> None:
        self.hosts = hosts
        #: The version of these attributes, and the version at which each host changed last.
        self._version = 0
        self._changed_at: IntArray = np.zeros(len(hosts), dtype=np.int64)
        #: The columns, each with its version.
        self._columns: dict[tuple[str, str], tuple[int, DictionaryColumn]] = {}
        #: By kind, the names that any host has.
        self._known: dict[str, frozenset[str]] = {}

    def updated(self, hosts: Sequence[HostRow], rows: Collection[int]) -> "HostAttributes":
        """Return the attributes of the present hosts.

        :param rows: the rows that have changed or are new.
        """
        after = HostAttributes(hosts)
        after._version = self._version + 1
        same = min(len(hosts), len(self._changed_at))
        after._changed_at[:same] = self._changed_at[:same]
        after._changed_at[list(rows)] = after._version
        after._columns = dict(self._columns)
        return after

    def attribute(self, path: str) -> DictionaryColumn:
        """Return the column of the attribute that drivers report under a path."""
        return self._named(
            "attribute", path, lambda host: attribute(host.attributes, path), None, lambda host: paths(host.attributes)
        )

    def metadata(self, key: str) -> DictionaryColumn:
        """Return the column of the values that the hosts' aggregates give a key."""
        return self._named(
            "metadata", key, lambda host: host.metadata.get(key, frozenset()), frozenset(), lambda host: host.metadata
        )

    @cached_property
    def metadata_keys(self) -> frozenset[str]:
        """The keys that any host's aggregates give a value."""
        return self._names("metadata", lambda host: host.metadata)

    def metadata_under(self, prefix: str) -> DictionaryColumn:
        """Return the column of the values that the hosts' aggregates give all keys with a prefix together."""
        return self._column("metadata under", prefix, lambda host: values_under(host.metadata, prefix))

    def servers_with(self, image_property: str) -> DictionaryColumn:
        """Return the column of the number of servers that run from an image with a property: ``name=value``."""
        return self._named(
            "image property",
            image_property,
            lambda host: host.image_properties.get(image_property, 0),
            0,
            lambda host: host.image_properties,
        )

    def _named(
        self,
        kind: str,
        name: str,
        value_of: Callable[[HostRow], Any],
        absent: Hashable,
        names_of: Callable[[HostRow], Iterable[str]],
    ) -> DictionaryColumn:
        """Return the column of a name, which a request may have chosen.

        There is one column for all names that no host has. A request may contain hundreds of names: looking up each of
        them on every host would take seconds, and displace columns that other requests use.

        :param absent: the value of a host without the name.
        """
        if (kind, name) not in self._columns and name not in self._names(kind, names_of):
            return self._column(f"no {kind}", "", lambda _: absent)
        return self._column(kind, name, value_of)

    def _names(self, kind: str, names_of: Callable[[HostRow], Iterable[str]]) -> frozenset[str]:
        """Return the names that any host has."""
        if (found := self._known.get(kind)) is None:
            by_host = self._column(f"names of {kind}", "", lambda host: frozenset(names_of(host)))
            found = self._known[kind] = frozenset().union(*by_host.values)
        return found

    def _column(self, kind: str, name: str, value_of: Callable[[HostRow], Any]) -> DictionaryColumn:
        """Return a column of the present version, from the cache if it is there."""
        version, found = self._columns.get((kind, name), (-1, None))
        if found is None or version < self._version:
            # Update the column from its version; if more than half of the hosts have changed, rebuild it instead.
            rows = np.flatnonzero(self._changed_at > version).tolist()
            if found is None or len(rows) > len(self.hosts) // 2:
                found = DictionaryColumn(map(value_of, self.hosts))
            else:
                found = found.updated({row: value_of(self.hosts[row]) for row in rows}, len(self.hosts))
            if len(self._columns) >= _MAX_COLUMNS:
                self._columns = {}
            self._columns[kind, name] = self._version, found
        return found


def _key(value: Any) -> Hashable:
    """Return a hashable key that is equal for equal JSON values; 1, 1.0 and true are different."""
    if isinstance(value, str | int | float | frozenset | None):
        return type(value), value
    # As text: documents may have thousands of parts, and a tuple of all of them would take seconds for all hosts.
    return msgspec.json.encode(value, order="sorted")
