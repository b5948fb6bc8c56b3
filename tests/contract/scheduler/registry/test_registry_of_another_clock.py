"""Test heartbeats in the registry that were written before the database's clock was set, on each store."""

from collections.abc import Callable
from typing import TypeVar

import pytest
from sqlalchemy import Connection
from support.scheduler.rig import Rig, report

from moorage.db.database import Database
from scheduler.registry import hosts, sweep
from scheduler.registry.sweep import Sweep

T = TypeVar("T")
DOWN_AFTER, HOUR = 60.0, 3600.0


def mark_down(rig: Rig) -> list[str]:
    return rig.database.write(lambda connection: hosts.mark_down(connection, DOWN_AFTER))


def test_a_host_that_fails_when_the_clock_is_set_back_goes_down_after_the_time_out(rig: Rig) -> None:
    rig.report([report(1), report(2)], ["host1", "host2"])
    rig.shift_heartbeats(HOUR)

    assert mark_down(rig) == [], "the time-out of each host begins again"
    rig.shift_heartbeats(-DOWN_AFTER - 1)
    rig.report([], ["host2"])

    assert mark_down(rig) == ["host1"]
    assert rig.up() == ["host2"]


class _Clock(Database):
    """A database whose clock can be set forward."""

    ahead = 0.0

    def read(self, work: Callable[[Connection], T]) -> T:
        found = super().read(work)
        return found + self.ahead if isinstance(found, float) else found  # type: ignore[return-value]


@pytest.mark.parametrize("step", [HOUR, DOWN_AFTER / 2])
def test_no_host_goes_down_because_the_clock_was_set_forward(rig: Rig, step: float) -> None:
    database = _Clock(rig.database.url.render_as_string(hide_password=False), "main")
    time = 0.0
    rounds = Sweep(database, DOWN_AFTER, lambda: None, lambda: time)
    rig.report([report(1), report(2)], ["host1", "host2"])
    try:
        for _ in range(2 * sweep._ROUNDS_PER_TIMEOUT):
            time += rounds.interval
            rounds.run()
        database.ahead = step
        rig.shift_heartbeats(-step)
        rig.shift_heartbeats(-DOWN_AFTER / 2 - 1)

        rounds.run()

        assert rig.up() == ["host1", "host2"]
        for _ in range(sweep._ROUNDS_PER_TIMEOUT):
            time += rounds.interval
            rig.report([], ["host2"])
            rounds.run()
        assert rig.up() == ["host2"], "the time-out of host1 is over"
    finally:
        database.close()
