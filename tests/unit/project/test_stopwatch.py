"""Test that the times of tests do not depend on other work of the machine."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.processes.stopwatch import Stopwatch


def test_what_sleeps_is_counted() -> None:
    watch = Stopwatch()
    time.sleep(0.2)
    assert watch.elapsed >= 0.2
    assert watch.seconds <= watch.elapsed


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not count waits")
def test_waits_for_a_processor_are_not_counted() -> None:
    with ExitStack() as ended:
        watch = Stopwatch()
        for _ in range(2 * (os.cpu_count() or 1)):
            busy = ended.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            ended.callback(busy.kill)
        while watch.elapsed < 60.0 and watch.seconds > 0.8 * watch.elapsed:
            pass
        assert watch.seconds <= 0.8 * watch.elapsed
