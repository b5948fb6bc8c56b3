"""Kill each process with SIGKILL at each failpoint of operations on servers: each operation ends, and nothing leaks.

The processes themselves provide the grid of failpoints: each is started once with all its failpoints logged, while
servers are built, moved, shelved, rebuilt and deleted. A process is then killed at each failpoint that it passed. So
new steps, and new messages in a step, are in the grid automatically; a test fails if no scene reaches a step.

The whole grid takes an hour: `make grid`, or GRID=whole in the environment. Otherwise a sample is run: half of it in
scenes that only build and delete, half in the others. GRID_SEED selects another sample.
"""

import contextlib
import itertools
import logging
import os
import queue
import random
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from support.databases import store_copy
from support.databases.migrated import OnMariaDB
from support.processes.fault_scenes import SCENES, Scene, begin, end, play
from support.processes.fault_servers import check, claims
from support.processes.faulty_cloud import FaultyCloud, passed, places, restarted_when_killed, taken_over_when_paused

from conductor.schema import CELL, CONDUCTOR
from harness.servers import MariaDBServer, RabbitMQServer
from moorage.db.database import Database
from placement_store.schema import MAIN

WHOLE = os.environ.get("GRID") == "whole"

# The whole grid has well over 500 failpoints, and each takes some seconds.
pytestmark = pytest.mark.timeout(10800 if WHOLE else 1800)

SEED = os.environ.get("GRID_SEED", "1")
#: The sizes of the samples.
KILLS, PAUSES = 40, 6
#: The number of clouds that run at the same time: most of a run waits for time-outs.
LANES = 5
#: Seconds in which a resumed conductor notices that another one has taken over its work.
RESUMED = 1.0


class Point(NamedTuple):
    """A failpoint that a role passes in a scene."""

    role: str
    name: str
    scene: str


Trial = Callable[[FaultyCloud, Scene, str, str], None]

CONDUCTORS = ("conductor", "cell conductor")
#: The failpoint of a step whose work is done and whose outcome is not recorded yet. Conductors are killed there in each
#: scene that reaches the step.
DONE = re.compile(r"step\.(?!build|delete)\w+\.\w+\.done")

LOG = logging.getLogger(__name__)


class Lanes:
    """Clouds on which failpoints are tried, one at a time on each; after a failed trial, a cloud is not used again."""

    def __init__(self, mariadb: MariaDBServer, migrated_mariadb: OnMariaDB, rabbitmq: RabbitMQServer) -> None:
        self._mariadb = mariadb
        # A copy of the tables takes a tenth of the processor time of the migrations.
        with contextlib.closing(Database(migrated_mariadb.url(MAIN, CONDUCTOR, CELL), "template")) as template:
            self._tables = store_copy.copied(template)
        self._rabbitmq = rabbitmq
        self._numbers = itertools.count(1)
        # Created by one call of the control program; further ones are only needed if a trial fails.
        self._vhosts = iter(rabbitmq.add_vhosts([f"lane{number}" for number in range(LANES)]))
        self._idle: queue.SimpleQueue[FaultyCloud] = queue.SimpleQueue()
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> "Lanes":
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def new(self, specification: str = "") -> FaultyCloud:
        """Return a new cloud with these failpoints in all of its processes."""
        name = f"grid{next(self._numbers)}"
        transport_url = next(self._vhosts, None) or self._rabbitmq.add_vhost(name)
        cloud = FaultyCloud(transport_url, self._mariadb.create_database(name))
        self._closing.enter_context(cloud)
        store_copy.put_back(cloud.database, self._tables)
        cloud.begin(specification)
        return cloud

    def take_back(self, cloud: FaultyCloud) -> None:
        """Make a cloud available for trials, after killing its processes, which have other failpoints.

        The processes start again at the next trial: an idle cloud uses a sixth of a processor.
        """
        for role in list(cloud.processes):
            cloud.kill(role)
            # When the role is started, its log is read from the beginning.
            (cloud.folder / f"{role}.log").unlink()
        self._idle.put(cloud)

    def try_all(self, trial: Trial, points: Sequence[Point]) -> str:
        """Try failpoints on several clouds at once, and fail with all errors; return the duration as a text."""
        began = time.monotonic()
        with ThreadPoolExecutor(LANES) as threads:
            tried = [threads.submit(self._try, trial, point) for point in points]
        faults = [fault for one in tried if (fault := one.result())]
        assert not faults, f"{len(faults)} of {len(points)}:\n" + "\n".join(faults)
        return f"{len(points)} failpoints, seed {SEED}: {time.monotonic() - began:.0f} s"

    def _try(self, trial: Trial, point: Point) -> str | None:
        try:
            cloud = self._idle.get_nowait()
        except queue.Empty:
            cloud = self.new()
        began = time.monotonic()
        try:
            if not cloud.processes:
                cloud.start_roles()
            trial(cloud, SCENES[point.scene], point.role, point.name)
        except Exception as fault:  # noqa: BLE001 - reported with the others
            tails = "".join(
                f"\n--- {name} ({process.poll()})\n{cloud.log(name)[-3000:]}"
                for name, process in cloud.processes.items()
            )
            return f"{point}: {type(fault).__name__}: {fault}{tails}"
        LOG.info("%5.1f s  %s", time.monotonic() - began, point)
        self._idle.put(cloud)
        return None


