"""A pytest plug-in: the fixture ``moorage_cloud`` is a cloud of fake hosts in the test's own process.

pytest loads it by its entry point, so the fixture imports all modules that take time to import.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.cloud import RunningCloud

_MARKER = "moorage_cloud"


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(hosts=10, cells=1, schedulers=1, settings={{}}): the cloud of the fixture `{_MARKER}`, with "
        "the options of services and plug-ins by group; see docs/harness.md",
    )


@pytest.fixture
def moorage_cloud(request: pytest.FixtureRequest) -> Iterator["RunningCloud"]:
    """Yield a running cloud, as the nearest marker ``moorage_cloud`` describes it."""
    from harness.cloud import CloudSpec, RunningCloud
    from moorage import errors

    marker = request.node.get_closest_marker(_MARKER)
    if marker is not None and marker.args:
        raise pytest.UsageError(f"{_MARKER} takes what a cloud has by name, as in {_MARKER}(hosts=3)")
    try:
        spec = CloudSpec(**(marker.kwargs if marker else {}))
    except (TypeError, errors.ConfigurationError) as fault:
        raise pytest.UsageError(f"{_MARKER}: {fault}") from fault
    with RunningCloud(spec) as cloud:
        yield cloud
