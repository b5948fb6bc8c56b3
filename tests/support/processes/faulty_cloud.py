"""A small cloud of real processes that are killed and started again.

A grid of faults starts hundreds of them.
"""

import contextlib
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple

import psutil

from conductor.schema import CELL, CONDUCTOR
from harness.waiting import wait_until
from moorage import ids
from moorage.db.database import Database
from moorage.messages.wire import Message, R
from placement_store import cells
from placement_store.schema import MAIN
from support.processes.building_client import call_until_answered
from support.processes.forked_cloud import ForkedCloud

#: All waits take at most seconds where production waits for minutes. Reports are half of the cost of an idle cloud, and
#: several clouds run side by side. No test waits for a report, because changes are reported at once.
QUICK: Mapping[str, Mapping[str, Any]] = {
    "rpc": {"call_timeout": 2.0},
    "conductor": {"report_interval": 1.0, "lease_seconds": 3.0, "retry_backoff": 0.2, "build_timeout": 10.0},
    "placement": {"reconcile_interval": 1.0, "reconcile_after": 3.0},
    "compute": {"report_interval": 1.0},
    # A host with failed builds must not be avoided, because the scenes want it to fail again. Neither must a host that
    # is silent because its cell's conductor is down, however long that takes on a slow machine.
    # A follower of the change feed misses a change that was committed late, as on a slow disk. Only a comparison finds
    # it, and a scene may end before the next one.
    "scheduler": {
        "serve_placement": "false",
        "enabled_weighers": "ram,cpu,disk",
        "host_down_after": 300,
        "view_compare_interval": 3.0,
    },
    "database": {"idle_transaction_timeout": 2.0},
}

#: Two hosts that work; two that never finish, in zone `slow`; one that works, with its own agent, in zone `spare`. Two
#: more hosts are tried first and fail.
WORKING = ("working-0001", "working-0002")
HANGING = ("hanging-0001", "hanging-0002")
LEAVING = "leaving-0001"

#: Alembic has one context for the whole process, so only one thread may migrate.
_MIGRATING = threading.Lock()


class Guest(NamedTuple):
    """A guest as recorded by its host."""

    host: str
    instance_uuid: str
    claim_id: str
    how: Literal["half made", "running", "stopped"]


