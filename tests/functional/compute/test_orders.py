"""Test that an agent carries out each order to an existing guest once, identified by attempt and claim."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.compute.builders import (
    AGENT,
    CELL,
    HOST,
    Begin,
    Holding,
    SlowDriver,
    Stage,
    build_on,
    destroy_of,
    rebuild_of,
    start_of,
    stop_of,
    wait_until,
)

from compute import orders
from compute.agent import ComputeAgent
from compute.cell_client import CellClient
from compute.driver import GuestOrder
from compute.fake.driver import FakeDriver
from compute.orders import GuestOrders
from moorage import errors, ids
from moorage.messages import AcceptInCell, BuildFinished, BuildOnHost

LONG = 60.0
EVERY = pytest.mark.parametrize("order_of", [stop_of, start_of, rebuild_of])
OrderOf = Callable[..., Any]


def built(now: Stage, host: str = HOST) -> BuildOnHost:
    """Have a guest built, and its agent done with it."""
    build = build_on(host)
    now.build(build)
    wait_until(lambda: build.attempt_id in {said.attempt_id for said in now.cell.said(BuildFinished)}, LONG)
    return build


def test_a_guest_is_stopped_and_started_when_the_answer_comes(stage: Begin) -> None:
    now = stage()
    now.start()
    build, other = built(now), built(now)

    now.order(stop_of(build))
    assert now.stopped() == [build.attempt_id]
    now.order(start_of(build))

    assert now.stopped() == []
    assert {guest.attempt_id for guest in now.guests()} == {build.attempt_id, other.attempt_id}


def test_a_guest_runs_from_another_image_when_the_answer_comes_and_holds_what_it_held(stage: Begin) -> None:
    now = stage()
    now.start()
    build = built(now)
    before = now.guests()
    now.order(stop_of(build))

    now.order(rebuild_of(build))

    assert now.stopped() == []
    assert now.guests() == before


def test_a_rebuild_that_is_sent_again_is_done_once(stage: Begin) -> None:
    class Counting(FakeDriver):
        rebuilds = 0

        def order_behaviour(self, host: str, order: GuestOrder, action: Any) -> Any:
            self.rebuilds += action == "rebuild"
            return super().order_behaviour(host, order, action)

    now = stage()
    driver = now.start(Counting)
    build = built(now)
    rebuild_id = ids.fresh()

    for _ in range(3):
        now.order(rebuild_of(build, rebuild_id=rebuild_id))
    now.stop()
    again = now.start(Counting)
    now.order(rebuild_of(build, rebuild_id=rebuild_id))

    assert (driver.rebuilds, again.rebuilds) == (1, 0)


def test_an_order_that_arrives_after_a_later_one_changes_nothing(stage: Begin) -> None:
    now = stage()
    now.start()
    build = built(now)
    stop = stop_of(build)
    now.order(stop)
    now.order(start_of(build))

    with pytest.raises(errors.InvalidState):
        now.order(stop)

    assert now.stopped() == []


@EVERY
def test_an_attempt_that_is_unknown_destroyed_or_another_claims_is_refused_with_the_reason(
    stage: Begin, order_of: OrderOf
) -> None:
    now = stage()
    now.start()
    build, gone = built(now), built(now)
    now.destroy(gone)

    for order, why in [
        (order_of(build_on(HOST)), "no guest"),
        (order_of(gone), "no guest"),
        (order_of(build, host="host-0002"), "no guest"),
        (order_of(build, claim_id=ids.fresh()), "claim"),
    ]:
        with pytest.raises(errors.InvalidState, match=why):
            now.order(order)
    with pytest.raises(errors.HostNotFound):
        now.order(order_of(build, host="nowhere"))

    assert [guest.attempt_id for guest in now.guests()] == [build.attempt_id]
    assert now.stopped() == []


@EVERY
def test_an_unknown_attempt_that_was_refused_can_still_be_built(stage: Begin, order_of: OrderOf) -> None:
    now = stage()
    now.start()
    build = build_on(HOST)
    with pytest.raises(errors.InvalidState):
        now.order(order_of(build))

    now.build(build)
    wait_until(lambda: now.cell.said(BuildFinished), LONG)

    assert [guest.attempt_id for guest in now.guests()] == [build.attempt_id]


@EVERY
def test_a_dead_host_does_not_reply(stage: Begin, order_of: OrderOf) -> None:
    now = stage()
    driver = now.start()
    build = built(now)
    driver.die(HOST, LONG)

    with pytest.raises(errors.NoReply):
        now.order(order_of(build))


@EVERY
def test_a_guest_whose_spawn_is_under_way_takes_no_order_yet(stage: Begin, order_of: OrderOf) -> None:
    now = stage()
    driver = now.start(SlowDriver)
    build = build_on(HOST)
    now.build(build)
    assert driver.begun.wait(LONG)
    order = order_of(build)

    with pytest.raises(errors.RequestInProgress) as caught:
        now.around.agent.call(order)
    assert caught.value.request_id == order.request_id
    assert now.cell.said(BuildFinished) == []
    driver.go_on.set()
    now.order(order)

    assert [guest.attempt_id for guest in now.guests()] == [build.attempt_id]


@EVERY
def test_a_guest_whose_attempt_stands_at_the_gate_takes_no_order_yet(stage: Begin, order_of: OrderOf) -> None:
    cell = Holding(AcceptInCell, LONG)
    now = stage(cell)
    now.start()
    build = build_on(HOST)
    now.build(build)
    assert cell.asked.wait(LONG)
    order = order_of(build)

    with pytest.raises(errors.RequestInProgress):
        now.around.agent.call(order)
    cell.go_on.set()
    now.order(order)

    assert [guest.attempt_id for guest in now.guests()] == [build.attempt_id]


@EVERY
def test_a_stuck_host_says_so_and_does_it_when_it_can(stage: Begin, order_of: OrderOf) -> None:
    now = stage(fake_driver={"stuck_hosts": [HOST]})
    now.start()
    build = built(now)
    order = order_of(build)
    for _ in range(2):
        with pytest.raises(errors.GuestActionFailed) as caught:
            now.order(order)
        assert (caught.value.host, caught.value.instance_uuid) == (HOST, build.instance_uuid)
    now.stop()

    now.conf.set_override("stuck_hosts", [], group="fake_driver")
    now.start()
    now.order(order)

    assert [guest.attempt_id for guest in now.guests()] == [build.attempt_id]


def test_a_drivers_own_fault_is_a_failure_of_the_order_alone(stage: Begin) -> None:
    class Broken(FakeDriver):
        def stop_guest(self, host: str, order: GuestOrder) -> None:
            raise OSError("the hypervisor is upset")

    now = stage()
    now.start(Broken)
    build = built(now)

    with pytest.raises(errors.GuestActionFailed, match="OSError"):
        now.order(stop_of(build))

    now.order(start_of(build))
    assert now.stopped() == []


class SlowOrders(FakeDriver):
    """Its rebuilds wait until they are let go, and tell when they have begun; some then fail."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.fault: errors.MoorageError | None = None
        self.rebuilds = 0
        self.stubborn = False

    def destroy(self, host: str, instance_uuid: str, attempt_id: str, claim_id: str) -> None:
        """Be told to come again while it waits, where it cannot be cut short."""
        if self.stubborn and self.begun.is_set() and not self.go_on.is_set():
            raise errors.RequestInProgress(request_id=attempt_id)
        super().destroy(host, instance_uuid, attempt_id, claim_id)

    def rebuild_guest(self, host: str, order: GuestOrder, image: Any) -> None:
        """Wait in the middle of it."""
        self.rebuilds += 1
        self.begun.set()
        assert self.go_on.wait(LONG)
        if self.fault is not None:
            raise self.fault
        super().rebuild_guest(host, order, image)


