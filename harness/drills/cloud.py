"""The cloud of a drill: each service is a process that can be killed, paused and cut off."""

import contextlib
import gc
import logging
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from harness.arguments import Servers
from harness.cloud import CloudSpec, RunningCloud, Settings, created_schemas, guests_in, merged
from harness.processes import ProcessCloud, pause
from harness.tcp_proxy import TcpProxy
from moorage import errors
from moorage.db.database import Database
from moorage.model import Guest

#: All waits take seconds where production waits for a minute, so that a short drill sees the effects of a fault. No
#: host counts as silent because of a fault: the drills are not about the set of available hosts.
QUICK: Settings = {
    "rpc": {"call_timeout": 5.0},
    "conductor": {"report_interval": 0.5, "lease_seconds": 5.0, "retry_backoff": 0.2, "build_timeout": 30.0},
    "placement": {"reconcile_interval": 2.0, "reconcile_after": 10.0},
    "compute": {"report_interval": 0.5},
    "scheduler": {"host_down_after": 300.0},
    "database": {"statement_timeout": 3.0, "idle_transaction_timeout": 5.0},
}
_CELLS = 2
#: The agent with the standby hosts, and the prefix of their names.
STANDBY_AGENT, STANDBY_HOSTS = "agent-standby", "standby-host"

