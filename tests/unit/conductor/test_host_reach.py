"""Test the time since which hosts can report: an outage or a step of the clock begins it again."""

import pytest

from conductor.cell.hosts.reach import HostReach
from moorage import errors


class Clock:
    """Stands for the monotonic clock and, with an error, for the database's."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.error = 0.0

    def monotonic(self) -> float:
        return self.now

    def database(self) -> float:
        return self.now + self.error


def unreachable() -> float:
    raise errors.BusUnavailable(reason="it is away")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reach(clock: Clock) -> HostReach:
    return HostReach(60.0, clock.monotonic)


def test_a_host_is_not_silent_before_it_could_report_for_long_enough(clock: Clock, reach: HostReach) -> None:
    clock.now += 30
    assert not reach.has_lasted()
    assert reach.has_lasted(20)
    clock.now += 31
    assert reach.has_lasted()


def test_while_reports_cannot_arrive_the_time_begins_again(clock: Clock, reach: HostReach) -> None:
    for _ in range(10):
        clock.now += 20
        reach.note(clock.database)
    assert reach.has_lasted()

    for _ in range(30):
        clock.now += 20
        reach.note(unreachable)
        assert not reach.has_lasted(0.1)
    clock.now += 20
    reach.note(clock.database)
    assert not reach.has_lasted()
    clock.now += 41
    assert reach.has_lasted()


def test_the_time_begins_again_when_the_clock_of_the_database_is_set_forward(clock: Clock, reach: HostReach) -> None:
    clock.now += 100
    reach.note(clock.database)
    assert reach.has_lasted()
    clock.error = 3600.0
    reach.note(clock.database)
    assert not reach.has_lasted(0.1)


def test_a_fault_of_the_product_is_not_taken_for_an_outage(reach: HostReach) -> None:
    def broken() -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        reach.note(broken)
