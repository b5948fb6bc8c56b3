"""Test that the newest instances are found by their numbers, for any number of instances and with gaps."""

import bisect
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.moorage.clock import Clock

from dashboard.recent_requests import RecentRequests, life
from moorage import ids
from moorage.messages import MAX_INSTANCES, ListClaims, ListInstances, ListMigrations, ShowInstance
from moorage.messages.wire import decode_strictly, encode
from moorage.model import Flavor, Instance, Migration
from moorage.model.inspection import ClaimState
from scheduler.view.host_cache import HostCache


def instance(number: int) -> Instance:
    return Instance(
        uuid=ids.derived("recent", number),
        project_id="p",
        user_id="u",
        flavor=Flavor(vcpus=1, memory_mb=1, root_gb=1),
        state="active",
        number=number,
    )


class FakeConductor:
    """A super conductor with instances of these numbers, which counts the calls and the listed entries."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self.numbers: Sequence[int] = sorted(numbers)
        self.listed = self.calls = 0

    def call(self, message: Any) -> Any:
        assert isinstance(message, ListInstances)
        assert message.deleted
        first = bisect.bisect_right(self.numbers, message.after or 0)
        found = self.numbers[first : None if message.limit is None else first + message.limit]
        self.calls += 1
        self.listed += len(found)
        return [instance(number) for number in found]


@given(st.sets(st.integers(1, 10**9), max_size=40), st.integers(1, 30))
@settings(deadline=None)
def test_the_newest_instances_and_all_later_ones_are_read(numbers: set[int], most: int) -> None:
    conductor = FakeConductor(numbers)
    recent = RecentRequests(conductor, most)

    newest = max(numbers, default=0)
    # Gaps count: a window of `most` numbers may have fewer instances.
    within = sorted((number for number in numbers if number > newest - most), reverse=True)
    assert [one["number"] for one in recent.read()] == within
    conductor.numbers = [*conductor.numbers, newest + 1]
    assert [one["number"] for one in recent.read()] == [newest + 1, *within][:most]


def test_of_a_million_instances_only_the_window_is_read() -> None:
    conductor = FakeConductor([])
    conductor.numbers = range(1, 1_000_001)
    recent = RecentRequests(conductor, 100)

    assert [one["number"] for one in recent.read()] == list(range(1_000_000, 999_900, -1))
    assert conductor.listed < 200
    assert conductor.calls < 60


def test_after_a_pause_the_newest_instance_is_searched_for_again() -> None:
    clock = Clock()
    conductor = FakeConductor(range(1, 101))
    recent = RecentRequests(conductor, 10, clock)
    recent.read()
    conductor.numbers = range(1, 10_001)
    conductor.listed, clock.now = 0, 3600.0

    assert [one["number"] for one in recent.read()] == list(range(10_000, 9_990, -1))
    assert conductor.listed < 100, "the instances of the pause are not all read"


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(range(1, 901), id="the newest have been pruned"),
        pytest.param(range(1, 6), id="a dump with few instances has been restored"),
    ],
)
def test_earlier_instances_are_shown_to_a_watching_viewer_when_the_newest_are_gone(left: Sequence[int]) -> None:
    clock = Clock()
    conductor = FakeConductor(range(1, 1_001))
    recent = RecentRequests(conductor, 10, clock)
    recent.read()
    conductor.numbers = left
    for clock.now in range(2, 65, 2):
        shown = [one["number"] for one in recent.read()]
    within = [number for number in left if number > max(left) - 10]
    assert shown == within[::-1]


def test_while_instances_are_missing_from_the_list_the_newest_is_searched_for_once_a_minute() -> None:
    clock = Clock()
    conductor = FakeConductor([*range(1, 901), 1_000])
    recent = RecentRequests(conductor, 10, clock)
    recent.read()
    conductor.calls = 0
    for clock.now in range(2, 301, 2):
        recent.read()
    # One call for each list, and less than 30 for each search.
    assert conductor.calls < 150 + 4 * 30


class MovedOften:
    """A super conductor and a placement role, with one instance that was moved very often."""

    def call(self, message: Any) -> Any:
        decode_strictly(type(message), encode(message))
        if isinstance(message, ShowInstance):
            return instance(1)
        if isinstance(message, ListMigrations):
            return [migration(number) for number in range(MAX_INSTANCES + 1)] if message.after is None else []
        if isinstance(message, ListClaims):
            return [
                ClaimState(consumer_uuid=uuid, consumer_type="MIGRATION", generation=1, age=float(int(uuid[:8], 16)))
                for uuid in message.consumer_uuids
            ]
        return []


def migration(number: int) -> Migration:
    return Migration(
        uuid=ids.derived("recent", "migration", number),
        instance_uuid=instance(1).uuid,
        kind="cold-migration",
        state="confirmed",
        created_at=0.0,
        updated_at=0.0,
    )


def test_an_instance_with_more_moves_than_a_message_names_is_shown_with_all_its_claims() -> None:
    cloud = MovedOften()
    claims = life(cloud, cloud, HostCache().snapshot(), instance(1).uuid)["claims"]
    assert len(claims) == MAX_INSTANCES + 2
    assert [one["age"] for one in claims] == sorted((one["age"] for one in claims), reverse=True)
