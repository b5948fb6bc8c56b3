"""Test that a command without a server fails within seconds and names the service to start, on both buses."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import amqp
import pytest
from support.processes.stopwatch import Stopwatch

from harness.servers import RabbitMQServer
from moorage import errors, ids
from moorage.bus.bus import Bus, serves
from moorage.bus.rabbit import broker_hosts
from moorage.bus.rabbit.broker_hosts import BrokerHosts, DirectConnection
from moorage.bus.rabbit.direct import DirectBus, is_plain
from moorage.cli.clients import Clients
from moorage.cli.shell import main
from moorage.config import options
from moorage.messages import ListCells, ListHosts
from moorage.model import Cell

# Imported after the bus, which selects the threading backend.
import oslo_messaging


class Cells:
    @serves(ListCells)
    def list_cells(self, _message: ListCells) -> list[Cell]:
        return []


@pytest.fixture
def conf(bus_url: str) -> Any:
    return options.new({"DEFAULT": {"transport_url": bus_url}})


@pytest.fixture
def clients(conf: Any) -> Iterator[Clients]:
    # The longest wait for an answer, and for a server to start.
    clients = Clients(conf, 1.0)
    yield clients
    clients.close()


def test_a_call_to_a_topic_that_was_never_served_names_the_service_to_start(clients: Clients) -> None:
    watch = Stopwatch()
    with pytest.raises(errors.NotServed, match=r"Nobody serves scheduler .*: start `moorage scheduler`"):
        clients.topic("scheduler").call(ListHosts())
    with pytest.raises(errors.NotServed, match=r"start `moorage conductor --cell west`"):
        clients.cell(Cell(name="west", uuid=ids.fresh())).ping()
    assert watch.seconds < 10


def test_a_call_to_a_topic_whose_last_server_has_stopped_names_the_service_to_start(conf: Any) -> None:
    bus = Bus(conf)
    server = bus.server("placement", "one", [Cells()])
    server.start()
    assert bus.client("placement").call(ListCells()) == []
    server.stop()
    later = Clients(conf, 1.0)
    with pytest.raises(errors.NotServed, match="moorage placement"):
        later.topic("placement").call(ListCells())
    later.close()
    bus.close()


def test_a_topic_that_is_served_later_can_be_called(conf: Any) -> None:
    clients = Clients(conf, 4.0)
    with pytest.raises(errors.NotServed):
        clients.topic("placement").call(ListCells())
    bus = Bus(conf)
    bus.server("placement", "one", [Cells()]).start()
    assert clients.topic("placement").call(ListCells()) == []
    clients.close()
    bus.close()


def test_a_command_waits_some_seconds_for_a_server_to_start(clients: Clients, conf: Any) -> None:
    bus = Bus(conf)
    server = bus.server("placement", "one", [Cells()])

    class Late(Bus):
        counts = 0

        def servers_of(self, topic: str, server_name: str | None = None) -> int | None:
            self.counts += 1
            if self.counts == 2:
                server.start()
            return super().servers_of(topic, server_name)

    asking = Late(conf)
    clients.require(asking, "placement", None, "`moorage placement`")
    assert asking.counts == 2
    asking.close()
    bus.close()


def test_a_command_without_a_server_ends_within_seconds_and_names_the_service_to_start(
    tmp_path: Path, bus_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = {bus_url}\n")
    watch = Stopwatch()
    assert main(["--config-file", str(file), "host", "list"]) == 1
    assert watch.seconds < 10
    output = capsys.readouterr().err
    assert "Nobody serves" in output
    assert "start `moorage" in output


def test_an_audit_without_servers_ends_within_seconds_and_names_each_missing_service(
    tmp_path: Path, bus_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = {bus_url}\n")
    watch = Stopwatch()
    assert main(["--config-file", str(file), "audit", "-f", "csv"]) == 2
    assert watch.seconds < 10
    output = capsys.readouterr().out
    for topic, service in (("placement", "scheduler"), ("scheduler", "scheduler"), ("conductor", "conductor")):
        assert f"Nobody serves {topic} on the message bus: start `moorage {service}`" in output


@pytest.mark.parametrize("others", ["", "mq0:5672,moorage:secret@"])
@pytest.mark.parametrize("host", ["mq1:567x", "[::1", "mq..1", f"{'a' * 64}.mq1"])
@pytest.mark.parametrize("opened", ["by a service", "by a command"])
def test_a_malformed_address_is_an_error_of_the_configuration(opened: str, host: str, others: str) -> None:
    url = f"rabbit://moorage:secret@{others}{host}/cloud"
    with pytest.raises(errors.ConfigurationError, match="a host or a port cannot be read") as caught:
        _open(url, opened)
    assert "secret" not in str(caught.value)
    assert "moorage:***@" in str(caught.value)


@pytest.mark.parametrize("character", "/?#")
@pytest.mark.parametrize("opened", ["by a service", "by a command"])
def test_no_part_of_a_password_with_a_reserved_character_is_shown(opened: str, character: str) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        _open(f"rabbit://moorage:half{character}other@mq1:5672/cloud", opened)
    assert "half" not in str(caught.value)
    assert "other" not in str(caught.value)


@pytest.mark.parametrize("option", ["rabbit_quorum_queue=yess", "no_such_option=1", "rpc_conn_pool_size=1"])
def test_an_invalid_option_at_the_end_of_an_address_is_an_error_of_the_configuration(option: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=f"{option.partition('=')[0]}") as caught:
        _open(f"rabbit://moorage:secret@mq1/cloud?{option}", "by a service")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("server", [None, "one"])
def test_a_call_restores_the_binding_of_a_queue_that_the_broker_has_lost(
    rabbitmq: RabbitMQServer, rabbitmq_url: str, server: str | None
) -> None:
    conf = options.new({"DEFAULT": {"transport_url": rabbitmq_url}})
    with closing(Bus(conf)) as bus, closing(Bus(conf)) as caller:
        bus.server("placement", "one", [Cells()]).start()
        client = caller.client("placement", server, 5.0)
        assert client.call(ListCells()) == []
        vhost = rabbitmq_url.rpartition("/")[2]
        # As after a partition of a cluster: queues and their consumers exist, and bindings do not.
        default = f'{{resource, <<"{vhost}">>, exchange, <<>>}}'
        rabbitmq.evaluate(
            f'[ok = rabbit_binding:remove(B, <<"test">>) '
            f'|| B <- rabbit_binding:list(<<"{vhost}">>), element(2, B) =/= {default}]'
        )
        with ThreadPoolExecutor() as threads:
            answers = list(threads.map(client.call, [ListCells(), ListCells(), ListCells()]))
        assert answers == [[], [], []]


@pytest.mark.parametrize(
    "url",
    [
        "rabbit://u:p@one:1,v:q@two:2/cloud",
        "rabbit://u:p@one,,v:q@two,/a%2Fb?ssl=true",
        "rabbit://u%40x:p%2Fq%3A@[::1]:7/",
        "rabbit://u:p@[::1]",
        "rabbit://one",
        "rabbit://",
        "kombu://u:@one/cloud?ssl=true&ssl_ca_file=/a%20b",
    ],
)
def test_direct_connections_read_an_address_as_the_library_does(url: str) -> None:
    conf = options.new()
    theirs, ours = oslo_messaging.TransportURL.parse(conf, url), BrokerHosts(url, conf)
    guest = oslo_messaging.TransportHost("localhost")
    assert [(host.name, host.port, host.user, host.password) for host in ours._hosts] == [
        (host.hostname or "localhost", host.port or 5672, host.username or "guest", host.password or "guest")
        for host in theirs.hosts or [guest]
    ]
    assert ours._virtual_host == (theirs.virtual_host or "/")
    assert ours._query == theirs.query


#: The first bytes of a connection: a handshake of TLS (RFC 8446, section 5.1), or the header of AMQP.
TLS, PLAIN = b"\x16\x03", b"AM"


@pytest.mark.parametrize(
    ("value", "option", "begin"),
    [*((value, False, TLS) for value in ("true", "True", "1", "yes", "on")), ("no", True, PLAIN)],
)
def test_the_address_of_a_broker_decides_whether_tls_is_used(value: str, option: bool, begin: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor() as thread:
        read = thread.submit(_first_bytes, listening)
        conf = options.new({"oslo_messaging_rabbit": {"ssl": option}})
        bus = Bus(conf, f"rabbit://m:m@127.0.0.1:{_port(listening)}/?ssl={value}")
        with pytest.raises(errors.BusUnavailable):
            bus.probe()
    assert read.result() == begin


def test_silent_hosts_are_probed_in_parallel_and_come_last_in_the_next_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_hosts, "_CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(broker_hosts, "_AWAY", set())
    with ExitStack() as silent:
        ports = [_port(silent.enter_context(socket.create_server(("127.0.0.1", 0)))) for _ in range(3)]
        hosts = ",".join(f"m:secret@127.0.0.1:{port}" for port in ports)
        watch = Stopwatch()
        with pytest.raises(errors.BusUnavailable, match="timed out") as caught:
            BrokerHosts(f"rabbit://{hosts}/cloud", options.new()).probe()
        assert watch.seconds < 2.5
    assert "secret" not in str(caught.value)
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor() as thread:
        read = thread.submit(_first_bytes, other)
        with pytest.raises(errors.BusUnavailable):
            BrokerHosts(f"rabbit://{hosts},m:secret@127.0.0.1:{_port(other)}/cloud", options.new()).probe()
    assert read.result() == PLAIN


def _first_bytes(listening: socket.socket) -> bytes:
    connection, _ = listening.accept()
    with connection:
        return connection.recv(2)


def _port(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


def _open(url: str, opened: str) -> None:
    if opened == "by a service":
        Bus(options.new({"DEFAULT": {"transport_url": url}}))
    elif is_plain(url):
        DirectBus(url, options.new())
    else:
        raise AssertionError("a command uses the bus library for this address")


def test_a_watched_status_leaves_no_bus_open_between_its_rounds(
    tmp_path: Path, bus_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_buses: list[Bus] = []
    open_by_round: list[int] = []

    class Counted(Bus):
        def __init__(self, *of: Any) -> None:
            super().__init__(*of)
            open_buses.append(self)

        def close(self) -> None:
            super().close()
            open_buses.remove(self)

    class ThreeRoundsError(Exception):
        pass

    def shown(_command: object, _parsed: object, _columns: object, _rows: object) -> int:
        open_by_round.append(len(open_buses))
        if len(open_by_round) == 3:
            raise ThreeRoundsError
        return 0

    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = {bus_url}\n")
    monkeypatch.setattr("moorage.bus.bus.Bus", Counted)
    monkeypatch.setattr("moorage.cli.command.ListCommand.produce_output", shown)
    assert main(["--config-file", str(file), "status", "--watch", "0.01", "--timeout", "0.1"]) == 1
    assert open_by_round == [0, 0, 0]


def test_a_closed_connection_is_dropped_without_another_connection() -> None:
    # Otherwise, the library would connect to port 1 and warn about it.
    DirectConnection(amqp.Connection("127.0.0.1:1"), 1.0).drop()


class AlarmedConnection:
    """A connection of the AMQP library whose broker reports these alarms, each by its reason, and null for the end."""

    def __init__(self, *reports: str | None) -> None:
        self.reports = list(reports)
        self._METHODS: dict[Any, Any] = {}
        self._callbacks: dict[Any, Callable[[str], None]] = {}
        self.on_unblocked: Callable[[], None] = lambda: None
        self.is_collected = False

    def channel(self) -> None:
        self.drain_events(1.0)

    def collect(self) -> None:
        self.is_collected = True

    def drain_events(self, timeout: float) -> None:
        if not self.reports:
            raise TimeoutError
        if (reason := self.reports.pop(0)) is None:
            self.on_unblocked()
        else:
            next(iter(self._callbacks.values()))(reason)


@pytest.mark.parametrize("later", [("low on disk",), (None, "low on disk")])
def test_a_connection_that_a_further_alarm_blocks_is_still_blocked(later: tuple[str | None, ...]) -> None:
    broker = AlarmedConnection("low on memory", *later)
    connection = DirectConnection(broker, 1.0)
    with pytest.raises(OSError, match="memory"):
        broker.drain_events(1.0)

    assert connection.is_blocked()


def test_a_connection_is_not_blocked_after_the_end_of_the_alarm() -> None:
    broker = AlarmedConnection("low on memory", None)
    connection = DirectConnection(broker, 1.0)
    with pytest.raises(OSError, match="memory"):
        broker.drain_events(1.0)

    assert not connection.is_blocked()


def test_a_bus_closes_the_blocked_connection_of_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = AlarmedConnection("low on memory")
    monkeypatch.setattr(BrokerHosts, "_connected", lambda *_of: DirectConnection(broker, 1.0))
    bus = Bus(options.new(), "rabbit://m:m@127.0.0.1:1/")
    with pytest.raises(errors.BusUnavailable, match="memory"):
        bus.check_alarms()
    assert not broker.is_collected, "it is kept for the next check"

    bus.close()

    assert broker.is_collected
