"""The order of the rows of a list, by `--sort` and by cliff's options for the same purpose."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from moorage import errors

_OF_CLIFF = ("sort_columns", "sort_direction")


def hide_options_of_cliff(parser: argparse.ArgumentParser) -> None:
    """Leave cliff's options for sorting out of the help of a parser that has `--sort`."""
    for action in parser._actions:  # noqa: SLF001
        if action.dest in _OF_CLIFF:
            action.help = argparse.SUPPRESS
    # argparse cannot print the usage of an exclusive group whose options are all hidden.
    groups = parser._mutually_exclusive_groups  # noqa: SLF001
    groups[:] = [group for group in groups if group._group_actions[0].dest not in _OF_CLIFF]  # noqa: SLF001


def replace_options_of_cliff(parsed_args: argparse.Namespace) -> None:
    """Replace cliff's options for sorting by `--sort`.

    cliff would sort the rows that `--limit` has left, would sort amounts as text, and would ignore unknown columns.
    """
    direction = parsed_args.sort_direction or "asc"
    parsed_args.sorted_by = [*parsed_args.sorted_by, *(f"{name}:{direction}" for name in parsed_args.sort_columns)]
    parsed_args.sort_columns = []


def by_column(rows: list[Any], column_names: Sequence[str], given: str, key: Callable[[Any], Any]) -> list[Any]:
    """Return rows in the order of a column, or of `COLUMN:desc`; rows without a value come last.

    :raises InvalidRequest: there is no such column.
    """
    name, _, direction = given.partition(":")
    if name not in column_names or direction not in ("", "asc", "desc"):
        raise errors.InvalidRequest(path="--sort", reason=f"{given} is not one of {', '.join(column_names)}")
    values = [key(row[list(column_names).index(name)]) for row in rows]
    known = [(value, row) for value, row in zip(values, rows, strict=True) if value not in (None, "")]
    try:
        known.sort(key=lambda pair: pair[0], reverse=direction == "desc")
    except TypeError:  # objects, and values of several types, can only be sorted as text
        known.sort(key=lambda pair: str(pair[0]), reverse=direction == "desc")
    return [row for _, row in known] + [row for value, row in zip(values, rows, strict=True) if value in (None, "")]
