"""A cloud in this process with the dashboard in front of it."""

from collections.abc import Iterator

import pytest
from support.dashboard import SETTINGS, Viewer

from dashboard.application import application
from dashboard.sources import Sources
from harness.cloud import CloudSpec, RunningCloud


@pytest.fixture(scope="module")
def viewer() -> Iterator[Viewer]:
    """A viewer of a cloud of six hosts in two cells."""
    with RunningCloud(CloudSpec(hosts=6, cells=2, settings=SETTINGS)) as cloud:
        conf = cloud.configuration()
        sources = Sources(conf)
        yield Viewer(cloud, sources, application(conf, sources))
        sources.audits.stop(60)
        sources.close()
