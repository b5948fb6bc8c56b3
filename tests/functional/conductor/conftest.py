"""The operator's commands, for the tests of both conductors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.cli.operator import Operator
from support.conductor.builders import World


@pytest.fixture
def moorage(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Return a function that runs a command and returns its exit status and its output."""
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = {world.conf.transport_url}\n[rpc]\ncall_timeout = 30\n")
    return Operator(file, [], capsys).runs
