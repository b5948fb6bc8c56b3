"""The broker's alarms: callers get an error in time, services say what is wrong, and all goes on when they end."""

import gc
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.databases.migrated import OnMariaDB
from support.processes.fault_servers import check
from support.processes.faulty_cloud import FaultyCloud
from support.processes.load import CLIENTS, Load

from conductor.schema import CELL, CONDUCTOR
from harness.servers import RabbitMQServer
from moorage import errors
from moorage.messages import ListInstances
from placement_store.schema import MAIN

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # the bus library drops what has died
]

#: Of each alarm, what raises it and what ends it.
ALARMS = {
    "memory": (("set_vm_memory_high_watermark", "0.00001"), ("set_vm_memory_high_watermark", "0.4")),
    "disk": (("set_disk_free_limit", "1000TB"), ("set_disk_free_limit", "10MB")),
}


@pytest.fixture
def cloud(migrated_mariadb: OnMariaDB, rabbitmq_url: str) -> Iterator[FaultyCloud]:
    logging.disable()
    try:
        with FaultyCloud(rabbitmq_url, migrated_mariadb.url(MAIN, CONDUCTOR, CELL)) as begun:
            begun.begin()
            yield begun
    finally:
        logging.disable(logging.NOTSET)
        gc.collect()


@contextmanager
def alarm(rabbitmq: RabbitMQServer, kind: str) -> Iterator[None]:
    begin, end = ALARMS[kind]
    rabbitmq.rabbitmqctl(rabbitmq.nodename, list(begin))
    try:
        yield
    finally:
        rabbitmq.rabbitmqctl(rabbitmq.nodename, list(end))


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_x(cloud: FaultyCloud, rabbitmq: RabbitMQServer, kind: str) -> None:
    t0 = time.monotonic()
    with Load(cloud) as load:
        load.ended.wait(2.0)
        with alarm(rabbitmq, kind):
            print("alarm", time.monotonic() - t0)
            for _ in range(4):
                b = time.monotonic()
                try:
                    cloud.client("conductor", timeout=2.0).call(ListInstances())
                    print("answered")
                except errors.MoorageError as fault:
                    print(repr(fault), time.monotonic() - b)
            print(cloud.run("status", "--timeout", "2", check=False).stdout)
            rabbitmq.rabbitmqctl(rabbitmq.nodename, ["list_connections", "state"])
            load.ended.wait(12.0)
        back = time.monotonic()
        while not load.faults and not sum(e > back for _, e, _ in load.builds) >= 2 * CLIENTS:
            assert time.monotonic() < back + 100
            time.sleep(0.1)
    print("recovery", load.recovery(back), load.faults)
    for role in cloud.ROLES:
        lines = [l for l in cloud.log(role).splitlines() if "WARN" in l or "ERROR" in l]
        print("=====", role, len(lines), len(cloud.log(role).splitlines()))
        print("\n".join(l[:300] for l in lines[:12]))
    check(cloud, [], 60.0)
