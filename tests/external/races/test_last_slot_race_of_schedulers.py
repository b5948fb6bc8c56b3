"""Sixteen concurrent requests to two schedulers for one host with room for five: always exactly five are claimed.

`make test` runs fifty rounds with each isolation level; with DRILLS=long in the environment it runs five hundred.
"""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from support.databases.migrated import OnMariaDB
from support.placement_store.builders import outcome
from support.scheduler.builders import select
from support.scheduler.rig import Rig

from harness.servers import MariaDBServer
from placement_store.schema import MAIN

ROUNDS = 500 if os.environ.get("DRILLS") == "long" else 50
THREADS = 8
REQUESTS = 16
ROOM = 5


@pytest.fixture
def rig(isolated_mariadb: MariaDBServer, migrated_mariadb: OnMariaDB) -> Iterator[Rig]:
    started = Rig(migrated_mariadb.url(MAIN), is_migrated=True)
    yield started
    started.close()


def test_room_for_five_is_claimed_exactly_five_times_in_every_round(rig: Rig) -> None:
    rig.add_hosts([1], vcpus=2 * ROOM)
    schedulers = [rig.scheduler(max_age=0.1) for _ in range(2)]
    start = threading.Barrier(THREADS)

    def race(arguments: tuple[int, int]) -> list[tuple[str, str]]:
        round_number, thread = arguments
        messages = [select(f"r{round_number}-{thread}-{number}") for number in range(REQUESTS // THREADS)]
        start.wait()
        scheduler = schedulers[thread % len(schedulers)]
        return [(message.instance_uuids[0], outcome(partial(scheduler.select, message))) for message in messages]

    with ThreadPoolExecutor(THREADS) as pool:
        for round_number in range(ROUNDS):
            rounds = pool.map(race, [(round_number, thread) for thread in range(THREADS)])
            outcomes = [each for thread in rounds for each in thread]
            counted = Counter(ended for _, ended in outcomes)
            assert counted["done"] == ROOM, (round_number, counted)
            assert set(counted) <= {"done", "NoValidHost", "ClaimContention"}, (round_number, counted)
            for uuid, ended in outcomes:
                if ended == "done":
                    rig.release(uuid)
    report = rig.audit()
    assert not report.overcommitted
    assert not report.drifted
    assert not report.holders
