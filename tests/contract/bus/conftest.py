"""The buses that the contract is tried on."""

import pytest

from moorage import ids


@pytest.fixture(params=["inproc", pytest.param("rabbit", marks=pytest.mark.servers)])
def bus_url(request: pytest.FixtureRequest) -> str:
    """The URL of a bus that nothing else uses: within this process, and RabbitMQ's."""
    if request.param == "inproc":
        return f"inproc://{ids.fresh()}/"
    url: str = request.getfixturevalue("rabbitmq_url")
    return url
