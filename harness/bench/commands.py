"""The commands `moorage bench`."""

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any

from cliff.lister import Lister
from cliff.show import ShowOne
from rich.console import Console

from harness.arguments import OnServers, count, rate, server_programs
from harness.bench import build, candidates, explain, http, packing, select
from harness.bench.cloud import BenchCloud, is_embedded, running
from harness.bench.load import Load, Measured
from harness.cloud import CloudSpec, Settings
from moorage import errors
from moorage.cli.command import Configured, positive, shown

# --- Over RPC -------------------------------------------------------------------------------------------------------


class _OverRpc(OnServers, ShowOne):
    """The options of the benchmarks that ask services over RPC."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--hosts", type=count(), default=1000, help="default: %(default)s")
        parser.add_argument("--cells", type=count(), default=1, help="default: %(default)s")
        parser.add_argument("--schedulers", type=count(), default=1, help="default: %(default)s")
        parser.add_argument("--clients", type=count(), default=1, help="default: %(default)s")
        parser.add_argument(
            "--processes",
            type=count(),
            default=1,
            help="processes of clients on other servers than the embedded ones; default: %(default)s",
        )
        parser.add_argument("--seconds", type=positive, default=5.0, help="that are counted; default: %(default)s")
        return parser

    def measured(
        self,
        arguments: argparse.Namespace,
        settings: Settings,
        request: select.Request,
        measure: Callable[[BenchCloud, Load], Measured],
        living: Callable[[BenchCloud, Measured], Sequence[str]],
    ) -> tuple[Measured, dict[str, Any]]:
        """Measure on a cloud with these settings, and return that with the figures that all benchmarks share.

        :param request: the decision whose payloads bare RPC is measured with.
        :param living: returns the uuids of the instances that may hold allocations after the measurement.
        """
        # Large enough that no measurement fills the cloud.
        size = {"vcpus": 100_000, "memory_mb": 100_000_000, "disk_gb": 1_000_000}
        with self.servers(arguments) as servers, _progress() as say:
            # On an embedded bus the clients are threads of this process.
            processes = 0 if is_embedded(servers) else min(arguments.processes, arguments.clients)
            load = Load(clients=arguments.clients, processes=processes, seconds=arguments.seconds)
            spec = CloudSpec(
                hosts=arguments.hosts,
                cells=arguments.cells,
                schedulers=arguments.schedulers,
                settings={**settings, "fake_driver": {**size, **settings.get("fake_driver", {})}},
            )
            say(f"starting {arguments.hosts} hosts")
            with running(servers, spec) as cloud:
                say(f"measuring for {arguments.seconds:g} s")
                measured = measure(cloud, load)
                memory = cloud.memory_mb()
                say("measuring bare RPC")
                echoed, created = select.bare(cloud, request, load) if processes else (None, [])
                verdict = cloud.judge([*living(cloud, measured), *created])
        return measured, {
            **_figures(measured, echoed),
            "rss_mb": memory,
            "overcommitted": verdict.overcommitted,
            "leaked": verdict.leaked,
        }


class BenchSelect(_OverRpc):
    """Measure decisions with their claims, asked over RPC, on a cloud of fake hosts.

    On real servers each service is a process of its own, and so are the clients, and bare RPC with the same payloads is
    measured in the same run.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--per-request", type=count(), default=1, help="instances of each request; default: %(default)s"
        )
        parser.add_argument("--alternates", type=count(0), default=2, help="of each instance; default: %(default)s")
        return parser

    def take_action(self, arguments: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        """Measure, and return the figures."""
        request = select.Request(per_request=arguments.per_request, alternates=arguments.alternates)
        measured, shared = self.measured(
            arguments,
            {
                # In a real cloud the agents have processors of their own; here they share the scheduler's. They are
                # stopped once all hosts are up: a decision needs only their last reports.
                "compute": {"report_interval": 5.0},
                "scheduler": {"host_down_after": 86400.0},
            },
            request,
            lambda cloud, load: select.select(cloud, request, load),
            lambda _cloud, measured: measured.created,
        )
        figures = {
            "hosts": arguments.hosts,
            "clients": arguments.clients,
            "per_request": arguments.per_request,
            "claims_per_s": round(measured.items_per_s, 1),
            **shared,
        }
        return list(figures), shown(figures.values())


class BenchBuild(_OverRpc):
    """Measure builds, from the order until the instances are active, on a cloud of fake hosts.

    A client orders the next instances once all of its last order have ended.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--per-order", type=count(), default=1, help="instances of each order; default: %(default)s"
        )
        parser.add_argument(
            "--fail-rate", type=rate, default=0.0, help="the share of spawns that fail; default: %(default)s"
        )
        return parser

    def take_action(self, arguments: argparse.Namespace) -> tuple[Sequence[str], Sequence[Any]]:
        """Measure, and return the figures."""
        measured, shared = self.measured(
            arguments,
            {
                "fake_driver": {"fail_rate": arguments.fail_rate},
                "compute": {"report_interval": 5.0},
                "conductor": {"report_interval": 5.0},
            },
            select.Request(),
            lambda cloud, load: build.build(cloud, arguments.per_order, load),
            lambda cloud, _measured: build.active(cloud),
        )
        figures = {
            "hosts": arguments.hosts,
            "clients": arguments.clients,
            "per_order": arguments.per_order,
            "builds_per_s": round(measured.items_per_s, 1),
            **shared,
        }
        return list(figures), shown(figures.values())


def _figures(measured: Measured, echoed: Measured | None) -> dict[str, Any]:
    """Return the figures that all benchmarks over RPC share; on the embedded bus there is no bare RPC beside it."""
    items = max(1, measured.items)
    return {
        "calls_per_s": round(measured.calls_per_s, 1),
        "p50_ms": round(measured.percentile_ms(50), 3),
        "p99_ms": round(measured.percentile_ms(99), 3),
        "refused": dict(measured.refused),
        "echo_calls_per_s": round(echoed.calls_per_s, 1) if echoed else None,
        "echo_p50_ms": round(echoed.percentile_ms(50), 3) if echoed else None,
        "ratio_to_echo": round(measured.items_per_s / echoed.calls_per_s, 3) if echoed else None,
        "cpu_ms": {name: round(seconds * 1000 / items, 2) for name, seconds in measured.cpu_seconds.items()},
    }


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show what a run is doing on standard error, where that is a terminal; yield the function that changes it."""
    with Console(stderr=True).status("starting servers") as status:
        yield status.update


# --- Over HTTP ------------------------------------------------------------------------------------------------------


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
        parser.add_argument("--providers", type=count(), default=1000, help="hosts; default: %(default)s")
        parser.add_argument("--clients", type=count(), default=8, help="threads that ask; default: %(default)s")
        parser.add_argument("--requests", type=count(), default=400, help="of each kind; default: %(default)s")
        parser.add_argument("--workers", type=count(), default=2, help="processes that serve; default: %(default)s")
        return parser

    def take_action(self, arguments: argparse.Namespace) -> tuple[Sequence[str], list[Sequence[Any]]]:
        """Measure, and return a row for each kind of request."""
        columns = [field.name for field in fields(http.HttpResult)]
        with _database(arguments.servers, arguments.database_url) as url:
            measured = http.measure(
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
        with server_programs().MariaDBServer() as mariadb:
            yield mariadb.create_database("moorage")
    elif url:
        yield url
    else:
        with tempfile.TemporaryDirectory(prefix="moorage-") as folder:
            yield f"sqlite:///{folder}/main.sqlite"


# --- In this process alone ------------------------------------------------------------------------------------------


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
