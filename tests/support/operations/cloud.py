"""A whole cloud of one process in which trouble can be made for one server alone, while others are left in peace.

What fails on hosts is chosen by instance. What happens at a failpoint is chosen by the request on whose behalf the
thread is there, which every hop carries.
"""

import fnmatch
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from oslo_config import cfg

from compute.driver import GuestOrder, GuestSpec
from compute.fake.behaviour import Behaviour
from compute.fake.driver import FakeDriver
from compute.fake.guest_file import Action
from compute.service import ComputeService
from conductor.service import CellConductor, SuperConductor
from harness.cloud import CloudSpec, RunningCloud
from moorage import context, errors, failpoints
from moorage.service.process import Service
from support.operations.basis import KEEPING
from support.operations.lost_patience import end_patience

NEVER = 3600.0
CONDUCTORS = (SuperConductor, CellConductor)


class Crash(Exception):
    """Raised by a step in place of its process's death: its calls are made, and nothing of it is recorded."""


class HostFaults:
    """The faults of hosts towards the guests of one instance: ``(instance, host)`` by fault."""

    def __init__(self) -> None:
        self.failing: set[tuple[str, str]] = set()
        self.refusing: set[tuple[str, str]] = set()
        self.hanging: set[tuple[str, str]] = set()
        #: They neither stop nor start a guest, nor rebuild it.
        self.stuck: set[tuple[str, str]] = set()
        #: They do not answer to an order to destroy.
        self.silent: set[tuple[str, str]] = set()
        #: Called with the instance where a host is silent.
        self.when_silent: Callable[[str], None] = lambda _instance_uuid: None

    def forget(self, instance_uuid: str) -> None:
        """Let all hosts be well-behaved again towards an instance."""
        for kind in (self.failing, self.refusing, self.hanging, self.stuck, self.silent):
            for found in [each for each in kind.copy() if each[0] == instance_uuid]:
                kind.discard(found)


class TroublesomeDriver(FakeDriver):
    """A fake driver that behaves badly towards chosen instances."""

    def __init__(self, conf: cfg.ConfigOpts, agent: str, cell_name: str, faults: HostFaults) -> None:
        super().__init__(conf, agent, cell_name)
        self._faults = faults

    def behaviour(self, host: str, guest: GuestSpec) -> Behaviour:
        key = (guest.instance_uuid, host)
        if key in self._faults.refusing:
            return Behaviour(refusal="it takes no such guest")
        if key in self._faults.hanging:
            return Behaviour(seconds=NEVER)
        if key in self._faults.failing:
            return Behaviour(fault="the guest did not start")
        return super().behaviour(host, guest)

    def order_behaviour(self, host: str, order: GuestOrder, action: Action) -> Behaviour:
        if (order.instance_uuid, host) in self._faults.stuck:
            return Behaviour(fault="the guest is stuck")
        return super().order_behaviour(host, order, action)

    def destroy(self, host: str, instance_uuid: str, attempt_id: str, claim_id: str) -> None:
        if (instance_uuid, host) in self._faults.silent:
            self._faults.when_silent(instance_uuid)
            raise errors.NoReply(topic=f"host {host}", method="destroy", seconds=0.0)
        super().destroy(host, instance_uuid, attempt_id, claim_id)


@dataclass
class _Armed:
    pattern: str
    action: Callable[[], None]
    times: int
    passed: int = 0


class Troubles:
    """The actions at failpoints, by request; an observer for :func:`moorage.failpoints.observed`."""

    def __init__(self) -> None:
        self._armed: dict[str, list[_Armed]] = {}
        self._lock = threading.Lock()

    def arm(self, request_id: str, pattern: str, action: Callable[[], None], times: int = 1) -> None:
        """Have ``action`` done the first so many times that a thread of this request passes such a failpoint."""
        self._armed.setdefault(request_id, []).append(_Armed(pattern, action, times))

    def disarm(self, request_id: str) -> list[str]:
        """Let nothing more happen to this request; return the failpoints at which nothing has."""
        return [armed.pattern for armed in self._armed.pop(request_id, ()) if not armed.passed]

    def __call__(self, name: str) -> None:
        for armed in self._armed.get(context.current().request_id or "", ()):
            if fnmatch.fnmatchcase(name, armed.pattern) and self._is_turn(armed):
                # Whatever is done here is nobody's request: it meets no trouble itself.
                with context.bound(request_id="trouble"):
                    armed.action()

    def _is_turn(self, armed: _Armed) -> bool:
        with self._lock:
            armed.passed += 1
            return armed.passed <= armed.times


