"""The cloud of a simulation: each service is a process that can crash at any point and be started again."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from compute.service import ComputeService
from harness.cloud import CloudSpec, RunningCloud, Settings, merged
from harness.simulation.machine import network, store
from harness.simulation.machine.drivers import FaultyDriver
from harness.simulation.machine.kernel import KERNEL, OUTSIDE
from harness.simulation.story import CELLS, HOSTS_OF_A_CELL, PROCESSES
from moorage import errors, ids
from moorage.service.process import Service

#: The inventory of a whole host, whether it is flat or nested.
WHOLE = {"VCPU": 8, "MEMORY_MB": 16384, "DISK_GB": 200, "VGPU": 4}
#: The hosts of this cell have no disks of their own: a sharing provider has one for all members of an aggregate.
CELL_WITH_POOL = CELLS[1]
POOL, MEMBERS = ids.derived("simulation", "pool"), ids.derived("simulation", "members of the pool")
#: The suffix of a second process with the name of a service.
TWIN = " (twin)"
#: Seconds between two tries to start a service that lacks something.
_START_INTERVAL = 1.0


class SimulatedCloud(RunningCloud):
    """A cloud in the kernel. Its services never stop cleanly: they crash, or the simulation ends."""

    def __init__(self, plan: CloudSpec) -> None:
        super().__init__(plan)
        #: Whether it keeps nothing longer than it must.
        self.forgets = "prune_interval" in plan.settings["service"]
        #: The layout of the hosts, by agent; a change applies from the next start of the agent.
        self.layouts = {f"compute-{cell}": "flat" for cell in plan.cell_names}
        #: The names of the agents, by process; a change applies in the same way.
        self.agents = {f"compute-{cell}": f"agent-{cell}" for cell in plan.cell_names}
        #: The faults of hosts, for their drivers.
        self.host_faults: dict[str, tuple[str, float]] = {}
        #: The image of each guest, by attempt.
        self.images: dict[str, str | None] = {}
        #: The lost guests: their hosts and instances.
        self.lost_guests: set[tuple[str, str]] = set()
        self._drivers: dict[str, FaultyDriver] = {}

    def reshape(self, name: str) -> str:
        """Change the layout of an agent's hosts from its next start on, and return the new one."""
        self.layouts[name] = "flat" if self.layouts[name] == "nested" else "nested"
        return self.layouts[name]

    def rename(self, name: str) -> str:
        """Change the name of an agent from its next start on, and return the new one."""
        self.agents[name] += "-renamed"
        return self.agents[name]

    def let_die(self, host: str, seconds: float) -> None:
        """Make a host dead for some seconds, unless its agent is restarted before."""
        driver = self._drivers[_cell_of(host)]
        KERNEL.start(lambda: driver.die(host, seconds), agent_of(host), f"death of {host}")

    def lose_guests(self, host: str) -> None:
        """Delete the guests of a host whose agent is down, as if its disk had been replaced."""
        with closing(sqlite3.Connection(store.place(str(self.guests_file(_cell_of(host)))))) as file, file:
            found = file.execute("SELECT instance_uuid FROM guests WHERE host = ?", (host,)).fetchall()
            self.lost_guests.update((host, uuid) for (uuid,) in found)
            for table in ("guests", "amounts", "orders"):
                file.execute(f"DELETE FROM {table} WHERE host = ?", (host,))  # noqa: S608

    def add(self, name: str, service: Service) -> None:
        """Start one more service in its own process."""
        self.services[name] = service
        done = threading.Event()
        KERNEL.start(lambda: self._begin(name, service, done), name, f"start of {name}")
        done.wait()

    def _begin(self, name: str, service: Service, done: threading.Event) -> None:
        try:
            service.start()
        except errors.MoorageError as fault:
            KERNEL.note(f"start of {name}: {fault}")
            KERNEL.start(lambda: self._begin_anew(name, service, done), OUTSIDE, f"manager of {name}")
        else:
            done.set()

    def _begin_anew(self, name: str, service: Service, done: threading.Event) -> None:
        """End a process whose service could not start, so that no part of it stays on the bus, and start a new one."""
        if self.services.get(name) is not service:
            return  # it has crashed in the meantime
        self.crash(name)
        KERNEL.sleep(_START_INTERVAL)
        self.restart(name, done)

    def crash(self, name: str) -> None:
        """End a process at once: its transactions are rolled back, and its servers leave the bus."""
        with KERNEL.atomic():
            KERNEL.kill(name)
            store.drop_connections(name)
            network.drop_listeners(name)
        self.services.pop(name, None)

    def restart(self, name: str, done: threading.Event | None = None) -> None:
        """Start a crashed process again, without a wait; ``done`` is set once the process serves."""
        if name in self.services:
            return
        KERNEL.revive(name)
        service = self.services[name] = self.anew(name)
        begun = done or threading.Event()
        KERNEL.start(lambda: self._begin(name, service, begun), name, f"start of {name}")

    def anew(self, name: str) -> Service:
        """Return the service of a process, not yet started; a second process with its name has a suffix."""
        return super().anew(name.removesuffix(TWIN))

    def service_names(self) -> list[str]:
        """Return the names of all processes, in the order of their starts."""
        return list(PROCESSES)

    def compute(self, cell: str, hosts: int) -> ComputeService:
        """Return an agent of a cell, not yet started; its file of guests remains when the agent ends."""
        agent = self.agents[f"compute-{cell}"]
        driver = self.driver_options(
            cell,
            hosts,
            state_file=str(self.guests_file(cell)),
            layout=self.layouts[f"compute-{cell}"],
            shared_disk_aggregate=MEMBERS if cell == CELL_WITH_POOL else None,
        )
        conf = self.configuration(compute={"agent": agent}, fake_driver=driver)
        self._drivers[cell] = FaultyDriver(conf, agent, cell, self.host_faults, self.images)
        return ComputeService(conf, cell, self._drivers[cell])

    def guests_file(self, cell: str) -> Path:
        """Return the file of guests of a cell's agent."""
        return self.folder / f"agent-{cell}.guests"


