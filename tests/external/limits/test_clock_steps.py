"""A database whose clock is set, by a second and by an hour, forward and back: nobody dies of it, nothing is lost."""

import gc
import logging
import os
import time
from collections.abc import Callable, Iterator

import pytest
from support.processes import private_servers
from support.processes.fault_servers import Server, check, delete
from support.processes.faulty_cloud import QUICK, FaultyCloud
from support.processes.limited_servers import MariaDBWithItsOwnClock
from support.processes.load import Load

from harness.cloud import wait_until
from moorage.messages import ListHosts

pytestmark = pytest.mark.timeout(900)

HOUR = 3600.0
#: Where the clock is set to, one after the other, in seconds after the machine's.
STEPS = (1.0, 0.0, HOUR, 0.0)
if os.environ.get("DRILLS") == "long":
    STEPS = (1.0, -1.0, HOUR, -HOUR, 24 * HOUR, HOUR, -24 * HOUR, 0.0)
#: Seconds after which a host counts as down: longer than what a busy machine delays a heartbeat by.
DOWN_AFTER = 20.0


@pytest.fixture(scope="module")
def clock() -> Iterator[MariaDBWithItsOwnClock]:
    yield from private_servers.run(lambda: MariaDBWithItsOwnClock("innodb_flush_log_at_trx_commit=2"))


@pytest.fixture
def cloud(clock: MariaDBWithItsOwnClock, rabbitmq_url: str) -> Iterator[FaultyCloud]:
    logging.disable()
    settings = {"scheduler": {**QUICK["scheduler"], "host_down_after": DOWN_AFTER}}
    try:
        with FaultyCloud(rabbitmq_url, clock.create_database("steps"), settings) as begun:
            begun.begin()
            yield begun
    finally:
        logging.disable(logging.NOTSET)
        clock.set_clock(0.0)
        gc.collect()


def test_when_the_clock_of_the_database_is_set_nobody_is_held_dead_and_nothing_is_released(
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
    # Where the clock leaps forward, waits end early and hosts return first: a build may lose its last attempt by that.
    failed = [(began, ended) for began, ended, state in load.builds if state == "error"]
    beside = [one for one in failed if not any(one[0] < leap + DOWN_AFTER and one[1] > leap for leap in leaps)]
    assert beside == [], (leaps, failed)
    after = standing.show()
    assert (after.state, after.host, after.claim_id) == (before.state, before.host, before.claim_id)
    check(cloud, [standing], 60.0)
    assert "Down, for want of a heartbeat" not in cloud.log("scheduler")
    wait_until(lambda: all(host.up for host in cloud.call("scheduler", ListHosts())), "all hosts to be up")
    delete([standing])
    check(cloud, [], 60.0)
    record_property(
        "measured",
        f"clock set to {STEPS}: builds ended after {[round(one, 1) for one in recoveries]} s; "
        f"{len(failed)} of {len(load.builds)} in error",
    )


def test_what_a_dead_conductor_has_left_is_taken_over_soon_though_the_clock_was_set_back(
    cloud: FaultyCloud, clock: MariaDBWithItsOwnClock
) -> None:
    clock.set_clock(HOUR)
    server = Server(cloud, 1, zone="slow")  # its guest is never finished, so that its cell waits for a time-out
    server.order_build()
    wait_until(lambda: any(guest.instance_uuid == server.uuid for guest in cloud.guests()), "the guest to be begun")
    cloud.kill("cell conductor")
    clock.set_clock(0.0)

    cloud.start_role("cell conductor")

    assert server.becomes("error").reason
    delete([server])
    check(cloud, [], 60.0)
