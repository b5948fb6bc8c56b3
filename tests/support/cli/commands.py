"""Commands in the process of a test."""

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from moorage.cli.shell import main

Run = Callable[..., "CompletedProcess[str]"]


def run_here(capsys: pytest.CaptureFixture[str], *words: str) -> "CompletedProcess[str]":
    """Run a command to its end in this process, and return its output."""
    try:
        status: object = main(words)
    except SystemExit as end:
        status = end.code
    assert isinstance(status, int)
    return CompletedProcess(words, status, *capsys.readouterr())
