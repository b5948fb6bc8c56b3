"""RabbitMQ over TLS: who is trusted, which files it needs, and the next host, whose certificate has its own name."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from support.processes.tls import Tls, issue

from harness.servers import free_ports
from moorage import errors
from moorage.bus.bus import Bus, serves
from moorage.bus.direct import DirectBus, DirectClient
from moorage.config import calls, options
from moorage.messages import ListCells
from moorage.model import Cell

#: Each takes a URL, and lists the cells that are served there.
BY = ("a service", "a command")


class Cells:
    @serves(ListCells)
    def list_cells(self, _message: ListCells) -> list[Cell]:
        return []


@pytest.fixture
def served(rabbitmq_url: str) -> Iterator[str]:
    """The URL, without TLS, of a broker where cells are served."""
    bus = Bus(options.new(), rabbitmq_url)
    bus.server("placement", "one", [Cells()]).start()
    yield rabbitmq_url
    bus.close()


@pytest.fixture(params=BY)
def list_cells(request: pytest.FixtureRequest) -> Iterator[Callable[..., list[Cell]]]:
    """How a service and a command list the cells that are served at a URL."""
    opened: list[Bus | DirectBus] = []

    def ask(url: str) -> list[Cell]:
        if request.param == "a service":
            bus = Bus(options.new(), url)
            opened.append(bus)
            return bus.client("placement").call(ListCells())
        direct = DirectBus(url, calls.read([]))
        opened.append(direct)
        return DirectClient(direct, "placement", None, 5.0).call(ListCells())

    yield ask
    for bus in opened:
        bus.close()


List = Callable[[str], list[Cell]]


def test_a_host_is_believed_by_its_certificate(list_cells: List, served: str, tls: Tls) -> None:
    assert list_cells(tls.of_rabbitmq(served)) == []


def test_the_configuration_file_may_say_so_for_all_brokers(served: str, tls: Tls, tmp_path: Path) -> None:
    url, _, said = tls.of_rabbitmq(served).partition("?")
    file = tmp_path / "moorage.conf"
    lines = "\n".join(f"{name} = {value}" for name, value in parse_qsl(said))
    file.write_text(f"[DEFAULT]\ntransport_url = {url}\n[oslo_messaging_rabbit]\n{lines}\n")
    bus = Bus(options.new(files=[file]))
    assert bus.client("placement").call(ListCells()) == []
    bus.close()
    conf = calls.read([file])
    assert calls.is_direct(conf)
    direct = DirectBus(url, conf)
    assert DirectClient(direct, "placement", None, 5.0).call(ListCells()) == []
    direct.close()


def test_one_of_another_authority_is_not(list_cells: List, served: str, tls: Tls, tmp_path: Path) -> None:
    other = issue(tmp_path, "127.0.0.1")
    with pytest.raises(errors.BusUnavailable, match="certificate verify failed"):
        list_cells(tls.of_rabbitmq(served, ssl_ca_file=str(other.authority)))


def test_an_authority_that_is_replaced_in_its_file_counts_for_the_next_connection(
    served: str, tls: Tls, tmp_path: Path
) -> None:
    file = issue(tmp_path, "127.0.0.1").authority
    with closing(Bus(options.new(), tls.of_rabbitmq(served, ssl_ca_file=str(file)))) as bus:
        with pytest.raises(errors.BusUnavailable, match="certificate verify failed"):
            bus.client("placement").call(ListCells())
        file.write_bytes(tls.authority.read_bytes())
        assert bus.client("placement").call(ListCells()) == []


def test_one_whose_certificate_has_another_name_is_not(list_cells: List, served: str, tls: Tls) -> None:
    with pytest.raises(errors.BusUnavailable, match=r"(Hostname|IP address) mismatch"):
        list_cells(tls.of_rabbitmq(served).replace("@127.0.0.1:", "@localhost:"))


def test_the_next_host_is_believed_by_its_own_name(list_cells: List, served: str, tls: Tls) -> None:
    url = tls.of_rabbitmq(served)
    account = urlsplit(url).netloc.rpartition("@")[0]
    [nobody] = free_ports(1)
    assert list_cells(url.replace("//", f"//{account}@127.0.0.2:{nobody},")) == []


def test_a_server_begins_at_the_next_host_and_the_broker_says_who_serves(rabbitmq_url: str, tls: Tls) -> None:
    url = tls.of_rabbitmq(rabbitmq_url)
    account = urlsplit(url).netloc.rpartition("@")[0]
    [nobody] = free_ports(1)
    bus = Bus(options.new(), url.replace("//", f"//{account}@127.0.0.2:{nobody},"))
    # Nobody can tell by an answer: it would take longer than the test may.
    bus.namesake_seconds = 1000.0
    server = bus.server("placement", "one", [Cells()])
    server.start()
    server.check()
    assert bus.servers_of("placement") == bus.servers_of("placement", "one") == 1
    bus.close()


def test_a_wrong_password_is_refused(list_cells: List, rabbitmq_url: str, tls: Tls) -> None:
    head, _, place = tls.of_rabbitmq(rabbitmq_url).partition("@")
    with pytest.raises(errors.BusRefused):
        list_cells(f"{head.rpartition(':')[0]}:wrong@{place}")


@pytest.mark.parametrize("option", ["ssl_ca_file", "ssl_cert_file", "ssl_key_file"])
@pytest.mark.parametrize("content", [None, "", "this is no certificate"])
def test_a_file_that_is_not_what_it_should_be_is_named(
    list_cells: List, rabbitmq_url: str, tls: Tls, tmp_path: Path, option: str, content: str | None
) -> None:
    file = tmp_path / "wrong.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(errors.BusUnavailable, match=r"its TLS cannot be set up \(.*wrong\.pem"):
        list_cells(tls.of_rabbitmq(rabbitmq_url, **{option: str(file)}))


def test_a_key_with_a_password_is_named_and_its_password_is_not_asked_for(
    list_cells: List, rabbitmq_url: str, tls: Tls, tmp_path: Path
) -> None:
    key = serialization.load_pem_private_key(tls.key.read_bytes(), None)
    sealed = serialization.BestAvailableEncryption(b"secret")
    file = tmp_path / "sealed.pem"
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed))
    with pytest.raises(errors.BusUnavailable, match=r"its TLS cannot be set up \(.*sealed\.pem"):
        list_cells(tls.of_rabbitmq(rabbitmq_url, ssl_key_file=str(file)))


def test_a_client_without_the_certificate_that_the_broker_wants_is_refused(
    list_cells: List, rabbitmq_url: str, tls: Tls
) -> None:
    url = tls.of_rabbitmq(rabbitmq_url).partition("?")[0]
    with pytest.raises(errors.BusUnavailable):
        list_cells(f"{url}?ssl=true&ssl_ca_file={tls.authority}")


@pytest.mark.parametrize("option", ["ssl=perhaps", "ssl=true&ssl_version=SSLv9"])
def test_a_wrong_option_is_a_fault_of_the_configuration(rabbitmq_url: str, option: str) -> None:
    bus = Bus(options.new(), f"{rabbitmq_url}?rabbit_login_method=PLAIN")
    bus.probe()
    with pytest.raises(errors.ConfigurationError, match=option.rpartition("=")[2]):
        Bus(options.new(), f"{rabbitmq_url}?{option}").probe()


def test_a_command_refuses_it_as_well(rabbitmq_url: str) -> None:
    direct = DirectBus(f"{rabbitmq_url}?ssl=perhaps", calls.read([]))
    with pytest.raises(errors.ConfigurationError, match="perhaps"):
        direct.servers_of("placement")
