"""Test the question about an instance that is sent to the scheduler."""

from typing import Any

import pytest

from dashboard import explanations
from moorage import ids
from moorage.messages import ExplainRequest, ShowInstance
from moorage.messages.wire import Message, decode_strictly, encode
from moorage.model import Explanation, Flavor, Instance, RequestSpec

SPEC = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=1, memory_mb=1))


class FakePart:
    """Gives one answer, and keeps the messages."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.messages = answer, list[Message[Any]]()

    def call(self, message: Message[Any], timeout: float | None = None) -> Any:
        self.messages.append(message)
        return self.answer


@pytest.mark.parametrize(
    ("state", "under_way"),
    [
        ("building", True),
        ("moving", True),
        ("rebuilding", True),
        ("unshelving", True),
        ("active", False),
        ("moved", False),
        ("shelving", False),
        ("error", False),
    ],
)
def test_an_instance_under_way_is_asked_about_as_such(state: str, under_way: bool) -> None:
    instance = Instance(
        uuid=ids.fresh(), state=state, project_id="p", user_id="u", flavor=SPEC.flavor, request_spec=SPEC, host="host1"
    )
    conductor, scheduler = FakePart(instance), FakePart(Explanation(hosts=0))
    explanations.of_instance(conductor, scheduler, instance.uuid, (), now=True)
    assert conductor.messages == [ShowInstance(instance_uuid=instance.uuid, with_request=True)]
    [asked] = scheduler.messages
    assert isinstance(asked, ExplainRequest)
    assert (asked.under_way, asked.hosts) == (under_way, ("host1",))


@pytest.mark.parametrize("count", [19, 20])
def test_the_own_host_of_an_instance_is_left_out_if_as_many_hosts_are_named_as_a_message_takes(count: int) -> None:
    instance = Instance(
        uuid=ids.fresh(), state="active", project_id="p", user_id="u", flavor=SPEC.flavor, request_spec=SPEC, host="own"
    )
    scheduler, named = FakePart(Explanation(hosts=0)), tuple(f"host{number}" for number in range(count))
    explanations.of_instance(FakePart(instance), scheduler, instance.uuid, named, now=True)
    [asked] = scheduler.messages
    assert decode_strictly(ExplainRequest, encode(asked)).hosts == (*named, "own")[:20]
