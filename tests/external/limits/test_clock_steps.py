"""The database's clock is set forward and back by a second and by an hour: no host is set down, nothing is lost."""

import os
import time
from collections.abc import Callable, Iterator

import pytest
from support.processes import private_servers
from support.processes.fault_servers import Server, check, delete
from support.processes.faulty_cloud import QUICK, FaultyCloud
from support.processes.limited_servers import MariaDBWithItsOwnClock
from support.processes.load import Load

from harness.drills.cloud import unlogged
from harness.waiting import wait_until
from moorage.messages import ListHosts

pytestmark = pytest.mark.timeout(900)

HOUR = 3600.0
#: The successive offsets of the clock from the machine's, in seconds.
STEPS: tuple[float, ...] = (1.0, 0.0, HOUR, 0.0)
if os.environ.get("DRILLS") == "long":
    STEPS = (1.0, -1.0, HOUR, -HOUR, 24 * HOUR, HOUR, -24 * HOUR, 0.0)
#: Seconds after which a host counts as down: longer than a busy machine delays a heartbeat.
DOWN_AFTER = 20.0


@pytest.fixture(scope="module")
def clock() -> Iterator[MariaDBWithItsOwnClock]:
    yield from private_servers.run(lambda: MariaDBWithItsOwnClock("innodb_flush_log_at_trx_commit=2"))


@pytest.fixture(scope="module")
def cloud(clock: MariaDBWithItsOwnClock, fresh_vhosts: Iterator[str]) -> Iterator[FaultyCloud]:
    settings = {"scheduler": {**QUICK["scheduler"], "host_down_after": DOWN_AFTER}}
    with unlogged(), FaultyCloud(next(fresh_vhosts), clock.create_database("steps"), settings) as begun:
        begun.begin()
        yield begun


@pytest.fixture(autouse=True)
def clock_is_reset(clock: MariaDBWithItsOwnClock) -> Iterator[None]:
    """Set the clock back to the machine's after each test."""
    yield
    clock.set_clock(0.0)


def test_if_the_clock_of_the_database_is_set_no_host_is_set_down_and_nothing_is_released(
    cloud: FaultyCloud, clock: MariaDBWithItsOwnClock, record_property: Callable[[str, object], None]
) -> None:
    standing = Server(cloud, 1, zone="nova")
    standing.order_build()
    before = standing.becomes("active")
    recoveries: list[float] = []
    leaps: list[float] = []
    former = 0.0
    with Load(cloud) as load:
        for seconds in STEPS:
            load.ended.wait(1.0)
            clock.set_clock(seconds)
            stepped = time.monotonic()
            if seconds - former > DOWN_AFTER:
                leaps.append(stepped)
            former = seconds
            load.wait_until_recovered(stepped)
            recoveries.append(load.recovery(stepped) if not load.faults else float("nan"))
    assert not load.faults, load.faults
    # If the clock leaps forward, waits end early and hosts must report again: a build may lose its last attempt.
    failed = [(began, ended) for began, ended, state in load.builds if state == "error"]
    unexplained = [one for one in failed if not any(one[0] < leap + DOWN_AFTER and one[1] > leap for leap in leaps)]
    assert unexplained == [], (leaps, failed)
    after = standing.show()
    assert (after.state, after.host, after.claim_id) == (before.state, before.host, before.claim_id)
    check(cloud, [standing], 60.0)
    assert "Down, without a heartbeat" not in cloud.log("scheduler")
    wait_until(lambda: all(host.up for host in cloud.call("scheduler", ListHosts())), "all hosts to be up")
    delete([standing])
    check(cloud, [], 60.0)
    record_property(
        "measured",
        f"clock set to {STEPS}: builds ended after {[round(one, 1) for one in recoveries]} s; "
        f"{len(failed)} of {len(load.builds)} in error",
    )


def test_the_work_of_a_killed_conductor_is_taken_over_soon_even_if_the_clock_is_set_back(
    cloud: FaultyCloud, clock: MariaDBWithItsOwnClock
) -> None:
    clock.set_clock(HOUR)
    server = Server(cloud, 1, zone="slow")  # its guest is never finished, so the cell waits for a time-out
    server.order_build()
    wait_until(lambda: any(guest.instance_uuid == server.uuid for guest in cloud.guests()), "the guest to be begun")
    cloud.kill("cell conductor")
    clock.set_clock(0.0)

    cloud.start_role("cell conductor")

    assert server.becomes("error").reason
    delete([server])
    check(cloud, [], 60.0)
