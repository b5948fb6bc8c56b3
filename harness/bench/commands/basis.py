"""The arguments that several benchmarks share (number of clients, and their requests), and the progress of each run."""

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console

from harness.arguments import MOST_THREADS, count_option, number_between
from harness.bench.requests import Request
from moorage.cli.arguments import Argument, argument, positive

#: The number of clients, and for how long they send requests.
LOAD: tuple[Argument, ...] = (
    count_option("--clients", 1, "Number of clients", most=MOST_THREADS),
    count_option("--processes", 1, "Number of client processes, if servers are used", most=MOST_THREADS),
    argument("--seconds", type=positive, default=5.0, help="Seconds to measure (default: %(default)s)"),
)
PER_REQUEST = count_option("--per-request", 1, "Instances per request")
ALTERNATES = count_option("--alternates", 2, "Alternates per instance", least=0)
#: The requests, and the hosts that serve them.
SHAPE: tuple[Argument, ...] = (
    PER_REQUEST,
    ALTERNATES,
    argument(
        "--occupancy",
        type=number_between(0, 100),
        metavar="PERCENT",
        help="Before measuring, fill hosts of ordinary size to fractions around this one (default: empty hosts, too "
        "large to fill up)",
    ),
    argument(
        "--groups",
        type=number_between(0, 1),
        metavar="SHARE",
        default=0.0,
        help="Fraction of requests whose instances are members of anti-affinity groups (default: %(default)s)",
    ),
    argument(
        "--nested",
        action="store_true",
        help="Use hosts with two NUMA nodes, and instances that need a processor and memory from each",
    ),
)


def shape_of(arguments: argparse.Namespace) -> Request:
    """Return the shape of the requests that the arguments describe.

    :raises ConfigurationError: there are too few hosts for these requests.
    """
    request = Request(arguments.per_request, arguments.alternates, arguments.groups, arguments.nested)
    request.check(arguments.hosts)
    return request


def given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the values of some options, for the figures of a run."""
    return {name: getattr(arguments, name) for name in names}


@contextlib.contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """Show on standard error what a run is doing, if that is a terminal; yield the function that changes the text."""
    with Console(stderr=True).status(first) as status:
        yield status.update
