"""Hosts in the registry whose heartbeats were written before the database's clock was set, on each store."""

from collections.abc import Callable
from typing import TypeVar

import pytest
from sqlalchemy import Connection
from support.scheduler.rig import Rig, report, rig_on_each_store

from moorage.db.database import Database
from moorage.messages import ListHosts
from placement_store.schema import hosts as host_table
from scheduler.registry import hosts, sweep
from scheduler.registry.sweep import Sweep

rig = rig_on_each_store

T = TypeVar("T")
DOWN_AFTER, HOUR = 60.0, 3600.0


def shift(rig: Rig, seconds: float) -> None:
    """Move all heartbeats, as a step of the database's clock in the other direction does."""
    moved = host_table.update().values(heartbeat_at=host_table.c.heartbeat_at + seconds)
    rig.database.write(lambda connection: connection.execute(moved))


def mark_down(rig: Rig) -> list[str]:
    return rig.database.write(lambda connection: hosts.mark_down(connection, DOWN_AFTER))


def up(rig: Rig) -> list[str]:
    return [host.service_host for host in rig.registry.list_hosts(ListHosts()) if host.up]


def test_a_host_that_dies_when_the_clock_is_set_back_goes_down_after_its_time(rig: Rig) -> None:
    rig.report([report(1), report(2)], ["host1", "host2"])
    shift(rig, HOUR)

    assert mark_down(rig) == [], "each has its whole time from now on"
    shift(rig, -DOWN_AFTER - 1)
    rig.report([], ["host2"])

    assert mark_down(rig) == ["host1"]
    assert up(rig) == ["host2"]


class _Clock(Database):
    """A database whose clock can be set forward."""

    ahead = 0.0

    def read(self, work: Callable[[Connection], T]) -> T:
        found = super().read(work)
        return found + self.ahead if isinstance(found, float) else found  # type: ignore[operator,return-value]


@pytest.mark.parametrize("step", [HOUR, DOWN_AFTER / 2])
def test_no_host_is_held_dead_because_the_clock_was_set_forward(rig: Rig, step: float) -> None:
    database = _Clock(rig.database.url.render_as_string(hide_password=False), "main")
    time = 0.0
    rounds = Sweep(database, DOWN_AFTER, lambda: None, lambda: time)
    rig.report([report(1), report(2)], ["host1", "host2"])
    try:
        for _ in range(2 * sweep._ROUNDS_PER_TIMEOUT):
            time += rounds.interval
            rounds.run()
        database.ahead = step
        shift(rig, -step)
        shift(rig, -DOWN_AFTER / 2 - 1)

        rounds.run()

        assert up(rig) == ["host1", "host2"]
        for _ in range(sweep._ROUNDS_PER_TIMEOUT):
            time += rounds.interval
            rig.report([], ["host2"])
            rounds.run()
        assert up(rig) == ["host2"], "host1 has had its time"
    finally:
        database.close()
