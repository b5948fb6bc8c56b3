"""A world with a super conductor and one cell, running."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.conductor.builders import CALL_TIMEOUT, FakePlacement, World, connected
from support.databases import migrated

from conductor.schema import CELL, CONDUCTOR


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    # Answers are slow on a busy machine; only a test in which something is never answered has a short time-out.
    call_timeout = CALL_TIMEOUT if request.node.get_closest_marker("short_calls") else 20.0
    url = migrated.sqlite(tmp_path / "records.sqlite", CONDUCTOR, CELL)
    with connected(World, FakePlacement(), url, call_timeout) as world:
        world.replace(world.agent)
        world.start("super")
        world.start("cell")
        yield world
