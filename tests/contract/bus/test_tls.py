"""Test RabbitMQ over TLS: certificates that are trusted or refused, certificate files, and several hosts."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from support.processes.tls import Tls, issue, terminated

from harness.servers import RabbitMQServer, free_ports
from moorage import errors
from moorage.bus.bus import Bus, serves
from moorage.bus.rabbit.direct import DirectBus, DirectClient
from moorage.config import calls, options
from moorage.messages import ListCells
from moorage.model import Cell

#: Seconds of a call that is answered: only a broker that does not answer takes as long.
PATIENCE = 60.0
#: Both list the cells that are served at a URL.
BY = ("a service", "a command")


class Cells:
    @serves(ListCells)
    def list_cells(self, _message: ListCells) -> list[Cell]:
        return []


class PatientBus(Bus):
    """Counts the servers of a name at the broker: a wait for the answer of one would exceed a test."""

    namesake_seconds = 1000.0


@pytest.fixture(scope="module")
def served(rabbitmq: RabbitMQServer) -> Iterator[str]:
    """The URL, without TLS, of a broker where cells are served."""
    url = rabbitmq.add_vhost("tls")
    bus = Bus(options.new(), url)
    bus.server("placement", "one", [Cells()]).start()
    yield url
    bus.close()


@pytest.fixture(params=BY)
def list_cells(request: pytest.FixtureRequest) -> Iterator[Callable[..., list[Cell]]]:
    """List the cells that are served at a URL, as a service does and as a command does."""
    opened: list[Bus | DirectBus] = []

    def ask(url: str) -> list[Cell]:
        if request.param == "a service":
            bus = Bus(options.new(), url)
            opened.append(bus)
            return bus.client("placement").call(ListCells())
        direct = DirectBus(url, calls.read([]))
        opened.append(direct)
        return DirectClient(direct, "placement", None, PATIENCE).call(ListCells())

    yield ask
    for bus in opened:
        bus.close()


List = Callable[[str], list[Cell]]


def test_a_broker_with_a_valid_certificate_is_trusted(list_cells: List, served: str, tls: Tls) -> None:
    assert list_cells(tls.of_rabbitmq(served)) == []


def test_the_configuration_file_may_have_the_options_of_tls_for_all_brokers(
    served: str, tls: Tls, tmp_path: Path
) -> None:
    url, _, query = tls.of_rabbitmq(served).partition("?")
    file = tmp_path / "moorage.conf"
    lines = "\n".join(f"{name} = {value}" for name, value in parse_qsl(query))
    file.write_text(f"[DEFAULT]\ntransport_url = {url}\n[oslo_messaging_rabbit]\n{lines}\n")
    bus = Bus(options.new(files=[file]))
    assert bus.client("placement").call(ListCells()) == []
    bus.close()
    conf = calls.read([file])
    assert calls.is_direct(conf)
    direct = DirectBus(url, conf)
    assert DirectClient(direct, "placement", None, PATIENCE).call(ListCells()) == []
    direct.close()


def test_a_certificate_of_another_authority_is_refused(list_cells: List, served: str, tls: Tls, tmp_path: Path) -> None:
    other = issue(tmp_path, "127.0.0.1")
    with pytest.raises(errors.BusUnavailable, match="certificate verify failed"):
        list_cells(tls.of_rabbitmq(served, ssl_ca_file=str(other.authority)))


def test_a_replaced_file_of_the_authority_is_read_for_the_next_connection(
    served: str, tls: Tls, tmp_path: Path
) -> None:
    file = issue(tmp_path, "127.0.0.1").authority
    with closing(Bus(options.new(), tls.of_rabbitmq(served, ssl_ca_file=str(file)))) as bus:
        with pytest.raises(errors.BusUnavailable, match="certificate verify failed"):
            bus.client("placement").call(ListCells())
        file.write_bytes(tls.authority.read_bytes())
        assert bus.client("placement").call(ListCells()) == []


def test_a_certificate_with_another_name_is_refused(list_cells: List, served: str, tls: Tls) -> None:
    with pytest.raises(errors.BusUnavailable, match=r"(Hostname|IP address) mismatch"):
        list_cells(tls.of_rabbitmq(served).replace("@127.0.0.1:", "@localhost:"))


def test_the_certificate_of_the_next_host_is_checked_against_its_own_name(
    list_cells: List, served: str, tls: Tls
) -> None:
    url = tls.of_rabbitmq(served)
    account = urlsplit(url).netloc.rpartition("@")[0]
    [nobody] = free_ports(1)
    assert list_cells(url.replace("//", f"//{account}@127.0.0.2:{nobody},")) == []


def test_after_the_loss_of_a_host_the_certificate_of_another_one_is_checked_against_its_own_name(
    served: str, tls: Tls, tmp_path: Path
) -> None:
    other = issue(tmp_path, "127.0.0.2")
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(tls.authority.read_bytes() + other.authority.read_bytes())
    url = tls.of_rabbitmq(served, ssl_ca_file=str(authorities))
    account = urlsplit(url).netloc.rpartition("@")[0]
    both = url.replace("//", f"//{account}@127.0.0.2:{other.port},")
    port = urlsplit(served).port
    assert port is not None
    with closing(Bus(options.new(), both)) as bus:
        client = bus.client("placement")
        with terminated(other, "127.0.0.2", port):
            assert client.call(ListCells()) == []
        assert client.call(ListCells()) == []


def test_a_server_connects_to_the_next_host_and_the_broker_counts_it(rabbitmq_url: str, tls: Tls) -> None:
    url = tls.of_rabbitmq(rabbitmq_url)
    account = urlsplit(url).netloc.rpartition("@")[0]
    [nobody] = free_ports(1)
    bus = PatientBus(options.new(), url.replace("//", f"//{account}@127.0.0.2:{nobody},"))
    server = bus.server("placement", "one", [Cells()])
    server.start()
    server.check()
    assert bus.servers_of("placement") == bus.servers_of("placement", "one") == 1
    bus.close()


def test_a_wrong_password_is_refused(list_cells: List, served: str, tls: Tls) -> None:
    head, _, place = tls.of_rabbitmq(served).partition("@")
    with pytest.raises(errors.BusRefused):
        list_cells(f"{head.rpartition(':')[0]}:wrong@{place}")


@pytest.mark.parametrize("option", ["ssl_ca_file", "ssl_cert_file", "ssl_key_file"])
@pytest.mark.parametrize("content", [None, "", "this is no certificate"])
def test_an_invalid_file_is_named(
    list_cells: List, served: str, tls: Tls, tmp_path: Path, option: str, content: str | None
) -> None:
    file = tmp_path / "wrong.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(errors.BusUnavailable, match=r"its TLS cannot be set up \(.*wrong\.pem"):
        list_cells(tls.of_rabbitmq(served, **{option: str(file)}))


def test_the_file_of_an_encrypted_key_is_named_and_no_password_is_requested(
    list_cells: List, served: str, tls: Tls, tmp_path: Path
) -> None:
    key = serialization.load_pem_private_key(tls.key.read_bytes(), None)
    sealed = serialization.BestAvailableEncryption(b"secret")
    file = tmp_path / "sealed.pem"
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed))
    with pytest.raises(errors.BusUnavailable, match=r"its TLS cannot be set up \(.*sealed\.pem"):
        list_cells(tls.of_rabbitmq(served, ssl_key_file=str(file)))


def test_a_client_without_a_certificate_is_refused(list_cells: List, served: str, tls: Tls) -> None:
    url = tls.of_rabbitmq(served).partition("?")[0]
    with pytest.raises(errors.BusUnavailable):
        list_cells(f"{url}?ssl=true&ssl_ca_file={tls.authority}")


@pytest.mark.parametrize("option", ["ssl=perhaps", "ssl=true&ssl_version=SSLv9"])
def test_an_invalid_option_of_tls_is_an_error_of_the_configuration(served: str, option: str) -> None:
    bus = Bus(options.new(), f"{served}?rabbit_login_method=PLAIN")
    bus.probe()
    with pytest.raises(errors.ConfigurationError, match=option.rpartition("=")[2]):
        Bus(options.new(), f"{served}?{option}").probe()


def test_a_login_that_the_amqp_library_does_not_know_is_an_error_of_the_configuration(served: str) -> None:
    conf = options.new({"oslo_messaging_rabbit": {"rabbit_login_method": "RABBIT-CR-DEMO"}})
    with pytest.raises(errors.ConfigurationError, match="RABBIT-CR-DEMO"):
        Bus(conf, served).probe()


@pytest.mark.parametrize("option", ["ssl=perhaps", "rabbit_login_method=foo"])
def test_a_command_refuses_an_invalid_option_of_a_url(served: str, option: str) -> None:
    direct = DirectBus(f"{served}?{option}", calls.read([]))
    with pytest.raises(errors.ConfigurationError, match=option.rpartition("=")[2]):
        direct.servers_of("placement")