@pytest.fixture(scope="module")
def lanes(mariadb: MariaDBServer, migrated_mariadb: OnMariaDB, rabbitmq: RabbitMQServer) -> Iterator[Lanes]:
    with Lanes(mariadb, migrated_mariadb, rabbitmq) as opened:
        yield opened


class Recorded(NamedTuple):
    """The failpoints in the logs of processes."""

    #: By role, all steps that it has.
    steps: dict[str, set[str]]
    #: The failpoints that were passed, each in the first scene that passed it.
    points: list[Point]


@pytest.fixture(scope="module")
def recorded(lanes: Lanes) -> Recorded:
    """Play all scenes, distributed over several clouds that log all their failpoints."""
    steps: dict[str, set[str]] = {}
    found: dict[tuple[str, str], list[Point]] = {}
    names = list(SCENES)
    with ThreadPoolExecutor(LANES) as threads:
        of_clouds = threads.map(lambda first: _passed_in(lanes, names[first::LANES]), range(LANES))
    passed_in: dict[str, dict[str, list[str]]] = {}
    for steps_of_roles, of_scenes in of_clouds:
        passed_in |= of_scenes
        for role, names_of_steps in steps_of_roles.items():
            steps.setdefault(role, set()).update(names_of_steps)
    for scene in names:
        for role, passed_there in passed_in[scene].items():
            for name in passed_there:
                points = found.setdefault((role, name), [])
                if not points or (role in CONDUCTORS and DONE.fullmatch(name)):
                    points.append(Point(role, name, scene))
    return Recorded(steps, [point for points in found.values() for point in points])


def _passed_in(lanes: Lanes, scenes: Sequence[str]) -> tuple[dict[str, set[str]], dict[str, dict[str, list[str]]]]:
    """Play scenes; return the steps of each role and, by scene, the failpoints that each role passed."""
    cloud = lanes.new("*=log")
    play(cloud, SCENES["usual"])  # so that messages which a process sends only once do not count for a scene
    passed_in: dict[str, dict[str, list[str]]] = {}
    for scene in map(SCENES.__getitem__, scenes):
        began = time.monotonic()
        servers = play(cloud, scene, dict.fromkeys(scene.meanwhile, "*=log"))
        requests = {request for server in servers for request in server.requests}
        passed_in[scene.name] = {role: passed(cloud.log(role), requests) for role in cloud.ROLES}
        LOG.info("%5.1f s  %s", time.monotonic() - began, scene.name)
    steps = {role: {place for place in places(cloud.log(role)) if place.startswith("step.")} for role in cloud.ROLES}
    lanes.take_back(cloud)
    return steps, passed_in


