"""Test that each call has its own span, also if calls share a message, and that a client may send no span."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.moorage.traces import Traces, traced

from moorage import context, ids, tracing
from moorage.bus import bus
from moorage.config import options
from moorage.messages import wire

TOGETHER = 12


class Order(wire.Mutation[str], frozen=True, kw_only=True):
    topic = "conductor"
    method = "order"


class Part(wire.Mutation[str], frozen=True, kw_only=True):
    topic = "counter"
    method = "part"
    may_be_batched = True


class Server:
    @bus.serves(Order)
    def order(self, _message: Order) -> str:
        return tracing.traceparent() or ""

    @bus.serves(Part)
    def part(self, _message: Part) -> str:
        return tracing.traceparent() or ""


@pytest.fixture
def running(bus_url: str) -> Iterator[bus.Bus]:
    ours = bus.Bus(options.new({"DEFAULT": {"transport_url": bus_url}}))
    for topic in ("conductor", "counter"):
        ours.server(topic, "one", [Server()]).start()
    yield ours
    ours.close()


@pytest.fixture
def traces() -> Iterator[Traces]:
    with traced() as kept:
        yield kept


def test_the_span_of_each_concurrent_call_is_a_child_of_the_span_of_its_caller(
    running: bus.Bus, traces: Traces
) -> None:
    client = running.client("counter", timeout=20)

    def call(request_id: str) -> None:
        with context.bound(request_id=request_id), tracing.span("work", place="first of request"):
            client.call(Part(request_id=ids.fresh()))

    requests = [ids.fresh() for _ in range(4 * TOGETHER)]
    with ThreadPoolExecutor(TOGETHER) as threads:
        list(threads.map(call, requests))
    for request_id in requests:
        server, caller, work = sorted(traces.of(request_id), key=lambda span: span.start_time or 0, reverse=True)
        assert (server.name, caller.name, work.name) == ("counter part", "counter part", "work")
        assert server.parent is not None
        assert server.parent.span_id == caller.context.span_id
        assert caller.parent is not None
        assert caller.parent.span_id == work.context.span_id


def test_an_order_begins_a_trace_and_a_call_without_a_span_does_not(running: bus.Bus, traces: Traces) -> None:
    request_id = ids.fresh()
    sent = running.client("conductor", timeout=20).call(Order(request_id=request_id))
    assert sent.split("-")[1] == request_id.replace("-", "")
    [first] = traces.of(request_id)
    assert first.parent is None
    # A process without traces sends only the id of the request.
    with context.bound(request_id=request_id):
        running.client("conductor", timeout=20).call(Order(request_id=ids.fresh()))
        assert running.client("counter", timeout=20).call(Part(request_id=ids.fresh())) == ""
    _, second = traces.of(request_id)
    assert second.parent is not None
    assert second.parent.span_id == first.context.span_id
    assert second.context.span_id != first.context.span_id