class TroublesomeCloud(RunningCloud):
    """A cloud whose hosts have :class:`HostFaults`, and whose conductors and agents can be restarted at any time."""

    def __init__(self, plan: CloudSpec) -> None:
        super().__init__(plan)
        self.faults = HostFaults()
        self.faults.when_silent = lambda instance_uuid: end_patience(self.database, instance_uuid)
        #: The driver of each cell's agent, of its present life.
        self.drivers: dict[str, TroublesomeDriver] = {}
        self._restarting = threading.Lock()
        self._lives: dict[str, int] = {}

    def compute(self, cell: str, hosts: int) -> ComputeService:
        name = f"agent-{cell}"
        layout: dict[str, Any] = {
            "hosts": hosts,
            "host_prefix": f"{cell}-host",
            "state_file": str(self.folder / f"{name}.sqlite"),
        }
        conf = self.configuration(compute={"agent": name}, fake_driver=layout)
        self.drivers[cell] = TroublesomeDriver(conf, name, cell, self.faults)
        return ComputeService(conf, cell, self.drivers[cell])

    def life(self, name: str) -> int:
        """Return how often a conductor or an agent has been started again."""
        return self._lives.get(name, 0)

    def restart(self, name: str, life: int) -> None:
        """Stop a conductor or an agent and start it again, unless somebody has done so since this ``life``."""
        with self._restarting:
            if self.life(name) != life:
                return
            self.stop_service(name)
            # What was stopped in the middle of a step is to meet the next life.
            self._lives[name] = life + 1
            self.add(name, self._anew(name))

    def adopt(self, plan: CloudSpec) -> None:
        """Let the conductors begin another life with other settings; hosts, cells and what is on record stay."""
        if plan.settings == self.plan.settings:
            return
        self.plan = plan
        for name in [name for name, service in self.services.items() if isinstance(service, CONDUCTORS)]:
            self.restart(name, self.life(name))

    def _anew(self, name: str) -> Service:
        kind, _, cell = name.partition("-")
        if kind == "compute":
            return self.compute(cell, len(range(self.cell_names.index(cell), self.plan.hosts, self.plan.cells)))
        if cell:
            return CellConductor(self.configuration(), name, cell)
        return SuperConductor(self.configuration(), name)


@dataclass
class CrashPoint:
    """A step of a conductor that comes to its end and is not recorded, until that conductor has been restarted."""

    cloud: TroublesomeCloud
    service: str
    reached: threading.Event = field(default_factory=threading.Event)
    life: int = -1

    def __call__(self) -> None:
        now = self.cloud.life(self.service)
        if self.life < 0:
            self.life = now
        self.reached.set()
        if now == self.life:
            raise Crash

    def restart(self) -> None:
        self.cloud.restart(self.service, self.life)


def crash() -> None:
    """End the step that is about to begin, as the death of its process would; it is repeated."""
    raise Crash


def lose() -> None:
    """Lose the message that is about to be sent or has arrived."""
    raise failpoints.Dropped("lost")


def plan(policy: str, hosts: int, report_interval: float = 0.2, **fake_driver: Any) -> CloudSpec:
    """A cloud of one cell in which nobody is waited for for long, under a policy or with what `KEEPING` says."""
    said = {"delete_foreign_amounts": False} if policy in KEEPING else {"consumer_conflict_policy": policy}
    return CloudSpec(
        hosts=hosts,
        settings={
            "rpc": {"call_timeout": 20.0},
            "conductor": {
                **said,
                "max_contention_retries": 2,
                "report_interval": report_interval,
                "retry_backoff": 0.05,
                # Ended for one instance at a time, where its host is silent: a busy machine makes nobody impatient.
                "delete_patience": 600.0,
                "workers": 16,
            },
            "compute": {"report_interval": report_interval, "stop_timeout": 0.1, "workers": 32},
            # What has failed on a host for one server is not held against it when the next one comes.
            # Of the view that a decision goes by, nothing may be missing that was done before: where it places a server
            # depends on it, and other servers have decisions meanwhile.
            "scheduler": {"enabled_weighers": "ram,cpu,disk", "view_max_age": 0.0},
            "fake_driver": fake_driver,
        },
    )


def roles(hosts: Sequence[str]) -> dict[str, str]:
    """Return what each host is to the servers of one room: where they are, and where they go first and second."""
    return dict(zip(("source", "destination", "alternate"), hosts, strict=True))
