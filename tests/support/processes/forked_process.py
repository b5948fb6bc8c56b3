"""Processes of the `moorage` command that are forked from one which has imported everything."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, spawn
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

#: The module that the process which all others are forked from imports first.
_READY = "support.processes.ready_to_fork"
_STARTING = threading.Lock()


class _Process(ForkServerProcess):
    """A process forked from one whose path is that of this one: Python 3.11 does not hand it over."""

    def start(self) -> None:
        """Start the process, and before the first one that which it is forked from."""
        with _STARTING:
            before = os.environ.get("PYTHONPATH", "")
            os.environ["PYTHONPATH"] = os.pathsep.join(spawn.get_preparation_data("")["sys_path"])
            forkserver.ensure_running()
            os.environ["PYTHONPATH"] = before
        super().start()


class _Context(ForkServerContext):
    Process = _Process


CONTEXT = _Context()
CONTEXT.set_forkserver_preload(["__main__", _READY])


def _become(words: Sequence[str], folder: Path, out: Path, err: Path, environment: Mapping[str, str]) -> None:
    """Be a `moorage` command, in a process that has just been forked."""
    # Where it cannot be imported, that is not told, and each process imports everything for itself.
    assert _READY in sys.modules
    from moorage.cli.shell import main

    for number, file in ((1, out), (2, err)):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.update(environment)
    raise SystemExit(main(words))


class ForkedProcess:
    """A forked process with the methods of :class:`subprocess.Popen` that a cloud uses.

    What it prints is appended to ``out``, and what it complains of to ``err``, which is the same file if not given.
    """

    def __init__(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path, err: Path | None = None
    ) -> None:
        arguments = (words, folder, out, err or out, environment)
        self._process = CONTEXT.Process(target=_become, args=arguments, daemon=True)
        self._process.start()
        self._lock = threading.Lock()
        self.pid = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        # The exit status can be read once: a second thread that came to it at the same moment would find none.
        with self._lock:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (timeout or float("inf"))
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("moorage", timeout or 0.0)
            time.sleep(0.01)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
