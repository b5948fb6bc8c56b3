"""Parse aggregate metadata values: one text may list several values, separated by commas."""

from collections.abc import Iterable


def listed(values: Iterable[str]) -> set[str]:
    """Return all values that these texts list."""
    return {one for text in values for each in text.split(",") if (one := each.strip())}


def admits(value: str, values: frozenset[str]) -> bool:
    """Return whether metadata values admit ``value``: they list it, or there are none."""
    return not values or value in listed(values)
