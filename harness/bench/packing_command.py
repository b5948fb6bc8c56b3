"""The command `moorage bench packing`: a simulation of packing formulas."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from cliff.lister import Lister

from harness.bench import packing
from moorage.cli.command import Configured, shown


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _percent(text: str) -> float:
    percent = float(text)
    if not 1 <= percent <= 200:
        raise argparse.ArgumentTypeError("must be between 1 and 200")
    return percent


class BenchPacking(Configured, Lister):
    """Compare formulas for packing: hosts kept open, requests refused, and free room in pieces too small to be of use.

    A simulation in this process alone, of servers that come and go on hosts of three kinds. Each formula places the
    same servers. A row for each mix, load and formula; percentages, on average over the seeds. Takes a few minutes.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--hosts", type=_count, default=80, help="default: %(default)s")
        parser.add_argument(
            "--arrivals", type=_count, default=6000, help="servers that come in each run; default: %(default)s"
        )
        parser.add_argument("--seeds", type=_count, default=5, help="streams of servers; default: %(default)s")
        parser.add_argument(
            "--load",
            type=_percent,
            action="append",
            help="what would be used of the scarcer class, in percent; may be repeated; default: 50, 75 and 95",
        )
        return parser

    def take_action(self, arguments: argparse.Namespace) -> tuple[Sequence[str], list[Sequence[Any]]]:
        """Simulate, and return a row for each mix, load and formula."""
        loads = [percent / 100 for percent in arguments.load or (50.0, 75.0, 95.0)]
        measured = packing.measure(arguments.hosts, arguments.arrivals, loads, arguments.seeds)
        columns = ["mix", "load_percent", "formula", *(field.name for field in fields(packing.PackingRun))]
        rows = [asdict(figures) for figures in measured]
        return columns, [shown(_rounded(row[name]) for name in columns) for row in rows]


def _rounded(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value
