"""How what is said of a host is read: by its driver in attributes, by operators in the metadata of aggregates.

Plug-ins find what they need of this in :mod:`moorage.plugin`.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any


class BadValue(ValueError):
    """What an operator or a driver has written is not what a plug-in can take; the text names it, for the operator."""


def attribute(attributes: Mapping[str, Any], path: str) -> Any:
    """Return what is found under a name, or under names within each other joined by dots, or None.

    A name may have dots itself.
    """
    if path in attributes:
        return attributes[path]
    for end in (place for place, letter in enumerate(path) if letter == "."):
        within = attributes.get(path[:end])
        if isinstance(within, Mapping) and (found := attribute(within, path[end + 1 :])) is not None:
            return found
    return None


def number(name: str, value: Any, absent: float) -> float:
    """Return a value as a finite number; ``absent`` for None.

    :raises BadValue: it is none.
    """
    if value is None:
        return absent
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise BadValue(f"{name} is {value!r:.60}, which is no number")
    return found


def smallest(key: str, values: Collection[str], default: float) -> float:
    """Return the smallest of the values of a key of metadata, or the default where there are none.

    :raises BadValue: one of them is no number.
    """
    return min((number(f"aggregate metadata {key}", value, default) for value in values), default=default)


def values_under(metadata: Mapping[str, frozenset[str]], prefix: str) -> frozenset[str]:
    """Return the values of all keys that begin with a prefix."""
    return frozenset().union(*(values for key, values in metadata.items() if key.startswith(prefix)))


def is_one_of(name: str, names: Iterable[str]) -> bool:
    """Tell whether a name is among others, upper and lower case alike, as operators type them."""
    folded = name.casefold()
    return any(folded == other.casefold() for other in names)


def measured(value: Any) -> float:
    """Return a value as a finite number; NaN where it is none, as of what a driver may or may not report."""
    if value is None or isinstance(value, bool):
        return math.nan
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return found if math.isfinite(found) else math.nan