class Bench:
    """An agent and its orders without a bus in between, whose callers are told at once to come again."""

    def __init__(self, now: Stage) -> None:
        self.driver = SlowOrders(now.conf, AGENT, CELL.name)
        self.driver.start()
        cell = CellClient(now.around.bus.client(f"conductor.{CELL.uuid}"))
        self.agent = ComputeAgent(self.driver, cell, 1, spawn_patience=0.05)
        self.orders = GuestOrders(self.driver, self.agent, 2, patience=0.05)
        self.agent.start()
        self.orders.start()
        self.build = build_on(HOST)
        self.agent.build(self.build)
        wait_until(lambda: now.cell.said(BuildFinished), LONG)

    def close(self) -> None:
        self.driver.go_on.set()
        self.orders.stop(LONG)
        self.agent.stop(LONG)
        self.driver.close()


@pytest.fixture
def bench(stage: Begin) -> Any:
    bench = Bench(stage())
    yield bench
    bench.close()


def answer(order: Callable[[], Any]) -> str:
    """Return the outcome of a call: the name of its error, or "done"."""
    try:
        order()
    except errors.MoorageError as fault:
        return type(fault).__name__
    return "done"


def test_whoever_waits_too_long_comes_again_and_finds_the_order_done(bench: Bench) -> None:
    rebuild = rebuild_of(bench.build)

    assert answer(lambda: bench.orders.rebuild_guest(rebuild)) == "RequestInProgress"
    assert answer(lambda: bench.orders.rebuild_guest(rebuild)) == "RequestInProgress"
    bench.driver.go_on.set()
    wait_until(lambda: answer(lambda: bench.orders.rebuild_guest(rebuild)) == "done", LONG)

    assert list(bench.driver.stopped(HOST)) == []


