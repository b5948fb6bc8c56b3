"""A whole compute service on an in-process bus, with a fake cell conductor that a test may make fail."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.compute.builders import AgentUnderTest, FakeCell, NewStage


@pytest.fixture
def new_stage(tmp_path: Path) -> Iterator[NewStage]:
    """Return a function that creates a stage; its agent is not started."""
    stages: list[AgentUnderTest] = []

    def create(cell: FakeCell | None = None, **groups: dict[str, Any]) -> AgentUnderTest:
        stages.append(AgentUnderTest(tmp_path, cell or FakeCell(), **groups))
        return stages[-1]

    yield create
    for stage in stages:
        stage.stop()
        stage.peers.close()
