"""A `moorage` command in a separate process."""

import subprocess
import sys


def moorage(*words: str, timeout: float = 240.0) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, and return its exit status and its output."""
    command = [sys.executable, "-m", "moorage.cli.shell", *words]
    return subprocess.run(command, text=True, capture_output=True, check=False, timeout=timeout)
