"""A cloud of real processes that start faster: each is forked from a process that has imported all modules.

A fork takes a tenth of the time of an interpreter's start. The processes are like any others, and the cloud controls
them with the same methods.
"""

import itertools
import subprocess

from harness.cloud import Settings
from harness.processes import ProcessCloud
from moorage import failpoints
from support.processes.forked_process import ForkedProcess


class ForkedCloud(ProcessCloud):
    """Processes of one cloud, each with a name; commands are forked like daemons."""

    _runs = itertools.count(1)

    def __exit__(self, *_: object) -> None:
        # Killed, not stopped: a clean stop takes a second or two for each process, and has its own tests.
        for name in list(self.processes):
            self.kill(name)
        super().__exit__()

    def start_services(self, hosts: int) -> None:
        """Create a cell, start one process of each service, and wait for the hosts of the only agent."""
        self.run("cell", "create", "cell1")
        self.start("scheduler", "scheduler")
        self.start("conductor", "conductor")
        self.start("conductor-cell1", "conductor", "--cell", "cell1")
        self.start("compute", "compute", "--cell", "cell1", "--fake-hosts", str(hosts))
        self.wait_for_hosts(hosts)

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a `moorage` command to its end and return its output.

        :raises CalledProcessError: the command failed, and ``check`` is set.
        """
        number = next(self._runs)
        out, err = self.folder / f"run{number}.out", self.folder / f"run{number}.err"
        status = ForkedProcess(self._command(*words)[3:], self.folder, {}, out, err).wait()
        done = subprocess.CompletedProcess(words, status, out.read_text(), err.read_text())
        if check and status:
            raise AssertionError(f"moorage {' '.join(words)}: {status}: {done.stderr}")
        return done

    def start(self, name: str, *words: str, settings: Settings | None = None, armed: str = "") -> None:
        """Start a `moorage` daemon under a name, with its own configuration file for ``settings``.

        :param armed: failpoints, as :mod:`moorage.failpoints` reads them from the environment.
        """
        config_file = self._write_config(name, settings) if settings else self.config_file
        log = self.folder / f"{name}.log"
        log.touch()
        self.processes[name] = ForkedProcess(  # type: ignore[assignment]
            self._command(*words, config_file=config_file)[3:], self.folder, {failpoints.VARIABLE: armed}, log
        )
