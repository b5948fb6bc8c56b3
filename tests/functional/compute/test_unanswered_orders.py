"""Test orders to guests that take longer than their callers wait: repeated, failed, and interrupted ones."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.compute.builders import (
    AGENT,
    CELL,
    HOST,
    AgentUnderTest,
    NewStage,
    build_on,
    destroy_of,
    rebuild_of,
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
from moorage.messages import BuildFinished, RebuildOnHost

LONG = 60.0


def answer(order: Callable[[], Any]) -> str:
    """Return the outcome of a call: the name of its error, or "done"."""
    try:
        order()
    except errors.MoorageError as fault:
        return type(fault).__name__
    return "done"


class SlowOrders(FakeDriver):
    """Sets an event when a rebuild begins; the rebuild then waits for another event, and may fail."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.fault: errors.MoorageError | None = None
        self.rebuilds = 0
        self.is_unabortable = False

    def destroy(self, host: str, instance_uuid: str, attempt_id: str, claim_id: str) -> None:
        if self.is_unabortable and self.begun.is_set() and not self.go_on.is_set():
            raise errors.RequestInProgress(request_id=attempt_id)
        super().destroy(host, instance_uuid, attempt_id, claim_id)

    def rebuild_guest(self, host: str, order: GuestOrder, image: Any) -> None:
        self.rebuilds += 1
        self.begun.set()
        assert self.go_on.wait(LONG)
        if self.fault is not None:
            raise self.fault
        super().rebuild_guest(host, order, image)


class Bench:
    """An agent and its orders, called without a bus; callers of unfinished orders are answered after 50 ms."""

    def __init__(self, stage: AgentUnderTest) -> None:
        self.driver = SlowOrders(stage.conf, AGENT, CELL.name)
        self.driver.start()
        cell = CellClient(stage.peers.bus.client(f"conductor.{CELL.uuid}"))
        self.agent = ComputeAgent(self.driver, cell, 1, patience=0.05)
        self.orders = GuestOrders(self.driver, self.agent, 2, patience=0.05)
        self.agent.start()
        self.orders.start()
        self.build = build_on(HOST)
        self.agent.build(self.build)
        wait_until(lambda: stage.cell.received(BuildFinished))

    def rebuild(self, order: RebuildOnHost) -> str:
        return answer(lambda: self.orders.rebuild_guest(order))

    def close(self) -> None:
        self.driver.go_on.set()
        self.orders.stop(LONG)
        self.agent.stop(LONG)
        self.driver.close()


@pytest.fixture
def bench(new_stage: NewStage) -> Any:
    bench = Bench(new_stage())
    yield bench
    bench.close()


def test_a_caller_that_repeats_an_order_after_a_timeout_finds_it_carried_out(bench: Bench) -> None:
    rebuild = rebuild_of(bench.build)

    assert bench.rebuild(rebuild) == "RequestInProgress"
    assert bench.rebuild(rebuild) == "RequestInProgress"
    bench.driver.go_on.set()
    wait_until(lambda: bench.rebuild(rebuild) == "done")

    assert list(bench.driver.stopped(HOST)) == []


def let_rebuilds_fail(bench: Bench) -> None:
    bench.driver.fault = errors.GuestActionFailed(
        instance_uuid=bench.build.instance_uuid, host=HOST, action="rebuild", reason="no such image"
    )


def test_a_repeated_order_is_answered_with_its_failure_before_it_is_tried_again(bench: Bench) -> None:
    rebuild = rebuild_of(bench.build)
    let_rebuilds_fail(bench)
    assert bench.rebuild(rebuild) == "RequestInProgress"
    assert bench.driver.begun.wait(LONG)
    bench.driver.go_on.set()
    bench.orders.stop(LONG)

    assert bench.rebuild(rebuild) == "GuestActionFailed"
    assert bench.rebuild(rebuild) == "RequestInProgress", "no thread carries it out any more"
    assert bench.driver.rebuilds == 1


def test_a_bounded_number_of_failures_is_kept_for_orders_that_no_caller_repeats(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "_KEPT", 10)
    impatient = GuestOrders(bench.driver, bench.agent, 1, patience=0.0)
    for _ in range(50):  # none of these attempts has a guest
        assert answer(lambda: impatient.stop_guest(stop_of(build_on(HOST)))) == "RequestInProgress"
    impatient.start()
    wait_until(lambda: all(each.outcome.done() for each in impatient._pending.values()))

    last = stop_of(build_on(HOST))
    wait_until(lambda: answer(lambda: impatient.stop_guest(last)) == "InvalidState")

    assert len(impatient._pending) <= 10
    impatient.stop(LONG)


