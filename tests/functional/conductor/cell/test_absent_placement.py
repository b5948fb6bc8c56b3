"""Test the conductors while the placement role, or the schedulers, do not answer."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.conductor.builders import CELL_1, FakePlacement, FakeScheduler, World, wait_until
from support.processes.stopwatch import Stopwatch

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    AcceptClaim,
    DeleteAllocations,
    Done,
    ListProviderTreesInCell,
    LocateCellInCell,
    MigrateInstance,
    Released,
    ReportProviderTree,
    SelectDestinations,
    ShelveInCell,
    ShowInCell,
)
from moorage.messages.wire import Message
from moorage.model import Selection


class SilentPlacement(FakePlacement):
    """Answers no request to accept a claim before the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_accept = threading.Event()
        self.waiting = 0

    @serves(AcceptClaim)
    def accept_claim(self, message: AcceptClaim) -> Done:
        self.waiting += 1
        assert self.may_accept.wait(60)
        return super().accept_claim(message)


def test_attempts_that_wait_for_the_placement_role_leave_the_cell_threads_for_other_messages(world: World) -> None:
    world.conf.set_override("threads", 4, group="rpc")
    world.conf.set_override("call_timeout", 4.0, group="rpc")
    world.restart("cell")
    silent = SilentPlacement()
    world.replace(silent)
    world.agent.may_finish.clear()
    uuids = world.build(*(ids.fresh() for _ in range(8)))
    wait_until(lambda: silent.waiting >= 4)

    # The first calls time out. From then on the gate refuses, and the agents ask again.
    wait_until(lambda: _is_refused(world))
    watch = Stopwatch()
    found = world.cell_call(ShowInCell(instance_uuids=tuple(uuids)))
    assert watch.seconds < 2.0
    assert {one.uuid for one in found} == set(uuids)
    silent.may_accept.set()


class SlowToRelease(FakePlacement):
    """Answers no request to release allocations before the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_release = threading.Event()
        self.waiting = 0

    @serves(DeleteAllocations)
    def delete_allocations(self, message: DeleteAllocations) -> Released:
        self.waiting += 1
        assert self.may_release.wait(60)
        return super().delete_allocations(message)


class SlowScheduler(FakeScheduler):
    """Answers no request for destinations before the test allows it."""

    def __init__(self, placement: FakePlacement) -> None:
        super().__init__(placement)
        self.may_select = threading.Event()
        self.may_select.set()
        self.waiting = 0

    @serves(SelectDestinations)
    def select_destinations(self, message: SelectDestinations) -> list[list[Selection]]:
        self.waiting += not self.may_select.is_set()
        assert self.may_select.wait(60)
        return super().select_destinations(message)


def test_steps_that_wait_for_the_placement_role_leave_workers_of_the_cell_to_others(world: World) -> None:
    slow = world.replace(SlowToRelease())
    world.restart("cell", workers=3)
    uuids = [world.build()[0] for _ in range(4)]
    for uuid in uuids:
        world.becomes(uuid, "active")
    for uuid in uuids:
        world.delete(uuid)
    wait_until(lambda: slow.waiting == 1)

    [other] = world.build()
    world.becomes(other, "active")
    assert slow.waiting == 1
    slow.may_release.set()
    for uuid in uuids:
        world.becomes(uuid, "deleted")


def test_steps_that_wait_for_the_schedulers_leave_workers_of_the_super_conductor_to_others(world: World) -> None:
    scheduler = world.replace(SlowScheduler(world.placement))
    world.restart("super", workers=3)
    [uuid] = world.build()
    world.becomes(uuid, "active")
    scheduler.may_select.clear()
    built = world.build()
    # One after the other: steps that begin together count as one.
    wait_until(lambda: scheduler.waiting == 1)
    built += [world.build()[0] for _ in range(3)]

    world.delete(uuid)
    world.becomes(uuid, "deleted")
    assert scheduler.waiting == 1
    scheduler.may_select.set()
    for each in built:
        world.becomes(each, "active")


@pytest.mark.parametrize(
    "message",
    [
        lambda _uuid: ListProviderTreesInCell(uuids=(ids.fresh(),)),
        lambda uuid: ShelveInCell(request_id=ids.fresh(), instance_uuid=uuid),
    ],
    ids=["reads of trees", "orders to shelve"],
)
def test_messages_that_need_the_placement_role_leave_the_cell_threads_for_other_messages(
    world: World, message: Callable[[str], Message[Any]]
) -> None:
    world.conf.set_override("threads", 4, group="rpc")
    world.conf.set_override("call_timeout", 6.0, group="rpc")
    world.restart("cell")
    uuids = [world.build()[0] for _ in range(4)]
    for uuid in uuids:
        world.becomes(uuid, "active")
    world.servers.pop("placement").stop()
    # The first calls time out, and so does a probe. From then on calls are refused.
    wait_until(lambda: _seconds(world, ListProviderTreesInCell(uuids=(ids.fresh(),))) < 0.5)

    watch = Stopwatch()
    threads = [threading.Thread(target=_seconds, args=(world, message(uuid))) for uuid in uuids]
    for thread in threads:
        thread.start()
    found = world.cell_call(ShowInCell(instance_uuids=tuple(uuids)))
    assert watch.seconds < 2.0
    assert {one.uuid for one in found} == set(uuids)
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    "message",
    [
        ListProviderTreesInCell(uuids=(ids.fresh(),)),
        ReportProviderTree(request_id=ids.fresh(), agent="agent", providers=()),
        LocateCellInCell(name="another name"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_the_caller_of_a_cell_gets_the_error_that_the_placement_role_does_not_answer(
    world: World, message: Message[Any]
) -> None:
    world.conf.set_override("call_timeout", 1.0, group="rpc")
    world.restart("cell")
    world.servers.pop("placement").stop()

    with pytest.raises(errors.StoreUnavailable, match=r"the placement role does not answer: .* on placement within 1"):
        world.cell_call(message)


def test_orders_that_name_a_host_leave_the_threads_of_the_super_conductor_to_others_while_no_scheduler_answers(
    world: World,
) -> None:
    world.conf.set_override("threads", 4, group="rpc")
    world.conf.set_override("call_timeout", 6.0, group="rpc")
    world.restart("super")
    [uuid] = world.build()
    world.becomes(uuid, "active")
    world.servers.pop("scheduler").stop()

    def order() -> float:
        return _seconds(world, MigrateInstance(request_id=ids.fresh(), instance_uuid=uuid, host="b"), "conductor")

    # The first orders wait for a third of the time-out, and then a probe is not answered.
    wait_until(lambda: order() < 0.5)
    threads = [threading.Thread(target=order) for _ in range(4)]
    watch = Stopwatch()
    for thread in threads:
        thread.start()
    assert world.show(uuid).state == "active"
    # Less than the third of the time-out that an order waits.
    assert watch.seconds < 1.8
    for thread in threads:
        thread.join()


def _seconds(world: World, message: Message[Any], topic: str = f"conductor.{CELL_1.uuid}") -> float:
    """Return the seconds after which a message is answered or refused."""
    begun = time.monotonic()
    with contextlib.suppress(errors.Unavailable):
        world.bus.client(topic).call(message)
    return time.monotonic() - begun


def _is_refused(world: World) -> bool:
    try:
        world.agent.accept(world.agent.builds[0])
    except errors.RequestInProgress:
        return True
    except errors.Unavailable:
        return False
    raise AssertionError("the placement role has answered")
