"""Fixtures for a module of tests: a story in a cloud that records every call."""

from collections.abc import Iterator

import pytest

from support.bus.deliveries import observed
from support.bus.late_messages import PatientCloud, Recorder
from support.bus.late_stories import Story
from support.operations.cloud import Troubles, plan
from support.operations.port_room import NICS
from support.operations.room import rooms_of


@pytest.fixture(name="recorder", scope="module")
def recorder_of_calls() -> Recorder:
    return Recorder()


@pytest.fixture(name="cloud", scope="module")
def patient_cloud(recorder: Recorder) -> Iterator[PatientCloud]:
    with (
        PatientCloud(plan("combine", hosts=3, **NICS)) as cloud,
        observed(cloud.conf, cloud.transport_url, recorder),
    ):
        yield cloud


@pytest.fixture(name="story", scope="module")
def story_of_a_server(cloud: PatientCloud) -> Story:
    """Return a story whose server exists; each test leaves the server active."""
    [room] = rooms_of(cloud, Troubles())
    story = Story(room, cloud)
    story.build()
    return story
