"""The benchmarks over RPC: of services in processes of their own, or of the RPC library alone."""

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from cliff.show import ShowOne

from harness.arguments import (
    MOST_THREADS,
    OnServers,
    count_option,
    number_between,
    private_rabbitmq,
    require_broker,
    servers_argument,
)
from harness.bench import build, echo, idle, select
from harness.bench.cloud import BenchCloud, is_embedded, running
from harness.bench.commands.basis import ALTERNATES, LOAD, PER_REQUEST, SHAPE, given, progress, shape_of
from harness.bench.load import Load, Measured
from harness.bench.requests import Request
from harness.bench.store import host_settings
from harness.cloud import CloudSpec, Settings
from harness.termination import unwound_by_signals
from moorage import errors
from moorage.cli.arguments import argument, one_of, positive
from moorage.cli.command import Configured, Record, shown
from moorage.messages.wire import encode

#: The number of builds that an agent works on at a time by default.
_LEAST_WORKERS = 8
#: The maximum number in a benchmark. Arbitrary: each is a thread.
_MOST_WORKERS = 256


class _OverRpc(OnServers, ShowOne):
    """Adds the options of the benchmarks that call services over RPC."""

    arguments = (
        count_option("--hosts", 1000, "Number of hosts"),
        count_option("--cells", 1, "Number of cells", most=MOST_THREADS),
        count_option("--schedulers", 1, "Number of schedulers", most=MOST_THREADS),
        *LOAD,
    )

    def measured(
        self,
        arguments: argparse.Namespace,
        settings: Settings,
        request: Request,
        measure: Callable[[BenchCloud, Load], Measured],
        living: Callable[[BenchCloud, Measured], Sequence[str]],
        prepare: Callable[[BenchCloud], Sequence[str]] = lambda _: (),
    ) -> tuple[Measured, dict[str, Any]]:
        """Measure on a cloud with these settings; return the measurement and the figures that all benchmarks share.

        :param request: the request whose decision provides the payloads for measuring bare RPC.
        :param living: returns the uuids of the instances that may hold allocations after the measurement.
        :param prepare: prepares the cloud for the measurement, and returns the instances that it creates.
        """
        with self.servers(arguments) as servers, progress("starting servers") as say:
            # On an embedded bus the clients are threads of this process.
            processes = 0 if is_embedded(servers) else min(arguments.processes, arguments.clients)
            load = Load(clients=arguments.clients, processes=processes, seconds=arguments.seconds)
            spec = CloudSpec(
                hosts=arguments.hosts, cells=arguments.cells, schedulers=arguments.schedulers, settings=settings
            )
            say(f"starting {arguments.hosts} hosts")
            with running(servers, spec) as cloud:
                created = prepare(cloud)
                # Decided before the measurement, because afterwards there may be no room left for it.
                message, reply = select.decided(cloud.client("scheduler"), request)
                say(f"measuring for {arguments.seconds:g} s")
                measured = measure(cloud, load)
                memory = cloud.memory_mb()
                say("measuring bare RPC")
                echoed = echo.echo(cloud.transport_url, encode(message), reply, load) if processes else None
                verdict = cloud.judge([*living(cloud, measured), *created, *message.instance_uuids])
        return measured, {
            **measured.figures(),
            **_beside_echo(measured, echoed),
            "rss_mb": memory,
            "overcommitted": verdict.overcommitted,
            "leaked": verdict.leaked,
        }


class BenchSelect(_OverRpc):
    """Measure decisions with their claims, requested over RPC, on a cloud of fake hosts.

    On real servers, each service and client is a process of its own, and the same run also measures bare RPC with the
    same payloads.
    """

    arguments = SHAPE

    def take_action(self, arguments: argparse.Namespace) -> Record:
        """Measure, and return the figures."""
        request = shape_of(arguments)
        measured, shared = self.measured(
            arguments,
            {
                "fake_driver": host_settings(arguments.occupancy, nested=arguments.nested),
                # In a real cloud the agents have processors of their own; here they share the scheduler's. They are
                # stopped once all hosts are up: a decision needs only their last reports.
                "compute": {"report_interval": 5.0},
                "scheduler": {"host_down_after": 86400.0},
            },
            request,
            lambda cloud, load: select.select(cloud, request, load),
            lambda _cloud, measured: measured.created,
            lambda cloud: select.prepare(cloud, arguments.occupancy),
        )
        figures = {
            **given(arguments, "hosts", "schedulers", "clients", "per_request", "occupancy", "groups", "nested"),
            "claims_per_s": round(measured.items_per_s, 1),
            **shared,
        }
        return tuple(figures), shown(figures.values())


