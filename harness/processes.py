"""A cloud of real processes, each a `moorage` command, with a shared configuration file."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from harness.cloud import Settings, merged, short_run, write_settings
from harness.termination import ends_with_this_process
from harness.waiting import wait_until
from moorage import errors, failpoints
from moorage.bus.bus import Bus, Client
from moorage.cli import lists
from moorage.config import options
from moorage.messages import ListHosts

LOG = logging.getLogger(__name__)

#: Seconds for a process to stop cleanly; a process that does not end must not block a run.
_STOP_SECONDS = 60.0


def pause(pid: int) -> None:
    """Pause a process and return when all its threads stand.

    After the signal one of them must run to stop the others, and on a busy machine those go on for milliseconds: they
    still take a message, or commit.

    :raises TimeoutError: a thread goes on.
    """
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")

    def goes_on(task: Path) -> bool:
        try:
            # The state follows the name, which is in parentheses and may contain any character.
            return (task / "stat").read_text().rpartition(")")[2].split()[0] not in "TtZX"
        except (FileNotFoundError, ProcessLookupError):
            return False

    wait_until(lambda: not any(map(goes_on, tasks.iterdir())), f"process {pid} to stop", interval=0.001)


class ProcessCloud:
    """The processes of one cloud, each with a name, and with its log in a file of that name.

    ``settings`` (group, option, value) are written to the configuration file of all of them.
    """

    def __init__(self, transport_url: str, database_connection: str, settings: Settings | None = None) -> None:
        self._closing = contextlib.ExitStack()
        #: The interpreter of the processes that are started from now on: another environment may have another release.
        self.python = sys.executable
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._sections = merged(short_run(transport_url, database_connection), settings or {})

    def __enter__(self) -> Self:
        self.folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="moorage-")))
        self.config_file = self._write_config("moorage", {})
        self._bus = Bus(options.new(files=[self.config_file]))
        self._closing.callback(self._bus.close)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.terminate()
        for name in list(self.processes):
            self.stop(name)
        self._closing.close()

    def client(self, topic: str, timeout: float | None = None, server: str | None = None) -> Client:
        """Return a client of a topic of the main bus, or of one server of it."""
        return self._bus.client(topic, server, timeout)

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a `moorage` command to its end and return its output.

        :raises CalledProcessError: the command failed, and ``check`` is set.
        """
        done = subprocess.run(
            self._command(*words), cwd=self.folder, env=self._environment(), text=True, capture_output=True, check=False
        )
        if check and done.returncode:
            LOG.error("moorage %s: %s", " ".join(words), done.stderr)
            done.check_returncode()
        return done

    def start(self, name: str, *words: str, settings: Settings | None = None, armed: str = "") -> None:
        """Start a `moorage` daemon under a name, with its own configuration file for ``settings``.

        :param armed: failpoints, as :mod:`moorage.failpoints` reads them from the environment.
        """
        config_file = self._write_config(name, settings) if settings else self.config_file
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*ends_with_this_process(), *self._command(*words, config_file=config_file)],
                cwd=self.folder,
                env={**self._environment(), failpoints.VARIABLE: armed},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self, name: str) -> int:
        """Stop a process cleanly and return its exit status."""
        return self._end(name, signal.SIGTERM)

    def kill(self, name: str) -> int:
        """Kill a process, as a crash would."""
        return self._end(name, signal.SIGKILL)

    def log(self, name: str) -> str:
        """Return what a process has logged so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait_for_hosts(self, hosts: int, seconds: float = 120.0) -> None:
        """Wait until ``hosts`` hosts are up.

        :raises TimeoutError: for ``seconds`` no additional host has come up.
        :raises RuntimeError: a process has ended; the message contains its log.
        """
        up = 0

        def all_up() -> bool:
            nonlocal up
            self._check_running()
            with contextlib.suppress(errors.Unavailable):
                up = sum(host.up for host in lists.hosts(self.client("scheduler", timeout=2.0), ListHosts()))
            return up >= hosts

        # Listing hosts is work too, and it grows with the number of hosts.
        interval = max(0.1, hosts / 5_000)
        wait_until(all_up, f"{hosts} hosts to be up", seconds, interval, progress=lambda: up)

    def _check_running(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} has ended with {process.returncode}:\n{self.log(name)[-4000:]}")

    def _end(self, name: str, how: signal.Signals) -> int:
        process = self.processes.pop(name)
        if process.poll() is None:
            process.send_signal(how)
        try:
            return process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _command(self, *words: str, config_file: Path | None = None) -> list[str]:
        file = str(config_file or self.config_file)
        return [self.python, "-m", "moorage.cli.shell", "--config-file", file, *words]

    def _write_config(self, name: str, settings: Settings) -> Path:
        return write_settings(self.folder / f"{name}.conf", merged(self._sections, settings))

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONUNBUFFERED": "1"}
