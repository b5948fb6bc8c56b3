"""Commands in the process of the test."""

import pytest
from support.cli.commands import Run, run_here


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process, where all modules are already imported."""
    return lambda *words: run_here(capsys, *words)