class BenchBuild(_OverRpc):
    """Measure builds, from the request until the instances are active, on a cloud of fake hosts.

    A client sends its next request when all instances of the last one are active or in error.
    """

    arguments = (
        count_option("--per-order", 1, "Instances per request"),
        argument(
            "--fail-rate",
            type=number_between(0, 1),
            default=0.0,
            help="Fraction of spawns that fail (default: %(default)s)",
        ),
    )

    def take_action(self, arguments: argparse.Namespace) -> Record:
        """Measure, and return the figures."""
        in_flight = arguments.clients * arguments.per_order
        measured, shared = self.measured(
            arguments,
            {
                "fake_driver": {**host_settings(None, nested=False), "fail_rate": arguments.fail_rate},
                # One agent runs all hosts, which would have agents of their own: it must not be the bottleneck.
                "compute": {"report_interval": 5.0, "workers": min(max(_LEAST_WORKERS, in_flight), _MOST_WORKERS)},
                "conductor": {"report_interval": 5.0},
            },
            Request(),
            lambda cloud, load: build.build(cloud, arguments.per_order, load),
            lambda cloud, _measured: build.active(cloud),
        )
        figures = {
            **given(arguments, "hosts", "clients", "per_order"),
            "builds_per_s": round(measured.items_per_s, 1),
            **shared,
        }
        return tuple(figures), shown(figures.values())


class BenchIdle(OnServers, ShowOne):
    """Measure the cost of an idle cloud: heartbeats, reports, periodic tasks and comparisons.

    It uses the default intervals. On real servers, each service is a process of its own.
    """

    arguments = (
        count_option("--hosts", 10_000, "Number of hosts"),
        count_option("--cells", 1, "Number of cells", most=MOST_THREADS),
        count_option("--schedulers", 1, "Number of schedulers", most=MOST_THREADS),
        argument(
            "--settle", type=positive, default=15.0, help="Seconds to wait before measuring (default: %(default)s)"
        ),
        argument("--seconds", type=positive, default=60.0, help="Seconds to measure (default: %(default)s)"),
    )

    def take_action(self, arguments: argparse.Namespace) -> Record:
        """Measure, and return the figures."""
        spec = CloudSpec(
            hosts=arguments.hosts,
            cells=arguments.cells,
            schedulers=arguments.schedulers,
            settings={"compute": {"report_interval": 5.0}, "conductor": {"report_interval": 5.0}},
        )
        with (
            self.servers(arguments) as servers,
            progress(f"starting {spec.hosts:,} hosts") as say,
            running(servers, spec) as cloud,
        ):
            say(f"measuring for {arguments.seconds:g} s")
            figures = asdict(idle.measure(cloud, arguments.hosts, arguments.settle, arguments.seconds))
        return tuple(figures), shown(figures.values())


class BenchEcho(Configured, ShowOne):
    """Measure bare RPC: calls with the payloads of a decision, to a process that only answers.

    The result is the upper limit that broker and library allow on a machine.
    """

    arguments = (
        one_of(
            argument("--transport-url", help="URL of an unused RabbitMQ virtual host"),
            servers_argument("a private RabbitMQ"),
        ),
        *LOAD,
        PER_REQUEST,
        ALTERNATES,
    )

    def take_action(self, arguments: argparse.Namespace) -> Record:
        """Measure, and return the figures."""
        processes = min(arguments.processes, arguments.clients)
        load = Load(clients=arguments.clients, processes=processes, seconds=arguments.seconds)
        request = Request(arguments.per_request, arguments.alternates)
        with unwound_by_signals(), _broker(arguments) as (url, pids), progress("deciding a request") as say:
            payload, reply = select.payloads(request)
            say(f"measuring for {arguments.seconds:g} s")
            measured = echo.echo(url, payload, reply, load, pids)
        figures = given(arguments, "clients", "per_request") | measured.figures()
        # The benchmark claims nothing, so no claim can be refused.
        del figures["conflicts"], figures["refused"]
        return tuple(figures), shown(figures.values())


@contextlib.contextmanager
def _broker(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the URL of the broker of a run, and the process id of a private broker by its name.

    :raises ConfigurationError: there is no broker, or only a bus inside this process.
    """
    if arguments.servers:
        with private_rabbitmq(arguments.servers) as rabbitmq:
            yield rabbitmq.url, rabbitmq.pids_by_name("rabbitmq")
    elif arguments.transport_url:
        require_broker(arguments.transport_url)
        yield arguments.transport_url, {}
    else:
        raise errors.ConfigurationError(reason="there is no broker to measure: give --servers or --transport-url")


def _beside_echo(measured: Measured, echoed: Measured | None) -> dict[str, Any]:
    """Return the figures of bare RPC in the same run; an embedded bus has none."""
    return {
        "echo_calls_per_s": round(echoed.calls_per_s, 1) if echoed else None,
        "echo_p50_ms": round(echoed.percentile_ms(50), 3) if echoed else None,
        "ratio_to_echo": round(measured.items_per_s / echoed.calls_per_s, 3) if echoed else None,
    }