#: Messages that a role gets in some runs only. A guest that was left on a host is destroyed by an order or by the
#: host's return, whichever comes first. Other agents get that order in every run.
OVERTAKEN = {("leaving agent", "serve.compute.destroy_instance")}


@pytest.fixture(scope="module")
def grid(recorded: Recorded) -> list[Point]:
    """All failpoints of all roles, with the scenes in which they are tried."""
    points = [point for point in recorded.points if (point.role, point.name.rpartition(".")[0]) not in OVERTAKEN]
    tried = {point.name for point in points}
    assert all(f"{message}.{end}" in tried for _, message in OVERTAKEN for end in ("begin", "reply"))
    return points


#: Steps that are only reached if a scheduler carries out a request whose caller no longer waits. Schedulers of the
#: previous release do that; tests/functional/conductor/super/test_placing_moves.py has a fake one.
UNREACHED = {"step.move.recover", "step.unshelve.recover"}


def test_every_step_of_the_conductors_is_in_the_grid(recorded: Recorded) -> None:
    for role in CONDUCTORS:
        passed = {point.name.removesuffix(".begin") for point in recorded.points if point.role == role}
        assert recorded.steps[role]
        missing = recorded.steps[role] - passed - UNREACHED
        assert not missing, f"no scene reaches {missing}: add one"


def some(points: Sequence[Point], count: int) -> Sequence[Point]:
    """Return all points, or a sample: half of it from scenes that only build and delete."""
    if WHOLE:
        return points
    chance = random.Random(SEED)
    chosen: list[Point] = []
    for has_actions in (False, True):
        of_kind = sorted(point for point in points if bool(SCENES[point.scene].actions) == has_actions)
        chosen += chance.sample(of_kind, min(len(of_kind), count // 2))
    return chosen


# --- SIGKILL ----------------------------------------------------------------------------------------------------------


def killed(cloud: FaultyCloud, scene: Scene, role: str, point: str) -> None:
    """Play a scene in which a failpoint kills a role; fail unless all operations end correctly."""
    with restarted_when_killed(cloud, role) as kills:
        play(cloud, scene, {role: f"{point}=kill@1"})
    assert kills, "the failpoint was not passed"


def test_a_process_killed_at_any_failpoint_costs_only_time(
    lanes: Lanes, grid: list[Point], record_property: Callable[[str, object], None]
) -> None:
    record_property("measured", lanes.try_all(killed, some(grid, KILLS)))


# --- SIGSTOP ----------------------------------------------------------------------------------------------------------


def paused(cloud: FaultyCloud, scene: Scene, role: str, point: str) -> None:
    """Pause a conductor in the middle of a step, let another one take over its work, and then resume the first one."""
    cloud.kill(role)
    cloud.start_role(role, f"{point}=stop@1")
    with taken_over_when_paused(cloud, role) as pauses:
        servers = begin(cloud, scene)
        if not pauses:
            end(cloud, servers)
            servers = []
    assert pauses, "the failpoint was not passed"

    before = claims(cloud)
    cloud.processes[role].send_signal(signal.SIGCONT)
    time.sleep(RESUMED)

    assert claims(cloud) == before
    check(cloud, servers)
    end(cloud, servers)
    cloud.kill(f"second {role}")


def test_a_conductor_that_is_resumed_after_its_work_was_taken_over_changes_nothing(
    lanes: Lanes, grid: list[Point], record_property: Callable[[str, object], None]
) -> None:
    steps = [
        point
        for point in grid
        if point.role in CONDUCTORS and point.name.startswith("step.") and not SCENES[point.scene].meanwhile
    ]
    record_property("measured", lanes.try_all(paused, some(steps, PAUSES)))
