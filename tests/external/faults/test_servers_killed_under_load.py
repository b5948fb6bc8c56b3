"""MariaDB and RabbitMQ killed and started again while clients build and delete: everything resumes by itself.

`make test` kills MariaDB three times and RabbitMQ twice; with DRILLS=long in the environment it is ten and five, and
twenty minutes with six outages of the broker in each.
"""

import gc
import logging
import os
import time
from collections.abc import Callable, Iterator

import pytest
from support.databases.migrated import OnMariaDB
from support.processes.fault_servers import check
from support.processes.faulty_cloud import FaultyCloud
from support.processes.load import Load

from conductor.schema import CELL, CONDUCTOR
from harness.servers import MariaDBServer, RabbitMQServer
from placement_store.schema import MAIN

pytestmark = pytest.mark.timeout(900)

LONG = os.environ.get("DRILLS") == "long"
#: Seconds of work before a kill, and seconds that the server stays away.
BETWEEN, AWAY = 3.0, 1.0


def drill(cloud: FaultyCloud, server: MariaDBServer | RabbitMQServer, times: int) -> str:
    """Kill a server again and again under load, check the cloud at the end, and return how long it took to recover."""
    backs: list[float] = []
    with Load(cloud) as load:
        for _ in range(times):
            load.ended.wait(BETWEEN)
            server.kill()
            load.ended.wait(AWAY)
            server.start()
            backs.append(time.monotonic())
            load.wait_until_recovered(backs[-1])
    assert not load.faults, load.faults
    check(cloud, [], 60.0)
    states = [state for _, _, state in load.builds]
    assert states.count("active") > times
    return (
        f"{server.package} killed {times} times: {states.count('active')} builds active, {states.count('error')} in "
        f"error; recovery in s: {', '.join(f'{load.recovery(back):.1f}' for back in backs)}"
    )


def outages(cloud: FaultyCloud, server: RabbitMQServer, times: int, slot: float) -> float:
    """Kill the broker so often, once in ``slot`` seconds, under load; return how long the orders under way went on."""
    with Load(cloud) as load:
        for _ in range(times):
            began = time.monotonic()
            server.kill()
            load.ended.wait(AWAY)
            server.start()
            load.ended.wait(max(0.0, began + slot - time.monotonic()))
        last = time.monotonic()
        load.ended.set()
    busy = time.monotonic() - last
    assert not load.faults, load.faults
    check(cloud, [], 60.0)
    return busy


@pytest.fixture
def mariadb_url(migrated_mariadb: OnMariaDB) -> str:
    """The URL of a database with empty tables."""
    return migrated_mariadb.url(MAIN, CONDUCTOR, CELL)


@pytest.fixture
def cloud(mariadb_url: str, rabbitmq_url: str) -> Iterator[FaultyCloud]:
    logging.disable()  # records of what has failed would keep dead sockets, to be found in a later test
    try:
        with FaultyCloud(rabbitmq_url, mariadb_url) as begun:
            begun.begin()
            yield begun
    finally:
        logging.disable(logging.NOTSET)
        gc.collect()


def test_every_build_ends_and_nothing_leaks_when_mariadb_is_killed_under_load(
    cloud: FaultyCloud, mariadb: MariaDBServer, record_property: Callable[[str, object], None]
) -> None:
    record_property("measured", drill(cloud, mariadb, 10 if LONG else 3))


def test_every_build_ends_and_nothing_leaks_when_rabbitmq_is_killed_under_load(
    cloud: FaultyCloud, rabbitmq: RabbitMQServer, record_property: Callable[[str, object], None]
) -> None:
    record_property("measured", drill(cloud, rabbitmq, 5 if LONG else 2))


@pytest.mark.timeout(3600)
def test_a_cloud_is_idle_again_soon_after_several_outages_of_the_broker_in_a_minute(
    cloud: FaultyCloud, rabbitmq: RabbitMQServer, record_property: Callable[[str, object], None]
) -> None:
    minutes, times = (20, 6) if LONG else (1, 2)
    for _ in range(minutes):
        busy = outages(cloud, rabbitmq, times, 10.0)
        record_property("measured", f"{times} outages of the broker in a minute: idle after {busy:.1f} s")
        assert busy < 60
