"""The clouds of benchmarks: on real servers each service is a process of its own; on embedded ones all are threads."""

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import psutil

from harness.arguments import Servers
from harness.audit import Verdict, judge
from harness.cloud import CloudSpec, RunningCloud, Settings, created_schemas
from harness.processes import ProcessCloud
from moorage import errors
from moorage.bus.bus import Client
from moorage.db.database import Database


def is_embedded(servers: Servers) -> bool:
    """Return whether everything runs in this process.

    :raises ConfigurationError: bus or database is embedded, and the other is not.
    """
    if (servers.transport_url is None) != (servers.database_url is None):
        raise errors.ConfigurationError(
            reason="give --transport-url and --database-url together: each service is a process of its own"
        )
    return servers.transport_url is None


@dataclass
class BenchCloud:
    """A running cloud, with what its processes have used so far."""

    transport_url: str
    database: Database
    _cloud: RunningCloud | ProcessCloud
    _pids: Mapping[str, int]

    def client(self, topic: str) -> Client:
        """Return a client of a topic."""
        return self._cloud.client(topic, timeout=60.0)

    def stop_agents(self) -> None:
        """Stop the agents; their hosts stay up for `[scheduler] host_down_after`."""
        if isinstance(self._cloud, RunningCloud):
            self._cloud.stop_agents()
            return
        for name in [name for name in self._cloud.processes if name.startswith("compute")]:
            self._cloud.stop(name)

    def cpu_seconds(self) -> dict[str, float]:
        """Return the processor seconds of each process so far, with those of its children; by name."""
        if isinstance(self._cloud, RunningCloud):
            return {"all": time.process_time()}
        used = {name: _cpu_seconds(pid) for name, pid in self._processes().items()}
        # The processes of clients are children of this one; what has been waited for counts too.
        return {**used, "clients": _cpu_seconds(os.getpid(), besides=self._processes().values())}

    def memory_mb(self) -> dict[str, int]:
        """Return the resident memory of each service in MB, by name."""
        if isinstance(self._cloud, RunningCloud):
            return {"all": psutil.Process().memory_info().rss // 10**6}
        return {
            name: psutil.Process(process.pid).memory_info().rss // 10**6
            for name, process in self._cloud.processes.items()
        }

    def judge(self, living: list[str]) -> Verdict:
        """Return the verdict on the store."""
        return judge(self.database, living)

    def _processes(self) -> dict[str, int]:
        cloud = self._cloud
        running = {} if isinstance(cloud, RunningCloud) else {n: p.pid for n, p in cloud.processes.items()}
        return {**running, **self._pids}


def _cpu_seconds(pid: int, besides: Collection[int] = ()) -> float:
    """Return the processor seconds of a process and its descendants, except some of them with theirs."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        times = process.cpu_times()
        total += times.user + times.system
        total += sum(_cpu_seconds(child.pid, besides) for child in process.children() if child.pid not in besides)
    return total


@contextlib.contextmanager
def running(servers: Servers, spec: CloudSpec) -> Iterator[BenchCloud]:
    """Run a cloud: threads of this process on embedded servers, processes on others; yield it once all hosts are up.

    :raises ConfigurationError: the database is not empty.
    """
    if is_embedded(servers):
        with RunningCloud(spec) as cloud:
            yield BenchCloud(cloud.transport_url, cloud.database, cloud, servers.pids)
        return
    transport_url, database_url = str(servers.transport_url), str(servers.database_url)
    with (
        contextlib.closing(Database(database_url, "main")) as database,
        created_schemas(database, spec),
        ProcessCloud(transport_url, database_url, spec.settings) as processes,
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
