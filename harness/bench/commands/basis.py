"""The arguments that several benchmarks share (how many ask, and for what), and the progress of each run."""

import argparse
import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console

from harness.arguments import count, percent, rate
from harness.bench.requests import Request
from moorage.cli.command import Argument, argument, positive

#: How many ask, and for how long.
LOAD: tuple[Argument, ...] = (
    argument("--clients", type=count(), default=1, help="default: %(default)s"),
    argument(
        "--processes",
        type=count(),
        default=1,
        help="processes of clients, where nothing is embedded; default: %(default)s",
    ),
    argument("--seconds", type=positive, default=5.0, help="that are counted; default: %(default)s"),
)
PER_REQUEST = argument("--per-request", type=count(), default=1, help="instances of each request; default: %(default)s")
ALTERNATES = argument("--alternates", type=count(0), default=2, help="of each instance; default: %(default)s")
#: The requests, and the hosts that they meet.
SHAPE: tuple[Argument, ...] = (
    PER_REQUEST,
    ALTERNATES,
    argument(
        "--occupancy",
        type=percent,
        metavar="PERCENT",
        help="fill the hosts, of ordinary size, to shares around this one before; default: empty hosts so large that "
        "nothing fills them",
    ),
    argument(
        "--groups",
        type=rate,
        metavar="SHARE",
        default=0.0,
        help="the share of requests whose instances are members of anti-affinity groups; default: %(default)s",
    ),
    argument(
        "--nested",
        action="store_true",
        help="hosts of two NUMA nodes, and instances that take a processor and memory of each",
    ),
)


def shape_of(arguments: argparse.Namespace) -> Request:
    """Return the shape of the requests that the arguments ask for.

    :raises ConfigurationError: there are too few hosts for them.
    """
    request = Request(arguments.per_request, arguments.alternates, arguments.groups, arguments.nested)
    request.check(arguments.hosts)
    return request


@contextlib.contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """Show what a run is doing on standard error, where that is a terminal; yield the function that changes it."""
    with Console(stderr=True).status(first) as status:
        yield status.update
