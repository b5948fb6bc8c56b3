"""A whole cloud in one process in which a test can cause trouble for one server, without affecting others.

Faults of hosts are chosen by instance. Actions at a failpoint are chosen by the request id of the thread that passes
it; every hop carries this id.
"""

import fnmatch
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
from oslo_config import cfg

from compute.driver import GuestOrder, GuestSpec
from compute.fake.behaviour import Behaviour
from compute.fake.driver import FakeDriver
from compute.fake.guest_file import Action
from compute.service import ComputeService
from conductor.cell.hosts.reach import HostReach
from conductor.service import CellConductor, SuperConductor
from harness.cloud import CloudSpec, RunningCloud
from moorage import context, errors, failpoints
from support.operations.basis import KEEPING
from support.operations.lost_patience import end_patience

NEVER = 3600.0
CONDUCTORS = (SuperConductor, CellConductor)


class Crash(Exception):
    """Raised by a step in place of the death of its process: its calls have been made, but nothing is recorded."""


class HostFaults:
    """The faults of hosts for the guests of single instances: pairs ``(instance, host)``, by fault."""

    def __init__(self) -> None:
        self.failing: set[tuple[str, str]] = set()
        self.refusing: set[tuple[str, str]] = set()
        self.hanging: set[tuple[str, str]] = set()
        #: They cannot stop, start or rebuild a guest.
        self.stuck: set[tuple[str, str]] = set()
        #: They do not answer to an order to destroy.
        self.silent: set[tuple[str, str]] = set()
        #: Called with the instance when a host is silent.
        self.when_silent: Callable[[str], None] = lambda _instance_uuid: None

    def forget(self, instance_uuid: str) -> None:
        """Remove all faults of hosts for an instance."""
        for kind in (self.failing, self.refusing, self.hanging, self.stuck, self.silent):
            for found in [each for each in kind.copy() if each[0] == instance_uuid]:
                kind.discard(found)


class TroublesomeDriver(FakeDriver):
    """A fake driver with faults for chosen instances."""

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
        """Call ``action`` the first ``times`` times that a thread of this request passes a matching failpoint."""
        self._armed.setdefault(request_id, []).append(_Armed(pattern, action, times))

    def disarm(self, request_id: str) -> list[str]:
        """Remove the actions of this request; return the failpoint patterns that were never passed."""
        return [armed.pattern for armed in self._armed.pop(request_id, ()) if not armed.passed]

    def __call__(self, name: str) -> None:
        for armed in self._armed.get(context.current().request_id or "", ()):
            if fnmatch.fnmatchcase(name, armed.pattern) and self._is_turn(armed):
                # The action runs under another request id, so that it meets no armed failpoint itself.
                with context.bound(request_id="trouble"):
                    armed.action()

    def _is_turn(self, armed: _Armed) -> bool:
        with self._lock:
            armed.passed += 1
            return armed.passed <= armed.times


_has_lasted = HostReach.has_lasted


def _is_waited_for_no_longer(reach: HostReach, seconds: float | None = None) -> bool:
    return seconds is not None or _has_lasted(reach)


class TroublesomeCloud(RunningCloud):
    """A cloud whose hosts have :class:`HostFaults`, and whose conductors and agents can be restarted at any time."""

    def __init__(self, plan: CloudSpec) -> None:
        super().__init__(plan)
        self.faults = HostFaults()
        self.faults.when_silent = lambda instance_uuid: end_patience(self.database, instance_uuid)
        #: The current driver of each cell's agent.
        self.drivers: dict[str, TroublesomeDriver] = {}
        self._restarting = threading.Lock()
        self._lives: dict[str, int] = {}
        self._patches = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        # Tests end the wait for a host's report themselves, also soon after a restart of the conductor.
        self._patches.setattr(HostReach, "has_lasted", _is_waited_for_no_longer)
        return super().__enter__()

    def __exit__(self, *fault: object) -> None:
        super().__exit__(*fault)
        self._patches.undo()

    def compute(self, cell: str, hosts: int) -> ComputeService:
        name = f"agent-{cell}"
        conf = self.configuration(compute={"agent": name}, fake_driver=self.driver_options(cell, hosts))
        self.drivers[cell] = TroublesomeDriver(conf, name, cell, self.faults)
        return ComputeService(conf, cell, self.drivers[cell])

    def life(self, name: str) -> int:
        """Return how often a conductor or an agent was restarted."""
        return self._lives.get(name, 0)

    def restart(self, name: str, life: int) -> None:
        """Stop a conductor or an agent and start it again, unless it was restarted since this ``life``."""
        with self._restarting:
            if self.life(name) != life:
                return
            self.stop_service(name)
            # Counted after the stop, so that an interrupted step passes its crash point only in the next life.
            self._lives[name] = life + 1
            self.add(name, self.anew(name))

    def adopt(self, plan: CloudSpec) -> None:
        """Restart the conductors with other settings; hosts, cells and records stay."""
        if plan.settings == self.plan.settings:
            return
        self.plan = plan
        for name in [name for name, service in self.services.items() if isinstance(service, CONDUCTORS)]:
            self.restart(name, self.life(name))


@dataclass
class CrashPoint:
    """A step of a conductor that ends without being recorded, until that conductor was restarted."""

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
    """End the step that is about to begin, as the death of its process would; the step is repeated."""
    raise Crash


def lose() -> None:
    """Lose the message that is about to be sent or has just arrived."""
    raise failpoints.Dropped("lost")


def plan(policy: str, hosts: int, report_interval: float = 0.2, **fake_driver: Any) -> CloudSpec:
    """Return a cloud of one cell with short time-outs, under a conflict policy or with the option in `KEEPING`."""
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
                # Tests end the patience for one instance at a time, if its host is silent, so that a busy machine has
                # no effect.
                "delete_patience": 600.0,
                "workers": 16,
            },
            "compute": {"report_interval": report_interval, "stop_timeout": 0.1, "workers": 32},
            # A host's failed builds must not affect the placement of the next server. A decision must see all earlier
            # writes, because its placement depends on them, and other servers have decisions at the same time.
            "scheduler": {"enabled_weighers": "ram,cpu,disk", "view_max_age": 0.0},
            "fake_driver": fake_driver,
        },
    )


def roles(hosts: Sequence[str]) -> dict[str, str]:
    """Return the roles of the hosts in a room: where the servers are, and where they go first and second."""
    return dict(zip(("source", "destination", "alternate"), hosts, strict=True))
