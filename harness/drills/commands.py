"""The commands `moorage drill list` and `moorage drill run`."""

import argparse
import sys
import time

from cliff.lister import Lister
from cliff.show import ShowOne

from harness.arguments import MOST_THREADS, OnServers
from harness.drills.catalog import DRILLS
from harness.drills.report import Arguments
from moorage.cli.arguments import argument, number_from, positive
from moorage.cli.command import Configured, Record, ShownLines, Table, shown


class DrillList(Configured, Lister):
    """List the drills."""

    only_reads = True

    def take_action(self, _arguments: argparse.Namespace) -> Table:
        """Return a row for each drill."""
        return ("drill", "needs", "what happens"), [(name, one.needs, one.does) for name, one in DRILLS.items()]


class DrillRun(OnServers, ShowOne):
    """Run a drill on a private cloud of fake hosts, and check the cloud at the end.

    Meanwhile clients build, move and delete servers. The command reports each of its actions, and shows its counts. The
    exit status is 1 if there is an error: more allocated than the capacity, allocations or guests without an owner, an
    order that has not ended, or an order that failed without a reason.
    """

    arguments = (
        argument("drill", choices=list(DRILLS), metavar="DRILL", help=f"Drill to run, one of: {', '.join(DRILLS)}"),
        argument("--seed", type=int, help="Random seed (default: the time)"),
        argument("--seconds", type=positive, default=30.0, help="Duration of the drill (default: %(default)s)"),
        argument(
            "--clients",
            type=number_from(1, MOST_THREADS),
            default=8,
            help="Number of clients (default: %(default)s); race has 16",
        ),
        argument("--former", metavar="PYTHON", help="For upgrade: interpreter of an environment with another release"),
    )

    def take_action(self, arguments: argparse.Namespace) -> Record:
        """Run the drill, and return its figures.

        :raises ConfigurationError: the drill needs servers or another release, and is given none.
        """
        drill, began = DRILLS[arguments.drill], time.monotonic()
        seed = int(time.time()) if arguments.seed is None else arguments.seed

        def say(what: str) -> None:
            sys.stderr.write(f"{time.monotonic() - began:6.1f} s  {what}\n")
            sys.stderr.flush()

        say(f"drill {arguments.drill}, seed {seed}")
        with self.servers(arguments) as servers:
            drill.check(arguments.drill, servers)
            report = drill.run(servers, Arguments(seed, arguments.seconds, arguments.clients, arguments.former), say)
        self.failed = bool(report.findings)
        for finding in report.findings:
            say(f"FOUND: {finding}")
        say(f"{len(report.findings)} findings, seed {seed}")
        figures = {"drill": arguments.drill, "seed": seed, **report.figures}
        # They have been said: a table has their number.
        findings = ShownLines(list(report.findings), [str(len(report.findings))])
        columns, values = (*figures, "findings"), (*shown(figures.values()), findings)
        if not report.series:
            return columns, values
        lines = [f"{name}: {', '.join(f'{one:g}' for one in each)}" for name, each in report.series.items()]
        return (*columns, "series"), (*values, ShownLines(dict(report.series), lines))
