"""The commands `moorage demo` and `moorage bench`, with a cloud of their own."""

import argparse
import contextlib
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from types import ModuleType
from typing import Any

from cliff.lister import Lister
from cliff.show import ShowOne
from rich.console import Console
from rich.progress import Progress

from harness import demo
from harness.bench import candidates
from harness.bench import http as bench_http
from harness.bench import select as bench
from harness.cloud import CloudSpec, RunningCloud
from moorage import errors
from moorage.cli.command import Configured, shown


def _count(least: int) -> Any:
    def parse(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}")
        return number

    parse.__name__ = "number"
    return parse


def _rate(text: str) -> float:
    rate = float(text)
    if not 0 <= rate <= 1:
        raise argparse.ArgumentTypeError("must be between 0 and 1")
    return rate


def _server_programs() -> ModuleType:
    """Return the module that starts private servers; it needs the packages of an extra.

    :raises ConfigurationError: that extra is not installed.
    """
    try:
        from harness import servers
    except ModuleNotFoundError as fault:
        reason = f"--servers needs {fault.name}, which is not installed: pip install 'moorage[servers]'"
        raise errors.ConfigurationError(reason=reason) from fault
    return servers


@contextlib.contextmanager
def _servers(
    wanted: bool, transport_url: str | None, database_url: str | None
) -> Iterator[tuple[str | None, str | None]]:
    """Yield the URLs of bus and database, of private servers if requested."""
    if not wanted:
        yield transport_url, database_url
        return
    servers = _server_programs()
    with servers.MariaDBServer() as mariadb, servers.RabbitMQServer() as rabbitmq:
        yield rabbitmq.url, mariadb.create_database("moorage")


