"""A super conductor with a cell that only keeps records."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.conductor.builders import connected
from support.conductor.moving_world import MovingPlacement, MovingWorld
from support.databases import migrated

from conductor.schema import CONDUCTOR

#: Seconds. A cell has to answer in a third of it, which must be more than a busy machine takes.
CALL_TIMEOUT = 9.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MovingWorld]:
    url = migrated.sqlite(tmp_path / "records.sqlite", CONDUCTOR)
    with connected(MovingWorld, MovingPlacement(), url, CALL_TIMEOUT) as world:
        world.replace_cell(world.cell)
        world.start("super")
        yield world
