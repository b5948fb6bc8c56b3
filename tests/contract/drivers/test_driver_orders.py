"""Test the orders to existing guests with each driver: stop, start, rebuild, and the arrival of a moved guest."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import get_args

import pytest
from support.compute.builders import guest_spec, tree_of, wait_until
from support.compute.driver_rigs import Make, Rig, attempts, destroy, order, started

from compute.driver import Driver, GuestOrder, GuestSpec
from moorage import errors, ids
from moorage.messages import MovingGuest
from moorage.model import Image, MoveKind

IMAGE = Image(id="another")
Act = Callable[[Driver, str, GuestOrder], None]

ACTS: dict[str, Act] = {
    "stop": lambda driver, host, told: driver.stop_guest(host, told),
    "start": lambda driver, host, told: driver.start_guest(host, told),
    "rebuild": lambda driver, host, told: driver.rebuild_guest(host, told, IMAGE),
}
EVERY = pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)


@pytest.fixture
def guest(driver: Driver, host: str) -> GuestSpec:
    asked = guest_spec()
    driver.spawn(host, asked)
    return asked


def test_a_stopped_guest_keeps_its_resources_and_is_not_unfinished(driver: Driver, host: str, guest: GuestSpec) -> None:
    assert list(driver.stopped(host)) == []

    driver.stop_guest(host, order(guest))

    assert list(driver.stopped(host)) == [guest.attempt_id]
    assert list(driver.unfinished(host)) == []
    (found,) = driver.guests(host)
    assert (found.attempt_id, found.claim_id, found.resources) == (guest.attempt_id, guest.claim_id, guest.resources)


def test_a_guest_that_was_started_again_runs(driver: Driver, host: str, guest: GuestSpec) -> None:
    driver.stop_guest(host, order(guest))

    driver.start_guest(host, order(guest))

    assert list(driver.stopped(host)) == []
    assert attempts(driver, host) == [guest.attempt_id]


def test_stopping_a_stopped_guest_and_starting_a_running_one_changes_nothing(
    driver: Driver, host: str, guest: GuestSpec
) -> None:
    driver.start_guest(host, order(guest))
    assert list(driver.stopped(host)) == []
    driver.stop_guest(host, order(guest))
    driver.stop_guest(host, order(guest))

    assert list(driver.stopped(host)) == [guest.attempt_id]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_rebuilt_guest_runs_and_keeps_its_resources(
    driver: Driver, host: str, guest: GuestSpec, stopped: bool
) -> None:
    before = driver.guests(host)
    if stopped:
        driver.stop_guest(host, order(guest))

    driver.rebuild_guest(host, order(guest), IMAGE)

    assert list(driver.stopped(host)) == []
    assert driver.guests(host) == before


@EVERY
def test_an_order_that_was_carried_out_is_not_carried_out_again(
    driver: Driver, host: str, guest: GuestSpec, act: Act
) -> None:
    told = order(guest)

    act(driver, host, told)
    before = list(driver.stopped(host))
    act(driver, host, told)

    assert list(driver.stopped(host)) == before
    assert attempts(driver, host) == [guest.attempt_id]


@EVERY
@pytest.mark.parametrize("later", ["stop", "start"])
def test_an_order_that_arrives_after_a_later_one_is_refused_and_changes_nothing(
    driver: Driver, host: str, guest: GuestSpec, act: Act, later: str
) -> None:
    told = order(guest)
    act(driver, host, told)
    ACTS[later](driver, host, order(guest))
    before = list(driver.stopped(host))

    with pytest.raises(errors.InvalidState):
        act(driver, host, told)

    assert list(driver.stopped(host)) == before


@EVERY
def test_an_order_that_arrives_after_an_order_with_a_greater_number_is_refused(
    driver: Driver, host: str, guest: GuestSpec, act: Act, make: Make
) -> None:
    last = order(guest, number=5)
    driver.stop_guest(host, last)

    with pytest.raises(errors.InvalidState):
        act(driver, host, order(guest, number=4))

    assert list(driver.stopped(host)) == [guest.attempt_id]
    driver.close()
    with started(make) as next_life:
        with pytest.raises(errors.InvalidState):
            act(next_life, host, order(guest, number=4))
        # A refused order does not count as the last one.
        next_life.stop_guest(host, last)
        assert list(next_life.stopped(host)) == [guest.attempt_id]
        act(next_life, host, order(guest, number=6))


def test_an_order_id_cannot_be_used_for_another_order(driver: Driver, host: str, guest: GuestSpec) -> None:
    told = order(guest)
    driver.stop_guest(host, told)

    with pytest.raises(errors.RequestIdReused):
        driver.start_guest(host, told)

    assert list(driver.stopped(host)) == [guest.attempt_id]


@EVERY
def test_an_order_for_a_guest_that_does_not_exist_is_refused(
    driver: Driver, host: str, guest: GuestSpec, act: Act
) -> None:
    elsewhere = driver.hosts()[1].service_host
    gone = guest_spec()
    driver.spawn(host, gone)
    destroy(driver, host, gone)

    for where, told in [
        (host, order(guest_spec())),
        (host, order(gone)),
        (host, order(guest, claim_id=ids.fresh())),
        (elsewhere, order(guest)),
    ]:
        with pytest.raises(errors.InvalidState):
            act(driver, where, told)

    with pytest.raises(errors.HostNotFound):
        act(driver, "nowhere", order(guest))
    assert attempts(driver, host) == [guest.attempt_id]
    assert list(driver.stopped(host)) == []


@EVERY
def test_an_order_for_an_unfinished_guest_is_refused(rig: Rig, act: Act) -> None:
    asked = guest_spec()
    with started(rig.hanging) as driver, ThreadPoolExecutor(1) as thread:
        host = driver.hosts()[0].service_host
        spawning = thread.submit(driver.spawn, host, asked)
        wait_until(lambda: attempts(driver, host))
        driver.close()
        assert isinstance(spawning.exception(60), errors.BuildFailed)

    with started(rig.make) as again:
        with pytest.raises(errors.InvalidState):
            act(again, host, order(asked))
        assert list(again.stopped(host)) == []
        assert list(again.unfinished(host)) == [asked.attempt_id]


def test_a_repeated_build_does_not_start_a_stopped_guest(driver: Driver, host: str, guest: GuestSpec) -> None:
    driver.stop_guest(host, order(guest))

    driver.spawn(host, guest)

    assert list(driver.stopped(host)) == [guest.attempt_id]


def test_a_stopped_guest_can_be_destroyed(driver: Driver, host: str, guest: GuestSpec) -> None:
    driver.stop_guest(host, order(guest))

    destroy(driver, host, guest)

    assert driver.guests(host) == []
    assert list(driver.stopped(host)) == []
    with pytest.raises(errors.BuildFailed):
        driver.spawn(host, guest)


def test_stopped_guests_and_their_last_orders_survive_a_restart_of_the_driver(
    make: Make, host: str, driver: Driver
) -> None:
    stopped, runs, restarted = guest_spec(), guest_spec(), guest_spec()
    for asked in (stopped, runs, restarted):
        driver.spawn(host, asked)
    early = order(restarted)
    driver.stop_guest(host, early)
    driver.start_guest(host, order(restarted))
    driver.stop_guest(host, order(stopped))
    before = driver.guests(host)
    driver.close()

    with started(make) as again:
        assert list(again.stopped(host)) == [stopped.attempt_id]
        assert list(again.unfinished(host)) == []
        assert again.guests(host) == before
        with pytest.raises(errors.InvalidState):
            again.stop_guest(host, early)
        again.start_guest(host, order(stopped))
        assert list(again.stopped(host)) == []


def test_a_guest_whose_rebuild_ended_with_its_driver_is_stopped_and_can_be_rebuilt(rig: Rig) -> None:
    asked = guest_spec()
    told = order(asked)
    with started(rig.make) as driver:
        host = driver.hosts()[0].service_host
        driver.spawn(host, asked)
    with started(rig.hanging) as driver, ThreadPoolExecutor(1) as thread:
        rebuilding = thread.submit(driver.rebuild_guest, host, told, IMAGE)
        wait_until(lambda: driver.stopped(host))
        driver.close()
        assert isinstance(rebuilding.exception(60), errors.GuestActionFailed)

    with started(rig.make) as driver:
        assert list(driver.unfinished(host)) == []
        assert list(driver.stopped(host)) == [asked.attempt_id]
        driver.rebuild_guest(host, told, IMAGE)
        assert list(driver.stopped(host)) == []
        assert attempts(driver, host) == [asked.attempt_id]


def test_a_destroy_interrupts_a_rebuild_under_way_and_the_guest_stays_away(rig: Rig) -> None:
    asked = guest_spec()
    with started(rig.make) as driver:
        host = driver.hosts()[0].service_host
        driver.spawn(host, asked)
    with started(rig.hanging) as driver, ThreadPoolExecutor(1) as thread:
        rebuilding = thread.submit(driver.rebuild_guest, host, order(asked), IMAGE)
        wait_until(lambda: driver.stopped(host))

        destroy(driver, host, asked)

        assert attempts(driver, host) == []
        assert isinstance(rebuilding.exception(60), errors.GuestActionFailed)
        assert attempts(driver, host) == []


@EVERY
def test_an_order_that_a_host_could_not_carry_out_can_be_repeated(rig: Rig, act: Act) -> None:
    if rig.stuck is None:
        pytest.skip("the hosts of this driver carry out all orders")
    asked = guest_spec()
    with started(rig.make) as driver:
        host = driver.hosts()[0].service_host
        driver.spawn(host, asked)
    told = order(asked)
    with started(rig.stuck) as driver:
        with pytest.raises(errors.GuestActionFailed) as caught:
            act(driver, host, told)
        assert (caught.value.instance_uuid, caught.value.host) == (asked.instance_uuid, host)
        assert attempts(driver, host) == [asked.attempt_id]
        assert list(driver.unfinished(host)) == []

    with started(rig.make) as driver:
        act(driver, host, told)
        act(driver, host, told)
        assert attempts(driver, host) == [asked.attempt_id]


@pytest.mark.parametrize("kind", get_args(MoveKind))
def test_a_moved_guest_exists_together_with_the_old_one_on_the_same_host(
    driver: Driver, host: str, guest: GuestSpec, kind: MoveKind
) -> None:
    moving = MovingGuest(migration_uuid=ids.fresh(), kind=kind, source_host=host, source_attempt_id=guest.attempt_id)
    moved = replace(guest_spec(vcpus=3, instance_uuid=guest.instance_uuid), moving=moving)
    driver.stop_guest(host, order(guest))

    driver.admit(host, moved)
    driver.spawn(host, moved)

    assert {found.attempt_id for found in driver.guests(host)} == {guest.attempt_id, moved.attempt_id}
    assert sum(found.resources["VCPU"] for found in driver.guests(host)) == 5
    assert list(driver.stopped(host)) == [guest.attempt_id]
    destroy(driver, host, guest)
    assert attempts(driver, host) == [moved.attempt_id]


def test_a_stopped_guest_still_uses_the_resources_of_its_host(driver: Driver, host: str, guest: GuestSpec) -> None:
    driver.stop_guest(host, order(guest))
    whole = sum(
        provider.inventories["VCPU"].capacity for provider in tree_of(driver, host) if "VCPU" in provider.inventories
    )
    bigger = guest_spec(vcpus=int(whole) - 1, instance_uuid=guest.instance_uuid)

    with pytest.raises(errors.BuildFailed):
        driver.spawn(host, bigger)

    assert attempts(driver, host) == [guest.attempt_id]
