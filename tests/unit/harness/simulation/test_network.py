"""Test the message bus of the simulation by itself."""

import pytest

from harness.simulation.machine import network
from harness.simulation.machine.kernel import KERNEL
from moorage.bus import inproc

KEY = ("moorage", "topic")
CALL = {"method": "list_cells"}


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> inproc.Broker:
    """A broker whose messages travel over the simulated network, until the end of the test."""
    for kind, name in (
        (inproc.Broker, "publish"),
        (inproc.InprocListener, "take"),
        (inproc.InprocListener, "__init__"),
    ):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    network.install()
    network.NETWORK.reset()
    KERNEL.reset("test")
    return inproc.Broker()


def stopping(broker: inproc.Broker, *, stops: bool) -> inproc.InprocListener:
    """Add the listener of a server that accepts no more work, and that stops while it gets a message."""
    listener = inproc.InprocListener(broker, [KEY])

    def refuse(_messages: list[inproc.InprocMessage]) -> None:
        if stops:
            listener.stop()
        raise RuntimeError("cannot schedule new futures after shutdown")

    listener.start(refuse)
    return listener


def test_a_message_that_reaches_a_server_during_its_stop_goes_to_another_one(broker: inproc.Broker) -> None:
    stopping(broker, stops=True)
    broker.publish(KEY, inproc.Envelope({}, CALL, None, None))
    KERNEL.sleep(1.0)
    taken: list[inproc.InprocMessage] = []

    inproc.InprocListener(broker, [KEY]).start(taken.extend)
    KERNEL.sleep(1.0)

    assert [message.message for message in taken] == [CALL]


def test_the_error_of_a_server_that_has_not_stopped_ends_the_history(broker: inproc.Broker) -> None:
    stopping(broker, stops=False)
    broker.publish(KEY, inproc.Envelope({}, CALL, None, None))
    with pytest.raises(RuntimeError, match="cannot schedule"):
        KERNEL.sleep(1.0)
