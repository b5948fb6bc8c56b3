"""The drivers of the conformance suite, and how each is built."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compute.driver import Driver, GuestOrder, GuestSpec
from compute.fake.driver import FakeDriver
from harness.simulation.machine.drivers import FaultyDriver
from moorage import ids
from support.compute.builders import settings

Make = Callable[[], Driver]


@dataclass(frozen=True)
class Rig:
    """Builders of one driver: several times on the same machine, or with hosts that have faults."""

    make: Make
    #: Its spawns and rebuilds last until they are aborted.
    hanging: Make
    #: Its spawns take at least two seconds in any case; null for a driver that can abort each spawn at once.
    stubborn: Make | None = None
    #: Its guests cannot be stopped, started or rebuilt; null for a driver that always can.
    stuck: Make | None = None


HOSTS = [f"host-000{number}" for number in (1, 2, 3)]


def fake(folder: Path, **layout: Any) -> Rig:
    def make(**options: Any) -> Make:
        return lambda: FakeDriver(settings(folder, fake_driver=layout | options), "agent1", "cell1")

    return Rig(
        make=make(),
        hanging=make(hanging_hosts=HOSTS),
        stubborn=make(late_hosts=HOSTS, late_seconds=2.0),
        stuck=make(stuck_hosts=HOSTS),
    )


def faulty(folder: Path) -> Rig:
    def make(kind: str = "", seconds: float = 0.0) -> Make:
        faults = dict.fromkeys(HOSTS, (kind, seconds))
        return lambda: FaultyDriver(settings(folder), "agent1", "cell1", faults, {})

    return Rig(make=make(), hanging=make("hangs"), stubborn=make("is late", 2.0), stuck=make("fails"))


DEVICES: dict[str, Any] = {"numa_nodes": 2, "gpus": 2, "nics": 2}

#: A new driver is added here, by the name of its entry point if it has one.
DRIVERS: dict[str, Callable[[Path], Rig]] = {
    "fake": fake,
    "fake, nested": lambda folder: fake(folder, **DEVICES, traits=["HW_CPU_X86_AVX2"]),
    "fake, flat": lambda folder: fake(folder, **DEVICES, layout="flat"),
    "faulty": faulty,
}


@contextmanager
def started(make: Make) -> Iterator[Driver]:
    """Start a new driver, and close it at exit."""
    with closing(make()) as driver:
        driver.start()
        yield driver


def destroy(driver: Driver, host: str, guest: GuestSpec) -> None:
    driver.destroy(host, guest.instance_uuid, guest.attempt_id, guest.claim_id)


def attempts(driver: Driver, host: str) -> list[str]:
    return [guest.attempt_id for guest in driver.guests(host)]


def order(
    guest: GuestSpec, order_id: str | None = None, claim_id: str | None = None, number: int | None = None
) -> GuestOrder:
    """Return an order about a guest, by default a new one."""
    return GuestOrder(
        order_id=order_id or ids.fresh(),
        instance_uuid=guest.instance_uuid,
        attempt_id=guest.attempt_id,
        claim_id=claim_id or guest.claim_id,
        number=number,
    )
