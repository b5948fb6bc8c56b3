"""Test that the processes of a cloud end when the process that started them is killed."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from harness.waiting import wait_until

#: Starts a scheduler, which waits for servers that do not exist, and prints its process id.
SCRIPT = """
import sys, time
from harness.processes import ProcessCloud
with ProcessCloud("rabbit://127.0.0.1:1/", f"sqlite:///{sys.argv[1]}/none/none.sqlite") as cloud:
    cloud.start("scheduler", "scheduler")
    print(cloud.processes["scheduler"].pid, flush=True)
    time.sleep(600)
"""


def test_the_services_of_a_process_that_is_killed_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a killed process leaves files there
    words = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        scheduler = psutil.Process(int(parent.stdout.readline()))
        try:
            # `setpriv` binds the process to its parent, and is then replaced by the service.
            wait_until(lambda: is_replaced(scheduler), "the service to run")
        finally:
            parent.send_signal(signal.SIGKILL)
    try:
        wait_until(lambda: not scheduler.is_running(), "the scheduler to end")
    finally:
        if scheduler.is_running():
            scheduler.kill()


def is_replaced(process: psutil.Process) -> bool:
    """Return whether `setpriv` has been replaced; at the moment of that, a process has no command line."""
    words = process.cmdline()
    return bool(words) and "setpriv" not in words[0]
