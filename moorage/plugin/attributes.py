"""Reading of hosts' attributes from drivers and of aggregates' metadata from operators.

:mod:`moorage.plugin` exports the part for plug-ins.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

#: The greatest number: sums of products of such numbers with weights stay finite.
GREATEST = 1e100


class BadValue(ValueError):
    """A value from an operator or a driver is not valid for a plug-in; the text names it, for the operator."""


def attribute(attributes: Mapping[str, Any], path: str) -> Any:
    """Return an attribute by name, or by nested names joined by dots; None if absent.

    A name may contain dots itself.
    """
    if path in attributes:
        return attributes[path]
    if "." not in path:
        return None
    # Search by the existing names and not by the dots of the path, which may come from a request and have thousands.
    leading = [name for name in attributes if path.startswith(name) and path.startswith(".", len(name))]
    for name in sorted(leading, key=len):
        within = attributes[name]
        if isinstance(within, Mapping) and (found := attribute(within, path[len(name) + 1 :])) is not None:
            return found
    return None


def paths(attributes: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the paths by which :func:`attribute` finds attributes.

    :param before: what precedes each path.
    """
    for name, value in attributes.items():
        yield before + name
        if isinstance(value, Mapping):
            yield from paths(value, f"{before}{name}.")


def number(name: str, value: Any, absent: float) -> float:
    """Return a value as a number from -1e100 to 1e100; ``absent`` for None.

    :raises BadValue: the value is not such a number.
    """
    if value is None:
        return absent
    found = _finite(value)
    if math.isnan(found):
        raise BadValue(f"{name} is {value!r:.60}, which is no number")
    if abs(found) > GREATEST:
        raise BadValue(f"{name} is {value!r:.60}, which is not between -{GREATEST} and {GREATEST}")
    return found


def smallest(key: str, values: Collection[str], default: float) -> float:
    """Return the smallest of the values of a metadata key, or the default if there are none.

    :raises BadValue: a value is not a number.
    """
    return min((number(f"aggregate metadata {key}", value, default) for value in values), default=default)


def values_under(metadata: Mapping[str, frozenset[str]], prefix: str) -> frozenset[str]:
    """Return the values of all keys that begin with a prefix."""
    return frozenset().union(*(values for key, values in metadata.items() if key.startswith(prefix)))


def is_one_of(name: str, names: Iterable[str]) -> bool:
    """Return whether a name is among others, compared without case."""
    folded = name.casefold()
    return any(folded == other.casefold() for other in names)


def measured(value: Any) -> float:
    """Return a value as a finite number, or NaN if it is not one; for values that a driver may omit."""
    return math.nan if isinstance(value, bool) else _finite(value)


def _finite(value: Any) -> float:
    """Return a value as a finite number, or NaN."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return found if math.isfinite(found) else math.nan
