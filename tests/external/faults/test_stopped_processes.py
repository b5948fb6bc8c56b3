"""The process of each service waits for unavailable servers, accepts SIGHUP, and ends within ten seconds of SIGTERM."""

import itertools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import make_url
from support.databases import migrated
from support.databases.migrated import OnMariaDB
from support.processes.forked_cloud import ForkedCloud

from conductor.schema import CELL, CONDUCTOR
from harness.tcp_proxy import TcpProxy
from harness.waiting import wait_until
from moorage import ids
from moorage.db.database import Database
from moorage.messages import ListCells
from placement_store import cells
from placement_store.db import names
from placement_store.schema import MAIN

SERVICES = {
    "scheduler": ("scheduler", "--name", "one"),
    "placement": ("placement", "--name", "two"),
    "conductor": ("conductor", "--name", "one"),
    "cell": ("conductor", "--cell", "cell1", "--name", "one"),
    "agent": ("compute", "--cell", "cell1", "--agent", "rack1", "--fake-hosts", "1"),
}
#: Seconds after the signal within which a process ends: ten, and a margin for a busy machine.
STOP = 10.0 + 5.0


class Cloud:
    """All services of a cloud, behind a proxy to the broker or to the database."""

    def __init__(self, processes: ForkedCloud, proxy: TcpProxy) -> None:
        self.processes = processes
        self.proxy = proxy

    def start(self, *, ready: bool) -> None:
        for name, words in SERVICES.items():
            self.processes.start(name, *words)
        for name in SERVICES:
            self.until_logged(name, "Ready" if ready else "Waiting for")

    def until_logged(self, name: str, text: str) -> None:
        def logged() -> bool:
            status = self.processes.processes[name].poll()
            assert status is None, f"{name} has ended with {status}:\n{self.processes.log(name)[-4000:]}"
            return text in self.processes.log(name)

        wait_until(logged, f"{name} to log {text}")

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes.processes.values():
            process.send_signal(number)

    def seconds_to_end(self) -> dict[str, float]:
        """Stop all processes and return how long each took."""
        begun = time.monotonic()
        self.signal(signal.SIGTERM)
        took: dict[str, float] = {}

        def ended() -> bool:
            for name, process in self.processes.processes.items():
                if name not in took and process.poll() is not None:
                    took[name] = round(time.monotonic() - begun, 1)
            return len(took) == len(self.processes.processes)

        wait_until(ended, "all processes to end", progress=lambda: len(took))
        # They end cleanly or by force, but not because a signal was not handled.
        assert {process.returncode for process in self.processes.processes.values()} <= {0, 1}
        return took


@pytest.fixture
def cloud(rabbitmq_url: str, tmp_path: Path) -> Iterator[Cloud]:
    """A cloud on SQLite without services, behind a proxy to the broker."""
    parts = urlsplit(rabbitmq_url)
    url = migrated.sqlite(tmp_path / "main.sqlite", MAIN, CONDUCTOR, CELL)
    with closing(Database(url, "main")) as database:
        names.sync(database)
        cells.create(database, name="cell1", uuid=ids.fresh())
    with TcpProxy(parts.hostname or "", parts.port or 0) as proxy:
        transport_url = rabbitmq_url.replace(f":{parts.port}/", f":{proxy.port}/")
        with ForkedCloud(transport_url, url, {"conductor": {"connection": url}}) as processes:
            yield Cloud(processes, proxy)


def test_services_accept_sighup_and_end_soon_if_the_broker_is_unreachable(
    cloud: Cloud, record_property: Callable[[str, object], None]
) -> None:
    cloud.start(ready=True)
    cloud.signal(signal.SIGHUP)
    for name in SERVICES:
        cloud.until_logged(name, "Ready")
    cloud.proxy.refuse()
    took = cloud.seconds_to_end()
    record_property("measured", f"stopped without a broker, in s: {took}")
    assert max(took.values()) < STOP


