"""Test that a request has one trace from its order to its guest, with all hosts that were tried."""

from collections.abc import Iterator
from uuid import UUID

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from support.moorage.traces import Traces, all_hang_together, attributes, names, traced
from support.operations.instances import SPEC, built

from harness.cloud import CloudSpec, RunningCloud
from harness.waiting import wait_until
from moorage import context, errors, ids, tracing
from moorage.messages import BuildInstances, DeleteInstance, ListHosts
from moorage.model import Instance
from moorage.open_telemetry import Place, RequestTracer


@pytest.fixture
def traces() -> Iterator[Traces]:
    with traced() as kept:
        yield kept


def build(cloud: RunningCloud) -> tuple[str, Instance]:
    """Order an instance, and return the id of the request, and the instance when its build has ended."""
    request_id, uuid = ids.fresh(), ids.fresh()
    message = BuildInstances(request_id=request_id, request_spec=SPEC, instance_uuids=(uuid,))
    cloud.client("conductor").call(message)
    return request_id, built(cloud, uuid)


def test_a_build_that_falls_back_has_one_trace_from_its_order_to_its_guest(traces: Traces) -> None:
    with RunningCloud(CloudSpec(hosts=3, settings={"fake_driver": {"fail_rate": 0.5, "seed": 3}})) as cloud:
        for _ in range(20):
            request_id, instance = build(cloud)
            if instance.state == "active" and len(instance.attempts) > 1:
                break
        else:
            pytest.fail("no build has fallen back")
        # The last spans end after the instance is shown as active.
        wait_until(lambda: all_hang_together(traces.of(request_id), request_id), lambda: names(traces.of(request_id)))
        spans = traces.of(request_id)
        [first] = [span for span in spans if span.parent is None]
        assert first.name == "conductor build_instances"
        on_the_way = {
            *("scheduler select_destinations", "plan", "claim", "build hand_over", "conductor.cell build_instances"),
            *("build start", "compute build_instance", "placement accept_claim", "spawn"),
            "conductor.cell build_finished",
        }
        assert on_the_way <= set(names(spans)), names(spans)
        spawns = [span for span in spans if span.name == "spawn"]
        *failed, spawned = sorted(spawns, key=lambda span: span.start_time or 0)
        assert [attributes(span)["error.type"] for span in failed] == [errors.BuildFailed.code] * len(failed)
        assert failed
        assert spawned.status.is_unset
        assert attributes(spawned)["moorage.instance_uuid"] == instance.uuid
        assert attributes(spawned)["moorage.host"] == instance.attempts[-1].host


def test_periodic_work_without_an_order_has_no_trace(traces: Traces) -> None:
    with RunningCloud(CloudSpec(hosts=2, settings={"compute": {"report_interval": 0.1}})) as cloud:
        request_id, instance = build(cloud)
        cloud.client("scheduler").call(ListHosts())
        deletion = ids.fresh()
        cloud.client("conductor").call(DeleteInstance(request_id=deletion, instance_uuid=instance.uuid))
        wait_until(lambda: "destroy" in names(traces.of(deletion)), lambda: names(traces.of(deletion)))
    ordered = {UUID(request_id).int, UUID(deletion).int}
    others = [span for span in traces.get_finished_spans() if span.context.trace_id not in ordered]
    assert not names(others)


def test_shared_stages_of_requests_that_are_decided_together_are_in_each_trace(traces: Traces) -> None:
    requests = [ids.fresh() for _ in range(3)]
    under_way = []
    for request_id in requests:
        with context.bound(request_id=request_id), tracing.span("select", place="first of request"):
            under_way.append(context.current())
    with tracing.shared_span("claim", under_way):
        pass
    assert not attributes(traces.of(requests[0])[0]).get("moorage.batch_size")
    # A span that has ended gets no new children; one that is open does.
    assert [names(traces.of(request_id)) for request_id in requests] == [["select"]] * 3
    with (
        context.bound(request_id=requests[0]),
        tracing.span("again", place="below request"),
        tracing.shared_span("claim", [context.current(), under_way[1]]),
    ):
        pass
    assert names(traces.of(requests[0])) == ["select", "claim", "again"]
    assert traces.of(requests[0])[1].attributes == {"moorage.batch_size": 2}


def test_a_step_of_another_process_is_below_the_first_span_of_its_request(traces: Traces) -> None:
    request_id = ids.fresh()
    with context.bound(request_id=request_id), tracing.span("order", place="first of request"):
        pass
    [first] = traces.of(request_id)
    elsewhere = Traces()
    tracing.use(RequestTracer(SimpleSpanProcessor(elsewhere), "conductor.other"))
    with context.bound(request_id=request_id), tracing.span("build wait", place="below request"):
        pass
    [step] = elsewhere.of(request_id)
    assert step.parent is not None
    assert step.parent.span_id == first.context.span_id
    assert step.resource.attributes["service.name"] == "moorage-conductor"


def test_the_first_span_links_to_the_trace_of_the_caller(traces: Traces) -> None:
    request_id = ids.fresh()
    theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with (
        context.bound(request_id=request_id, span=tracing.caller_span(theirs)),
        tracing.span("order", place="first of request"),
    ):
        ours = tracing.traceparent()
        assert ours is not None
        assert UUID(ours.split("-")[1]) == UUID(request_id)
    [first] = traces.of(request_id)
    assert first.parent is None
    assert [link.context.trace_id for link in first.links] == [0x0AF7651916CD43DD8448EB211C80319C]


@pytest.mark.parametrize("received", ["", "nonsense", "00-0-0-0", 7, None, {"a": 1}])
def test_an_invalid_caller_span_is_left_out(traces: Traces, received: object) -> None:
    assert tracing.caller_span(received) is None


def test_every_process_samples_the_same_requests(traces: Traces) -> None:
    first, second = Traces(), Traces()
    requests = [ids.fresh() for _ in range(400)]
    processes: list[tuple[Traces, str, Place]] = [
        (first, "order", "first of request"),
        (second, "step", "below request"),
    ]
    for exported, name, place in processes:
        tracing.use(RequestTracer(SimpleSpanProcessor(exported), "test.one", sample_ratio=0.25))
        for request_id in requests:
            with context.bound(request_id=request_id), tracing.span(name, place=place):
                carried = tracing.traceparent()
                with context.bound(span=tracing.caller_span(carried)), tracing.span("below"):
                    pass
    chosen = [span.context.trace_id for span in first.get_finished_spans() if span.name == "order"]
    assert 40 < len(chosen) < 170
    assert [span.context.trace_id for span in second.get_finished_spans() if span.name == "step"] == chosen
    assert len(first.get_finished_spans()) == 2 * len(chosen)


def test_a_request_id_that_is_no_uuid_has_a_trace_too(traces: Traces) -> None:
    with context.bound(request_id="req-by-hand"), tracing.span("GET /", place="first of request"):
        pass
    [span] = traces.get_finished_spans()
    assert attributes(span)["moorage.request_id"] == "req-by-hand"