def failing(bench: Bench) -> None:
    bench.driver.fault = errors.GuestActionFailed(
        instance_uuid=bench.build.instance_uuid, host=HOST, action="rebuild", reason="no such image"
    )


def test_whoever_comes_again_after_a_failure_hears_of_it_before_it_is_tried_once_more(bench: Bench) -> None:
    rebuild = rebuild_of(bench.build)
    failing(bench)
    assert answer(lambda: bench.orders.rebuild_guest(rebuild)) == "RequestInProgress"
    bench.driver.go_on.set()
    bench.orders.stop(LONG)

    assert answer(lambda: bench.orders.rebuild_guest(rebuild)) == "GuestActionFailed"
    assert answer(lambda: bench.orders.rebuild_guest(rebuild)) == "RequestInProgress", "nobody works any more"
    assert bench.driver.rebuilds == 1


def test_no_more_than_so_many_failures_are_kept_of_orders_that_no_caller_waits_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "_KEPT", 10)
    impatient = GuestOrders(bench.driver, bench.agent, 1, patience=0.0)
    for _ in range(50):  # none of these attempts has a guest
        assert answer(lambda: impatient.stop_guest(stop_of(build_on(HOST)))) == "RequestInProgress"
    impatient.start()
    wait_until(lambda: all(each.outcome.done() for each in impatient._pending.values()), LONG)

    last = stop_of(build_on(HOST))
    wait_until(lambda: answer(lambda: impatient.stop_guest(last)) == "InvalidState", LONG)

    assert len(impatient._pending) <= 10
    impatient.stop(LONG)


def test_an_order_that_has_failed_may_be_given_again(bench: Bench) -> None:
    rebuild = rebuild_of(bench.build)
    failing(bench)
    bench.driver.go_on.set()
    wait_until(lambda: answer(lambda: bench.orders.rebuild_guest(rebuild)) == "GuestActionFailed", LONG)

    bench.driver.fault = None

    wait_until(lambda: answer(lambda: bench.orders.rebuild_guest(rebuild)) == "done", LONG)


def test_another_order_waits_for_the_one_in_hand(bench: Bench) -> None:
    rebuild, stop = rebuild_of(bench.build), stop_of(bench.build)
    assert answer(lambda: bench.orders.rebuild_guest(rebuild)) == "RequestInProgress"

    assert answer(lambda: bench.orders.stop_guest(stop)) == "RequestInProgress"
    assert list(bench.driver.stopped(HOST)) == []
    bench.driver.go_on.set()
    wait_until(lambda: answer(lambda: bench.orders.stop_guest(stop)) == "done", LONG)

    assert list(bench.driver.stopped(HOST)) == [bench.build.attempt_id]


def test_one_order_from_two_callers_at_once_is_carried_out_once(bench: Bench) -> None:
    rebuild = rebuild_of(bench.build)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: answer(lambda: bench.orders.rebuild_guest(rebuild)), range(8)))

    assert set(answers) == {"RequestInProgress"}
    assert bench.driver.rebuilds == 1


