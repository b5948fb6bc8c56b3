"""Any process killed by SIGKILL at any failpoint of a build and of a delete: both end, nothing leaks or is doubled.

The grid is what the processes themselves say: each is started once with all its failpoints writing to the log, builds
and deletes are run, and every failpoint that a process passed on their way is one at which it is then killed. A new
step, or a new message in a step, is in the grid with nobody remembering; a step that none of the builds here comes to
makes a test fail.

The whole grid takes some minutes: `make grid`, or GRID=whole in the environment. Otherwise a sample of it is run,
another one for each GRID_SEED.
"""

import contextlib
import itertools
import logging
import os
import queue
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import fault_rig as rig
import pytest

from harness.cloud import wait_until
from harness.servers import MariaDBServer, RabbitMQServer
from moorage import ids

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(1800),
    # The bus library drops what has died, and leaves it to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

WHOLE = os.environ.get("GRID") == "whole"
SEED = os.environ.get("GRID_SEED", "1")
#: How many failpoints are tried where not all of them are.
KILLS, PAUSES = 40, 5
#: Most of a run is waiting for time-outs, so several clouds are run side by side.
LANES = 5
#: Seconds in which a step comes round that an order leads to, and how many orders are tried.
PAUSED, MANY = 5.0, 30
#: Seconds in which a conductor that goes on after a pause finds that it was taken over.
RESUMED = 1.0

Point = tuple[str, str]
Trial = Callable[[rig.FaultyCloud, rig.Scene, str, str], None]

LOG = logging.getLogger(__name__)


class Lanes:
    """Clouds that failpoints are tried on, one at a time each; one that a failpoint has broken is thrown away."""

    def __init__(self, mariadb: MariaDBServer, rabbitmq: RabbitMQServer) -> None:
        self._mariadb = mariadb
        self._rabbitmq = rabbitmq
        self._numbers = itertools.count(1)
        self._idle: queue.SimpleQueue[rig.FaultyCloud] = queue.SimpleQueue()
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> "Lanes":
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def new(self, specification: str = "") -> rig.FaultyCloud:
        """Return a cloud of its own, with these failpoints in all of its processes."""
        name = f"grid{next(self._numbers)}"
        cloud = rig.FaultyCloud(self._rabbitmq.add_vhost(name), self._mariadb.create_database(name))
        self._closing.enter_context(cloud)
        cloud.begin(specification)
        return cloud

    def try_all(self, trial: Trial, points: dict[Point, rig.Scene]) -> str:
        """Try failpoints, several clouds side by side, and fail with all that went wrong; return how long it took."""
        began = time.monotonic()
        with ThreadPoolExecutor(LANES) as threads:
            tried = [threads.submit(self._try, trial, scene, *point) for point, scene in points.items()]
        faults = [fault for one in tried if (fault := one.result())]
        assert not faults, f"{len(faults)} of {len(points)}:\n" + "\n".join(faults)
        return f"{len(points)} failpoints, seed {SEED}: {time.monotonic() - began:.0f} s"

    def _try(self, trial: Trial, scene: rig.Scene, role: str, point: str) -> str | None:
        try:
            cloud = self._idle.get_nowait()
        except queue.Empty:
            cloud = self.new()
        began = time.monotonic()
        try:
            trial(cloud, scene, role, point)
        except Exception as fault:  # noqa: BLE001 - told with the others'
            tails = "".join(
                f"\n--- {name} ({process.poll()})\n{cloud.log(name)[-3000:]}"
                for name, process in cloud.processes.items()
            )
            return f"{role} at {point}: {type(fault).__name__}: {fault}{tails}"
        LOG.info("%5.1f s  %s: %s", time.monotonic() - began, role, point)
        self._idle.put(cloud)
        return None


@pytest.fixture(scope="module")
def lanes(mariadb: MariaDBServer, rabbitmq: RabbitMQServer) -> Iterator[Lanes]:
    with Lanes(mariadb, rabbitmq) as all_of_them:
        yield all_of_them


