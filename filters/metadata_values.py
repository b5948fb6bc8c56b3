"""Parsing of aggregate metadata values: one text may list several, with commas."""

from collections.abc import Iterable


def listed(values: Iterable[str]) -> set[str]:
    """Return all values that these texts list."""
    return {one for text in values for each in text.split(",") if (one := each.strip())}
