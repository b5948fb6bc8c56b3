"""A small cloud of real processes that are killed and started again, and what must hold of it afterwards.

Its processes are forked from one that has imported everything, which costs a tenth of starting an interpreter: a grid
of faults starts hundreds of them. They are processes like any other, and known to the cloud by the same methods.
"""

import contextlib
import multiprocessing
import os
import re
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
from sqlalchemy import Connection, select

from conductor.schema import CELL, CONDUCTOR
from harness.audit import judge
from harness.cloud import wait_until
from harness.processes import ProcessCloud
from moorage import errors, failpoints, ids
from moorage.database import Database
from moorage.messages import BuildInstances, DeleteInstance, ListResourceProviders, ShowInstance
from moorage.model import Flavor, Instance, RequestSpec
from moorage.wire import Message
from placement_store import cells
from placement_store.schema import MAIN, consumers

R = TypeVar("R")

#: Everything waits for seconds at most where production waits for minutes.
QUICK: Mapping[str, Mapping[str, Any]] = {
    "rpc": {"call_timeout": 2.0},
    "conductor": {"report_interval": 0.3, "lease_seconds": 3.0, "retry_backoff": 0.2, "build_timeout": 4.0},
    "placement": {"reconcile_interval": 1.0, "reconcile_after": 3.0},
    "compute": {"report_interval": 0.3},
    "scheduler": {"serve_placement": "false"},
    "database": {"idle_transaction_timeout": 2.0},
}

#: Alembic has one context for the whole process.
_MIGRATING = threading.Lock()

_PRELOADED = ["__main__", "moorage.shell", "conductor.commands", "compute.commands", "compute.fake"]
_PRELOADED += [
    "alembic.command",
    "scheduler.commands",
    "placement_store.commands.claims",
    "filters.resources",
    "weighers.ram",
    "pymysql",
]

# --- Processes ------------------------------------------------------------------------------------------------------


def _become(words: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str]) -> None:
    """Be a `moorage` command, in a process that has just been forked."""
    from moorage.shell import main

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.chdir(folder)
    os.environ.update(environment)
    raise SystemExit(main(words))


