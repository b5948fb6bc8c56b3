"""The command `moorage bench explain`."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from cliff.lister import Lister

from harness.bench import explain
from moorage.cli.command import Configured, shown


def _number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


class BenchExplain(Configured, Lister):
    """Measure explanations beside the decisions that they explain, with every filter and weigher that is installed.

    A row each: a request that finds a host and wants to know why that one, and such that find none.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--hosts", type=_number, default=10_000, help="default: %(default)s")
        parser.add_argument("--repeat", type=_number, default=200, help="runs of each; default: %(default)s")
        return parser

    def take_action(self, arguments: argparse.Namespace) -> tuple[Sequence[str], list[Sequence[Any]]]:
        """Measure, and return a row for each kind of request."""
        measured = explain.measure(arguments.hosts, arguments.repeat)
        columns = [field.name for field in fields(explain.ExplainResult)]
        return columns, [shown(asdict(figures).values()) for figures in measured]
