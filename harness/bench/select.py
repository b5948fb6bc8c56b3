"""Benchmark of decisions with their claims over RPC, as called by a conductor."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from harness.bench.cloud import BenchCloud
from harness.bench.echo import echo
from harness.bench.load import Load, Measured, Operation, measure
from moorage import ids
from moorage.bus.bus import Bus
from moorage.config import options
from moorage.messages import SelectDestinations
from moorage.messages.wire import encode
from moorage.model import Flavor, RequestSpec

SPEC = RequestSpec(project_id="bench", user_id="bench", flavor=Flavor(vcpus=1, memory_mb=512, root_gb=1))

_TIMEOUT = 60.0


@dataclass(frozen=True)
class Request:
    """The shape of the measured requests."""

    per_request: int = 1
    alternates: int = 2

    def message(self) -> SelectDestinations:
        """Return a request for new instances."""
        uuids = tuple(ids.fresh() for _ in range(self.per_request))
        return SelectDestinations(
            request_spec=SPEC, instance_uuids=uuids, num_alternates=self.alternates, request_id=ids.fresh()
        )


@contextmanager
def clients(transport_url: str, request: Request) -> Iterator[Callable[[int], Operation]]:
    """Yield clients that ask for a host for new instances."""
    bus = Bus(options.new({"DEFAULT": {"transport_url": transport_url}}))
    scheduler = bus.client("scheduler", timeout=_TIMEOUT)

    def ask() -> tuple[str, ...]:
        message = request.message()
        scheduler.call(message)
        return message.instance_uuids

    try:
        yield lambda _number: ask
    finally:
        bus.close()


def select(cloud: BenchCloud, request: Request, load: Load) -> Measured:
    """Stop the agents, and measure decisions with their claims."""
    cloud.stop_agents()
    return measure(load, clients, cloud.transport_url, request, cpu=cloud.cpu_seconds)


def bare(cloud: BenchCloud, request: Request, load: Load) -> tuple[Measured, list[str]]:
    """Measure bare RPC with the payloads of such a request and its answer; return the instances of the one request."""
    message = request.message()
    reply = cloud.client("scheduler").call(message)
    measured = echo(cloud.transport_url, encode(message), msgspec.to_builtins(reply), load)
    return measured, list(message.instance_uuids)