class _OnServers(Configured):
    """The options for a cloud on other servers than the embedded ones."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--transport-url", help="a RabbitMQ virtual host of its own; default: a bus inside this process"
        )
        parser.add_argument(
            "--database-url",
            help="an empty MySQL or MariaDB database, left empty again; default: a temporary SQLite file",
        )
        parser.add_argument(
            "--servers",
            action="store_true",
            help="start a private MariaDB and RabbitMQ from Debian's packages for the run",
        )
        return parser

    def urls(self, arguments: argparse.Namespace) -> contextlib.AbstractContextManager[tuple[str | None, str | None]]:
        """Return the URLs of bus and database for the run; null stands for the embedded ones.

        :raises ConfigurationError: options that exclude each other.
        """
        if arguments.servers and (arguments.transport_url or arguments.database_url):
            raise errors.ConfigurationError(reason="--servers starts servers of its own: leave the URLs away")
        return _servers(arguments.servers, arguments.transport_url, arguments.database_url)


@contextlib.contextmanager
def _failures_in_the_table_alone() -> Iterator[None]:
    """Keep intended failures of spawns out of the log: the table names them."""
    agents = logging.getLogger("compute.agent")
    before = agents.level
    agents.setLevel(logging.ERROR)
    try:
        yield
    finally:
        agents.setLevel(before)


class Demo(_OnServers, Lister):
    """Start a cloud of fake hosts, build instances on it, some of which fail on the way, and audit the store.

    The same seed gives the same placements. Exit status 1 when the audit finds anything.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--hosts", type=_count(1), default=20, help="default: %(default)s")
        parser.add_argument("--cells", type=_count(1), default=2, help="default: %(default)s")
        parser.add_argument("--instances", type=_count(1), default=40, help="default: %(default)s")
        parser.add_argument(
            "--fail-rate", type=_rate, default=0.2, help="the share of spawns that fail; default: %(default)s"
        )
        parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Return 1 when the audit has found anything."""
        status: int = super().run(parsed_args)
        return status or int(not self._verdict.clean)

    def take_action(self, arguments: argparse.Namespace) -> tuple[Sequence[str], list[Sequence[Any]]]:
        """Build, audit, and return a row for each instance."""
        with self.urls(arguments) as (transport_url, database_url):
            plan = CloudSpec(
                hosts=arguments.hosts,
                cells=arguments.cells,
                seed=arguments.seed,
                transport_url=transport_url,
                database_connection=database_url,
                settings={
                    # A decision uses the present state, and no weigher uses periodic reports, so that placements
                    # depend on the seed alone.
                    "scheduler": {"view_max_age": 0.0, "enabled_weighers": ["ram", "cpu", "disk"]},
                    "fake_driver": {"seed": arguments.seed, "fail_rate": arguments.fail_rate},
                },
            )
            with (
                _failures_in_the_table_alone() if arguments.fail_rate else contextlib.nullcontext(),
                RunningCloud(plan) as cloud,
                Progress(console=Console(stderr=True)) as progress,
            ):
                building = progress.add_task("building", total=arguments.instances)
                rows = []
                for instance in demo.build_all(cloud, arguments.instances):
                    attempts = [attempt.host for attempt in instance.attempts if attempt.state != "skipped"]
                    rows.append(
                        (instance.uuid, instance.state, instance.cell, instance.host, attempts, instance.reason)
                    )
                    progress.advance(building)
                self._verdict = demo.audit(cloud)
        sys.stderr.write(f"{self._verdict}\n")
        return (
            ("instance", "state", "cell", "host", "attempts", "reason"),
            [shown(row) for row in rows],
        )


class BenchSelect(_OnServers, ShowOne):
    """Measure decisions with their claims, asked over RPC, on a cloud of fake hosts."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--hosts", type=_count(1), default=1000, help="default: %(default)s")
        parser.add_argument("--cells", type=_count(1), default=1, help="default: %(default)s")
        parser.add_argument("--clients", type=_count(1), default=1, help="threads that ask; default: %(default)s")
        parser.add_argument(
            "--per-request", type=_count(1), default=1, help="instances of each request; default: %(default)s"
        )
        parser.add_argument("--requests", type=_count(1), default=500, help="default: %(default)s")
        return parser

    def take_action(self, arguments: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        """Measure, and return the figures."""
        with self.urls(arguments) as (transport_url, database_url):
            plan = CloudSpec(
                hosts=arguments.hosts,
                cells=arguments.cells,
                transport_url=transport_url,
                database_connection=database_url,
                settings={
                    # Large enough that no measurement fills the cloud.
                    "fake_driver": {"vcpus": 100_000, "memory_mb": 100_000_000, "disk_gb": 1_000_000},
                    # In a real cloud the agents have processors of their own; here they share the scheduler's. They are
                    # stopped once all hosts are up: a decision needs only their last reports.
                    "compute": {"report_interval": 5.0},
                    "scheduler": {"host_down_after": 86400.0},
                },
            )
            with RunningCloud(plan) as cloud:
                cloud.stop_agents()
                figures = bench.select(
                    cloud, clients=arguments.clients, per_request=arguments.per_request, requests=arguments.requests
                )
        return [field.name for field in fields(figures)], list(asdict(figures).values())


class BenchCandidates(Configured, Lister):
    """Measure how the groups of a request are matched with the providers of wide hosts, in this process alone.

    A row each: hosts with many equal devices, with many sharing pools, and of three levels; with and without a way to
    serve the request. The cross product is what a search tries that looks at every combination.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--repeat", type=_count(1), default=20, help="runs of each; default: %(default)s")
        parser.add_argument(
            "--candidates", type=_count(1), default=100, help="candidates to take of each; default: %(default)s"
        )
        return parser

    def take_action(self, arguments: argparse.Namespace) -> tuple[Sequence[str], list[Sequence[Any]]]:
        """Measure, and return a row a shape."""
        columns = [field.name for field in fields(candidates.CandidatesResult)]
        measured = candidates.measure(arguments.repeat, arguments.candidates)
        return columns, [shown(asdict(figures).values()) for figures in measured]


class BenchHttp(Configured, Lister):
    """Measure the Placement API over HTTP: candidates by their limit, and allocation writes; by one client and by many.

    The API is served by processes of its own, of a cloud of flat hosts.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--database-url", help="an empty MySQL or MariaDB database; default: a temporary SQLite file"
        )
        parser.add_argument("--servers", action="store_true", help="start a private MariaDB for the run")
        parser.add_argument("--providers", type=_count(1), default=1000, help="hosts; default: %(default)s")
        parser.add_argument("--clients", type=_count(1), default=8, help="threads that ask; default: %(default)s")
        parser.add_argument("--requests", type=_count(1), default=400, help="of each kind; default: %(default)s")
        parser.add_argument("--workers", type=_count(1), default=2, help="processes that serve; default: %(default)s")
        return parser

    def take_action(self, arguments: argparse.Namespace) -> tuple[Sequence[str], list[Sequence[Any]]]:
        """Measure, and return a row for each kind of request."""
        columns = [field.name for field in fields(bench_http.HttpResult)]
        with _database(arguments.servers, arguments.database_url) as url:
            measured = bench_http.measure(
                url,
                providers=arguments.providers,
                clients=arguments.clients,
                requests=arguments.requests,
                workers=arguments.workers,
            )
            return columns, [shown(asdict(figures).values()) for figures in measured]


@contextlib.contextmanager
def _database(private: bool, url: str | None) -> Iterator[str]:
    """Yield the URL of the database of a run.

    :raises ConfigurationError: a private one is wanted, and a URL is given.
    """
    if private and url:
        raise errors.ConfigurationError(reason="--servers starts a server of its own: leave the URL away")
    if private:
        with _server_programs().MariaDBServer() as mariadb:
            yield mariadb.create_database("moorage")
    elif url:
        yield url
    else:
        with tempfile.TemporaryDirectory(prefix="moorage-") as folder:
            yield f"sqlite:///{folder}/main.sqlite"
