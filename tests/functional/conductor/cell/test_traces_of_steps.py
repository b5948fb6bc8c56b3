"""Test that the steps of another conductor belong to the same trace."""

import pytest
from support.conductor.builders import World, wait_until
from support.moorage.traces import all_hang_together, names, traced


@pytest.mark.short_calls
def test_a_build_that_another_conductor_continues_has_one_trace(world: World) -> None:
    with traced() as traces:
        world.stop("cell")
        [uuid] = world.build()
        wait_until(lambda: uuid in world.placement.held)
        world.die("super", "conductor", lease=1.0)
        before = {span.context.span_id for span in traces.get_finished_spans()}
        world.start("super")
        world.start("cell")
        world.becomes(uuid, "active")
        spans = traces.get_finished_spans()
    [first] = [span for span in spans if span.parent is None]
    assert first.name == "conductor build_instances"
    assert first.attributes is not None
    assert all_hang_together(spans, str(first.attributes["moorage.request_id"])), names(spans)
    after = [span for span in spans if span.context.span_id not in before]
    assert "build hand_over" in names(after)
    told = {span.name: span.attributes or {} for span in after}
    outcomes = {name: each["moorage.outcome"] for name, each in told.items() if "moorage.outcome" in each}
    assert outcomes["build hand_over"] == "done"
