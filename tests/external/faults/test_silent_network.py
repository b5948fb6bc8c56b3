"""A silent network: all packets between a process and a server are lost, and no connection is closed.

In `make test` all processes of a cloud lose MariaDB or RabbitMQ at once, and one of two schedulers loses its database,
with short time-outs. With DRILLS=long in the environment each process in turn loses each server, in two ways, with the
default time-outs.
"""

import os
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

from harness.cloud import Settings
from harness.servers import MariaDBServer, RabbitMQServer, free_ports
from harness.tcp_proxy import TcpProxy
from harness.waiting import wait_until
from moorage import errors, ids
from moorage.messages import BuildInstances, ListCells, ListHosts, ListInstances, ListOperationsInCell, ShowInstance
from moorage.messages.wire import Message

R = TypeVar("R")

LONG = os.environ.get("DRILLS") == "long"
#: Seconds after a silent loss within which all processes answer again.
LIMIT = 40.0
#: Seconds without a heartbeat after which one of the schedulers sets a host down.
DOWN_AFTER = 60.0 if LONG else 15.0
#: With these settings, a silent connection to MariaDB counts as lost after seven seconds, and one to RabbitMQ within
#: three heartbeats.
SETTINGS: Settings = {
    "database": {} if LONG else {"statement_timeout": 2.0, "lock_wait_timeout": 1.0},
    "oslo_messaging_rabbit": {} if LONG else {"heartbeat_timeout_threshold": 3},
    "scheduler": {"serve_placement": "false"},
    "placement_api": {"auth_strategy": "noauth2"},
}
PROCESSES = ("scheduler", "placement", "conductor", "conductor-cell1", "placement-api")
#: The processes with connections to RabbitMQ.
ON_THE_BUS = (*PROCESSES[:4], "agent")
#: The processes that reach both servers over TLS, which has further waits: for a handshake, and for the end of TLS.
OVER_TLS = ("scheduler", "conductor-cell1", "placement-api", "agent")
HOSTS = 2
#: The number of concurrent calls to a process, each of which needs its own connection.
CALLS = 6


class Cloud:
    """A cloud of processes, each with its own proxies to MariaDB and to RabbitMQ."""

    def __init__(
        self,
        processes: ForkedCloud,
        main: URL,
        proxies: dict[str, TcpProxy],
        bus_proxies: dict[str, TcpProxy],
        port: int,
    ) -> None:
        self.processes = processes
        self.main = main
        self.proxies = proxies
        self.bus_proxies = bus_proxies
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
        """Call one server."""
        return self.processes._bus.client(topic, server, timeout=self.patience).call(message)

    def http(self) -> None:
        """Call the HTTP API.

        :raises StoreUnavailable: it answers with 503.
        """
        reply = requests.get(f"{self._api}/resource_providers", headers={"X-Auth-Token": "admin"}, timeout=LIMIT)
        if reply.status_code == 503:
            raise errors.StoreUnavailable(schema="main", reason=reply.text)
        assert reply.status_code == 200, reply.text

    def ask(self, name: str) -> str:
        """Send a process a call that reads its database; return `answered`, or the name of the error."""
        try:
            self._asks[name]()
        except (errors.StoreUnavailable, errors.Overloaded, errors.NoReply, errors.DeadlineExceeded) as fault:
            return type(fault).__name__
        return "answered"

    def ask_all_at_once(self, *names: str) -> set[str]:
        """Call these processes, each from several threads; return all outcomes."""
        with ThreadPoolExecutor(len(names) * CALLS or 1) as threads:
            return set(threads.map(self.ask, [name for name in names for _ in range(CALLS)]))

    def check_build(self) -> None:
        """Build a server; it is not deleted, because the hosts have room for all."""
        instance = build(self.processes.client("conductor", timeout=60.0))
        assert instance.state == "active", instance

    def check(self) -> None:
        """Check that all processes answer, all hosts are up, and a server can be built."""
        assert self.ask_all_at_once(*PROCESSES) == {"answered"}
        assert len([host for host in self.bus("scheduler", "scheduler", ListHosts()) if host.up]) == HOSTS
        self.check_build()