def agent_of(host: str) -> str:
    """Return the process of a host's agent."""
    return f"compute-{_cell_of(host)}"


def _cell_of(host: str) -> str:
    return host.partition("-")[0]


def uses_pool(host: str) -> bool:
    """Return whether the disk of a host is in the pool."""
    return host.startswith(f"{CELL_WITH_POOL}-")


_SETTINGS: Settings = {
    "rpc": {"call_timeout": 20.0, "threads": 8},
    "service": {"report_interval": 60.0},
    "conductor": {
        "report_interval": 5.0,
        "workers": 8,
        "delete_patience": 30.0,
        "lease_seconds": 30.0,
        "build_timeout": 60.0,
        "retry_backoff": 0.5,
        "housekeeping_interval": 30.0,
    },
    "compute": {"report_interval": 5.0, "workers": 4},
    "scheduler": {"view_compare_interval": 5.0},
    "placement": {"reconcile_interval": 20.0, "reconcile_after": 40.0},
    "fake_driver": {
        "vcpus": WHOLE["VCPU"],
        "memory_mb": WHOLE["MEMORY_MB"],
        "disk_gb": WHOLE["DISK_GB"],
        "numa_nodes": 2,
        "gpus": 2,
        "vgpus_per_gpu": WHOLE["VGPU"] // 2,
        "fail_rate": 0.1,
        "spawn_seconds": 0.3,
    },
}
#: Retentions in seconds that are as short as these settings allow, except for requests that nobody acknowledges.
_FORGETTING = {
    "service": {"prune_interval": 10.0},
    "placement": {"request_retention": 0.0, "unacknowledged_retention": 200.0, "tombstone_retention": 0.0},
    "conductor": {"retry_backoff": 0.05, "record_retention": 0.0, "deleted_instance_retention": 0.0},
    "scheduler": {"feed_retention": 1.0},
}


def specification(*, forgetting: bool = False) -> CloudSpec:
    """Return the specification of the simulated cloud, which may forget everything as soon as it can."""
    settings = merged(_SETTINGS, _FORGETTING if forgetting else {})
    return CloudSpec(hosts=HOSTS_OF_A_CELL * len(CELLS), cells=len(CELLS), settings=settings)
