"""Test that the sweep of silent hosts marks no host as down because the database or the broker was away."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from sqlalchemy import Connection
from support.scheduler.rig import Rig, report

from moorage import errors
from moorage.db.database import Database
from placement_store.schema import hosts as host_table
from scheduler.registry.sweep import Sweep

T = TypeVar("T")

DOWN_AFTER = 60.0


class Unsteady(Database):
    """A database that is away when a test says so."""

    is_away = False

    def read(self, work: Callable[[Connection], T]) -> T:
        return self._answer(super().read, work)

    def write(self, work: Callable[[Connection], T]) -> T:
        return self._answer(super().write, work)

    def _answer(self, how: Callable[[Callable[[Connection], T]], T], work: Callable[[Connection], T]) -> T:
        if self.is_away:
            raise errors.StoreUnavailable(schema="main", reason="away")
        return how(work)


class World:
    """A registry with two hosts, and a sweep with a clock that a test sets."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.database = Unsteady(rig.database.url.render_as_string(hide_password=False), "main")
        self.broker_is_away = False
        self.time = 0.0
        self.sweep = Sweep(self.database, DOWN_AFTER, self.probe, lambda: self.time)
        rig.report([report(1), report(2)], ["host1", "host2"])

    def probe(self) -> None:
        if self.broker_is_away:
            raise errors.BusUnavailable(reason="away")

    def passes(self, seconds: float, *alive: str) -> None:
        """Let time pass in rounds of the sweep, with heartbeats of these hosts and no others."""
        for _ in range(round(seconds / self.sweep.interval)):
            self.time += self.sweep.interval
            self.rig.shift_heartbeats(-self.sweep.interval)
            if alive:
                self.rig.report([], list(alive))
            try:
                self.sweep.run()
            except errors.Unavailable:
                assert self.broker_is_away or self.database.is_away


@pytest.fixture
def world(rig: Rig) -> Iterator[World]:
    world = World(rig)
    yield world
    world.database.close()


def test_a_host_that_is_silent_while_others_send_heartbeats_goes_down(world: World) -> None:
    world.passes(DOWN_AFTER, "host1", "host2")
    world.passes(DOWN_AFTER - world.sweep.interval, "host2")
    assert world.rig.up() == ["host1", "host2"]

    world.passes(2 * world.sweep.interval, "host2")

    assert world.rig.up() == ["host2"]


@pytest.mark.parametrize("part", ["database", "broker"])
def test_after_an_outage_the_time_out_of_each_host_begins_again(world: World, part: str) -> None:
    world.passes(2 * DOWN_AFTER, "host1", "host2")
    world.database.is_away, world.broker_is_away = part == "database", part == "broker"
    world.passes(5 * DOWN_AFTER)
    world.database.is_away = world.broker_is_away = False

    world.passes(DOWN_AFTER)  # without a heartbeat
    assert world.rig.up() == ["host1", "host2"]

    world.passes(2 * world.sweep.interval, "host1")
    assert world.rig.up() == ["host1"], "the time-out of host2 is over"


def test_a_scheduler_that_has_just_started_marks_no_host_as_down(world: World) -> None:
    # No heartbeat could arrive before.
    world.rig.database.write(lambda connection: connection.execute(host_table.update().values(heartbeat_at=0.0)))

    world.passes(DOWN_AFTER)
    assert world.rig.up() == ["host1", "host2"]

    world.passes(2 * world.sweep.interval)
    assert world.rig.up() == []


def test_the_line_about_a_silent_cell_has_a_limited_length(world: World, caplog: pytest.LogCaptureFixture) -> None:
    many = range(3, 203)
    world.rig.report([report(number) for number in many], [f"host{number}" for number in many])
    world.passes(2 * DOWN_AFTER + world.sweep.interval)
    assert world.rig.up() == []
    [line] = [record.getMessage() for record in caplog.records if record.name == "scheduler.registry.sweep"]
    assert line.startswith("Down, without a heartbeat for 60.0 s: host1, host10, host100, ")
    assert line.endswith(" and 152 more")
    assert len(line) < 600
