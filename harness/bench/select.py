"""Benchmark of decisions with their claims over RPC, called as by a conductor."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import msgspec

from harness.bench.cloud import BenchCloud
from harness.bench.load import Load, Measured, Operation, measure
from harness.bench.requests import Request
from harness.bench.store import LARGE, occupy
from harness.cloud import CloudSpec, RunningCloud
from moorage.bus.bus import Bus, Client
from moorage.config import options
from moorage.messages import SelectDestinations
from moorage.messages.wire import encode

_TIMEOUT = 60.0


@contextmanager
def clients(transport_url: str, request: Request) -> Iterator[Callable[[int], Operation]]:
    """Yield clients that request a host for new instances."""
    with closing(Bus(options.new({"DEFAULT": {"transport_url": transport_url}}))) as bus:
        scheduler = bus.client("scheduler", timeout=_TIMEOUT)

        def ask(messages: Iterator[SelectDestinations]) -> tuple[str, ...]:
            message = next(messages)
            scheduler.call(message)
            return message.instance_uuids

        yield lambda number: partial(ask, request.messages(number))


def prepare(cloud: BenchCloud, occupancy: float | None) -> list[str]:
    """Stop the agents, fill the hosts to a percentage, if any, and return the instances that fill them."""
    cloud.stop_agents()
    filled = [] if occupancy is None else occupy(cloud.database, occupancy)
    # Otherwise each scheduler would catch up in its first decision, at a different time.
    cloud.catch_up()
    return filled


def select(cloud: BenchCloud, request: Request, load: Load) -> Measured:
    """Measure decisions with their claims."""
    with cloud.conflicts() as conflicts:
        return measure(load, clients, cloud.transport_url, request, cpu=cloud.cpu_seconds, conflicts=conflicts)


def payloads(request: Request) -> tuple[dict[str, Any], Any]:
    """Return the payloads of such a request and of its answer, from an embedded cloud of a few hosts."""
    with RunningCloud(CloudSpec(hosts=1 + request.alternates, settings={"fake_driver": LARGE})) as cloud:
        message, reply = decided(cloud.client("scheduler"), request)
    return encode(message), reply


def decided(scheduler: Client, request: Request) -> tuple[SelectDestinations, Any]:
    """Send a request; return it with its answer in the form that it had on the bus."""
    message = request.message()
    return message, msgspec.to_builtins(scheduler.call(message))
