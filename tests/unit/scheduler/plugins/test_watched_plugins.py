"""Test a plug-in that returns at the moment at which its decision is abandoned."""

import threading
import time

import pytest

from moorage import errors
from scheduler.plugins.watch import PluginWatchdog


def no_decision_runs() -> bool:
    return not any(thread.name == "decision" for thread in threading.enumerate())


def test_a_plugin_that_returns_while_its_decision_is_abandoned_is_asked_again() -> None:
    go_on = threading.Event()

    def return_now(_plugin: str) -> None:
        """Let the plug-in return, and its thread end, before it has been interrupted."""
        go_on.set()
        end = time.monotonic() + 20
        while not no_decision_runs():
            assert time.monotonic() < end
            time.sleep(0.001)

    watch = PluginWatchdog(0.2, return_now)

    def ask() -> None:
        with watch.timed("filter rack"):
            assert go_on.wait(20)

    for _ in range(10):
        go_on.clear()
        with pytest.raises(errors.SlowPlugin):
            watch.run(ask)

    # No thread hangs in the plug-in, so it is asked again.
    watch.run(ask)
    watch.stop()
