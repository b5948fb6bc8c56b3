"""Test the limits for the clients of the HTTP listener of a process."""

import http.client
from collections.abc import Iterator

import pytest

from harness.servers import free_ports
from moorage.service.listener import Listener
from moorage.service.readiness import Readiness


@pytest.fixture
def client() -> Iterator[http.client.HTTPConnection]:
    """A connection to a listener."""
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


def test_a_long_body_without_a_length_is_refused(client: http.client.HTTPConnection) -> None:
    client.putrequest("POST", "/healthz")
    client.putheader("Transfer-Encoding", "chunked")
    client.endheaders()
    # Not more than the limit: a connection that is closed while there is unread data loses the answer.
    client.send(b"10000\r\n" + bytes(65_536))
    assert client.getresponse().status == 413


@pytest.mark.parametrize(("size", "status"), [(30_000, 200), (40_000, 431)])
def test_long_headers_are_refused(client: http.client.HTTPConnection, size: int, status: int) -> None:
    client.request("GET", f"/healthz?{'x' * size}")
    assert client.getresponse().status == status
