"""The drivers under the conformance suite, as fixtures."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.compute.driver_rigs import DRIVERS, Make, Rig, started

from compute.driver import Driver


@pytest.fixture(params=sorted(DRIVERS))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Rig:
    return DRIVERS[request.param](tmp_path)


@pytest.fixture
def make(rig: Rig) -> Make:
    return rig.make


@pytest.fixture
def driver(make: Make) -> Iterator[Driver]:
    with started(make) as driver:
        yield driver


@pytest.fixture
def host(driver: Driver) -> str:
    return driver.hosts()[0].service_host
