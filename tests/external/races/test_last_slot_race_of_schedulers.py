"""One host with room for five and sixteen requests at once, through select_destinations: five are claimed, always.

`make test` has fifty rounds on each isolation; with DRILLS=long in the environment it is five hundred.
"""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.scheduler.builders import select
from support.scheduler.rig import OneScheduler, Rig

from harness.servers import MariaDBServer
from moorage import errors
from moorage.messages import SelectDestinations

ROUNDS = 500 if os.environ.get("DRILLS") == "long" else 50
THREADS = 8
REQUESTS = 16
ROOM = 5


@pytest.fixture(scope="module", params=["READ-COMMITTED", "REPEATABLE-READ"])
def server(request: pytest.FixtureRequest) -> Iterator[MariaDBServer]:
    """A server for each isolation that an operator may have made its default."""
    with MariaDBServer("innodb_flush_log_at_trx_commit=2", f"transaction-isolation={request.param}") as started:
        yield started


@pytest.fixture
def rig(server: MariaDBServer) -> Iterator[Rig]:
    started = Rig(server.create_database("race"))
    yield started
    started.close()
    server.drop_database("race")


def outcome(scheduler: OneScheduler, message: SelectDestinations) -> str:
    try:
        scheduler.select(message)
    except errors.MoorageError as fault:
        return type(fault).__name__
    return "claimed"


def test_room_for_five_is_claimed_five_times_in_every_round(rig: Rig) -> None:
    rig.add_hosts([1], vcpus=2 * ROOM)
    schedulers = [rig.scheduler(max_age=0.1) for _ in range(2)]
    start = threading.Barrier(THREADS)

    def race(arguments: tuple[int, int]) -> list[tuple[str, str]]:
        round_number, thread = arguments
        messages = [select(f"r{round_number}-{thread}-{number}") for number in range(REQUESTS // THREADS)]
        start.wait()
        scheduler = schedulers[thread % len(schedulers)]
        return [(message.instance_uuids[0], outcome(scheduler, message)) for message in messages]

    with ThreadPoolExecutor(THREADS) as pool:
        for round_number in range(ROUNDS):
            rounds = pool.map(race, [(round_number, thread) for thread in range(THREADS)])
            outcomes = [each for thread in rounds for each in thread]
            counted = Counter(word for _, word in outcomes)
            assert counted["claimed"] == ROOM, (round_number, counted)
            assert set(counted) <= {"claimed", "NoValidHost", "ClaimContention"}, (round_number, counted)
            for uuid, word in outcomes:
                if word == "claimed":
                    rig.release(uuid)
    report = rig.audit()
    assert not report.overcommitted
    assert not report.drifted
    assert not report.holders
