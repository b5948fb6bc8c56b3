"""The benchmarks of the store: over HTTP, and alone."""

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, fields

from cliff.lister import Lister
from cliff.show import ShowOne

from harness.arguments import MOST_THREADS, Servers, count_option, private_mariadb, servers_argument
from harness.bench import claims, http
from harness.bench.commands.basis import LOAD, PER_REQUEST, given, progress
from harness.bench.load import Load
from harness.termination import unwound_by_signals
from moorage.cli.arguments import argument, one_of
from moorage.cli.command import Configured, Record, Table, shown

_DATABASE_OPTIONS = one_of(
    argument(
        "--database-url", help="an empty MySQL or MariaDB database, left empty again (default: a temporary SQLite file)"
    ),
    servers_argument("a private MariaDB"),
)


class BenchClaims(Configured, ShowOne):
    """Measure the store: claims on arbitrary hosts, written as a scheduler does, without bus or decisions.

    Each client process acts as one scheduler: concurrent claims share a transaction.
    """

    arguments = (_DATABASE_OPTIONS, count_option("--hosts", 1000, "Number of hosts"), PER_REQUEST, *LOAD)

    def take_action(self, arguments: argparse.Namespace) -> Record:
        """Measure, and return the figures."""
        with unwound_by_signals(), _database(arguments) as servers, progress("storing hosts") as say:
            embedded = not (arguments.servers or arguments.database_url)
            processes = 0 if embedded else min(arguments.processes, arguments.clients)
            load = Load(clients=arguments.clients, processes=processes, seconds=arguments.seconds)
            measured, verdict = claims.measure(servers, arguments.hosts, arguments.per_request, load, say)
        figures = {
            **given(arguments, "hosts", "clients", "per_request"),
            "claims_per_s": round(measured.items_per_s, 1),
            **measured.figures(),
            "overcommitted": verdict.overcommitted,
            "leaked": verdict.leaked,
        }
        return tuple(figures), shown(figures.values())


class BenchHttp(Configured, Lister):
    """Measure the Placement API over HTTP: candidates by limit, and allocation writes, with one client and many.

    The API runs in processes of its own, for a cloud of flat hosts.
    """

    arguments = (
        _DATABASE_OPTIONS,
        count_option("--providers", 1000, "Number of hosts"),
        count_option("--clients", 8, "Number of client threads", most=MOST_THREADS),
        count_option("--requests", 400, "Requests of each kind"),
        count_option("--workers", 2, "Number of API processes", most=MOST_THREADS),
    )

    def take_action(self, arguments: argparse.Namespace) -> Table:
        """Measure, and return a row for each kind of request."""
        columns = tuple(field.name for field in fields(http.HttpResult))
        with unwound_by_signals(), _database(arguments) as servers:
            measured = http.measure(
                str(servers.database_url),
                providers=arguments.providers,
                clients=arguments.clients,
                requests=arguments.requests,
                workers=arguments.workers,
            )
            return columns, [shown(asdict(figures).values()) for figures in measured]


@contextlib.contextmanager
def _database(arguments: argparse.Namespace) -> Iterator[Servers]:
    if arguments.servers:
        with private_mariadb(arguments.servers) as mariadb:
            yield Servers(None, mariadb.create_database("moorage"), mariadb.pids_by_name("mariadb"))
    elif arguments.database_url:
        yield Servers(None, arguments.database_url)
    else:
        with tempfile.TemporaryDirectory(prefix="moorage-") as folder:
            yield Servers(None, f"sqlite:///{folder}/main.sqlite")
