"""MariaDB and RabbitMQ are killed and started again while clients build and delete: the work resumes by itself.

`make test` kills MariaDB three times and RabbitMQ twice; with DRILLS=long in the environment it kills them ten and five
times, and for twenty minutes the broker fails six times in each minute.
"""

import os
import time
from collections.abc import Callable, Iterator

import pytest
from support.processes.fault_servers import check
from support.processes.faulty_cloud import FaultyCloud
from support.processes.load import Load

from harness.drills.cloud import unlogged
from harness.servers import MariaDBServer, RabbitMQServer

pytestmark = pytest.mark.timeout(900)

LONG = os.environ.get("DRILLS") == "long"
#: Seconds of work before a kill, and seconds until the server is started again.
BETWEEN, AWAY = 3.0, 1.0


def drill(cloud: FaultyCloud, server: MariaDBServer | RabbitMQServer, times: int) -> str:
    """Kill a server several times under load, and check the cloud at the end; return a text with the recovery times."""
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
    assert states.count("active") > times, load.reasons
    return (
        f"{server.package} killed {times} times: {states.count('active')} builds active, {states.count('error')} in "
        f"error; recovery in s: {', '.join(f'{load.recovery(back):.1f}' for back in backs)}"
    )


def outages(cloud: FaultyCloud, server: RabbitMQServer, times: int, slot: float) -> float:
    """Kill the broker under load, once in each ``slot`` seconds; return how long the last orders took to end."""
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
def cloud(migrated_url: str, rabbitmq_url: str) -> Iterator[FaultyCloud]:
    with unlogged(), FaultyCloud(rabbitmq_url, migrated_url) as begun:
        begun.begin()
        yield begun


def test_every_build_ends_and_nothing_leaks_when_mariadb_is_killed_under_load(
    cloud: FaultyCloud, mariadb: MariaDBServer, record_property: Callable[[str, object], None]
) -> None:
    record_property("measured", drill(cloud, mariadb, 10 if LONG else 3))


def test_every_build_ends_and_nothing_leaks_when_rabbitmq_is_killed_under_load(
    cloud: FaultyCloud, rabbitmq: RabbitMQServer, record_property: Callable[[str, object], None]
) -> None:
    record_property("measured", drill(cloud, rabbitmq, 5 if LONG else 2))


@pytest.mark.timeout(3600)
def test_a_cloud_becomes_idle_soon_after_several_outages_of_the_broker(
    cloud: FaultyCloud, rabbitmq: RabbitMQServer, record_property: Callable[[str, object], None]
) -> None:
    minutes, times = (20, 6) if LONG else (1, 2)
    for _ in range(minutes):
        busy = outages(cloud, rabbitmq, times, 10.0 if LONG else 6.0)
        record_property("measured", f"{times} outages of the broker in a row: idle after {busy:.1f} s")
        assert busy < 60
