"""Processes of the `moorage` command that are forked from one which has imported everything."""

import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_PRELOADED = ["__main__", "moorage.cli.shell", "conductor.commands.run", "compute.commands", "compute.fake.driver"]
_PRELOADED += [
    "alembic.command",
    "scheduler.commands.hosts",
    "placement_store.commands.claims",
    "filters.resources",
    "weighers.ram",
    "pymysql",
]


def _become(words: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str]) -> None:
    """Be a `moorage` command, in a process that has just been forked."""
    from moorage.cli.shell import main

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.chdir(folder)
    os.environ.update(environment)
    raise SystemExit(main(words))


class ForkedProcess:
    """A forked process with the methods of :class:`subprocess.Popen` that a cloud uses."""

    def __init__(self, words: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self._process = context.Process(target=_become, args=(words, folder, log, environment), daemon=True)
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
