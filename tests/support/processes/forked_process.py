"""Processes of the `moorage` command that are forked from a process that has imported all modules."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, spawn
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

#: The module that the fork server imports first.
_READY = "support.processes.ready_to_fork"
_STARTING = threading.Lock()


class _Process(ForkServerProcess):
    """A process forked from a fork server with the same module path; Python 3.11 does not pass the path on."""

    def start(self) -> None:
        """Start the process; before the first one, start the fork server."""
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
    """Turn a process that has just been forked into a `moorage` command."""
    # If the fork server cannot import it, there is no error, and each process would import all modules itself.
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

    Its standard output is appended to ``out``, and its standard error to ``err``, by default the same file.
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
        # The exit status can be read only once: of two threads that read it at the same moment, one would find none.
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


def run_forked(
    words: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, seconds: float = 180.0
) -> "subprocess.CompletedProcess[str]":
    """Run a `moorage` command in a folder to its end, and return its output."""
    with tempfile.TemporaryDirectory() as outputs:
        out, err = Path(outputs, "out"), Path(outputs, "err")
        process = ForkedProcess(words, folder, environment or {}, out, err)
        try:
            status = process.wait(seconds)
        finally:
            process.kill()
        return subprocess.CompletedProcess(words, status, out.read_text(), err.read_text())
