"""Processes that cannot open descriptors return typed errors, do not spin, and continue when they can open some."""

import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest
from sqlalchemy import make_url
from support.http.api import answers
from support.processes.fault_servers import Server, check, delete
from support.processes.faulty_cloud import FaultyCloud
from support.processes.stopwatch import Stopwatch

from harness.servers import MariaDBServer, free_ports
from harness.waiting import wait_until
from moorage import errors
from moorage.messages import ListInstances

pytestmark = pytest.mark.timeout(600)

#: All descriptors below this number are in use: a process with this limit can open none.
NONE_LEFT = 8
SECONDS, PATIENCE = 4.0, 2.0
#: The share of a processor that a process may use in this time. A process that spins uses a whole one.
IDLE = 0.5


@contextmanager
def no_descriptor_left(pids: list[int]) -> Iterator[None]:
    former = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids}
    try:
        for pid, (_, hard) in former.items():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (NONE_LEFT, hard))
        yield
    finally:
        for pid, limits in former.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def used(pid: int) -> float:
    """Return the seconds of a processor that a process has used."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def test_services_without_descriptors_return_errors_do_not_spin_and_continue_when_they_have_some(
    cloud: FaultyCloud, mariadb: MariaDBServer, record_property: Callable[[str, object], None]
) -> None:
    pids = {name: process.pid for name, process in cloud.processes.items()}
    database = str(make_url(str(cloud.database.url)).database)
    client = cloud.client("conductor", timeout=PATIENCE)
    answers: list[str] = []
    with no_descriptor_left(list(pids.values())):
        mariadb.end_connections(database)  # services have to open all of them again
        before, begun = {name: used(pid) for name, pid in pids.items()}, time.monotonic()
        while time.monotonic() < begun + SECONDS:
            watch = Stopwatch()
            try:
                client.call(ListInstances())
                answers.append("answered")
            except errors.Unavailable as fault:
                answers.append(fault.code)
            assert watch.seconds < PATIENCE + 1.0
            time.sleep(0.2)
        shares = {name: (used(pid) - before[name]) / (time.monotonic() - begun) for name, pid in pids.items()}
    assert set(answers) != {"answered"}, "the limit must have an effect"
    assert max(shares.values()) < IDLE, shares
    server = Server(cloud, 1, zone="nova")
    server.order_build()
    assert server.built().state == "active"
    delete([server])
    check(cloud, [], 60.0)
    assert pids == {name: process.pid for name, process in cloud.processes.items() if process.poll() is None}
    record_property("measured", f"no descriptor left: {sorted(set(answers))}; processor {max(shares.values()):.2f}")


def test_the_placement_api_without_descriptors_does_not_spin_and_accepts_connections_when_it_has_some(
    cloud: FaultyCloud,
) -> None:
    [port] = free_ports(1)
    settings = {"placement_api": {"auth_strategy": "noauth2", "port": port, "workers": 1}}
    cloud.start("placement api", "placement-api", settings=settings)
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/"), "the placement API to answer")
        parent = psutil.Process(cloud.processes["placement api"].pid)
        pids = [process.pid for process in [parent, *parent.children(recursive=True)]]
        with no_descriptor_left(pids):
            # The kernel completes the connection, but the API cannot accept it.
            waiting = socket.create_connection(("127.0.0.1", port))
            begun, before = time.monotonic(), sum(map(used, pids))
            time.sleep(2.0)
            share = (sum(map(used, pids)) - before) / (time.monotonic() - begun)
            lines = cloud.log("placement api").count("\n")
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/"), "the placement API to answer")
        waiting.close()
        assert share < IDLE, share
        assert lines < 200
    finally:
        cloud.stop("placement api")