class _Forked:
    """A forked process with the methods of :class:`subprocess.Popen` that a cloud uses."""

    def __init__(self, words: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self._process = context.Process(target=_become, args=(words, folder, log, environment), daemon=True)
        self._process.start()
        self._lock = threading.Lock()
        self.pid = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        # The exit status can be read once: a second thread that came to it at the same moment would find none.
        with self._lock:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (timeout or float("inf"))
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("moorage", timeout or 0.0)
            time.sleep(0.01)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class FaultyCloud(ProcessCloud):
    """One cell, with every role a process of its own; each may be started with failpoints.

    Two hosts of agent `failing` are large, and so are tried first: what is built there always fails. Two hosts of
    agent `working` are small. Two hosts of agent `hanging` are alone in their availability zone, and never finish.
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
    }
    #: Started where a test wants them.
    SECONDS: Mapping[str, tuple[Sequence[str], Mapping[str, Mapping[str, Any]]]] = {
        "second conductor": (["conductor", "--name", "second"], {}),
        "second cell conductor": (["conductor", "--cell", "cell1", "--name", "second"], {}),
    }
    HOSTS = 6

    def __init__(self, transport_url: str, database_connection: str, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(transport_url, database_connection, {**QUICK, **(settings or {})})
        self.database = Database(database_connection, "main")
        self._closing.callback(self.database.close)

    def __exit__(self, *_: object) -> None:
        # A good end is for other tests, and takes a second or two for each process.
        for role in list(self.processes):
            self.kill(role)
        super().__exit__()

    def begin(self, specification: str = "") -> None:
        """Create the schemas and the cell, and start all roles with these failpoints."""
        with _MIGRATING:
            for schema in (MAIN, CONDUCTOR, CELL):
                schema.upgrade(self.database)
        cells.create(self.database, name="cell1", uuid=ids.fresh())
        for role in self.ROLES:
            self.start_role(role, specification)
        self.wait_for_hosts(self.HOSTS)

    def start_role(self, role: str, specification: str = "") -> None:
        """Start a role with these failpoints, and return when it takes messages."""
        words, settings = {**self.ROLES, **self.SECONDS}[role]
        log = self.folder / f"{role}.log"
        log.touch()
        begun = self.log(role).count("] Ready")
        config_file = self._write_config(role, settings) if settings else self.config_file
        self.processes[role] = _Forked(  # type: ignore[assignment]
            self._command(*words, config_file=config_file)[3:],
            self.folder,
            log,
            {failpoints.VARIABLE: specification},
        )
        wait_until(
            lambda: self.log(role).count("] Ready") > begun or self.processes[role].poll() is not None,
            f"{role} to be ready",
        )
        assert self.processes[role].poll() is None, self.log(role)[-3000:]

    def guests(self) -> list[tuple[str, str]]:
        """Return all guests there are as (host, instance uuid), half-made ones too."""
        found: list[tuple[str, str]] = []
        for agent in ("failing", "working", "hanging"):
            with contextlib.closing(sqlite3.connect(self.folder / f"{agent}.sqlite", timeout=10.0)) as connection:
                found += connection.execute("SELECT host, instance_uuid FROM guests").fetchall()
        return found

    def call(self, topic: str, message: Message[R], seconds: float = 60.0) -> R:
        """Call, and repeat the same message for as long as a part of the cloud is away."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.client(topic, timeout=2.0).call(message)
            except (errors.Unavailable, errors.TryAgain):
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def is_paused(self, role: str) -> bool:
        """Tell whether a role has been stopped, and not continued."""
        return bool(psutil.Process(self.processes[role].pid).status() == psutil.STATUS_STOPPED)


@contextlib.contextmanager
def nursed(cloud: FaultyCloud, role: str) -> Iterator[list[float]]:
    """Start a role again, without failpoints, as soon as a failpoint has killed it; yield when that was."""
    ended = threading.Event()
    kills: list[float] = []

    def nurse() -> None:
        while not ended.wait(0.02):
            process = cloud.processes.get(role)
            # One that the test itself kills is not the cloud's any more.
            if process and process.poll() == -signal.SIGKILL and cloud.processes.get(role) is process:
                kills.append(time.monotonic())
                cloud.start_role(role)

    thread = threading.Thread(target=nurse)
    thread.start()
    try:
        yield kills
    finally:
        ended.set()
        thread.join()


# --- What is asked of it ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """An instance that is built and then deleted."""

    uuid: str
    spec: RequestSpec


@dataclass(frozen=True)
class Scene:
    """Instances that are ordered together: how large each is, in which zone, and what befalls other roles meanwhile."""

    vcpus: Sequence[int]
    zone: str = "nova"
    #: Failpoints of these roles, which are started anew with them.
    meanwhile: Mapping[str, str] = field(default_factory=dict)

    def orders(self) -> list[Order]:
        """Return new orders."""
        return [
            Order(
                ids.fresh(),
                RequestSpec(
                    project_id="p",
                    user_id="u",
                    flavor=Flavor(name=f"v{vcpus}", vcpus=vcpus, memory_mb=1024, root_gb=1),
                    availability_zone=self.zone,
                ),
            )
            for vcpus in self.vcpus
        ]


#: The third host works; no host that is tried does; there is no such host.
USUAL = Scene([1, 20, 1000])
#: Both hosts hang until their attempts time out, and their guests are cleaned up.
LATE = Scene([1], zone="slow")
#: The scheduler's answer is lost, and at the next asking there is no such host: what was claimed must go.
DOUBTED = Scene([1000], meanwhile={"scheduler": "serve.scheduler.select_destinations.reply=drop@1"})
SCENES = (USUAL, LATE, DOUBTED)


def play(cloud: FaultyCloud, scene: Scene, armed: Mapping[str, str] | None = None) -> list[Order]:
    """Have a scene's instances built and deleted, and fail unless all is in order after each; return the orders."""
    specifications = dict(armed or {})
    for role, specification in scene.meanwhile.items():
        specifications[role] = ",".join(filter(None, (specification, specifications.get(role))))
    for role, specification in specifications.items():
        cloud.kill(role)
        cloud.start_role(role, specification)
    wanted = scene.orders()
    check(cloud, build(cloud, wanted))
    delete(cloud, wanted)
    check(cloud, [])
    return wanted


def order_builds(cloud: FaultyCloud, wanted: Sequence[Order]) -> None:
    """Have instances built."""
    for order in wanted:
        message = BuildInstances(
            request_spec=order.spec, instance_uuids=(order.uuid,), request_id=ids.derived(order.uuid, "build")
        )
        cloud.call("conductor", message)


def ended(cloud: FaultyCloud, wanted: Sequence[Order], seconds: float = 60.0) -> list[Instance]:
    """Return instances when they have ended as they may: active, deleted, or in error with a reason."""
    found = [_when(cloud, order.uuid, {"active", "error", "deleted"}, seconds) for order in wanted]
    assert all(instance.reason for instance in found if instance.state == "error"), found
    return found


def build(cloud: FaultyCloud, wanted: Sequence[Order], seconds: float = 60.0) -> list[Instance]:
    """Have instances built, and return how that ended."""
    order_builds(cloud, wanted)
    return ended(cloud, wanted, seconds)


def order_deletes(cloud: FaultyCloud, wanted: Sequence[Order]) -> None:
    """Have instances deleted."""
    for order in wanted:
        cloud.call("conductor", DeleteInstance(instance_uuid=order.uuid, request_id=ids.derived(order.uuid, "delete")))


def delete(cloud: FaultyCloud, wanted: Sequence[Order], seconds: float = 60.0) -> None:
    """Have instances deleted, and return when they are."""
    order_deletes(cloud, wanted)
    for order in wanted:
        _when(cloud, order.uuid, {"deleted"}, seconds)


def _when(cloud: FaultyCloud, uuid: str, states: Collection[str], seconds: float) -> Instance:
    seen: list[Instance] = []

    def reached() -> bool:
        seen[:] = [cloud.call("conductor", ShowInstance(instance_uuid=uuid), seconds)]
        return seen[0].state in states

    try:
        wait_until(reached, f"instance {uuid}", seconds, interval=0.05)
    except TimeoutError as fault:
        raise AssertionError(f"after {seconds:g} s: {seen}") from fault
    return seen[0]


def check(cloud: FaultyCloud, ended: Sequence[Instance], seconds: float = 20.0) -> None:
    """Fail unless, soon, each active instance has one guest and one claim, on its host, and nothing else is there."""
    wanted = sorted((str(instance.host), instance.uuid) for instance in ended if instance.state == "active")
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: sorted(cloud.guests()) == wanted and _leaked(cloud, wanted) == 0, "order", seconds, 0.1)
    assert sorted(cloud.guests()) == wanted
    assert _leaked(cloud, wanted) == 0
    verdict = judge(cloud.database, [uuid for _, uuid in wanted])
    assert verdict.clean, verdict
    guests = len(wanted)
    used = [provider.used.get("VCPU", 0) for provider in cloud.call("placement", ListResourceProviders())]
    assert sum(used) == guests, used