@pytest.fixture(scope="module")
def recorded(lanes: Lanes) -> tuple[rig.FaultyCloud, dict[Point, rig.Scene]]:
    """A cloud that has written all its failpoints to the log, and those that were passed, with the first such scene."""
    cloud = lanes.new("*=log")
    found: dict[Point, rig.Scene] = {}
    rig.play(cloud, rig.USUAL)  # what is asked only once in a process's life is asked here
    for scene in rig.SCENES:
        ours = [
            ids.derived(order.uuid, word)
            for order in rig.play(cloud, scene, dict.fromkeys(scene.meanwhile, "*=log"))
            for word in ("build", "delete")
        ]
        for role in cloud.ROLES:
            for name in rig.passed(cloud.log(role), ours):
                found.setdefault((role, name), scene)
    return cloud, found


@pytest.fixture(scope="module")
def grid(recorded: tuple[rig.FaultyCloud, dict[Point, rig.Scene]]) -> dict[Point, rig.Scene]:
    """Every failpoint of every role, with the scene in which it is passed."""
    return recorded[1]


def test_every_step_that_the_conductors_have_is_in_the_grid(
    recorded: tuple[rig.FaultyCloud, dict[Point, rig.Scene]],
) -> None:
    cloud, grid = recorded
    for role in ("conductor", "cell conductor"):
        steps = {place for place in rig.places(cloud.log(role)) if place.startswith("step.")}
        passed = {name.removesuffix(".begin") for of_role, name in grid if of_role == role and name.endswith(".begin")}
        assert steps
        assert steps <= passed, f"no scene of these tests comes to {steps - passed}: add one"


def some(points: dict[Point, rig.Scene], count: int) -> dict[Point, rig.Scene]:
    """Return all of them, or a sample."""
    if WHOLE or len(points) <= count:
        return points
    return {point: points[point] for point in random.Random(SEED).sample(sorted(points), count)}


# --- SIGKILL ----------------------------------------------------------------------------------------------------------


def killed(cloud: rig.FaultyCloud, scene: rig.Scene, role: str, point: str) -> None:
    """Have a role killed at a failpoint while builds and deletes are under way, and everything end in order."""
    with rig.nursed(cloud, role) as kills:
        rig.play(cloud, scene, {role: f"{point}=kill@1"})
    assert kills, "the failpoint was not passed"


def test_a_process_killed_at_any_failpoint_of_a_build_or_a_delete_costs_time_alone(
    lanes: Lanes, grid: dict[Point, rig.Scene], record_property: Callable[[str, object], None]
) -> None:
    record_property("measured", lanes.try_all(killed, some(grid, KILLS)))


# --- SIGSTOP ----------------------------------------------------------------------------------------------------------


def paused(cloud: rig.FaultyCloud, scene: rig.Scene, role: str, point: str) -> None:
    """Have a conductor paused in the middle of a step, its work taken over, and then let it go on where it was."""
    second = f"second {role}"
    cloud.start_role(second)
    cloud.kill(role)
    cloud.start_role(role, f"{point}=stop@1")
    wanted: list[rig.Order] = []
    # The two share the orders: it comes to the armed one sooner or later.
    while not cloud.is_paused(role):
        assert len(wanted) < MANY, "the failpoint was not passed"
        orders = scene.orders()
        wanted += orders
        rig.order_builds(cloud, orders)
        if point.startswith("step.delete."):
            rig.ended(cloud, orders)
            rig.order_deletes(cloud, orders)
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: cloud.is_paused(role), "the failpoint", PAUSED)

    ended = rig.ended(cloud, wanted)
    rig.check(cloud, ended)
    claims = rig.claims(cloud)
    cloud.processes[role].send_signal(signal.SIGCONT)
    time.sleep(RESUMED)

    assert rig.claims(cloud) == claims
    rig.check(cloud, ended)
    rig.delete(cloud, wanted)
    rig.check(cloud, [])
    cloud.kill(second)


def test_a_conductor_that_was_paused_and_taken_over_changes_nothing_when_it_goes_on(
    lanes: Lanes, grid: dict[Point, rig.Scene], record_property: Callable[[str, object], None]
) -> None:
    steps = {
        (role, point): scene
        for (role, point), scene in grid.items()
        if role in ("conductor", "cell conductor") and point.startswith("step.") and not scene.meanwhile
    }
    record_property("measured", lanes.try_all(paused, some(steps, PAUSES)))