class FaultyCloud(ForkedCloud):
    """One cell, with each role in its own process; each role may be started with failpoints.

    Two hosts of agent `failing` are large, and so are tried first: builds on them always fail. Two hosts of agent
    `working` are small. Two hosts of agent `hanging` are alone in their availability zone, and never finish.
    """

    ROLES: Mapping[str, tuple[Sequence[str], Mapping[str, Mapping[str, Any]]]] = {
        "placement": (["placement"], {}),
        "scheduler": (["scheduler"], {}),
        "conductor": (["conductor", "--name", "only"], {}),
        "cell conductor": (["conductor", "--cell", "cell1", "--name", "only"], {}),
        "failing agent": (
            ["compute", "--cell", "cell1", "--agent", "failing", "--fake-hosts", "2"],
            {"fake_driver": {"vcpus": 64, "memory_mb": 65536, "fail_rate": 1.0, "state_file": "failing.sqlite"}},
        ),
        "working agent": (
            ["compute", "--cell", "cell1", "--agent", "working", "--fake-hosts", "2"],
            {"fake_driver": {"state_file": "working.sqlite"}},
        ),
        "hanging agent": (
            ["compute", "--cell", "cell1", "--agent", "hanging", "--fake-hosts", "2"],
            {
                "fake_driver": {
                    "availability_zone": "slow",
                    "hanging_hosts": "hanging-0001,hanging-0002",
                    "state_file": "hanging.sqlite",
                }
            },
        ),
        "leaving agent": (
            ["compute", "--cell", "cell1", "--agent", "leaving", "--fake-hosts", "1"],
            {"fake_driver": {"availability_zone": "spare", "state_file": "leaving.sqlite"}},
        ),
    }
    #: Started only if a test needs them.
    SECONDS: Mapping[str, tuple[Sequence[str], Mapping[str, Mapping[str, Any]]]] = {
        "second conductor": (["conductor", "--name", "second"], {}),
        "second cell conductor": (["conductor", "--cell", "cell1", "--name", "second"], {}),
    }
    HOSTS = 7
    CELLS: Sequence[str] = ("cell1",)
    #: Each agent keeps its guests in a file of its name.
    AGENTS: Sequence[str] = ("failing", "working", "hanging", "leaving")

    def __init__(self, transport_url: str, database_connection: str, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(transport_url, database_connection, {**QUICK, **(settings or {})})
        self.database = Database(database_connection, "main")
        self._closing.callback(self.database.close)
        #: The failpoints with which a role is restarted, until one of them has killed it.
        self.armed: dict[str, str] = {}
        # A test may kill a role while another thread restarts it.
        self._starting = threading.RLock()

    def begin(self, specification: str = "") -> None:
        """Create the schemas and cells, and start all roles with these failpoints; return when all hosts are up."""
        with _MIGRATING:
            for schema in (MAIN, CONDUCTOR, CELL):
                schema.upgrade(self.database)
        for name in self.CELLS:
            cells.create(self.database, name=name, uuid=ids.fresh())
        self.start_roles(specification)

    def start_roles(self, specification: str = "") -> None:
        """Start all roles with these failpoints, and return when all hosts are up."""
        first, *others = self.ROLES
        self.start_role(first, specification)
        # The other roles need only the first one at their start, so they start in parallel.
        with self._starting:
            for until_ready in [self._launch(role, specification) for role in others]:
                until_ready()
        self.wait_for_hosts(self.HOSTS)

    def start_role(self, role: str, specification: str | None = None) -> None:
        """Start a role with these failpoints, or with its armed ones, and return when it is ready."""
        with self._starting:
            self._start_role(role, self.armed.get(role, "") if specification is None else specification)

    def kill(self, name: str) -> int:
        """Kill a process, as a crash would."""
        with self._starting:
            return super().kill(name)

    def restart_if_killed(self, role: str) -> bool:
        """Restart a role without failpoints, if a failpoint has killed it; return whether it was restarted."""
        with self._starting:
            process = self.processes.get(role)
            # A process that the test itself has killed is no longer among the cloud's processes.
            if process is None or process.poll() != -signal.SIGKILL:
                return False
            self.armed.pop(role, None)
            self._start_role(role, "")
            return True

    def take_over_if_paused(self, role: str) -> bool:
        """Start a second process of a role that a failpoint has paused, unless it exists; return whether it started."""
        second = f"second {role}"
        with self._starting:
            if second in self.processes or not self.is_paused(role):
                return False
            self._start_role(second, "")
            return True

    def _start_role(self, role: str, specification: str) -> None:
        self._launch(role, specification)()

    def _launch(self, role: str, specification: str) -> Callable[[], None]:
        """Start a role with these failpoints; return a function that waits until it is ready."""
        words, settings = {**self.ROLES, **self.SECONDS}[role]
        log = self.folder / f"{role}.log"
        log.touch()
        begun = self.log(role).count("] Ready")
        self.start(role, *words, settings=settings, armed=specification)
        process = self.processes[role]

        def until_ready() -> None:
            wait_until(
                lambda: self.log(role).count("] Ready") > begun or process.poll() is not None, f"{role} to be ready"
            )
            # A failpoint may have killed an armed role already.
            assert process.poll() in (None, -signal.SIGKILL if specification else None), self.log(role)[-3000:]

        return until_ready

    def guests(self) -> list[Guest]:
        """Return all existing guests."""
        found: list[Guest] = []
        query = """SELECT host, instance_uuid, claim_id, CASE WHEN NOT running THEN 'half made'
                     WHEN stopped THEN 'stopped' ELSE 'running' END FROM guests"""
        for agent in self.AGENTS:
            with contextlib.closing(sqlite3.connect(self.folder / f"{agent}.sqlite", timeout=10.0)) as connection:
                found += map(Guest._make, connection.execute(query))
        return found

    def call(self, topic: str, message: Message[R], seconds: float = 60.0) -> R:
        """Call, and repeat the same message as long as a part of the cloud is down."""
        return call_until_answered(self.client(topic, timeout=2.0), message, seconds)

    def is_paused(self, role: str) -> bool:
        """Return whether a role was stopped and not continued."""
        return bool(psutil.Process(self.processes[role].pid).status() == psutil.STATUS_STOPPED)


def restarted_when_killed(cloud: FaultyCloud, role: str) -> AbstractContextManager[list[float]]:
    """Restart a role without failpoints as soon as a failpoint has killed it; yield the times of the restarts."""
    return _watched(lambda: cloud.restart_if_killed(role))


def taken_over_when_paused(cloud: FaultyCloud, role: str) -> AbstractContextManager[list[float]]:
    """Start a second process of a role as soon as a failpoint has paused it; yield the times of these starts."""
    return _watched(lambda: cloud.take_over_if_paused(role))


@contextlib.contextmanager
def _watched(react: Callable[[], bool]) -> Iterator[list[float]]:
    ended = threading.Event()
    times: list[float] = []

    def watch() -> None:
        while not ended.wait(0.02):
            if react():
                times.append(time.monotonic())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield times
    finally:
        ended.set()
        thread.join()


# --- Logs of the processes --------------------------------------------------------------------------------------------

_PASSED = re.compile(r"\[\S+ (?P<request>\S+) \S+\] Failpoint (?P<name>\S+) is passed")
_PLACE = re.compile(r"There is a place (\S+)")


def passed(log: str, request_ids: Collection[str]) -> list[str]:
    """Return the failpoints that a process passed for these requests, in the order of their first passes."""
    found = (match for match in _PASSED.finditer(log) if match["request"] in request_ids)
    return list(dict.fromkeys(match["name"] for match in found))


def places(log: str) -> set[str]:
    """Return the places that a process has logged."""
    return set(_PLACE.findall(log))