def test_a_guest_that_is_destroyed_in_the_middle_of_an_order_is_gone(bench: Bench) -> None:
    rebuild = rebuild_of(bench.build)
    assert answer(lambda: bench.orders.rebuild_guest(rebuild)) == "RequestInProgress"
    assert bench.driver.begun.wait(LONG)

    bench.agent.destroy(destroy_of(bench.build))
    bench.driver.go_on.set()

    wait_until(lambda: answer(lambda: bench.orders.rebuild_guest(rebuild)) == "InvalidState", LONG)
    assert bench.driver.guests(HOST) == []


def test_a_guest_whose_rebuild_cannot_be_cut_short_is_destroyed_when_that_has_ended(bench: Bench) -> None:
    bench.driver.stubborn = True
    rebuild = rebuild_of(bench.build)
    assert answer(lambda: bench.orders.rebuild_guest(rebuild)) == "RequestInProgress"
    assert bench.driver.begun.wait(LONG)

    assert answer(lambda: bench.agent.destroy(destroy_of(bench.build))) == "RequestInProgress"
    assert [guest.attempt_id for guest in bench.driver.guests(HOST)] == [bench.build.attempt_id]
    bench.driver.go_on.set()

    # Nobody comes again, and it goes even so.
    wait_until(lambda: bench.driver.guests(HOST) == [], LONG)


def test_a_destroy_under_another_claim_in_the_middle_of_an_order_destroys_nothing(bench: Bench) -> None:
    rebuild = rebuild_of(bench.build)
    assert answer(lambda: bench.orders.rebuild_guest(rebuild)) == "RequestInProgress"

    wrong = build_on(
        HOST, attempt_id=bench.build.attempt_id, instance_uuid=bench.build.instance_uuid, claim_id=ids.fresh()
    )
    assert answer(lambda: bench.agent.destroy(destroy_of(wrong))) == "InvalidState"
    bench.driver.go_on.set()
    wait_until(lambda: answer(lambda: bench.orders.rebuild_guest(rebuild)) == "done", LONG)

    assert [guest.attempt_id for guest in bench.driver.guests(HOST)] == [bench.build.attempt_id]


def test_a_hanging_rebuild_is_cut_short_by_a_destroy(stage: Begin) -> None:
    now = stage()
    now.start()
    build = built(now)
    now.stop()
    now.conf.set_override("hanging_hosts", [HOST], group="fake_driver")
    now.start()
    with ThreadPoolExecutor(1) as thread:
        rebuilding = thread.submit(answer, lambda: now.around.agent.call(rebuild_of(build)))
        wait_until(lambda: now.stopped(), LONG)

        now.destroy(build)

        assert rebuilding.result(LONG) in {"GuestActionFailed", "InvalidState", "RequestInProgress"}
    assert now.guests() == []


def test_hanging_spawns_keep_no_order_waiting(stage: Begin) -> None:
    now = stage(compute={"workers": 1, "stop_timeout": 0.1}, fake_driver={"hanging_hosts": ["host-0002"]})
    now.start()
    build = built(now)
    now.build(build_on("host-0002"))
    wait_until(lambda: len(now.guests()) == 2, LONG)

    now.order(stop_of(build))

    assert now.stopped() == [build.attempt_id]


def test_an_agent_that_stops_does_not_wait_for_a_rebuild_that_hangs(stage: Begin) -> None:
    now = stage(compute={"stop_timeout": 0.1})
    now.start()
    build = built(now)
    now.stop()
    now.conf.set_override("hanging_hosts", [HOST], group="fake_driver")
    now.start()
    rebuild = rebuild_of(build)
    with ThreadPoolExecutor(1) as thread:
        rebuilding = thread.submit(answer, lambda: now.around.agent.call(rebuild))
        wait_until(lambda: now.stopped(), LONG)
        now.stop()
        assert rebuilding.result(LONG) == "RequestInProgress"
    now.conf.set_override("hanging_hosts", [], group="fake_driver")
    now.start()

    now.order(rebuild)

    assert now.stopped() == []
    assert [guest.attempt_id for guest in now.guests()] == [build.attempt_id]
