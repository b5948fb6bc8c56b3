"""Any process killed by SIGKILL at any failpoint of what is done with servers: it ends, nothing leaks or is doubled.

The grid is what the processes themselves say: each is started once with all its failpoints writing to the log, servers
are built, moved, shelved, rebuilt and deleted, and every failpoint that a process passed on their way is one at which
it is then killed. A new step, or a new message in a step, is in the grid with nobody remembering; a step that none of
the scenes here comes to makes a test fail.

The whole grid takes a while: `make grid`, or GRID=whole in the environment. Otherwise a sample of it is run, half of it
in scenes that only build and delete, half in the others; another one for each GRID_SEED.
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
from support.processes.fault_scenes import SCENES, Scene, begin, end, play
from support.processes.fault_servers import check, claims
from support.processes.faulty_cloud import FaultyCloud, nursed, passed, places, relieved

from harness.servers import MariaDBServer, RabbitMQServer

WHOLE = os.environ.get("GRID") == "whole"

# The whole grid is well over 500 failpoints, of some seconds each.
pytestmark = pytest.mark.timeout(10800 if WHOLE else 1800)

SEED = os.environ.get("GRID_SEED", "1")
#: How many failpoints are tried where not all of them are.
KILLS, PAUSES = 40, 6
#: Most of a run is waiting for time-outs, so several clouds are run side by side.
LANES = 5
#: Seconds in which a conductor that goes on after a pause finds that it was taken over.
RESUMED = 1.0


class Point(NamedTuple):
    """A failpoint that a role passes in a scene."""

    role: str
    name: str
    scene: str


Trial = Callable[[FaultyCloud, Scene, str, str], None]

CONDUCTORS = ("conductor", "cell conductor")
#: What every step of the conductors is tried at in each scene that comes to it: it was done, and is not on record.
DONE = re.compile(r"step\.(?!build|delete)\w+\.\w+\.done")

LOG = logging.getLogger(__name__)


class Lanes:
    """Clouds that failpoints are tried on, one at a time each; one that a failpoint has broken is thrown away."""

    def __init__(self, mariadb: MariaDBServer, rabbitmq: RabbitMQServer) -> None:
        self._mariadb = mariadb
        self._rabbitmq = rabbitmq
        self._numbers = itertools.count(1)
        # As many as are needed if no failpoint breaks a cloud, by one call of the control program.
        self._vhosts = iter(rabbitmq.add_vhosts([f"lane{number}" for number in range(LANES)]))
        self._idle: queue.SimpleQueue[FaultyCloud] = queue.SimpleQueue()
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> "Lanes":
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def new(self, specification: str = "") -> FaultyCloud:
        """Return a cloud of its own, with these failpoints in all of its processes."""
        name = f"grid{next(self._numbers)}"
        transport_url = next(self._vhosts, None) or self._rabbitmq.add_vhost(name)
        cloud = FaultyCloud(transport_url, self._mariadb.create_database(name))
        self._closing.enter_context(cloud)
        cloud.begin(specification)
        return cloud

    def take_back(self, cloud: FaultyCloud) -> None:
        """Have failpoints tried on a cloud that has had others, which it does not have any more.

        Its processes start when it is their turn: one that waits costs a sixth of a processor.
        """
        for role in list(cloud.processes):
            cloud.kill(role)
            # It is read from its beginning whenever the role is started.
            (cloud.folder / f"{role}.log").unlink()
        self._idle.put(cloud)

    def try_all(self, trial: Trial, points: Sequence[Point]) -> str:
        """Try failpoints, several clouds side by side, and fail with all that went wrong; return how long it took."""
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
        except Exception as fault:  # noqa: BLE001 - told with the others'
            tails = "".join(
                f"\n--- {name} ({process.poll()})\n{cloud.log(name)[-3000:]}"
                for name, process in cloud.processes.items()
            )
            return f"{point}: {type(fault).__name__}: {fault}{tails}"
        LOG.info("%5.1f s  %s", time.monotonic() - began, point)
        self._idle.put(cloud)
        return None


@pytest.fixture(scope="module")
def lanes(mariadb: MariaDBServer, rabbitmq: RabbitMQServer) -> Iterator[Lanes]:
    with Lanes(mariadb, rabbitmq) as all_of_them:
        yield all_of_them


class Recorded(NamedTuple):
    """The failpoints in the logs of processes."""

    #: By role, the steps that it says there are.
    steps: dict[str, set[str]]
    #: Those that were passed, with the first scene in which they were.
    points: list[Point]


@pytest.fixture(scope="module")
def recorded(lanes: Lanes) -> Recorded:
    """Play all scenes, dealt out to some clouds that write all their failpoints to the log."""
    steps: dict[str, set[str]] = {}
    found: dict[tuple[str, str], list[Point]] = {}
    names = list(SCENES)
    with ThreadPoolExecutor(LANES) as threads:
        of_each = threads.map(lambda first: _passed_in(lanes, names[first::LANES]), range(LANES))
    of_scenes: dict[str, dict[str, list[str]]] = {}
    for said, of_some in of_each:
        of_scenes |= of_some
        for role, these in said.items():
            steps.setdefault(role, set()).update(these)
    for scene in names:
        for role, passed_there in of_scenes[scene].items():
            for name in passed_there:
                points = found.setdefault((role, name), [])
                if not points or (role in CONDUCTORS and DONE.fullmatch(name)):
                    points.append(Point(role, name, scene))
    return Recorded(steps, [point for points in found.values() for point in points])


def _passed_in(lanes: Lanes, scenes: Sequence[str]) -> tuple[dict[str, set[str]], dict[str, dict[str, list[str]]]]:
    """Play scenes; return the steps that each role says there are, and by scene which failpoints each role passed."""
    cloud = lanes.new("*=log")
    play(cloud, SCENES["usual"])  # what is asked only once in a process's life is asked here
    passed_in: dict[str, dict[str, list[str]]] = {}
    for scene in map(SCENES.__getitem__, scenes):
        began = time.monotonic()
        servers = play(cloud, scene, dict.fromkeys(scene.meanwhile, "*=log"))
        ours = {request for server in servers for request in server.requests}
        passed_in[scene.name] = {role: passed(cloud.log(role), ours) for role in cloud.ROLES}
        LOG.info("%5.1f s  %s", time.monotonic() - began, scene.name)
    steps = {role: {place for place in places(cloud.log(role)) if place.startswith("step.")} for role in cloud.ROLES}
    lanes.take_back(cloud)
    return steps, passed_in


@pytest.fixture(scope="module")
def grid(recorded: Recorded) -> list[Point]:
    """Every failpoint of every role, with the scenes in which it is tried."""
    return recorded.points


#: Come to where a scheduler carries out a request whose caller waits no longer: those of the former
#: release do, and tests/functional/super_conductor/test_placing_moves.py has a fake one.
NOT_COME_TO = {"step.move.recover", "step.unshelve.recover"}


def test_every_step_that_the_conductors_have_is_in_the_grid(recorded: Recorded) -> None:
    for role in CONDUCTORS:
        passed = {point.name.removesuffix(".begin") for point in recorded.points if point.role == role}
        assert recorded.steps[role]
        missing = recorded.steps[role] - passed - NOT_COME_TO
        assert not missing, f"no scene comes to {missing}: add one"


def some(points: Sequence[Point], count: int) -> Sequence[Point]:
    """Return all of them, or a sample: half of it of scenes that only build and delete."""
    if WHOLE:
        return points
    chance = random.Random(SEED)
    chosen: list[Point] = []
    for has_deeds in (False, True):
        of_kind = sorted(point for point in points if bool(SCENES[point.scene].deeds) == has_deeds)
        chosen += chance.sample(of_kind, min(len(of_kind), count // 2))
    return chosen


# --- SIGKILL ----------------------------------------------------------------------------------------------------------


def killed(cloud: FaultyCloud, scene: Scene, role: str, point: str) -> None:
    """Have a role killed at a failpoint while things are done with servers, and everything end in order."""
    with nursed(cloud, role) as kills:
        play(cloud, scene, {role: f"{point}=kill@1"})
    assert kills, "the failpoint was not passed"


def test_a_process_killed_at_any_failpoint_costs_time_alone(
    lanes: Lanes, grid: list[Point], record_property: Callable[[str, object], None]
) -> None:
    record_property("measured", lanes.try_all(killed, some(grid, KILLS)))


# --- SIGSTOP ----------------------------------------------------------------------------------------------------------


def paused(cloud: FaultyCloud, scene: Scene, role: str, point: str) -> None:
    """Have a conductor paused in the middle of a step, its work taken over, and then let it go on where it was."""
    cloud.kill(role)
    cloud.start_role(role, f"{point}=stop@1")
    with relieved(cloud, role) as pauses:
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


def test_a_conductor_that_was_paused_and_taken_over_changes_nothing_when_it_goes_on(
    lanes: Lanes, grid: list[Point], record_property: Callable[[str, object], None]
) -> None:
    steps = [
        point
        for point in grid
        if point.role in CONDUCTORS and point.name.startswith("step.") and not SCENES[point.scene].meanwhile
    ]
    record_property("measured", lanes.try_all(paused, some(steps, PAUSES)))
