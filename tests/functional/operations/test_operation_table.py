"""Test every row of the table of operations on a whole cloud; `docs/operations.md` shows the table.

One cloud serves all rows; its conductors are restarted for each policy. Several rows are played at a time, each in a
room of its own.
"""

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.operations.basis import KEEPING, WELL, Row
from support.operations.cloud import Troubles, TroublesomeCloud, plan
from support.operations.player import played
from support.operations.port_room import NICS
from support.operations.room import Room, rooms_of
from support.operations.table import rows

from harness.cloud import CloudSpec
from moorage import failpoints

pytestmark = pytest.mark.timeout(1200)

#: In this order; most rows have the first one.
POLICIES = ("combine", "retry", "fail", *KEEPING)
ROOMS = 8
#: Seconds between reports. No row waits for a report, because no agent is restarted, and hosts are forced down.
REPORTS = 2.0

Rooms = Callable[[str], list[Room]]


@pytest.fixture(scope="module")
def rooms() -> Iterator[Rooms]:
    """Return a function that gives the conductors of a cloud a policy, and returns the rooms of the cloud."""
    troubles = Troubles()

    def under(policy: str) -> CloudSpec:
        return plan(policy, hosts=3 * ROOMS, report_interval=REPORTS, **NICS)

    with failpoints.observed(troubles), TroublesomeCloud(under(POLICIES[0])) as cloud:
        known = rooms_of(cloud, troubles)

        def of(policy: str) -> list[Room]:
            cloud.adopt(under(policy))
            return known

        yield of


def play(table: list[Row], rooms: list[Room]) -> list[str]:
    """Play rows, as many at a time as there are rooms; return all differences from the table."""
    free: queue.SimpleQueue[Room] = queue.SimpleQueue()
    for room in rooms:
        free.put(room)

    def one(row: Row) -> list[str]:
        room = free.get()
        try:
            return played(row, room)
        finally:
            free.put(room)

    with ThreadPoolExecutor(len(rooms)) as pool:
        return [wrong for found in pool.map(one, table) for wrong in found]


@pytest.mark.parametrize("operation", WELL)
def test_each_row_of_the_table_ends_as_it_says_before_and_after_the_operators_action(
    operation: str, rooms: Rooms
) -> None:
    wrong: list[str] = []
    for policy in POLICIES:
        if chosen := [row for row in rows() if row.operation == operation and policy in row.policies]:
            wrong += [f"[{policy}] {one}" for one in play(chosen, rooms(policy))]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
