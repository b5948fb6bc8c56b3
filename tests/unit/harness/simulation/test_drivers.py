"""Test the faults that a host of the simulation may have; the conformance suite of drivers tests the others."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.compute.builders import guest_spec, settings
from support.compute.driver_rigs import destroy, order, started

from compute.driver import Driver, GuestSpec
from harness.simulation.machine.drivers import FaultyDriver
from moorage import errors
from moorage.model import Image

HOST = "host-0001"
ACTS: dict[str, Callable[[Driver, GuestSpec], None]] = {
    "admit": lambda driver, guest: driver.admit(HOST, guest),
    "spawn": lambda driver, guest: driver.spawn(HOST, guest_spec()),
    "stop": lambda driver, guest: driver.stop_guest(HOST, order(guest)),
    "start": lambda driver, guest: driver.start_guest(HOST, order(guest)),
    "rebuild": lambda driver, guest: driver.rebuild_guest(HOST, order(guest), Image(id="other")),
    "destroy": lambda driver, guest: destroy(driver, HOST, guest),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_host_raises_an_unexpected_error_at_everything_until_its_fault_is_over(tmp_path: Path, act: str) -> None:
    faults: dict[str, tuple[str, float]] = {}
    with started(lambda: FaultyDriver(settings(tmp_path), "agent1", "cell1", faults, {})) as driver:
        guest = guest_spec()
        driver.spawn(HOST, guest)
        faults[HOST] = ("raises", 0.0)
        with pytest.raises(RuntimeError, match="the host is faulty"):
            ACTS[act](driver, guest)
        faults.clear()
        ACTS[act](driver, guest)


def test_a_host_that_refuses_every_guest_keeps_those_that_it_has(tmp_path: Path) -> None:
    faults = {HOST: ("refuses", 0.0)}
    with started(lambda: FaultyDriver(settings(tmp_path), "agent1", "cell1", faults, {})) as driver:
        guest = guest_spec()
        with pytest.raises(errors.BuildFailed, match="the host is faulty"):
            driver.admit(HOST, guest)
        driver.spawn(HOST, guest)
        driver.stop_guest(HOST, order(guest))
        destroy(driver, HOST, guest)


def test_no_order_to_stop_or_start_a_guest_hangs(tmp_path: Path) -> None:
    faults: dict[str, tuple[str, float]] = {}
    with started(lambda: FaultyDriver(settings(tmp_path), "agent1", "cell1", faults, {})) as driver:
        guest = guest_spec()
        driver.spawn(HOST, guest)
        faults[HOST] = ("hangs", 0.0)
        driver.stop_guest(HOST, order(guest))
        driver.start_guest(HOST, order(guest))