def _leaked(cloud: FaultyCloud, wanted: Sequence[tuple[str, str]]) -> int:
    return judge(cloud.database, [uuid for _, uuid in wanted]).leaked


def claims(cloud: FaultyCloud) -> list[tuple[str, str, str]]:
    """Return all claims there are, as (consumer, claim id, accepted by)."""

    def read(connection: Connection) -> list[tuple[str, str, str]]:
        table = consumers
        rows = connection.execute(
            select(table.c.uuid, table.c.claim_id, table.c.accepted_by).where(table.c.claim_id.is_not(None))
        )
        return sorted((row.uuid, row.claim_id, str(row.accepted_by)) for row in rows)

    return cloud.database.read(read)


_PASSED = re.compile(r"\[\S+ (?P<request>\S+) \S+\] Failpoint (?P<name>\S+) is passed")
_PLACE = re.compile(r"There is a place (\S+)")


def passed(log: str, request_ids: Sequence[str]) -> list[str]:
    """Return the failpoints that a process passed on the way of these requests, in the order it first did."""
    found = (match for match in _PASSED.finditer(log) if match["request"] in request_ids)
    return list(dict.fromkeys(match["name"] for match in found))


def places(log: str) -> set[str]:
    """Return the places that a process has said there are."""
    return set(_PLACE.findall(log))
