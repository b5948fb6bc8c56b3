"""The processes of a cloud end with the one that has started them, also where it is killed."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from harness.cloud import wait_until

#: A scheduler that waits for its servers, which are not there, and its process id.
SCRIPT = """
import sys, time
from harness.processes import ProcessCloud
with ProcessCloud("rabbit://127.0.0.1:1/", f"sqlite:///{sys.argv[1]}/none/none.sqlite") as cloud:
    cloud.start("scheduler", "scheduler")
    print(cloud.processes["scheduler"].pid, flush=True)
    time.sleep(600)
"""


def test_the_services_of_a_process_that_is_killed_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # what a killed process leaves there
    words = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        scheduler = psutil.Process(int(parent.stdout.readline()))
        # The program that binds it to its parent runs first, and replaces itself by the service.
        wait_until(lambda: "setpriv" not in scheduler.cmdline()[0], "the service to run", 20.0)
        parent.send_signal(signal.SIGKILL)
    try:
        wait_until(lambda: not scheduler.is_running(), "the scheduler to end", 20.0)
    finally:
        if scheduler.is_running():
            scheduler.kill()
