"""Every mutation is delivered twice, late, and after its successors: it changes nothing any more."""

from collections.abc import Iterator

import pytest
from late_messages import MUTATIONS, Recorder, Replays
from late_stories import Story
from operation_cloud import Troubles, TroublesomeCloud, plan
from operation_room import Room, rooms_of
from port_room import NICS

from moorage import inproc

#: Sent only by agents whose drivers restructure a tree, where something is to be healed, and every now and then: see
#: tests/functional/compute/test_reshapes.py and the tests of `moorage audit --heal` and of `moorage service list`.
NOT_SENT = {"ReshapeProviderTree", "HealConsumers", "HealInCell", "ReportService"}


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def room(recorder: Recorder) -> Iterator[Room]:
    with TroublesomeCloud(plan("combine", hosts=3, **NICS)) as cloud:
        [room] = rooms_of(cloud, Troubles())
        with inproc.observed(cloud.conf, cloud.transport_url, recorder):
            yield room


def test_a_message_that_is_delivered_again_after_any_other_changes_nothing(room: Room, recorder: Recorder) -> None:
    story, replays, wrong = Story(room, room.cloud), Replays(room.cloud), list[str]()
    known: list[inproc.Delivery] = []
    for name, step in story.steps().items():
        step()
        known += recorder.take()
        wrong += replays.of(known, f"after: {name}")
        assert not wrong, "\n".join(wrong)
        recorder.take()

    missing = {kind.__name__ for kind in MUTATIONS.values()} - {kind.__name__ for kind in replays.delivered}
    # A new message has a step of the story that sends it.
    assert missing <= NOT_SENT