def _through(proxy: TcpProxy, url: URL) -> str:
    return url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def cloud(mariadb_over_tls: MariaDBServer, rabbitmq: RabbitMQServer, tls: Tls) -> Iterator[Cloud]:
    mariadb = mariadb_over_tls
    main, of_cell = (make_url(mariadb.create_database(name)) for name in ("silent_main", "silent_cell"))
    secured = main.update_query_dict({"ssl_ca": str(tls.authority)})
    of_cell = of_cell.update_query_dict({"ssl_ca": str(tls.authority)})
    transport = rabbitmq.add_vhost("silent_network")
    proxies = {name: TcpProxy("127.0.0.1", mariadb.port) for name in (*PROCESSES, "scheduler2")}
    bus_proxies = {name: TcpProxy("127.0.0.1", tls.port if name in OVER_TLS else rabbitmq.port) for name in ON_THE_BUS}
    [port] = free_ports(1)
    plain = main.render_as_string(hide_password=False)
    with ForkedCloud(transport, plain, SETTINGS) as processes:
        processes.run("db", "upgrade", "--schema", "main")
        processes.run("cell", "create", "cell1", "--database-connection", _through(proxies["conductor-cell1"], of_cell))
        processes.run("db", "upgrade")

        def start(name: str, *words: str, **settings: Any) -> None:
            if name in proxies:
                settings["database"] = {"connection": _through(proxies[name], secured if name in OVER_TLS else main)}
            if name in bus_proxies:
                url = tls.of_rabbitmq(transport) if name in OVER_TLS else transport
                settings["DEFAULT"] = {"transport_url": _through(bus_proxies[name], make_url(url))}
            processes.start(name, *words, settings=settings)

        start("placement", "placement", "--name", "placement")
        start("scheduler", "scheduler", "--name", "scheduler")
        start("conductor", "conductor", "--name", "conductor")
        # The cell's conductor records a heartbeat in each sixth of this time, which is as often as the second scheduler
        # needs them.
        frequent = {"silent_after": DOWN_AFTER, "report_interval": DOWN_AFTER / 6}
        start("conductor-cell1", "conductor", "--cell", "cell1", "--name", "conductor-cell1", service=frequent)
        start("placement-api", "placement-api", "--host", "127.0.0.1", "--port", str(port), "--workers", "1")
        words = ("compute", "--cell", "cell1", "--agent", "agent", "--fake-hosts", str(HOSTS))
        large = {"vcpus": 2000, "memory_mb": 8_000_000, "disk_gb": 80_000}
        start("agent", *words, fake_driver=large)
        processes.wait_for_hosts(HOSTS)
        # On a slow machine, the hosts may be up before the HTTP API listens.
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/"), "the HTTP API to listen")
        cloud = Cloud(processes, main, proxies, bus_proxies, port)
        wait_until(lambda: cloud.ask_all_at_once("placement-api") == {"answered"}, "the HTTP API to serve")
        yield cloud
    for proxy in (*proxies.values(), *bus_proxies.values()):
        proxy.close()


def drills(processes: tuple[str, ...]) -> list[tuple[tuple[str, ...], bool]]:
    """Return the processes that lose the network together, each time with whether new connections are lost too."""
    if not LONG:
        return [(processes, False)]
    return [((name,), new_too) for name in processes for new_too in (False, True)] + [(processes, True)]


def _named(value: object) -> str:
    return "-".join(value) if isinstance(value, tuple) else "all lost" if value else "forgotten"


@pytest.mark.parametrize(("lost", "new_too"), drills(PROCESSES), ids=_named)
def test_everything_answers_again_within_40_seconds_of_a_silent_loss(
    cloud: Cloud, lost: tuple[str, ...], new_too: bool, record_property: Callable[[str, object], None]
) -> None:
    cloud.check()  # this also opens all connections of each pool

    begun = time.monotonic()
    for name in lost:
        cloud.proxies[name].go_silent(new_too=new_too)
    answers = cloud.ask_all_at_once(*lost)
    seconds = time.monotonic() - begun

    assert seconds < LIMIT
    unavailable = {"StoreUnavailable", "Overloaded"}
    # If a new connection can be opened, the first call succeeds if it has enough time for a second try; otherwise the
    # next call succeeds.
    is_patient = not LONG and not new_too
    assert answers <= ({"answered"} if is_patient else unavailable | {"answered"}), {
        name: cloud.processes.log(name)[-3000:] for name in lost
    }
    if not new_too:
        assert cloud.ask_all_at_once(*lost) == {"answered"}
        seconds = time.monotonic() - begun
        assert seconds < LIMIT
    else:
        assert cloud.ask_all_at_once(*lost) <= unavailable
        for name in lost:
            cloud.proxies[name].resume()
        wait_until(lambda: cloud.ask_all_at_once(*lost) == {"answered"}, "all to answer", LIMIT)
    cloud.check()
    what = "forgets its connections" if not new_too else "loses all"
    record_property("measured", f"{', '.join(lost)}: answers {seconds:.1f} s after the network to MariaDB {what}")


