"""Processes of the `moorage` command that are forked from one which has imported everything."""

import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

_PRELOADED = [
    "__main__",
    "moorage.cli.shell",
    "conductor.commands.run",
    "compute.commands",
    "alembic.command",
    "alembic.config",
    "alembic.migration",
    "scheduler.commands.hosts",
    "placement_store.commands.cells",
    "placement_store.commands.claims",
    "placement_store.commands.db_upgrade",
    "oslo_messaging._drivers.impl_rabbit",
    "kombu.transport.pyamqp",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.sqlite",
]
_PLUGINS = (
    "moorage.filters", "moorage.weighers", "moorage.request_filters", "moorage.drivers", "moorage.schemas",
    "cliff.formatter.list", "cliff.formatter.show",
)  # fmt: skip
_PRELOADED += [plugin.module for group in _PLUGINS for plugin in metadata.entry_points(group=group)]
_PRELOADED += ["support.processes.ready_to_fork"]

#: The one process that all others are forked from: what it imports is said before the first of them is.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(_PRELOADED)


def _become(words: Sequence[str], folder: Path, out: Path, err: Path, environment: Mapping[str, str]) -> None:
    """Be a `moorage` command, in a process that has just been forked."""
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
