"""The buses under the suite of the contract."""

from collections.abc import Iterator

import pytest
from support.bus.counting_service import CountingRig
from support.bus.greeting_service import Cloud
from support.processes.tls import Tls

from harness.servers import RabbitMQServer
from moorage import ids
from moorage.bus.rabbit import driver, message_batches

#: Within this process, and RabbitMQ in plain text and over TLS.
BUSES = ("inproc", *(pytest.param(name, marks=pytest.mark.servers) for name in ("rabbit", "rabbit-tls")))


@pytest.fixture(params=BUSES)
def bus_url(request: pytest.FixtureRequest, tls: Tls) -> str:
    """The URL of a bus that no other test uses."""
    return _url(request, tls, "rabbitmq_url")


@pytest.fixture(params=BUSES)
def shared_bus_url(request: pytest.FixtureRequest, tls: Tls) -> str:
    """The URL of a bus for a test with unique names of topics: on RabbitMQ, other tests use the same virtual host."""
    return _url(request, tls, "shared_vhost")


@pytest.fixture(scope="session")
def shared_vhost(rabbitmq: RabbitMQServer) -> str:
    """One virtual host for many tests: to create five of them costs a second of a processor."""
    return rabbitmq.add_vhost("shared")


@pytest.fixture
def cloud(shared_bus_url: str) -> Iterator[Cloud]:
    built = Cloud(shared_bus_url)
    yield built
    built.close()


def _url(request: pytest.FixtureRequest, tls: Tls, of_rabbitmq: str) -> str:
    if request.param == "inproc":
        return f"inproc://{ids.fresh()}/"
    url: str = request.getfixturevalue(of_rabbitmq)
    return tls.of_rabbitmq(url) if request.param == "rabbit-tls" else url


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of calls in each message that a server has read."""
    found: list[int] = []

    def count(message: dict[str, object]) -> list[dict[str, object]] | None:
        calls = message_batches.calls_of(message)
        found.append(1 if calls is None else len(calls))
        return calls

    monkeypatch.setattr(driver, "calls_of", count)
    return found


@pytest.fixture
def rig(shared_bus_url: str) -> Iterator[CountingRig]:
    """A server that counts its calls, on each bus."""
    made = CountingRig(shared_bus_url)
    yield made
    made.close()


@pytest.fixture
def on_rabbit(shared_vhost: str) -> Iterator[CountingRig]:
    """The same on RabbitMQ alone."""
    made = CountingRig(shared_vhost)
    yield made
    made.close()
