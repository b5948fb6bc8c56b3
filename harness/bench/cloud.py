"""The clouds of benchmarks: on real servers each service is a process; on embedded ones all services are threads."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from harness.arguments import Servers, require_broker
from harness.audit import Verdict, judge
from harness.bench.usage import cpu_seconds, memory_mb
from harness.cloud import CloudSpec, RunningCloud, Settings, created_schemas
from harness.processes import ProcessCloud
from moorage import errors
from moorage.bus.bus import Client
from moorage.config import options
from moorage.db.database import Database
from moorage.messages import CatchUpView
from scheduler.decide import claim_writer

#: The beginning of the line that a claim writer logs when the store has refused claims.
CLAIM_REFUSED = "The claim was refused by"


def is_embedded(servers: Servers) -> bool:
    """Return whether everything runs in this process.

    :raises ConfigurationError: only one of bus and database is embedded; or the bus cannot be shared.
    """
    if servers.transport_url is not None:
        require_broker(servers.transport_url)
    if (servers.transport_url is None) != (servers.database_url is None):
        raise errors.ConfigurationError(
            reason="give --transport-url and --database-url together: each service is a process of its own"
        )
    return servers.transport_url is None


@dataclass
class BenchCloud:
    """A running cloud, with the resources that its processes have used so far."""

    transport_url: str
    database: Database
    _cloud: RunningCloud | ProcessCloud
    _pids: Mapping[str, int]

    def client(self, topic: str) -> Client:
        """Return a client of a topic."""
        return self._cloud.client(topic, timeout=60.0)

    def catch_up(self) -> None:
        """Wait until the view of each scheduler shows everything that is in the store."""
        for name in self._schedulers():
            self._cloud.client("scheduler", 60.0, name).call(CatchUpView())

    def stop_agents(self) -> None:
        """Stop the agents; their hosts stay up for `[scheduler] host_down_after`."""
        if isinstance(self._cloud, RunningCloud):
            self._cloud.stop_agents()
            return
        for name in [name for name in self._cloud.processes if name.startswith("compute")]:
            self._cloud.stop(name)

    def cpu_seconds(self) -> dict[str, float]:
        """Return the processor seconds of each process so far, including its children, by name."""
        if isinstance(self._cloud, RunningCloud):
            return {"all": time.process_time()}
        running = {name: process.pid for name, process in self._cloud.processes.items()}
        return cpu_seconds({**running, **self._pids})

    def memory_mb(self) -> dict[str, int]:
        """Return the resident memory of each service in MB, by name."""
        if isinstance(self._cloud, RunningCloud):
            return {"all": memory_mb()}
        return {name: memory_mb(process.pid) for name, process in self._cloud.processes.items()}

    @contextlib.contextmanager
    def conflicts(self) -> Iterator[Callable[[], int]]:
        """Yield a function that returns how many claims of the schedulers the store has refused so far.

        The function counts lines in the logs of the schedulers.
        """
        cloud = self._cloud
        if isinstance(cloud, ProcessCloud):
            yield lambda: sum(cloud.log(name).count(CLAIM_REFUSED) for name in self._schedulers())
            return
        counter, level = _RefusalCounter(), claim_writer.LOG.level
        claim_writer.LOG.addHandler(counter)
        claim_writer.LOG.setLevel(logging.DEBUG)
        try:
            yield lambda: counter.count
        finally:
            claim_writer.LOG.setLevel(level)
            claim_writer.LOG.removeHandler(counter)

    def judge(self, living: list[str]) -> Verdict:
        """Return the verdict on the store."""
        return judge(self.database, living)

    def _schedulers(self) -> list[str]:
        cloud = self._cloud
        names = cloud.services if isinstance(cloud, RunningCloud) else cloud.processes
        return [name for name in names if name.startswith("scheduler")]


class _RefusalCounter(logging.Handler):
    """Counts the lines about refused claims."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count a line, if it is about a refused claim."""
        self.count += record.getMessage().startswith(CLAIM_REFUSED)


@contextlib.contextmanager
def running(servers: Servers, spec: CloudSpec) -> Iterator[BenchCloud]:
    """Run a cloud and yield it once all hosts are up: threads of this process on embedded servers, else processes.

    :raises ConfigurationError: the database is not empty.
    """
    if is_embedded(servers):
        with RunningCloud(spec) as cloud:
            yield BenchCloud(cloud.transport_url, cloud.database, cloud, servers.pids)
        return
    transport_url, database_url = str(servers.transport_url), str(servers.database_url)
    # Schedulers log refused claims, so that these can be counted.
    levels = [*options.new({}).default_log_levels, f"{claim_writer.LOG.name}=DEBUG"]
    settings = {**spec.settings, "DEFAULT": {"default_log_levels": levels}}
    with (
        contextlib.closing(Database(database_url, "main")) as database,
        created_schemas(database, spec),
        ProcessCloud(transport_url, database_url, settings) as processes,
    ):
        _start(processes, spec)
        yield BenchCloud(transport_url, database, processes, servers.pids)


def _start(cloud: ProcessCloud, spec: CloudSpec) -> None:
    for number in range(spec.schedulers):
        cloud.start(f"scheduler{number + 1}", "scheduler", "--name", f"scheduler{number + 1}")
    cloud.start("conductor", "conductor")
    for index, cell in enumerate(spec.cell_names):
        cloud.start(f"conductor-{cell}", "conductor", "--cell", cell)
        if hosts := len(range(index, spec.hosts, spec.cells)):
            settings: Settings = {"fake_driver": {"host_prefix": f"{cell}-host"}}
            words = ("compute", "--cell", cell, "--agent", f"agent-{cell}", "--fake-hosts", str(hosts))
            cloud.start(f"compute-{cell}", *words, settings=settings)
    cloud.wait_for_hosts(spec.hosts)
