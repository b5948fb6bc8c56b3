"""Test the limits for the clients of the HTTP listener of a process."""

import http.client
import resource
import socket
import time
from collections.abc import Iterator

import pytest
from support.http.api import answers
from support.processes.signalled_service import program

from harness.servers import free_ports
from harness.waiting import wait_until
from moorage.service.http_server import HttpServer
from moorage.service.listener import Listener
from moorage.service.readiness import Readiness


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[http.client.HTTPConnection]:
    """A connection to a listener."""
    monkeypatch.setattr("moorage.service.listener._RECEIVE_SECONDS", 2.0)
    [port] = free_ports(1)
    listener = Listener("127.0.0.1", port, Readiness())
    listener.start()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    yield connection
    connection.close()
    listener.stop()


@pytest.mark.parametrize(("size", "status"), [(1_000, 405), (10_000_000, 413)])
def test_a_long_body_is_refused_before_it_is_read(client: http.client.HTTPConnection, size: int, status: int) -> None:
    client.putrequest("POST", "/healthz")
    client.putheader("Content-Length", str(size))
    client.endheaders()
    if status == 405:
        client.send(bytes(size))
    assert client.getresponse().status == status


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_a_head_has_the_status_of_a_get_and_no_body(client: http.client.HTTPConnection, path: str) -> None:
    client.request("GET", path)
    got = client.getresponse()
    assert got.read()

    client.request("HEAD", path)
    answer = client.getresponse()

    assert (answer.status, answer.read()) == (got.status, b"")
    client.request("GET", path)
    assert client.getresponse().status == got.status  # nothing of a body is left on the connection


@pytest.mark.parametrize("accepted", ["application/openmetrics-text", "text/plain"])
@pytest.mark.parametrize("version", ["latest", '"1.0.0"', "1.x", "1..0", "9" * 5000])
def test_metrics_are_in_plain_text_for_a_client_that_accepts_a_version_that_is_no_number(
    client: http.client.HTTPConnection, accepted: str, version: str
) -> None:
    client.request("GET", "/metrics", headers={"Accept": f"{accepted}; version={version}, */*;q=0.1"})
    answer = client.getresponse()
    assert (answer.status, answer.headers.get_content_type()) == (200, "text/plain")
    assert b"moorage_ready" in answer.read()


def test_a_client_that_accepts_open_metrics_gets_them(client: http.client.HTTPConnection) -> None:
    client.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0;q=0.5, */*;q=0.1"})
    assert client.getresponse().headers.get_content_type() == "application/openmetrics-text"


def test_a_long_body_without_a_length_is_refused(client: http.client.HTTPConnection) -> None:
    client.putrequest("POST", "/healthz")
    client.putheader("Transfer-Encoding", "chunked")
    client.endheaders()
    # Not more than the limit: a connection that is closed while there is unread data loses the answer.
    client.send(b"10000\r\n" + bytes(65_536))
    assert client.getresponse().status == 413


@pytest.mark.parametrize("begin", [b"5;", b"0\r\n"], ids=["of a chunk", "after the last chunk"])
def test_a_long_line_in_a_chunked_body_is_refused(client: http.client.HTTPConnection, begin: bytes) -> None:
    client.putrequest("POST", "/healthz")
    client.putheader("Transfer-Encoding", "chunked")
    client.endheaders()
    client.send(begin + b"x" * 20_000)
    assert client.getresponse().status == 400


@pytest.mark.parametrize(("size", "status"), [(30_000, 200), (40_000, 431)])
def test_long_headers_are_refused(client: http.client.HTTPConnection, size: int, status: int) -> None:
    client.request("GET", f"/healthz?{'x' * size}")
    assert client.getresponse().status == status


@pytest.mark.parametrize(
    ("path", "length"),
    [("http://[::1/healthz", "0"), ("/healthz", "9" * 5_000)],
    ids=["half a bracket", "thousands of digits"],
)
def test_a_request_that_python_cannot_read_is_400(
    client: http.client.HTTPConnection, path: str, length: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.putrequest("GET", path, skip_host=True)
    client.putheader("Content-Length", length)
    client.endheaders()
    answer = client.getresponse()
    assert answer.status == 400
    assert b"The request cannot be read: " in answer.read()
    assert not caplog.records


@pytest.mark.parametrize(
    ("version", "length"), [("1.1", "Content-Length: 43\r\n"), ("1.0", "")], ids=["two lengths", "chunks before 1.1"]
)
def test_a_body_whose_end_front_ends_may_see_elsewhere_is_refused_and_ends_the_connection(
    client: http.client.HTTPConnection, version: str, length: str
) -> None:
    client.connect()
    client.sock.sendall(
        f"POST /healthz HTTP/{version}\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n{length}\r\n".encode()
        + b"0\r\n\r\n"
        + b"GET /readyz HTTP/1.1\r\nHost: smuggled\r\n\r\n"
    )
    received = b""
    while part := client.sock.recv(4096):
        received += part
    assert received.startswith(f"HTTP/{version} 400 ".encode())
    assert received.count(b"HTTP/1") == 1


def test_a_client_that_sends_single_bytes_is_refused(client: http.client.HTTPConnection) -> None:
    client.connect()
    client.sock.settimeout(0.2)
    refused = b""
    for byte in b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 50:
        client.sock.sendall(bytes([byte]))
        try:
            refused = client.sock.recv(12)
            break
        except TimeoutError:
            continue
    assert refused == b"HTTP/1.0 408"


@pytest.fixture
def maintained(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A list that gets an entry each time that the listener has looked for idle connections."""
    found: list[float] = []
    maintain = HttpServer.maintenance

    def maintenance(server: HttpServer, now: float) -> None:
        maintain(server, now)
        found.append(now)

    monkeypatch.setattr(HttpServer, "maintenance", maintenance)
    return found


def set_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the clock of the day forwards or back."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + seconds)


def test_a_connection_is_kept_when_the_clock_is_set_forwards(
    client: http.client.HTTPConnection, maintained: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.request("GET", "/healthz")
    client.getresponse().read()
    set_clock(monkeypatch, 3_600.0)
    before = len(maintained)
    wait_until(lambda: len(maintained) >= before + 2, "idle connections to be looked for")
    client.request("GET", "/healthz")
    assert client.getresponse().status == 200


def test_a_request_that_does_not_arrive_is_refused_although_the_clock_is_set_back(
    client: http.client.HTTPConnection, maintained: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.connect()
    client.sock.sendall(b"GET")
    wait_until(lambda: maintained, "the listener")
    set_clock(monkeypatch, -3_600.0)
    assert client.sock.recv(12) == b"HTTP/1.0 408"


def test_a_process_without_descriptors_logs_little_and_answers_when_it_has_some() -> None:
    [port] = free_ports(1)
    imports = "from moorage.service.listener import Listener; from moorage.service.readiness import Readiness"
    with program(f"{imports}\nrun(Quiet(), listener=Listener('127.0.0.1', {port}, Readiness()))") as service:
        service.until("Ready")
        pid = service.process.pid
        former = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        # The process has all descriptors below this number.
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (4, former[1]))
        # The kernel completes the connection, but the process cannot accept it.
        with socket.create_connection(("127.0.0.1", port)):
            time.sleep(1.0)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, former)
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/healthz"), "an answer")
        service.process.kill()
        service.ended()
    refused = service.lines[service.lines.index("Ready") + 1 :]
    assert 1 <= len(refused) < 20
    assert refused[0].startswith("No connection can be accepted: [Errno 24]")
