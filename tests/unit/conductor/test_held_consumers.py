"""Test requests for the node of a consumer's allocations."""

from support.conductor.builders import SPEC

from conductor.super.held_consumers import on_node
from moorage import ids
from moorage.messages import SelectDestinations
from moorage.model import Destination, RequestSpec

NODE = ids.derived("node")


def lowest_version(spec: RequestSpec) -> str:
    return SelectDestinations(
        request_id="r1", request_spec=spec, instance_uuids=(ids.derived("instance"),), num_alternates=0
    ).lowest_version()


def test_a_request_for_a_node_by_its_uuid_has_a_version_that_former_schedulers_refuse() -> None:
    asked = on_node(SPEC, NODE)

    assert asked.requested_destination == Destination(node_uuid=NODE)
    assert lowest_version(asked) == "1.9"


def test_the_node_in_a_record_of_an_earlier_version_is_requested_by_its_name_as_before() -> None:
    asked = on_node(SPEC, None, "node1")

    assert asked.requested_destination == Destination(node="node1")
    assert lowest_version(asked) == "1.0"


def test_a_request_without_a_node_stays_as_it_is() -> None:
    assert on_node(SPEC, None) is SPEC
