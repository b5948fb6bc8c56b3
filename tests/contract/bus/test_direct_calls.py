"""Test that calls to RabbitMQ without the bus library have the same answers and errors as calls with it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.processes.broker_alarm import alarm
from support.processes.stopwatch import Stopwatch
from support.processes.tls import Tls

from harness.servers import RabbitMQServer
from moorage import errors, ids
from moorage.bus.bus import Bus, BusServer, serves
from moorage.bus.rabbit.direct import DirectBus, DirectClient, is_plain
from moorage.cli.clients import Clients
from moorage.config import calls, options
from moorage.messages import ListCells, ListHosts, ListInstances
from moorage.model import Cell, HostState

pytestmark = pytest.mark.servers

EAST = Cell(name="east", uuid=ids.fresh())


class Store:
    @serves(ListCells)
    def list_cells(self, message: ListCells) -> list[Cell]:
        if message.without_databases:
            raise errors.CellNotFound(kind="cell", name="wést")
        return [EAST]

    @serves(ListHosts)
    def list_hosts(self, message: ListHosts) -> list[HostState]:
        if message.service_host == "slow":
            time.sleep(3.0)
            return []
        raise ValueError("secret")


@pytest.fixture(scope="module")
def store(rabbitmq: RabbitMQServer) -> Iterator[str]:
    """The URL of a broker on which a store is served."""
    url = rabbitmq.add_vhost("direct_calls")
    bus = Bus(options.new({"DEFAULT": {"transport_url": url}}))
    server = bus.server("placement", "one", [Store()])
    server.start()
    yield url
    server.stop()
    bus.close()


@pytest.fixture
def direct(store: str) -> Iterator[DirectBus]:
    bus = DirectBus(store, options.new())
    yield bus
    bus.close()


def wait_until_ready(server: BusServer) -> None:
    """Wait until the thread of a server that has just started consumes its queue."""
    end = time.monotonic() + 10
    while True:
        try:
            server.check()
        except errors.BusUnavailable:
            assert time.monotonic() < end
            time.sleep(0.05)
        else:
            return


def test_answers_and_errors_arrive_with_their_classes(direct: DirectBus) -> None:
    client = DirectClient(direct, "placement", None, 10.0)

    assert client.call(ListCells()) == [EAST]
    with pytest.raises(errors.CellNotFound, match="There is no cell wést"):
        client.call(ListCells(without_databases=True))
    with pytest.raises(errors.InternalError, match="ValueError") as caught:
        client.call(ListHosts())
    assert "secret" not in str(caught.value)
    assert client.call(ListCells()) == [EAST]


def test_a_caller_may_wait_for_longer_than_a_broker_keeps_messages(store: str, direct: DirectBus) -> None:
    decades = 1e9
    assert DirectClient(direct, "placement", None, decades).call(ListCells()) == [EAST]
    bus = Bus(options.new({"DEFAULT": {"transport_url": store}, "rpc": {"call_timeout": decades}}))
    assert bus.client("placement").call(ListCells()) == [EAST]
    bus.close()


def test_one_server_is_called_by_its_name_and_pinged(direct: DirectBus) -> None:
    client = DirectClient(direct, "placement", "one", 10.0)
    client.ping()
    assert client.call(ListCells()) == [EAST]
    assert direct.servers_of("placement") == direct.servers_of("placement", "one") == 1
    assert direct.servers_of("placement", "two") == 0


def test_a_method_that_is_not_served_is_an_invalid_request(direct: DirectBus) -> None:
    with pytest.raises(errors.InvalidRequest, match=r"list_instances is not served on placement at version 1\.0"):
        DirectClient(direct, "placement", None, 10.0).call(ListInstances())


def test_a_late_answer_is_dropped_and_is_not_the_answer_to_the_next_call(direct: DirectBus) -> None:
    client = DirectClient(direct, "placement", None, 10.0)
    # The first call connects, so that the time-out below does not include that.
    client.ping()
    with pytest.raises(errors.NoReply, match="list_hosts"):
        client.call(ListHosts(service_host="slow"), timeout=1.0)
    time.sleep(3.0)
    assert client.call(ListCells()) == [EAST]


def test_an_answer_to_a_caller_that_is_gone_holds_no_thread_of_the_server(store: str) -> None:
    direct = DirectBus(store, options.new())
    bus = Bus(options.new({"DEFAULT": {"transport_url": store}}))
    server = bus.server("placement", "left", [Store()])
    server.start()
    wait_until_ready(server)
    DirectClient(direct, "placement", "left", 10.0).ping()
    with pytest.raises(errors.NoReply):
        DirectClient(direct, "placement", "left", 1.0).call(ListHosts(service_host="slow"))
    direct.close()
    watch = Stopwatch()
    server.stop()
    assert watch.seconds < 10
    bus.close()


def test_after_a_lost_connection_the_next_call_connects_again(direct: DirectBus) -> None:
    client = DirectClient(direct, "placement", None, 10.0)
    client.ping()
    with direct.connection() as connection:
        connection._amqp.transport.sock.shutdown(2)
    with pytest.raises(errors.BusUnavailable):
        client.call(ListCells())
    assert client.call(ListCells()) == [EAST]


def test_a_call_and_the_check_of_a_server_name_an_alarm_of_the_broker_at_once(
    store: str, rabbitmq: RabbitMQServer, tls: Tls
) -> None:
    # Over TLS, because a broker that reads nothing does not answer the end of a TLS connection either.
    url = tls.of_rabbitmq(store)
    direct = DirectBus(url, options.new())
    client = DirectClient(direct, "placement", None, 20.0)
    assert client.call(ListCells()) == [EAST]
    bus = Bus(options.new({"DEFAULT": {"transport_url": url}}))
    server = bus.server("placement", "two", [Store()])
    server.start()
    wait_until_ready(server)
    with alarm(rabbitmq, "memory"):
        for _ in range(2):
            watch = Stopwatch()
            with pytest.raises(errors.BusUnavailable, match=r"an alarm of the broker is on .low on memory."):
                client.call(ListCells())
            assert watch.seconds < 10
        with pytest.raises(errors.BusUnavailable, match=r"an alarm of the broker is on .low on memory."):
            server.check()
    server.check()
    assert client.call(ListCells()) == [EAST]
    direct.close()
    server.stop()
    bus.close()


def test_a_refused_login_and_an_absent_broker_are_different_errors_without_the_password(store: str) -> None:
    head, _, place = store.partition("@")
    refused = f"{head.rpartition(':')[0]}:wrong@{place}"
    for url, error in ((refused, errors.BusRefused), ("rabbit://u:wrong@127.0.0.1:1/", errors.BusUnavailable)):
        with pytest.raises(error) as caught:
            DirectClient(DirectBus(url, options.new()), "placement", None, 5.0).call(ListCells())
        assert "wrong" not in str(caught.value)


def test_if_the_first_host_of_a_url_is_away_the_next_one_is_called(store: str) -> None:
    head, _, place = store.partition("@")
    bus = DirectBus(f"{head}@127.0.0.1:1,{head.partition('//')[2]}@{place}", options.new())
    assert DirectClient(bus, "placement", None, 10.0).call(ListCells()) == [EAST]
    bus.close()


def test_the_bus_library_is_used_for_options_that_only_it_supports() -> None:
    assert is_plain("rabbit://u:p@one:5672,u:p@two/cloud")
    assert is_plain("rabbit://u:p@one/cloud?ssl=true&ssl_ca_file=/ca.pem")
    assert not is_plain("rabbit://u:p@one/cloud?rabbit_quorum_queue=true")
    assert not is_plain("inproc://x/")
    for option, value in (("rabbit_login_method", "RABBIT-CR-DEMO"), ("kombu_compression", "gzip")):
        assert not calls.is_direct(options.new({"oslo_messaging_rabbit": {option: value}}))
    assert calls.is_direct(options.new())


def test_calls_with_and_without_the_bus_library_have_the_same_answer(store: str) -> None:
    conf = options.new({"DEFAULT": {"transport_url": store}})
    clients = Clients(conf, 10.0)
    over_the_library = clients.bus().client("placement").call(ListCells())
    assert clients.topic("placement").call(ListCells()) == over_the_library
    clients.close()


_CALLS = """
import sys
from moorage.cli.shell import main
status = main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(status)
"""


def test_a_command_that_makes_a_call_imports_neither_the_bus_library_nor_the_database(
    store: str, tmp_path: Any
) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = {store}\ndebug = true\n")
    ran = subprocess.run(
        [sys.executable, "-c", _CALLS, "--config-file", str(file), "trait", "list"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    # The error shows that the call was made: the store of this module does not serve traits.
    assert "list_traits is not served on placement" in ran.stderr
    modules = set(ran.stderr.split())
    assert "amqp" in modules
    assert modules.isdisjoint({"oslo_messaging", "kombu", "sqlalchemy", "eventlet", "rich", "numpy"})
