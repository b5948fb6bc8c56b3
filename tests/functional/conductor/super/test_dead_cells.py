"""Test that work for a cell that does not answer waits, and that work for other cells does not."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import msgspec
import pytest
from support.conductor.builders import FakeScheduler, wait_until
from support.conductor.moving_world import MovingWorld
from support.processes.stopwatch import Stopwatch

from conductor.engine.steps import Backoff
from conductor.super.cell_clients import Cells
from moorage import ids
from moorage.bus.bus import Bus
from moorage.bus.handlers import serves
from moorage.config import options
from moorage.messages import (
    BuildInstances,
    ListCells,
    ListInstances,
    ListOperations,
    ListStrangers,
    SelectDestinations,
    ShowInstance,
)
from moorage.model import Cell, Flavor, RequestSpec, Selection

#: Builds for the dead cell: more than a conductor has workers.
MANY = 40
#: Seconds. A cell has to answer in a third of it; a build that waits for the dead cell takes longer than that.
CALL_TIMEOUT = 9.0
DEAD = ids.derived("test", "dead cell")


class TwoCells(FakeScheduler):
    """Places what project `dead` orders in the dead cell, and what project `both` orders in each by turns."""

    def decide(self, message: SelectDestinations) -> list[list[Selection]]:
        project = message.request_spec.project_id
        answer = []
        for number, [first, *_] in enumerate(super().decide(message)):
            in_dead = project == "dead" or (project == "both" and number % 2 == 0)
            answer.append([msgspec.structs.replace(first, cell_uuid=DEAD) if in_dead else first])
        return answer


@pytest.fixture(params=["no conductor", "no bus"])
def dead(request: pytest.FixtureRequest, world: MovingWorld) -> Iterator[MovingWorld]:
    """Add a second cell without a conductor, or with a bus that accepts connections and never answers."""
    world.replace(TwoCells(world.placement))
    world.conf.set_override("call_timeout", CALL_TIMEOUT, group="rpc")
    world.restart("super")
    with socket.create_server(("127.0.0.1", 0), backlog=100) as hole:
        url = None if request.param == "no conductor" else f"rabbit://m:m@127.0.0.1:{hole.getsockname()[1]}/"
        world.placement.cells.append(Cell(uuid=DEAD, name="dead", transport_url=url))
        yield world


def order(world: MovingWorld, project: str, count: int = 1) -> list[str]:
    spec = RequestSpec(project_id=project, user_id="u", flavor=Flavor(vcpus=1, memory_mb=1024))
    uuids = tuple(ids.fresh() for _ in range(count))
    message = BuildInstances(request_id=ids.fresh(), request_spec=spec, instance_uuids=uuids)
    return world.bus.client("conductor").call(message)


def time_of(work: Callable[[], object]) -> float:
    watch = Stopwatch()
    work()
    return watch.seconds


def build_some(world: MovingWorld) -> None:
    for _ in range(5):
        world.becomes(order(world, "healthy")[0], "active")


def test_a_dead_cell_does_not_slow_builds_in_other_cells_and_lists_name_it(dead: MovingWorld) -> None:
    alone = time_of(lambda: build_some(dead))
    doomed = [order(dead, "dead")[0] for _ in range(MANY)]

    # Once before the super conductor knows that the cell is dead, and once after.
    at_first = time_of(lambda: build_some(dead))
    assert at_first <= 3 * alone + CALL_TIMEOUT / 4, (alone, at_first)

    def all_named() -> bool:
        listed = {each.uuid: each for each in dead.bus.client("conductor").call(ListInstances())}
        return all("The cell dead cannot be reached" in str(listed[uuid].reason) for uuid in doomed)

    wait_until(all_named)
    later = time_of(lambda: build_some(dead))
    assert later <= 3 * alone + CALL_TIMEOUT / 4, (alone, later)
    asking = time_of(lambda: dead.bus.client("conductor").call(ListInstances()))
    assert asking < CALL_TIMEOUT / 4
    assert {dead.show(uuid).state for uuid in doomed} == {"building"}

    def all_have_a_reason() -> bool:
        operations = dead.bus.client("conductor").call(ListOperations())
        return len([each for each in operations if each.reason]) == MANY

    wait_until(all_have_a_reason)


def test_a_request_for_instances_in_two_cells_is_carried_out_in_the_cell_that_answers(dead: MovingWorld) -> None:
    doomed, healthy = order(dead, "both", 2)
    watch = Stopwatch()

    wait_until(lambda: healthy in dead.cell.instances)

    assert watch.seconds < CALL_TIMEOUT
    assert dead.show(doomed).state == "building"


@pytest.mark.parametrize("end", ["56x/", "5672/?rabbit_quorum_queue=yess", "5672/?no_such_option=1"])
def test_a_cell_with_a_wrong_address_is_left_out_of_lists_of_all_cells(world: MovingWorld, end: str) -> None:
    world.placement.cells.append(Cell(uuid=DEAD, name="dead", transport_url=f"rabbit://m:secret@127.0.0.1:{end}"))
    assert world.bus.client("conductor").call(ListOperations()) == []
    assert world.bus.client("conductor").call(ListStrangers()) == []


@pytest.mark.parametrize("dead", ["no conductor"], indirect=True)
def test_builds_that_wait_for_a_dead_cell_are_carried_out_when_it_is_back(dead: MovingWorld) -> None:
    doomed = [order(dead, "dead")[0] for _ in range(MANY)]
    wait_until(lambda: all(dead.show(uuid).reason for uuid in doomed))

    dead.serve(f"conductor.{DEAD}", dead.cell)

    for uuid in doomed:
        dead.becomes(uuid, "active")
    wait_until(lambda: dead.pending("conductor") == 0)


def test_a_cell_whose_address_has_changed_is_called_at_the_new_one(dead: MovingWorld) -> None:
    [doomed] = order(dead, "dead")
    wait_until(lambda: bool(dead.show(doomed).reason))

    bus = Bus(options.new({"DEFAULT": {"transport_url": f"inproc://{ids.fresh()}/"}}))
    try:
        bus.server(f"conductor.{DEAD}", "one", [dead.cell]).start()
        dead.placement.cells[-1] = Cell(uuid=DEAD, name="dead", transport_url=bus.url)

        dead.becomes(doomed, "active")
    finally:
        bus.close()


class Registry:
    """A placement role whose first answer is late, and names the former address of the cell."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.may_answer = threading.Event()

    @serves(ListCells)
    def list_cells(self, message: ListCells) -> list[Cell]:
        if self.asked.is_set():
            return [Cell(uuid=DEAD, name="dead", transport_url="inproc://new/")]
        self.asked.set()
        self.may_answer.wait(20)
        return [Cell(uuid=DEAD, name="dead", transport_url="inproc://former/")]