#: A host with its port in a URL.
_ADDRESS = re.compile(r"([\w.-]+):(\d+)(?=[,/?]|$)")


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of a cloud's cells: hosts, the number of servers of one vCPU that fit on each, and the memory of each.

    :param standby_hosts: the hosts of one more agent in the last cell, which can be killed with all its hosts while the
        cell still has others.
    """

    hosts: int = 4
    room: int = 16
    memory_mb: int = 512 * 16
    standby_hosts: int = 0


class Role(NamedTuple):
    """A process of the cloud: the words of its command, and its own settings."""

    words: Sequence[str]
    settings: Settings = MappingProxyType({})


class DrillCloud(ProcessCloud):
    """Two schedulers, two super conductors, and two cells with a conductor and an agent each; all are processes.

    With ``proxied``, each process reaches the database and the broker through proxies of its own.

    :param fail_rate: the share of guests that fail to spawn.
    :param settings: further options of all processes, which override those of :data:`QUICK`.
    """

    def __init__(
        self,
        servers: Servers,
        seed: int,
        *,
        proxied: bool,
        fail_rate: float = 0.0,
        size: Size = Size(),
        settings: Settings = MappingProxyType({}),
    ) -> None:
        self._urls = {"database": str(servers.database_url), "broker": str(servers.transport_url)}
        super().__init__(self._urls["broker"], self._urls["database"], merged(QUICK, settings))
        self.servers = servers
        self.database = Database(self._urls["database"], "main")
        self._spec = CloudSpec(cells=_CELLS, seed=seed)
        self.roles = dict(_roles(self._spec.cell_names, size, _fake_driver(size, seed, fail_rate)))
        self._hosts = _CELLS * size.hosts + size.standby_hosts
        self._proxied = proxied
        #: The proxies of each process for each host of a URL, by ``database`` and ``broker``.
        self.proxies: dict[str, dict[str, list[TcpProxy]]] = {}

    def __enter__(self) -> Self:
        """Create the schemas, start all processes, and wait until all hosts are up.

        :raises ConfigurationError: the database is not empty, or a URL has no port, which a proxy needs.
        """
        if self._proxied and not all(map(_ADDRESS.search, self._urls.values())):
            raise errors.ConfigurationError(reason="the URLs of database and broker must name the ports of their hosts")
        with contextlib.ExitStack() as opened:
            opened.callback(self.database.close)
            opened.enter_context(created_schemas(self.database, self._spec))
            super().__enter__()
            opened.push(super().__exit__)
            if self._proxied:
                self.proxies = {role: dict(self._opened(opened)) for role in self.roles}
            for role in self.roles:
                self.start_role(role)
            self.wait_for_hosts(self._hosts)
            self._opened_by = opened.pop_all()
        return self

    def __exit__(self, *fault: object) -> None:
        # Killed, not stopped: processes behind a silent proxy would wait for their time-outs.
        for role in list(self.processes):
            self.kill(role)
        self._opened_by.close()

    def _opened(self, opened: contextlib.ExitStack) -> Iterator[tuple[str, list[TcpProxy]]]:
        for kind, url in self._urls.items():
            yield kind, [opened.enter_context(TcpProxy(host, int(port))) for host, port in _ADDRESS.findall(url)]

    def start_role(self, role: str, **fake_driver: object) -> None:
        """Start a process of the cloud.

        :param fake_driver: options of an agent's driver, which override its previous ones.
        """
        words, own = self.roles[role]
        if fake_driver:
            own = merged(own, {"fake_driver": fake_driver})
            self.roles[role] = Role(words, own)
        urls = dict(self._urls)
        for kind, proxies in self.proxies.get(role, {}).items():
            ports = iter([proxy.port for proxy in proxies])
            urls[kind] = _ADDRESS.sub(lambda _, ports=ports: f"127.0.0.1:{next(ports)}", urls[kind])  # type: ignore[misc]
        reached = {"DEFAULT": {"transport_url": urls["broker"]}, "database": {"connection": urls["database"]}}
        self.start(role, *words, settings=merged(own, reached))

    def set_policy(self, **options: object) -> None:
        """Change options of ``[scheduler]`` in all schedulers without a restart."""
        for role in [role for role in self.processes if role.startswith("scheduler")]:
            self._write_config(role, {"scheduler": options})
            self.processes[role].send_signal(signal.SIGHUP)

    def pause(self, role: str) -> None:
        """Pause a process; its connections stay open."""
        pause(self.processes[role].pid)

    def resume(self, role: str) -> None:
        """Resume a paused process."""
        self.processes[role].send_signal(signal.SIGCONT)


def _roles(cells: Sequence[str], size: Size, driver: Mapping[str, Any]) -> Iterator[tuple[str, Role]]:
    for number in (1, 2):
        yield f"scheduler{number}", Role(("scheduler", "--name", f"scheduler{number}"))
        yield f"conductor{number}", Role(("conductor", "--name", f"conductor{number}"))
    for cell in cells:
        yield f"conductor-{cell}", Role(("conductor", "--cell", cell, "--name", f"conductor-{cell}"))
        yield f"agent-{cell}", _agent(cell, f"agent-{cell}", f"{cell}-host", size.hosts, driver)
    if size.standby_hosts:
        yield STANDBY_AGENT, _agent(cells[-1], STANDBY_AGENT, STANDBY_HOSTS, size.standby_hosts, driver)


def _agent(cell: str, name: str, prefix: str, hosts: int, driver: Mapping[str, Any]) -> Role:
    words = ("compute", "--cell", cell, "--agent", name, "--fake-hosts", str(hosts))
    return Role(words, {"fake_driver": {**driver, "host_prefix": prefix, "state_file": f"{name}.sqlite"}})


def _fake_driver(size: Size, seed: int, fail_rate: float) -> dict[str, object]:
    """Return the fake driver's options for the hosts; if nested, processors and memory belong to two NUMA nodes."""
    return {
        "vcpus": size.room,
        "memory_mb": size.memory_mb,
        "disk_gb": size.room,
        "numa_nodes": 2,
        "layout": "flat",
        "seed": seed,
        "fail_rate": fail_rate,
    }


def embedded(seed: int, fail_rate: float) -> RunningCloud:
    """Return a cloud of the same hosts in this process, not yet started."""
    size = Size()
    settings = {**QUICK, "fake_driver": _fake_driver(size, seed, fail_rate)}
    hosts = _CELLS * size.hosts
    return RunningCloud(CloudSpec(hosts=hosts, cells=_CELLS, schedulers=2, seed=seed, settings=settings))


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Log nothing in this process, whose own calls fail by the faults of its cloud, and collect garbage at the end.

    Log records of failed calls would keep their dead sockets, of which a later part of the process would be warned.
    """
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.collect()


def guests(cloud: RunningCloud | DrillCloud) -> list[Guest]:
    """Return all guests of the cloud, as recorded by their hosts."""
    return guests_in(sorted(cloud.folder.glob("agent-*.sqlite")))
