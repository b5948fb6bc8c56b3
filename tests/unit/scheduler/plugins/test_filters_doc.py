"""Test that the page on filters and weighers names each with its options, and marks those enabled by default."""

import re
from importlib.metadata import entry_points
from pathlib import Path

from moorage.config import options
from scheduler.plugins.loading import list_opts, load_filters, load_weighers

PAGE = (Path(__file__).parents[4] / "docs" / "filters-and-weighers.md").read_text()
FILTERS, WEIGHERS = PAGE.split("\n## Weighers\n")
#: A name at the beginning of a row, or after another one there, with the mark of those that are enabled by default.
NAME = re.compile(r"`([a-z_]+)`( \*)?")


def named(part: str) -> dict[str, bool]:
    """The names in the first column of the tables, each with whether it is marked."""
    columns = [line.split("|")[1] for line in part.splitlines() if re.match(r"\| `[a-z]", line)]
    return {name: bool(mark) for column in columns for name, mark in NAME.findall(column)}


def ours(namespace: str) -> set[str]:
    return {point.name for point in entry_points(group=namespace) if point.module.startswith(("filters.", "weighers."))}


def test_each_filter_stands_on_the_page_marked_if_it_is_enabled_by_default() -> None:
    enabled = options.new().scheduler.enabled_filters
    assert named(FILTERS) == {name: name in enabled for name in ours("moorage.filters")}
    assert [each.name for each in load_filters(options.new(), enabled)] == enabled


def test_each_weigher_stands_on_the_page_marked_if_it_is_enabled_by_default() -> None:
    enabled = options.new().scheduler.enabled_weighers
    assert named(WEIGHERS) == {name: name in enabled for name in ours("moorage.weighers")}
    assert [each.name for each in load_weighers(options.new(), enabled)] == enabled


def test_each_option_of_a_filter_or_weigher_stands_on_the_page() -> None:
    of_plugins = dict(list_opts())
    missing = [option.name for option in of_plugins["filters"] if f"`{option.name}`" not in FILTERS]
    missing += [
        option.name
        for option in of_plugins["weighers"]
        if not option.name.endswith("_weight_multiplier") and f"`{option.name}`" not in WEIGHERS
    ]
    assert missing == []


def test_the_multipliers_on_the_page_are_the_defaults() -> None:
    rows = re.findall(r"^\| (`.*?) \| (-?[\d,]+) \|", WEIGHERS, re.MULTILINE)
    shown = {name: float(number.replace(",", "")) for names, number in rows for name, _ in NAME.findall(names)}
    names = sorted(ours("moorage.weighers"))
    assert shown == {each.name: each.multiplier for each in load_weighers(options.new(), names)}
