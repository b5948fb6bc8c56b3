"""The message bus of a simulation: messages take time, and may be late, duplicated or lost, or cut off."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.simulation.machine.kernel import KERNEL, OUTSIDE
from moorage.bus import inproc

#: The process that holds the messages in transit. It never crashes.
BROKER = "broker"
#: The mean transit time of a message in seconds.
_TRANSIT = 0.002

#: Called with the sender, the topic and the method of a message, and whether it is an answer (with the method of the
#: request); returns the delay in seconds of each copy: an empty result means that the message is lost.
MessageFault = Callable[[str, str, str, bool], Sequence[float]]

_publish = inproc.Broker.publish


class Network:
    """Holds the faults of messages, and the pairs of processes that are cut off from each other."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Deliver all messages once, without a fault."""
        self.cuts: set[frozenset[str]] = set()
        self.message_fault: MessageFault = lambda _sender, _topic, _method, _answer: (0.0,)
        self.brokers: list[inproc.Broker] = []

    def is_cut(self, one: str, other: str) -> bool:
        """Return whether messages between two processes are lost."""
        return frozenset((one, other)) in self.cuts

    def carry(self, sender: str, what: tuple[str, str, bool], deliver: Callable[[], object]) -> None:
        """Deliver a message after its transit time, as many times as it has copies."""
        for late in self.message_fault(sender, *what):
            seconds = late + KERNEL.chance.expovariate(1 / _TRANSIT)

            def arrive(seconds: float = seconds) -> None:
                KERNEL.sleep(seconds)
                deliver()

            KERNEL.start(arrive, BROKER, f"message {what[1]}")


NETWORK = Network()


class _AnswerBox:
    """Receives the answer to a message, and sends it back to the sender."""

    def __init__(self, box: Any, sender: str, topic: str, method: str) -> None:
        self._box, self._sender, self._what = box, sender, (topic, method, True)

    def put(self, text: str) -> None:
        """Send the answer."""
        server = KERNEL.current.process

        def deliver() -> None:
            if not NETWORK.is_cut(server, self._sender) and self._sender not in KERNEL.dead:
                self._box.put(text)

        KERNEL.note(f"answer {self._what[1]} {text}")
        NETWORK.carry(server, self._what, deliver)


def _send(broker: inproc.Broker, key: inproc.Key, envelope: Any) -> None:
    """Send a message, in place of :meth:`inproc.Broker.publish`."""
    sender, method = KERNEL.current.process, str(envelope.message["method"])
    KERNEL.note(f"send {key} {envelope.message}")
    if envelope.box is not None:
        envelope = replace(envelope, box=_AnswerBox(envelope.box, sender, key[1], method))
    wire = _Wire(sender, envelope, broker, key)
    NETWORK.carry(sender, (key[1], method, False), wire.deliver)


@dataclass(frozen=True)
class _Wire:
    """An envelope with its sender, for the listener, and with its queue."""

    sender: str
    envelope: Any
    broker: inproc.Broker
    key: inproc.Key

    def expired(self) -> bool:
        return bool(self.envelope.expired())

    def deliver(self) -> None:
        """Put the message into its queue."""
        _publish(self.broker, self.key, self)  # type: ignore[arg-type]


def _take(listener: Any, wire: _Wire) -> None:
    """Hand a message to a server, in a task of the server's process, in place of :meth:`inproc.InprocListener.take`."""
    process = listener.simulated_process
    if NETWORK.is_cut(wire.sender, process):
        return

    def arrive() -> None:
        try:
            listener.on_incoming_callback([inproc.InprocMessage(wire.envelope)])
        except (RuntimeError, TypeError):
            if listener.on_incoming_callback is not None:
                raise
            # The server has stopped meanwhile. RabbitMQ gives a message that was not read to another server.
            KERNEL.start(wire.deliver, BROKER, "message of a stopped server")

    KERNEL.start(arrive, process, "arrival")


_listen = inproc.InprocListener.__init__


def _made(listener: Any, home: inproc.Broker, keys: Sequence[inproc.Key]) -> None:
    listener.simulated_process = KERNEL.current.process
    if home not in NETWORK.brokers:
        NETWORK.brokers.append(home)
    _listen(listener, home, keys)


def install() -> None:
    """Replace the in-process bus's transport of messages by the simulated network."""
    broker: Any = inproc.Broker
    listener: Any = inproc.InprocListener
    broker.publish, listener.take, listener.__init__ = _send, _take, _made


def drop_listeners(process: str) -> None:
    """Take a crashed process's servers off the bus, as a broker does when its connections are lost."""
    for broker in NETWORK.brokers:
        for queue in broker._queues.values():  # noqa: SLF001
            for listener in list(queue.takers):
                if getattr(listener, "simulated_process", OUTSIDE) == process:
                    queue.takers.remove(listener)