def test_a_late_list_of_cells_does_not_replace_one_that_was_requested_later() -> None:
    conf = options.new({"DEFAULT": {"transport_url": f"inproc://{ids.fresh()}/"}})
    registry = Registry()
    with closing(Bus(conf)) as bus, closing(Cells(conf, bus, Backoff(1.0, 1.0))) as cells, ThreadPoolExecutor() as pool:
        bus.server("placement", "one", [registry]).start()
        late = pool.submit(cells.cell, DEAD)
        assert registry.asked.wait(10)
        assert cells.cell(DEAD).transport_url == "inproc://new/"
        registry.may_answer.set()
        late.result(10)
        assert cells.cell(DEAD).transport_url == "inproc://new/"


def test_a_restarted_super_conductor_shows_an_instance_while_the_placement_role_does_not_answer(
    world: MovingWorld,
) -> None:
    uuid = world.active()
    world.conf.set_override("call_timeout", CALL_TIMEOUT, group="rpc")
    world.restart("super")
    world.servers.pop("placement").stop()

    assert world.bus.client("conductor", timeout=CALL_TIMEOUT).call(ShowInstance(instance_uuid=uuid)).uuid == uuid


@pytest.mark.parametrize("dead", ["no bus"], indirect=True)
def test_a_wrong_address_of_a_cell_is_not_used_after_it_was_corrected(dead: MovingWorld) -> None:
    dead.placement.cells[-1] = Cell(uuid=DEAD, name="dead", transport_url="rabbit://m:secret@127.0.0.1:56x/")
    [doomed] = order(dead, "dead")
    wait_until(lambda: bool(dead.show(doomed).reason))
    dead.serve(f"conductor.{DEAD}", dead.cell)

    dead.placement.cells[-1] = Cell(uuid=DEAD, name="dead")

    dead.becomes(doomed, "active")


@pytest.mark.parametrize("dead", ["no conductor"], indirect=True)
def test_the_claim_of_a_refused_build_is_released_although_another_cell_had_to_be_waited_for(dead: MovingWorld) -> None:
    dead.cell.refusing["build_instances"] = "no such host"
    waiting, refused = order(dead, "both", 2)
    dead.becomes(refused, "error")
    wait_until(lambda: bool(dead.show(waiting).reason))
    assert refused in dead.placement.held

    dead.cell.refusing.clear()
    dead.serve(f"conductor.{DEAD}", dead.cell)

    dead.becomes(waiting, "active")
    wait_until(lambda: refused not in dead.placement.held)
    assert waiting in dead.placement.held
