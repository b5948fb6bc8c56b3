"""A cloud of processes on clusters, with two of each service and two cells, and clients that build, move and delete."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from moorage import ids
from moorage.messages import BuildInstances, LiveMigrateInstance
from moorage.model import Instance, RequestSpec
from support.processes.fault_servers import Server, flavor
from support.processes.faulty_cloud import FaultyCloud

#: Its peers notice the death of a node after five seconds, and until then no write is committed. No time-out may be so
#: short that it takes this pause for the end of a process.
PATIENT: Mapping[str, Mapping[str, Any]] = {
    "rpc": {"call_timeout": 10.0},
    "conductor": {"report_interval": 2.0, "lease_seconds": 10.0, "retry_backoff": 0.5, "build_timeout": 30.0},
    "placement": {"reconcile_interval": 2.0, "reconcile_after": 15.0},
    "compute": {"report_interval": 2.0},
    "scheduler": {"host_down_after": 300, "enabled_weighers": "ram,cpu,disk"},
    "database": {"idle_transaction_timeout": 8.0},
}
_HOSTS_OF_AN_AGENT = 20


def _agent(cell: str) -> tuple[Sequence[str], Mapping[str, Mapping[str, Any]]]:
    words = ["compute", "--cell", cell, "--agent", cell, "--fake-hosts", str(_HOSTS_OF_AN_AGENT)]
    return words, {"fake_driver": {"vcpus": 32, "memory_mb": 65536, "state_file": f"{cell}.sqlite"}}


class ClusteredCloud(FaultyCloud):
    """Two schedulers, which serve placement, two super conductors, and two cells with a conductor and an agent each."""

    ROLES: Mapping[str, tuple[Sequence[str], Mapping[str, Mapping[str, Any]]]] = {
        "scheduler": (["scheduler", "--name", "one"], {}),
        "second scheduler": (["scheduler", "--name", "two"], {}),
        "conductor": (["conductor", "--name", "one"], {}),
        "second conductor": (["conductor", "--name", "two"], {}),
        "conductor of cell1": (["conductor", "--cell", "cell1", "--name", "one"], {}),
        "conductor of cell2": (["conductor", "--cell", "cell2", "--name", "one"], {}),
        "agent of cell1": _agent("cell1"),
        "agent of cell2": _agent("cell2"),
    }
    SECONDS: Mapping[str, tuple[Sequence[str], Mapping[str, Mapping[str, Any]]]] = {}
    CELLS = ("cell1", "cell2")
    AGENTS = ("cell1", "cell2")
    HOSTS = 2 * _HOSTS_OF_AN_AGENT

    def __init__(self, transport_url: str, database_connection: str) -> None:
        super().__init__(transport_url, database_connection, PATIENT)


class Duration(NamedTuple):
    """The duration of an order and the time when it was given, in seconds; durations are compared first."""

    seconds: float
    since_start: float


@dataclass
class BusyClients:
    """Clients that build some instances, move some of them, delete all, and begin again; each order is timed."""

    cloud: ClusteredCloud
    clients: int
    #: The number of instances in each order, and how many of them are moved.
    together: int = 10
    moved: int = 3
    #: Seconds after which an order counts as stuck.
    patience: float = 120.0
    #: The durations by kind of order.
    durations: dict[str, list[Duration]] = field(default_factory=lambda: {"build": [], "move": [], "delete": []})
    ends: Counter[str] = field(default_factory=Counter)
    faults: list[BaseException] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    started: float = field(default_factory=time.monotonic)

    @contextmanager
    def busy(self) -> Iterator["BusyClients"]:
        """Let the clients work until the block ends; then they finish what they have begun."""
        threads = [threading.Thread(target=self._work, name=f"client {number}") for number in range(self.clients)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.ended.set()
            for thread in threads:
                thread.join()

    @property
    def slowest(self) -> float:
        """The duration of the slowest order in seconds."""
        return max(duration.seconds for durations in self.durations.values() for duration in durations)

    def __str__(self) -> str:
        parts = [
            f"{len(taken)} {kind}s, p50 {sorted(taken)[len(taken) // 2].seconds:.1f} s, "
            f"slowest {max(taken).seconds:.1f} s, given at {max(taken).since_start:.1f} s"
            for kind, taken in self.durations.items()
            if taken
        ]
        return f"{'; '.join(parts)}; {dict(self.ends)}"

    def _work(self) -> None:
        try:
            while not self.ended.is_set() and not self.faults:
                servers = [Server(self.cloud, 1, patience=self.patience) for _ in range(self.together)]
                self._build(servers)
                for server in servers[: self.moved]:
                    self._move(server)
                self._delete(servers)
        except BaseException as fault:  # noqa: BLE001 - raised by the test's own thread
            self.faults.append(fault)

    def _build(self, servers: Sequence[Server]) -> None:
        began = time.monotonic()
        order = BuildInstances(
            request_spec=RequestSpec(project_id="p", user_id="u", flavor=flavor(1)),
            instance_uuids=tuple(server.uuid for server in servers),
            request_id=ids.fresh(),
        )
        servers[0].order(order)
        built = []
        for server in servers:
            built.append(server.built())
            self._took("build", began)
            self.ends[f"build: {built[-1].state}"] += 1
        self._require_one_guest_each(built)

    def _move(self, server: Server) -> None:
        if server.show().state != "active":
            return
        began = time.monotonic()
        order = LiveMigrateInstance(request_id=server.request_id("move"), instance_uuid=server.uuid)
        migration = server.comes_to(server.order(order).migration_uuid, {"confirmed", "failed"})
        assert migration.reason or migration.state == "confirmed", migration
        instance = server.becomes("active", "error")
        self._took("move", began)
        self.ends[f"move: {migration.state}"] += 1
        if migration.state == "confirmed":
            assert instance.host == migration.destination_host, (instance, migration)

    def _delete(self, servers: Sequence[Server]) -> None:
        began = []
        for server in servers:
            began.append(time.monotonic())
            server.order_delete()
        for server, since in zip(servers, began, strict=True):
            server.becomes("deleted")
            self._took("delete", since)
        self.ends["deleted"] += len(servers)

    def _require_one_guest_each(self, instances: Sequence[Instance]) -> None:
        found: dict[str, list[str]] = {}
        for guest in self.cloud.guests():
            found.setdefault(guest.instance_uuid, []).append(guest.host)
        for instance in instances:
            if instance.state == "active":
                hosts = found.get(instance.uuid, [])
                assert hosts.count(str(instance.host)) == 1, (hosts, instance)

    def _took(self, kind: str, began: float) -> None:
        self.durations[kind].append(Duration(time.monotonic() - began, began - self.started))
