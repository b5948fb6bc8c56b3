"""The benchmarks that run in this process only."""

import argparse
from dataclasses import asdict, fields
from typing import Any

from cliff.lister import Lister
from cliff.show import ShowOne

from harness.arguments import count_option, number_between
from harness.bench import candidates, decide, explain, packing
from harness.bench.commands.basis import SHAPE, progress, shape_of
from harness.bench.store import host_settings
from harness.termination import unwound_by_signals
from moorage.cli.arguments import argument
from moorage.cli.command import Configured, Record, Table, shown


class BenchDecide(Configured, ShowOne):
    """Measure decisions with the default filters and weighers, and loading a host view, without bus or database.

    Decisions are measured in processor time, so that other work on the machine has little influence.
    """

    arguments = (
        count_option("--hosts", 10_000, "Number of hosts"),
        count_option("--repeat", 200, "Number of decisions"),
        *SHAPE,
        count_option("--traits", 0, "Traits per host", least=0),
        count_option("--devices", 0, "Unrequested devices per host, each a provider of its own", least=0),
        argument("--pool", action="store_true", help="Give all hosts their disk from one shared pool"),
    )

    def take_action(self, arguments: argparse.Namespace) -> Record:
        """Measure, and return the figures."""
        request, occupancy = shape_of(arguments), arguments.occupancy
        settings = host_settings(
            occupancy, nested=request.nested, traits=arguments.traits, devices=arguments.devices, pool=arguments.pool
        )
        with unwound_by_signals(), progress("storing hosts") as say:
            figures = asdict(decide.measure(arguments.hosts, settings, occupancy, request, arguments.repeat, say))
        return tuple(figures), shown(figures.values())


class BenchCandidates(Configured, Lister):
    """Measure the search for allocation candidates on hosts with many providers, in this process.

    There is a row for hosts with many equal devices, for hosts with many sharing pools, and for hosts with three
    levels, each with and without a solution. The cross product is the number of combinations that a complete search
    would try.
    """

    arguments = (
        count_option("--repeat", 20, "Runs per row"),
        # So many are found long before a search reaches its bound of steps.
        count_option("--candidates", 100, "Candidates to take per run", most=10_000),
    )

    def take_action(self, arguments: argparse.Namespace) -> Table:
        """Measure, and return a row a shape."""
        columns = tuple(field.name for field in fields(candidates.CandidatesResult))
        measured = candidates.measure(arguments.repeat, arguments.candidates)
        return columns, [shown(asdict(figures).values()) for figures in measured]


class BenchExplain(Configured, Lister):
    """Measure explanations in comparison with their decisions, with all installed filters and weighers.

    There is a row for a request that finds a host, and one for each kind of request without a valid host.
    """

    arguments = (count_option("--hosts", 10_000, "Number of hosts"), count_option("--repeat", 200, "Runs per row"))

    def take_action(self, arguments: argparse.Namespace) -> Table:
        """Measure, and return a row for each kind of request."""
        with unwound_by_signals():
            measured = explain.measure(arguments.hosts, arguments.repeat)
        columns = tuple(field.name for field in fields(explain.ExplainResult))
        return columns, [shown(asdict(figures).values()) for figures in measured]


class BenchPacking(Configured, Lister):
    """Compare packing formulas: hosts in use, refused requests, and free capacity in fragments too small to use.

    This simulates servers that come and go on hosts of three kinds, in this process. Every formula places the same
    servers. There is a row for each mix, load and formula, with percentages averaged over the seeds. The run takes a
    few minutes.
    """

    arguments = (
        count_option("--hosts", 80, "Number of hosts"),
        count_option("--arrivals", 6000, "Servers that arrive in each run"),
        count_option("--seeds", 5, "Number of seeds, each a different stream of servers"),
        argument(
            "--load",
            type=number_between(1, 200),
            action="append",
            help="Target usage of the scarcer resource class, in percent; may be repeated (default: 50, 75 and 95)",
        ),
    )

    def take_action(self, arguments: argparse.Namespace) -> Table:
        """Simulate, and return a row for each mix, load and formula."""
        loads = [percent / 100 for percent in arguments.load or (50.0, 75.0, 95.0)]
        measured = packing.measure(arguments.hosts, arguments.arrivals, loads, arguments.seeds)
        columns = ("mix", "load_percent", "formula", *(field.name for field in fields(packing.PackingRun)))
        rows = [asdict(figures) for figures in measured]
        return columns, [shown(_rounded(row[name]) for name in columns) for row in rows]


def _rounded(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value
