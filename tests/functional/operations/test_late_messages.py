"""Test that messages which are delivered again, or late after later messages, change nothing."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.bus.deliveries import Delivery, observed
from support.bus.late_messages import MESSAGES, PatientCloud, Recorder, Replays, once_each, taken_too_late
from support.bus.late_stories import Story
from support.operations.cloud import Troubles, plan
from support.operations.port_room import NICS
from support.operations.random_aftermath import Aftermath, settle
from support.operations.room import Room, rooms_of

from moorage.messages import AuditStore
from moorage.messages.wire import Message, Mutation

MUTATIONS = {kind for kind in MESSAGES.values() if issubclass(kind, Mutation)}


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def cloud(recorder: Recorder) -> Iterator[PatientCloud]:
    usual = plan("combine", hosts=3, **NICS)
    with (
        PatientCloud(replace(usual, settings={**usual.settings, "service": {"report_interval": 0.5}})) as cloud,
        observed(cloud.conf, cloud.transport_url, recorder),
    ):
        yield cloud


@pytest.fixture(scope="module")
def room(cloud: PatientCloud) -> Room:
    [room] = rooms_of(cloud, Troubles())
    return room


@pytest.fixture(scope="module")
def aftermath(cloud: PatientCloud, room: Room) -> Aftermath:
    others = {str(holder.uuid) for holder in cloud.client("placement").call(AuditStore()).holders}
    return Aftermath(cloud, {room.licences}, others=others)


def unsent(kinds: Iterable[type[Message[Any]]], replays: Replays) -> list[str]:
    return sorted(kind.__name__ for kind in set(kinds) - replays.delivered)


def test_a_message_that_is_delivered_again_after_any_other_changes_nothing(
    room: Room, cloud: PatientCloud, recorder: Recorder, aftermath: Aftermath
) -> None:
    story, replays, wrong = Story(room, cloud), Replays(cloud), list[str]()
    known: list[Delivery] = []
    for name, step in story.steps().items():
        step()
        settle(cloud)
        findings = aftermath.findings()
        assert not findings, "\n".join([f"after: {name}", *findings])
        known += recorder.take()
        wrong += replays.of(known, f"after: {name}")
        assert not wrong, "\n".join(wrong)
        recorder.take()

    # A new message has a step of the story that sends it.
    assert not (missing := unsent(MESSAGES.values(), replays)), ", ".join(missing)


def test_a_message_whose_first_copy_arrives_after_its_repetition_and_later_messages_changes_nothing(
    room: Room, cloud: PatientCloud, recorder: Recorder, aftermath: Aftermath
) -> None:
    story, replays, wrong = Story(room, cloud), Replays(cloud), list[str]()
    for name, step in story.steps().items():
        with recorder.losing(once_each()) as held:
            step()
            settle(cloud)
        wrong += taken_too_late(held)
        # In reverse order: each message arrives after the later ones.
        wrong += replays.of(held[::-1], f"after: {name}")
        assert not wrong, "\n".join(wrong)
        findings = aftermath.findings()
        assert not findings, "\n".join([f"after: {name}", *findings])

    assert not (missing := unsent(MUTATIONS, replays)), ", ".join(missing)