@pytest.mark.parametrize(("lost", "new_too"), drills(ON_THE_BUS), ids=_named)
def test_everything_answers_again_within_40_seconds_of_a_silent_loss_of_the_broker(
    cloud: Cloud, lost: tuple[str, ...], new_too: bool, record_property: Callable[[str, object], None]
) -> None:
    cloud.check()
    asked = [name for name in lost if name != "agent"]  # an agent is checked by a build
    cloud.patience = 6.0

    begun = time.monotonic()
    for name in lost:
        cloud.bus_proxies[name].go_silent(new_too=new_too)
    if new_too:
        # Long enough for each side to notice the loss.
        time.sleep(LIMIT)
        begun = time.monotonic()
        for name in lost:
            cloud.bus_proxies[name].resume()
    # Messages in transit are lost, or are delivered to another server when the caller has given up.
    wait_until(lambda: cloud.ask_all_at_once(*asked) <= {"answered"}, "all to answer", LIMIT)
    answered = time.monotonic() - begun
    cloud.check_build()
    built = time.monotonic() - begun

    assert answered < LIMIT
    cloud.patience = LIMIT
    cloud.check()
    what = "forgets its connections" if not new_too else "loses all"
    times = f"answers {answered:.1f} s after the network to RabbitMQ {what}, a server is built after {built:.1f} s"
    record_property("measured", f"{', '.join(lost)}: {times}")


def test_hosts_stay_up_and_servers_are_built_while_one_of_two_schedulers_cannot_reach_its_database(
    cloud: Cloud,
) -> None:
    settings: Settings = {
        "database": {"connection": _through(cloud.proxies["scheduler2"], cloud.main)},
        "scheduler": {"host_down_after": DOWN_AFTER},
    }
    cloud.processes.start("scheduler2", "scheduler", "--name", "scheduler2", settings=settings)
    try:
        wait_until(lambda: _hosts_up(cloud, "scheduler2") == HOSTS, "the second scheduler to serve")
        # Only the second scheduler can set hosts down. It gets half of all heartbeats, and the other half are lost.
        cloud.proxies["scheduler"].go_silent(new_too=True)
        begun = time.monotonic()
        conductor = cloud.processes.client("conductor", timeout=60.0)
        ordered = []
        while time.monotonic() - begun < 2 * DOWN_AFTER + 5:
            ordered.append(ids.fresh())
            build_one = BuildInstances(request_spec=SPEC, instance_uuids=(ordered[-1],), request_id=ids.fresh())
            conductor.call(build_one)
            assert _hosts_up(cloud, "scheduler2") == HOSTS
            time.sleep(1.0)
        cloud.proxies["scheduler"].resume()

        def states() -> set[str]:
            return {conductor.call(ShowInstance(instance_uuid=uuid)).state for uuid in ordered}

        wait_until(lambda: "building" not in states(), "all to be decided")
        found = [conductor.call(ShowInstance(instance_uuid=uuid)) for uuid in ordered]
        assert [one.reason for one in found if one.state != "active"] == []
        assert "Down, without a heartbeat" not in cloud.processes.log("scheduler2")
    finally:
        cloud.proxies["scheduler"].resume()
        cloud.processes.stop("scheduler2")


def _hosts_up(cloud: Cloud, scheduler: str) -> int:
    try:
        found = cloud.bus("scheduler", scheduler, ListHosts())
    except errors.Unavailable:
        return -1
    return sum(host.up for host in found)
