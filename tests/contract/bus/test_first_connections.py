"""Test the first connections of a bus whose broker is lost after it has been checked."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.servers import free_ports
from moorage import errors
from moorage.batches import BatchItem
from moorage.bus import bus
from moorage.bus.bus import Bus, Client, serves
from moorage.bus.rabbit import connection
from moorage.config import options
from moorage.messages import ListCells
from moorage.model import Cell

# Imported after the bus, which selects the threading backend.
from oslo_messaging._drivers import impl_rabbit


class Cells:
    @serves(ListCells)
    def list_cells(self, _message: ListCells) -> list[Cell]:
        return []


@pytest.fixture
def lost_broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bus]:
    """A bus whose broker has just answered a check, and accepts no connection or ends each one since then."""
    monkeypatch.setattr(connection, "_FIRST_SECONDS", 0.0)
    monkeypatch.setattr(bus.Bus, "probe", lambda _bus: None)
    if request.param == "accepts no connection":
        [port] = free_ports(1)
        url = f"rabbit://guest:guest@127.0.0.1:{port}/"
    else:
        url = request.getfixturevalue("shared_vhost")

        def ended(_consumer: object, _connection: object) -> None:
            raise ConnectionResetError("the broker has ended the connection")

        monkeypatch.setattr(impl_rabbit.Consumer, "declare", ended)
    made = Bus(options.new({"DEFAULT": {"transport_url": url}}))
    yield made
    made.close()


LOST = pytest.mark.parametrize(
    "lost_broker",
    ["accepts no connection", pytest.param("ends each connection", marks=pytest.mark.servers)],
    indirect=True,
)


def call(client: Client) -> None:
    client.call(ListCells())


def call_together(client: Client) -> None:
    [[item]] = client.call_many([BatchItem(ListCells())])
    item.outcome()


@LOST
@pytest.mark.parametrize("send", [call, call_together])
def test_a_call_does_not_wait_for_the_broker_to_return_before_it_has_a_reply_queue(
    lost_broker: Bus, send: Callable[[Client], None]
) -> None:
    threads = ThreadPoolExecutor()
    try:
        with pytest.raises(errors.BusUnavailable):
            threads.submit(send, lost_broker.client("placement")).result(20)
    finally:
        lost_broker.close()
        threads.shutdown()
