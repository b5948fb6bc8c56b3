"""A suspended machine: services, database and broker continue when it is resumed."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest
from support.processes.fault_servers import Server, check, delete
from support.processes.faulty_cloud import FaultyCloud
from support.processes.load import Load

from harness.processes import pause
from harness.servers import MariaDBServer, RabbitMQServer
from moorage.messages import ListHosts

pytestmark = pytest.mark.timeout(600)

#: Longer than leases, calls and idle transactions; the long form is also longer than heartbeats of broker and hosts.
SECONDS = 60.0 if os.environ.get("DRILLS") == "long" else 6.0


@contextmanager
def suspended(pids: list[int]) -> Iterator[None]:
    """Stop processes and all their children in random order, and resume them in another random order."""
    processes = [psutil.Process(pid) for pid in pids]
    processes += [child for process in processes for child in process.children(recursive=True)]
    random.shuffle(processes)
    try:
        for process in processes:
            pause(process.pid)
        yield
    finally:
        random.shuffle(processes)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def test_a_cloud_continues_after_the_machine_was_suspended_for_longer_than_all_leases(
    cloud: FaultyCloud, mariadb: MariaDBServer, rabbitmq: RabbitMQServer, record_property: Callable[[str, object], None]
) -> None:
    standing = Server(cloud, 1, zone="nova")
    standing.order_build()
    before = standing.becomes("active")
    services = [process.pid for process in cloud.processes.values()]
    with Load(cloud) as load:
        load.ended.wait(1.5)
        with suspended([*services, mariadb.pid, rabbitmq.pid]):
            time.sleep(SECONDS)
        back = time.monotonic()
        load.wait_until_recovered(back)
    assert not load.faults, load.faults
    after = standing.show()
    assert (after.state, after.host, after.claim_id) == (before.state, before.host, before.claim_id)
    check(cloud, [standing], 60.0)
    assert all(host.up for host in cloud.call("scheduler", ListHosts()))
    assert [process.pid for process in cloud.processes.values() if process.poll() is None] == services
    delete([standing])
    check(cloud, [], 60.0)
    record_property("measured", f"suspended for {SECONDS:g} s: recovery in {load.recovery(back):.1f} s")
