"""Test that an agent carries out each order to an existing guest once, identified by attempt and claim."""

from collections.abc import Callable
from typing import Any

import pytest
from support.compute.builders import (
    HOST,
    HoldingCell,
    NewStage,
    SlowDriver,
    build_on,
    rebuild_of,
    start_of,
    stop_of,
    wait_until,
)

from compute.driver import GuestOrder
from compute.fake.driver import FakeDriver
from moorage import errors, ids
from moorage.messages import AcceptInCell, BuildFinished

LONG = 60.0
EVERY_ORDER = pytest.mark.parametrize("order_of", [stop_of, start_of, rebuild_of])
OrderOf = Callable[..., Any]


def test_an_order_to_stop_or_start_a_guest_is_answered_when_it_is_carried_out(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.start()
    build, other = stage.built(), stage.built()

    stage.order(stop_of(build))
    assert stage.stopped() == [build.attempt_id]
    stage.order(start_of(build))

    assert stage.stopped() == []
    assert {guest.attempt_id for guest in stage.guests()} == {build.attempt_id, other.attempt_id}


def test_a_rebuild_starts_a_stopped_guest_and_keeps_its_resources(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.start()
    build = stage.built()
    before = stage.guests()
    stage.order(stop_of(build))

    stage.order(rebuild_of(build))

    assert stage.stopped() == []
    assert stage.guests() == before


def test_a_repeated_rebuild_is_carried_out_once(new_stage: NewStage) -> None:
    class Counting(FakeDriver):
        rebuilds = 0

        def order_behaviour(self, host: str, order: GuestOrder, action: Any) -> Any:
            self.rebuilds += action == "rebuild"
            return super().order_behaviour(host, order, action)

    stage = new_stage()
    driver = stage.start(Counting)
    build = stage.built()
    rebuild_id = ids.fresh()

    for _ in range(3):
        stage.order(rebuild_of(build, rebuild_id=rebuild_id))
    again = stage.restart(Counting)
    stage.order(rebuild_of(build, rebuild_id=rebuild_id))

    assert (driver.rebuilds, again.rebuilds) == (1, 0)


def test_an_order_that_arrives_after_a_later_one_changes_nothing(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.start()
    build = stage.built()
    stop = stop_of(build)
    stage.order(stop)
    stage.order(start_of(build))

    with pytest.raises(errors.InvalidState):
        stage.order(stop)

    assert stage.stopped() == []


@EVERY_ORDER
def test_an_order_to_an_unknown_or_destroyed_attempt_or_under_another_claim_is_refused_with_the_reason(
    new_stage: NewStage, order_of: OrderOf
) -> None:
    stage = new_stage()
    stage.start()
    build, gone = stage.built(), stage.built()
    stage.destroy(gone)

    for order, reason in [
        (order_of(build_on(HOST)), "no guest"),
        (order_of(gone), "no guest"),
        (order_of(build, host="host-0002"), "no guest"),
        (order_of(build, claim_id=ids.fresh()), "claim"),
    ]:
        with pytest.raises(errors.InvalidState, match=reason):
            stage.order(order)
    with pytest.raises(errors.HostNotFound):
        stage.order(order_of(build, host="nowhere"))

    assert stage.attempts() == [build.attempt_id]
    assert stage.stopped() == []


@EVERY_ORDER
def test_an_unknown_attempt_that_was_refused_can_still_be_built(new_stage: NewStage, order_of: OrderOf) -> None:
    stage = new_stage()
    stage.start()
    build = build_on(HOST)
    with pytest.raises(errors.InvalidState):
        stage.order(order_of(build))

    stage.build(build)
    wait_until(lambda: stage.cell.received(BuildFinished))

    assert stage.attempts() == [build.attempt_id]


@EVERY_ORDER
def test_a_dead_host_does_not_reply(new_stage: NewStage, order_of: OrderOf) -> None:
    stage = new_stage()
    driver = stage.start()
    build = stage.built()
    driver.die(HOST, LONG)

    with pytest.raises(errors.NoReply):
        stage.order(order_of(build))


@EVERY_ORDER
def test_an_order_waits_until_the_spawn_of_its_guest_has_ended(new_stage: NewStage, order_of: OrderOf) -> None:
    stage = new_stage()
    driver = stage.start(SlowDriver)
    build = build_on(HOST)
    stage.build(build)
    assert driver.begun.wait(LONG)
    order = order_of(build)

    with pytest.raises(errors.RequestInProgress) as caught:
        stage.peers.agent.call(order)
    assert caught.value.request_id == order.request_id
    assert stage.cell.received(BuildFinished) == []
    driver.go_on.set()
    stage.order(order)

    assert stage.attempts() == [build.attempt_id]


@EVERY_ORDER
def test_an_order_waits_until_the_attempt_of_its_guest_has_passed_the_first_gate(
    new_stage: NewStage, order_of: OrderOf
) -> None:
    cell = HoldingCell(AcceptInCell, LONG)
    stage = new_stage(cell)
    stage.start()
    build = build_on(HOST)
    stage.build(build)
    assert cell.arrived.wait(LONG)
    order = order_of(build)

    with pytest.raises(errors.RequestInProgress):
        stage.peers.agent.call(order)
    cell.go_on.set()
    stage.order(order)

    assert stage.attempts() == [build.attempt_id]


@EVERY_ORDER
def test_an_order_to_a_stuck_host_fails_and_is_carried_out_when_the_host_works_again(
    new_stage: NewStage, order_of: OrderOf
) -> None:
    stage = new_stage(fake_driver={"stuck_hosts": [HOST]})
    stage.start()
    build = stage.built()
    order = order_of(build)
    for _ in range(2):
        with pytest.raises(errors.GuestActionFailed) as caught:
            stage.order(order)
        assert (caught.value.host, caught.value.instance_uuid) == (HOST, build.instance_uuid)

    stage.restart(stuck_hosts=[])
    stage.order(order)

    assert stage.attempts() == [build.attempt_id]


def test_an_exception_of_the_driver_fails_only_that_order(new_stage: NewStage) -> None:
    class Broken(FakeDriver):
        def stop_guest(self, host: str, order: GuestOrder) -> None:
            raise OSError("the hypervisor does not answer")

    stage = new_stage()
    stage.start(Broken)
    build = stage.built()

    with pytest.raises(errors.GuestActionFailed, match="OSError"):
        stage.order(stop_of(build))

    stage.order(start_of(build))
    assert stage.stopped() == []


def test_orders_do_not_wait_for_hanging_spawns(new_stage: NewStage) -> None:
    stage = new_stage(compute={"workers": 1, "stop_timeout": 0.1}, fake_driver={"hanging_hosts": ["host-0002"]})
    stage.start()
    build = stage.built()
    stage.build(build_on("host-0002"))
    wait_until(lambda: len(stage.guests()) == 2)

    stage.order(stop_of(build))

    assert stage.stopped() == [build.attempt_id]
