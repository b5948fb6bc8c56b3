"""A server of one topic under its own name, which no other running server has."""

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from moorage import errors, ids
from moorage.bus.broker import close_transport, closing_faults_ignored, declaration
from moorage.bus.calling import HOUSEKEEPING
from moorage.bus.rpc_server import CallDispatcher, ThreadedServer

import oslo_messaging

if TYPE_CHECKING:
    from moorage.bus.bus import Bus, Client

#: Seconds that a server waits at a stop for an unreachable broker. Arbitrary: half of a process's time to stop.
_ANSWER_SECONDS = 5.0
#: Seconds after which the threads count as stuck if all are busy and none becomes free. Arbitrary: longer than a call
#: waits for its answer by default.
_STUCK_SECONDS = 45.0
#: Seconds that a server waits for its own answer. Without one it continues: it may be busy with waiting messages.
_OWN_ANSWER_SECONDS = 5.0
#: Pings to detect a second server of the same name if the broker does not report the number of servers. Two servers
#: then miss each other with a probability of less than one in a thousand.
_LOOKS = 10


class _Housekeeping:
    target = oslo_messaging.Target(namespace=HOUSEKEEPING, version="1.0")

    def __init__(self) -> None:
        self.identity = ids.fresh()

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def wake(self, ctxt: dict[str, Any], /) -> str:  # noqa: ARG002  # the library passes it
        """Return the identity of this server; the arrival of the message wakes the listener."""
        return self.identity


class BusServer:
    """A server of one topic under its own name; several servers may share a topic."""

    def __init__(self, bus: "Bus", topic: str, server: str, endpoints: Sequence[object], threads: int) -> None:
        self._bus = bus
        self._target = oslo_messaging.Target(topic=topic, server=server)
        # The server has its own transport: its replies wait for the broker without end, and a client that shared the
        # connections would wait with them.
        self._transport = bus.new_transport()
        self._housekeeping = _Housekeeping()
        self._server = ThreadedServer(
            self._transport,
            self._target,
            CallDispatcher([*endpoints, self._housekeeping]),
            threads=threads,
            # A cell's topic ends with the cell's uuid, which would make a label value of the metrics for each cell.
            topic=topic.partition(".")[0],
        )
        self._lock = threading.Lock()
        self._running = False

    def start(self) -> None:
        """Begin to take messages. A stopped server cannot be started again: :meth:`Bus.server` makes a new one.

        :raises BusUnavailable: the broker cannot be reached, or refuses the server's queues.
        :raises ServiceNameTaken: another server with this topic and name answers.
        """
        self._bus.probe()
        with self._lock:
            if self._running:
                return
            is_beside_silent = self.refuse_second()
            with declaration(self._bus.url, self._transport):
                self._server.begin()
            self._running = True
        if is_beside_silent:
            # The silent consumer would get every second ping and not answer it.
            return
        try:
            self._refuse_simultaneous()
        except errors.ServiceNameTaken:
            self.stop()
            raise

    def refuse_second(self) -> bool:
        """Refuse to start if another running server has this topic and name: the two would share the messages.

        When a server is killed, the broker removes its consumer at once. When its machine is lost, the consumer stays
        for a while and does not answer.

        :returns: whether there is certainly such a silent consumer.
        :raises ServiceNameTaken: another server of this name answers.
        :raises BusUnavailable: the broker cannot be reached.
        """
        servers = self._bus.servers_of(self._target.topic, self._target.server)
        if servers == 0:
            return False
        with suppress(errors.NoReply):
            self._client(self._bus.namesake_seconds).ping()
            raise self._taken
        # If the broker does not report the number, there is probably no other server.
        return servers is not None

    def check(self) -> None:
        """Check that this server gets messages and answers them; a probe of the process's readiness.

        :raises BusUnavailable: the broker cannot be reached or takes no messages, or this server does not consume from
            its queue again yet.
        :raises Overloaded: all threads have been busy for a long time.
        """
        if self._bus.servers_of(self._target.topic, self._target.server) == 0:
            queue = f"{self._target.topic}.{self._target.server}"
            raise errors.BusUnavailable(reason=f"{self._bus.url}: queue {queue} is not consumed from here")
        self._bus.check_alarms()
        if (seconds := self._server.seconds_stuck()) > _STUCK_SECONDS:
            reason = f"all threads of {self._target.topic} have been busy for {seconds:.0f} s"
            raise errors.Overloaded(reason=reason)

    def stop(self) -> None:
        """Stop taking messages, and return once the taken ones have been answered. A second call does nothing.

        If the broker is unreachable, wait some seconds for it, then drop the answers that cannot be sent.
        """
        with self._lock:
            if not self._running:
                return
            self._running = False
            with self._giving_up():
                self._server.end()
                with closing_faults_ignored():
                    self._server.wait()
            close_transport(self._transport)
            self._bus.forget(self)

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """End all waits for an unreachable broker some seconds after entry."""
        given_up: threading.Event | None = getattr(self._transport._driver, "given_up", None)  # noqa: SLF001
        if given_up is None:  # the in-process broker is always available
            yield
            return
        timer = threading.Timer(_ANSWER_SECONDS, given_up.set)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def _refuse_simultaneous(self) -> None:
        """Refuse this server if another one of its topic and name starts at the same moment.

        Neither could find the other before. At least the later of the two is refused, and perhaps both are.

        :raises ServiceNameTaken: another server of this name answers.
        """
        # If the broker has become unreachable, the server waits for it as at any other time.
        with suppress(errors.NoReply, errors.BusUnavailable):
            # This server's own answer shows that the broker delivers messages to it.
            self._require_own_answer()
            if self._bus.servers_of(self._target.topic, self._target.server) == 1:
                return
            # The broker gives messages to the servers of a queue in turn, so a server that pings twice gets an answer
            # from each. Two servers that ping alternately would each get only their own answers. Therefore each server
            # sends one more message at random, which changes the turn.
            for _ in range(_LOOKS):
                if random.getrandbits(1):
                    self._client().wake()
                self._require_own_answer()
                self._require_own_answer()

    def _require_own_answer(self) -> None:
        """Ping this topic and name, and require that this server answers.

        :raises ServiceNameTaken: another server has answered.
        :raises NoReply: no server has answered.
        :raises BusUnavailable: the broker cannot be reached.
        """
        if self._client().ping() != self._housekeeping.identity:
            raise self._taken

    def _client(self, seconds: float = _OWN_ANSWER_SECONDS) -> "Client":
        return self._bus.client(self._target.topic, self._target.server, seconds)

    @property
    def _taken(self) -> errors.ServiceNameTaken:
        return errors.ServiceNameTaken(name=self._target.server, topic=self._target.topic)
