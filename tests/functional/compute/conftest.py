"""A whole compute service on an in-process bus, under a cell conductor that keeps its promises or does not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.compute.builders import Begin, FakeCell, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Begin]:
    begun: list[Stage] = []

    def begin(cell: FakeCell | None = None, **groups: dict[str, Any]) -> Stage:
        begun.append(Stage(tmp_path, cell or FakeCell(), **groups))
        return begun[-1]

    yield begin
    for one in begun:
        one.stop()
        one.around.close()