def test_services_end_soon_if_the_broker_is_silent(
    cloud: Cloud, record_property: Callable[[str, object], None]
) -> None:
    cloud.start(ready=True)
    cloud.proxy.go_silent(new_too=True)
    took = cloud.seconds_to_end()
    record_property("measured", f"stopped with a silent broker, in s: {took}")
    assert max(took.values()) < STOP


def test_services_that_wait_for_the_broker_stop_at_once_and_start_when_it_is_available(
    cloud: Cloud, record_property: Callable[[str, object], None]
) -> None:
    cloud.proxy.refuse()
    cloud.start(ready=False)
    cloud.signal(signal.SIGHUP)
    took = cloud.seconds_to_end()
    record_property("measured", f"stopped while waiting for a broker, in s: {took}")
    assert max(took.values()) < STOP
    assert {process.returncode for process in cloud.processes.processes.values()} == {0}
    cloud.start(ready=False)
    cloud.proxy.resume()
    for name in SERVICES:
        cloud.until_logged(name, "Ready")


# --- Without a database -----------------------------------------------------------------------------------------------


@pytest.fixture
def cloud_of_mariadb(rabbitmq_url: str, migrated_mariadb: OnMariaDB) -> Iterator[Cloud]:
    """A cloud on MariaDB without services, behind a proxy to the database."""
    url = make_url(migrated_mariadb.url(MAIN))
    with TcpProxy(url.host or "", url.port or 0) as proxy:
        database = url.set(port=proxy.port).render_as_string(hide_password=False)
        with ForkedCloud(rabbitmq_url, database) as processes:
            yield Cloud(processes, proxy)


def logged_waits(log: str) -> list[datetime]:
    """Return the times at which a service has logged that it waits."""
    return [datetime.fromisoformat(line[:23]) for line in log.splitlines() if "Waiting for" in line]


def test_a_service_that_waits_for_its_database_logs_that_every_five_seconds_and_stops_at_once(
    cloud_of_mariadb: Cloud, record_property: Callable[[str, object], None]
) -> None:
    cloud_of_mariadb.proxy.refuse()
    cloud_of_mariadb.processes.start("placement", *SERVICES["placement"])
    wait_until(lambda: len(logged_waits(cloud_of_mariadb.processes.log("placement"))) == 3, "three lines")
    took = cloud_of_mariadb.seconds_to_end()
    log = cloud_of_mariadb.processes.log("placement")
    between = [(later - before).total_seconds() for before, later in itertools.pairwise(logged_waits(log))]
    record_property("measured", f"stopped while waiting for a database, in s: {took}; {between} s between two lines")
    assert min(between) >= 5.0 - 0.1
    assert max(between) < STOP
    assert max(took.values()) < 10.0
    assert cloud_of_mariadb.processes.processes["placement"].returncode == 0
    assert log.splitlines()[-1].endswith("Stopped before it was ready")


def test_a_service_that_is_started_while_its_database_is_unreachable_serves_when_it_is_available(
    cloud_of_mariadb: Cloud,
) -> None:
    cloud_of_mariadb.proxy.refuse()
    cloud_of_mariadb.processes.start("placement", *SERVICES["placement"])
    cloud_of_mariadb.until_logged("placement", "Waiting for")
    cloud_of_mariadb.proxy.resume()
    cloud_of_mariadb.until_logged("placement", "Ready")
    assert cloud_of_mariadb.processes.client("placement", timeout=60.0).call(ListCells()) == []


@pytest.mark.parametrize("fault", ["unreachable", "silent"])
def test_services_end_soon_if_their_database_is_unreachable_or_silent(
    cloud_of_mariadb: Cloud, fault: str, record_property: Callable[[str, object], None]
) -> None:
    for name in ("placement", "scheduler"):
        cloud_of_mariadb.processes.start(name, *SERVICES[name])
        cloud_of_mariadb.until_logged(name, "Ready")
    if fault == "unreachable":
        cloud_of_mariadb.proxy.refuse()
    else:
        cloud_of_mariadb.proxy.go_silent(new_too=True)
    took = cloud_of_mariadb.seconds_to_end()
    record_property("measured", f"stopped with a database that is {fault}, in s: {took}")
    assert max(took.values()) < STOP