def test_a_failed_order_can_be_repeated(bench: Bench) -> None:
    rebuild = rebuild_of(bench.build)
    let_rebuilds_fail(bench)
    bench.driver.go_on.set()
    wait_until(lambda: bench.rebuild(rebuild) == "GuestActionFailed")

    bench.driver.fault = None

    wait_until(lambda: bench.rebuild(rebuild) == "done")


def test_an_order_waits_for_the_order_under_way(bench: Bench) -> None:
    rebuild, stop = rebuild_of(bench.build), stop_of(bench.build)
    assert bench.rebuild(rebuild) == "RequestInProgress"

    assert answer(lambda: bench.orders.stop_guest(stop)) == "RequestInProgress"
    assert list(bench.driver.stopped(HOST)) == []
    bench.driver.go_on.set()
    wait_until(lambda: answer(lambda: bench.orders.stop_guest(stop)) == "done")

    assert list(bench.driver.stopped(HOST)) == [bench.build.attempt_id]


def test_an_order_sent_by_several_callers_at_once_is_carried_out_once(bench: Bench) -> None:
    rebuild = rebuild_of(bench.build)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(bench.rebuild, [rebuild] * 8))

    assert set(answers) == {"RequestInProgress"}
    assert bench.driver.begun.wait(LONG)
    assert bench.driver.rebuilds == 1


def test_a_guest_can_be_destroyed_in_the_middle_of_an_order(bench: Bench) -> None:
    rebuild = rebuild_of(bench.build)
    assert bench.rebuild(rebuild) == "RequestInProgress"
    assert bench.driver.begun.wait(LONG)

    wait_until(lambda: answer(lambda: bench.agent.destroy(destroy_of(bench.build))) == "done")
    bench.driver.go_on.set()

    wait_until(lambda: bench.rebuild(rebuild) == "InvalidState")
    assert bench.driver.guests(HOST) == []


def test_a_guest_whose_rebuild_cannot_be_aborted_is_destroyed_when_the_rebuild_has_ended(bench: Bench) -> None:
    bench.driver.is_unabortable = True
    rebuild = rebuild_of(bench.build)
    assert bench.rebuild(rebuild) == "RequestInProgress"
    assert bench.driver.begun.wait(LONG)

    assert answer(lambda: bench.agent.destroy(destroy_of(bench.build))) == "RequestInProgress"
    assert [guest.attempt_id for guest in bench.driver.guests(HOST)] == [bench.build.attempt_id]
    bench.driver.go_on.set()

    # Without a repeated order.
    wait_until(lambda: bench.driver.guests(HOST) == [])


def test_a_destroy_under_another_claim_in_the_middle_of_an_order_destroys_nothing(bench: Bench) -> None:
    rebuild = rebuild_of(bench.build)
    assert bench.rebuild(rebuild) == "RequestInProgress"

    destroy = destroy_of(bench.build, claim_id=ids.fresh())
    wait_until(lambda: answer(lambda: bench.agent.destroy(destroy)) == "InvalidState")
    bench.driver.go_on.set()
    wait_until(lambda: bench.rebuild(rebuild) == "done")

    assert [guest.attempt_id for guest in bench.driver.guests(HOST)] == [bench.build.attempt_id]


def test_a_destroy_aborts_a_hanging_rebuild(new_stage: NewStage) -> None:
    stage = new_stage()
    stage.start()
    build = stage.built()

    stage.restart(hanging_hosts=[HOST])
    with ThreadPoolExecutor(1) as thread:
        rebuilding = thread.submit(answer, lambda: stage.peers.agent.call(rebuild_of(build)))
        wait_until(stage.stopped)

        stage.destroy(build)

        assert rebuilding.result(LONG) in {"GuestActionFailed", "InvalidState", "RequestInProgress"}
    assert stage.guests() == []


def test_a_stopping_agent_does_not_wait_for_a_hanging_rebuild(new_stage: NewStage) -> None:
    stage = new_stage(compute={"stop_timeout": 0.1})
    stage.start()
    build = stage.built()

    stage.restart(hanging_hosts=[HOST])
    rebuild = rebuild_of(build)
    with ThreadPoolExecutor(1) as thread:
        rebuilding = thread.submit(answer, lambda: stage.peers.agent.call(rebuild))
        wait_until(stage.stopped)
        stage.stop()
        assert rebuilding.result(LONG) == "RequestInProgress"
    stage.restart(hanging_hosts=[])

    stage.order(rebuild)

    assert stage.stopped() == []
    assert stage.attempts() == [build.attempt_id]
