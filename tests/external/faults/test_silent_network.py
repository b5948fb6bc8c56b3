"""The silent-network drill: between a process and a server all packets are lost, and no connection is closed.

`make test` does it to all processes of a cloud at once, with MariaDB and with RabbitMQ, and to one scheduler of two;
with DRILLS=long in the environment each process has its turn with each server, twice, with the time-outs that are the
defaults.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import requests
from sqlalchemy import URL, make_url
from support.http.api import answers
from support.processes.building_client import SPEC, build
from support.processes.forked_cloud import ForkedCloud
from support.processes.tls import Tls

from harness.cloud import Settings, wait_until
from harness.servers import MariaDBServer, RabbitMQServer, free_ports
from harness.tcp_proxy import TcpProxy
from moorage import errors, ids
from moorage.messages import BuildInstances, ListCells, ListHosts, ListInstances, ListOperationsInCell, ShowInstance
from moorage.messages.wire import Message

R = TypeVar("R")

LONG = os.environ.get("DRILLS") == "long"
#: Seconds after a silent loss within which everything answers again.
LIMIT = 40.0
#: Seconds after which one of the schedulers holds a host dead whose heartbeats are lost.
DOWN_AFTER = 60.0 if LONG else 15.0
#: With the shortest time-out there is, a connection counts as lost after six seconds.
SETTINGS: Settings = {
    "database": {} if LONG else {"statement_timeout": 1.0},
    "scheduler": {"serve_placement": "false"},
    "placement_api": {"auth_strategy": "noauth2"},
}
PROCESSES = ("scheduler", "placement", "conductor", "conductor-cell1", "placement-api")
#: Those with connections to RabbitMQ.
ON_THE_BUS = (*PROCESSES[:4], "agent")
#: Those that reach both servers over TLS, which has waits of its own: for a hand-shake, and for the end of TLS.
OVER_TLS = ("scheduler", "conductor-cell1", "placement-api", "agent")
HOSTS = 2
#: Calls at the same time: as many threads of the process have a connection each.
CALLS = 6


class Cloud:
    """A cloud of processes, each with a way of its own to MariaDB, and one to RabbitMQ."""

    def __init__(
        self, processes: ForkedCloud, ways: dict[str, TcpProxy], bus_ways: dict[str, TcpProxy], port: int
    ) -> None:
        self.processes = processes
        self.ways = ways
        self.bus_ways = bus_ways
        #: Seconds to wait for an answer on the bus.
        self.patience = LIMIT
        self._api = f"http://127.0.0.1:{port}"
        [cell] = self.bus("placement", "placement", ListCells())
        self._asks: dict[str, Callable[[], object]] = {
            "scheduler": lambda: self.bus("scheduler", "scheduler", ListHosts()),
            "placement": lambda: self.bus("placement", "placement", ListCells()),
            "conductor": lambda: self.bus("conductor", "conductor", ListInstances()),
            "conductor-cell1": lambda: self.bus(f"conductor.{cell.uuid}", "conductor-cell1", ListOperationsInCell()),
            "placement-api": self.http,
        }

    def bus(self, topic: str, server: str, message: Message[R]) -> R:
        """Ask one server."""
        return self.processes._bus.client(topic, server, timeout=self.patience).call(message)

    def http(self) -> None:
        """Ask the HTTP API; what it answers with 503 is an error as any other."""
        reply = requests.get(f"{self._api}/resource_providers", headers={"X-Auth-Token": "admin"}, timeout=LIMIT)
        if reply.status_code == 503:
            raise errors.StoreUnavailable(schema="main", reason=reply.text)
        assert reply.status_code == 200, reply.text

    def ask(self, name: str) -> str:
        """Ask a process for something that its database knows; return how it has answered."""
        try:
            self._asks[name]()
        except (errors.StoreUnavailable, errors.Overloaded, errors.NoReply, errors.DeadlineExceeded) as fault:
            return type(fault).__name__
        return "answered"

    def ask_all_at_once(self, *names: str) -> set[str]:
        """Ask these processes with several threads each; return all kinds of answers."""
        with ThreadPoolExecutor(len(names) * CALLS or 1) as threads:
            return set(threads.map(self.ask, [name for name in names for _ in range(CALLS)]))

    def builds(self) -> None:
        """Build a server and delete nothing: there is room."""
        instance = build(self.processes.client("conductor", timeout=60.0))
        assert instance.state == "active", instance

    def is_well(self) -> None:
        assert self.ask_all_at_once(*PROCESSES) == {"answered"}
        assert len([host for host in self.bus("scheduler", "scheduler", ListHosts()) if host.up]) == HOSTS
        self.builds()


def _by(way: TcpProxy, url: URL) -> str:
    return url.set(host="127.0.0.1", port=way.port).render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def cloud(mariadb_over_tls: MariaDBServer, rabbitmq: RabbitMQServer, tls: Tls) -> Iterator[Cloud]:
    mariadb = mariadb_over_tls
    main, of_cell = (make_url(mariadb.create_database(name)) for name in ("silent_main", "silent_cell"))
    secured = main.update_query_dict({"ssl_ca": str(tls.authority)})
    of_cell = of_cell.update_query_dict({"ssl_ca": str(tls.authority)})
    transport = rabbitmq.add_vhost("silent_network")
    ways = {name: TcpProxy("127.0.0.1", mariadb.port) for name in (*PROCESSES, "scheduler2")}
    bus_ways = {name: TcpProxy("127.0.0.1", tls.port if name in OVER_TLS else rabbitmq.port) for name in ON_THE_BUS}
    [port] = free_ports(1)
    plain = main.render_as_string(hide_password=False)
    with ForkedCloud(transport, plain, SETTINGS) as processes:
        processes.run("db", "upgrade", "--schema", "main")
        processes.run("cell", "create", "cell1", "--database-connection", _by(ways["conductor-cell1"], of_cell))
        processes.run("db", "upgrade")

        def start(name: str, *words: str, **settings: Any) -> None:
            if name in ways:
                settings["database"] = {"connection": _by(ways[name], secured if name in OVER_TLS else main)}
            if name in bus_ways:
                url = tls.of_rabbitmq(transport) if name in OVER_TLS else transport
                settings["DEFAULT"] = {"transport_url": _by(bus_ways[name], make_url(url))}
            processes.start(name, *words, settings=settings)

        start("placement", "placement", "--name", "placement")
        start("scheduler", "scheduler", "--name", "scheduler")
        start("conductor", "conductor", "--name", "conductor")
        # It records a heartbeat in a sixth of that time. As often as that scheduler needs them, since its own time to
        # hold a host dead is longer than the network is lost.
        frequent = {"silent_after": DOWN_AFTER}
        start("conductor-cell1", "conductor", "--cell", "cell1", "--name", "conductor-cell1", service=frequent)
        start("placement-api", "placement-api", "--host", "127.0.0.1", "--port", str(port), "--workers", "1")
        words = ("compute", "--cell", "cell1", "--agent", "agent", "--fake-hosts", str(HOSTS))
        large = {"vcpus": 2000, "memory_mb": 8_000_000, "disk_gb": 80_000}
        start("agent", *words, fake_driver=large)
        processes.wait_for_hosts(HOSTS)
        # It listens when it is ready, on a slow machine later than the agent has hosts.
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/"), "the HTTP API to listen")
        cloud = Cloud(processes, ways, bus_ways, port)
        wait_until(lambda: cloud.ask_all_at_once("placement-api") == {"answered"}, "the HTTP API to serve")
        yield cloud
    for way in (*ways.values(), *bus_ways.values()):
        way.close()


def drills(processes: tuple[str, ...]) -> list[tuple[tuple[str, ...], bool]]:
    """Return of which processes the network is lost, and whether new connections are lost too."""
    if not LONG:
        return [(processes, False)]
    return [((name,), new_too) for name in processes for new_too in (False, True)] + [(processes, True)]


def _named(value: object) -> str:
    return "-".join(value) if isinstance(value, tuple) else "all lost" if value else "forgotten"


@pytest.mark.parametrize(("lost", "new_too"), drills(PROCESSES), ids=_named)
def test_everything_answers_again_within_40_seconds_of_a_silent_loss(
    cloud: Cloud, lost: tuple[str, ...], new_too: bool, record_property: Callable[[str, object], None]
) -> None:
    cloud.is_well()  # and each pool has as many connections as there are threads

    begun = time.monotonic()
    for name in lost:
        cloud.ways[name].go_silent(new_too=new_too)
    answers = cloud.ask_all_at_once(*lost)
    seconds = time.monotonic() - begun

    assert seconds < LIMIT
    away = {"StoreUnavailable", "Overloaded"}
    # Where a new connection can be made, the true answer comes with the first call if that has the time for a second
    # one, and else with the second call.
    patient = not LONG and not new_too
    assert answers <= ({"answered"} if patient else away | {"answered"}), {
        name: cloud.processes.log(name)[-3000:] for name in lost
    }
    if not new_too:
        assert cloud.ask_all_at_once(*lost) == {"answered"}
        seconds = time.monotonic() - begun
        assert seconds < LIMIT
    else:
        assert cloud.ask_all_at_once(*lost) <= away
        for name in lost:
            cloud.ways[name].resume()
        wait_until(lambda: cloud.ask_all_at_once(*lost) == {"answered"}, "all to answer", LIMIT)
    cloud.is_well()
    what = "forgets its connections" if not new_too else "loses all"
    record_property("measured", f"{', '.join(lost)}: answers {seconds:.1f} s after the network to MariaDB {what}")


@pytest.mark.parametrize(("lost", "new_too"), drills(ON_THE_BUS), ids=_named)
def test_everything_answers_again_within_40_seconds_of_a_silent_loss_of_the_broker(
    cloud: Cloud, lost: tuple[str, ...], new_too: bool, record_property: Callable[[str, object], None]
) -> None:
    cloud.is_well()
    asked = [name for name in lost if name != "agent"]  # an agent answers by what it builds
    cloud.patience = 6.0

    begun = time.monotonic()
    for name in lost:
        cloud.bus_ways[name].go_silent(new_too=new_too)
    if new_too:
        # Long enough for each side to have noticed.
        threading.Event().wait(LIMIT)
        begun = time.monotonic()
        for name in lost:
            cloud.bus_ways[name].resume()
    # What was on its way is lost, or is given to somebody else too late for whoever has asked.
    wait_until(lambda: cloud.ask_all_at_once(*asked) <= {"answered"}, "all to answer", LIMIT)
    answered = time.monotonic() - begun
    cloud.builds()
    built = time.monotonic() - begun

    assert answered < LIMIT
    cloud.patience = LIMIT
    cloud.is_well()
    what = "forgets its connections" if not new_too else "loses all"
    told = f"answers {answered:.1f} s after the network to RabbitMQ {what}, a server is built after {built:.1f} s"
    record_property("measured", f"{', '.join(lost)}: {told}")


def test_hosts_stay_up_and_servers_are_built_while_one_scheduler_of_two_does_not_reach_its_database(
    cloud: Cloud,
) -> None:
    settings: Settings = {
        "database": {"connection": _by(cloud.ways["scheduler2"], make_url(_main_url(cloud)))},
        "scheduler": {"host_down_after": DOWN_AFTER},
    }
    cloud.processes.start("scheduler2", "scheduler", "--name", "scheduler2", settings=settings)
    try:
        wait_until(lambda: _hosts_up(cloud, "scheduler2") == HOSTS, "the second scheduler to serve")
        # The one that stays is the one that sweeps: it takes half of all heartbeats, and the other half are lost.
        cloud.ways["scheduler"].go_silent(new_too=True)
        begun = time.monotonic()
        conductor = cloud.processes.client("conductor", timeout=60.0)
        ordered = []
        while time.monotonic() - begun < 2 * DOWN_AFTER + 5:
            ordered.append(ids.fresh())
            build_one = BuildInstances(request_spec=SPEC, instance_uuids=(ordered[-1],), request_id=ids.fresh())
            conductor.call(build_one)
            assert _hosts_up(cloud, "scheduler2") == HOSTS
            threading.Event().wait(1.0)
        cloud.ways["scheduler"].resume()

        def states() -> set[str]:
            return {conductor.call(ShowInstance(instance_uuid=uuid)).state for uuid in ordered}

        wait_until(lambda: "building" not in states(), "all to be decided")
        found = [conductor.call(ShowInstance(instance_uuid=uuid)) for uuid in ordered]
        assert [one.reason for one in found if one.state != "active"] == []
        assert "Down, for want of a heartbeat" not in cloud.processes.log("scheduler2")
    finally:
        cloud.ways["scheduler"].resume()
        cloud.processes.stop("scheduler2")


def _main_url(cloud: Cloud) -> str:
    [line] = [
        line
        for line in cloud.processes.config_file.read_text().splitlines()
        if line.startswith("connection = ") and "silent_main" in line
    ]
    return line.removeprefix("connection = ")


def _hosts_up(cloud: Cloud, scheduler: str) -> int:
    try:
        found = cloud.bus("scheduler", scheduler, ListHosts())
    except errors.Unavailable:
        return -1
    return sum(host.up for host in found)
