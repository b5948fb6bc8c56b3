"""Test that signals end a run as Ctrl-C does, so that it removes what it has created."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from types import ModuleType

import pytest

from harness.bench import decide, explain
from moorage import errors
from moorage.cli.shell import main

RUN = """
import os, signal, sys
from harness.termination import unwound_by_signals
with unwound_by_signals():
    try:
        print("running", flush=True)
        sys.stdin.read()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        print("cleaned", flush=True)
"""


def end_of_run(*numbers: signal.Signals, under: Sequence[str] = ()) -> int:
    """Send signals to a run, and return its exit status once it has cleaned up."""
    command = [*under, sys.executable, "-c", RUN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"running\n"
        for number in numbers:
            run.send_signal(number)
        assert run.stdout.readline() == b"cleaned\n"
        return run.wait(30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_run_and_later_signals_do_not_interrupt_its_cleaning(number: signal.Signals) -> None:
    assert end_of_run(number) == 128 + number


def test_a_closed_terminal_does_not_end_a_run_under_nohup() -> None:
    assert end_of_run(signal.SIGHUP, signal.SIGTERM, under=["nohup"]) == 128 + signal.SIGTERM


@pytest.mark.parametrize(("command", "module"), [("decide", decide), ("explain", explain)])
def test_a_benchmark_with_a_temporary_database_removes_it_after_a_signal(
    command: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, handlers = signal.getsignal(signal.SIGTERM), []

    def measured(*_: object) -> None:
        handlers.append(signal.getsignal(signal.SIGTERM))
        raise errors.ConfigurationError(reason="no more is needed")

    monkeypatch.setattr(module, "measure", measured)
    assert main(["bench", command]) != 0
    assert handlers != [before]
    assert signal.getsignal(signal.SIGTERM) is before
