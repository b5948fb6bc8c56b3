"""The buses that the contract is tried on."""

import pytest
from support.processes.tls import Tls

from moorage import ids


@pytest.fixture(
    params=["inproc", *(pytest.param(name, marks=pytest.mark.servers) for name in ("rabbit", "rabbit-tls"))]
)
def bus_url(request: pytest.FixtureRequest, tls: Tls) -> str:
    """The URL of a bus that nothing else uses: within this process, and RabbitMQ's, in plain text and over TLS."""
    if request.param == "inproc":
        return f"inproc://{ids.fresh()}/"
    url: str = request.getfixturevalue("rabbitmq_url")
    return tls.of_rabbitmq(url) if request.param == "rabbit-tls" else url
