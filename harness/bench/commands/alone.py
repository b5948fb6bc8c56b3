"""The benchmarks that run in this process alone."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from cliff.lister import Lister
from cliff.show import ShowOne

from harness.arguments import count
from harness.bench import candidates, decide, explain, packing
from harness.bench.commands.basis import SHAPE, progress, shape_of
from harness.bench.store import host_settings
from moorage.cli.command import Configured, argument, shown


class BenchDecide(Configured, ShowOne):
    """Measure decisions with neither bus nor database, by the default filters and weighers, and how a view is loaded.

    Times of decisions are of the processor, so that other work on the machine counts least.
    """

    arguments = (
        argument("--hosts", type=count(), default=10_000, help="default: %(default)s"),
        argument("--repeat", type=count(), default=200, help="decisions; default: %(default)s"),
        *SHAPE,
        argument("--traits", type=count(0), default=0, help="of each host; default: %(default)s"),
        argument(
            "--devices",
            type=count(0),
            default=0,
            help="of each host, which no instance wants, each a provider of its own; default: %(default)s",
        ),
        argument("--pool", action="store_true", help="all hosts have their disks from one shared pool"),
    )

    def take_action(self, arguments: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        """Measure, and return the figures."""
        request, occupancy = shape_of(arguments), arguments.occupancy
        settings = host_settings(
            occupancy,
            nested=request.nested,
            traits=arguments.traits,
            devices=arguments.devices,
            pool=arguments.pool,
        )
        with progress("storing hosts") as say:
            figures = asdict(decide.measure(arguments.hosts, settings, occupancy, request, arguments.repeat, say))
        return list(figures), shown(figures.values())


class BenchCandidates(Configured, Lister):
    """Measure how the groups of a request are matched with the providers of wide hosts, in this process alone.

    A row each: hosts with many equal devices, with many sharing pools, and of three levels; with and without a way to
    serve the request. The cross product is what a search tries that looks at every combination.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--repeat", type=count(), default=20, help="runs of each; default: %(default)s")
        parser.add_argument(
            "--candidates", type=count(), default=100, help="candidates to take of each; default: %(default)s"
        )
        return parser

    def take_action(self, arguments: argparse.Namespace) -> tuple[Sequence[str], list[Sequence[Any]]]:
        """Measure, and return a row a shape."""
        columns = [field.name for field in fields(candidates.CandidatesResult)]
        measured = candidates.measure(arguments.repeat, arguments.candidates)
        return columns, [shown(asdict(figures).values()) for figures in measured]


class BenchExplain(Configured, Lister):
    """Measure explanations beside the decisions that they explain, with every filter and weigher that is installed.

    A row each: a request that finds a host and wants to know why that one, and such that find none.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--hosts", type=count(), default=10_000, help="default: %(default)s")
        parser.add_argument("--repeat", type=count(), default=200, help="runs of each; default: %(default)s")
        return parser

    def take_action(self, arguments: argparse.Namespace) -> tuple[Sequence[str], list[Sequence[Any]]]:
        """Measure, and return a row for each kind of request."""
        measured = explain.measure(arguments.hosts, arguments.repeat)
        columns = [field.name for field in fields(explain.ExplainResult)]
        return columns, [shown(asdict(figures).values()) for figures in measured]


class BenchPacking(Configured, Lister):
    """Compare formulas for packing: hosts kept open, requests refused, and free room in pieces too small to be of use.

    A simulation in this process alone, of servers that come and go on hosts of three kinds. Each formula places the
    same servers. A row for each mix, load and formula; percentages, on average over the seeds. Takes a few minutes.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--hosts", type=count(), default=80, help="default: %(default)s")
        parser.add_argument(
            "--arrivals", type=count(), default=6000, help="servers that come in each run; default: %(default)s"
        )
        parser.add_argument("--seeds", type=count(), default=5, help="streams of servers; default: %(default)s")
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


def _percent(text: str) -> float:
    percent = float(text)
    if not 1 <= percent <= 200:
        raise argparse.ArgumentTypeError("must be between 1 and 200")
    return percent
