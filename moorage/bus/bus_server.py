"""A server of one topic under its own name, which no other living server has."""

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from moorage.bus.broker import close_transport, closing_faults_ignored, declaration

# isort: split
# Imported after the line above, which selects the threading backend.
import oslo_messaging

from moorage import errors, ids
from moorage.bus.calling import HOUSEKEEPING
from moorage.bus.rpc_server import ThreadedServer

if TYPE_CHECKING:
    from moorage.bus.bus import Bus, Client

#: Seconds that a server waits for an absent broker at a stop. Arbitrary: half of the time that a process has to stop.
_ANSWER_SECONDS = 5.0
#: Seconds after which threads that are all busy, and of which none becomes free, count as stuck. Arbitrary: longer than
#: a call waits for its answer by default.
_STUCK_SECONDS = 45.0
#: Seconds that a server waits for its own answer. Without one it goes on: it may be busy with waiting messages.
_OWN_ANSWER_SECONDS = 5.0
#: Pings to detect a second server where the broker does not give their number: two of one name miss each other with a
#: probability of less than one in a thousand.
_LOOKS = 10


class _Housekeeping:
    target = oslo_messaging.Target(namespace=HOUSEKEEPING, version="1.0")

    def __init__(self) -> None:
        self.identity = ids.fresh()

    @oslo_messaging.expose  # type: ignore[untyped-decorator]
    def wake(self, ctxt: dict[str, Any], /) -> str:  # noqa: ARG002  # the library passes it
        """Return which server this is; the arrival of the message wakes the listener."""
        return self.identity


class BusServer:
    """A server of one topic under its own name; several servers may share a topic."""

    def __init__(self, bus: "Bus", topic: str, server: str, endpoints: Sequence[object], threads: int) -> None:
        self._bus = bus
        self._target = oslo_messaging.Target(topic=topic, server=server)
        # A transport of its own: a server's replies wait for the broker without end, and a client that shared its
        # connections would wait with them.
        self._transport = bus.new_transport()
        self._housekeeping = _Housekeeping()
        self._server = oslo_messaging.get_rpc_server(
            self._transport,
            self._target,
            [*endpoints, self._housekeeping],
            access_policy=oslo_messaging.ExplicitRPCAccessPolicy,
            # Topics of cells end with the cell's uuid: as metrics name them, there are few.
            server_cls=partial(ThreadedServer, threads=threads, topic=topic.partition(".")[0]),
        )
        self._lock = threading.Lock()
        self._running = False

    def start(self) -> None:
        """Begin to take messages. A stopped server is not started again: make another by :meth:`Bus.server`.

        :raises BusUnavailable: the broker cannot be reached, or refuses the server's queues.
        :raises ServiceNameTaken: another server with this topic and name answers.
        """
        self._bus.probe()
        with self._lock:
            if self._running:
                return
            is_beside_silent = self._refuse_second()
            with declaration(self._bus.url, self._transport):
                self._server.begin()
            self._running = True
        if is_beside_silent:
            # It would get every second ping, and keep each of them waiting.
            return
        try:
            self._refuse_simultaneous()
        except errors.ServiceNameTaken:
            self.stop()
            raise

    def check(self) -> None:
        """Check that this server gets messages and answers them; a probe of the process's readiness.

        :raises BusUnavailable: the broker cannot be reached or takes no messages, or this server has not come back to
            its queue yet.
        :raises Overloaded: all threads have been busy for a long time.
        """
        consumers = self._bus.servers_of(self._target.topic, self._target.server)
        if consumers is None:  # the broker does not give the number
            self._bus.probe()
        if consumers == 0:
            queue = f"{self._target.topic}.{self._target.server}"
            raise errors.BusUnavailable(reason=f"{self._bus.url}: queue {queue} is not consumed from here")
        self._bus.check_alarms()
        if (seconds := self._server.seconds_stuck()) > _STUCK_SECONDS:
            reason = f"all threads of {self._target.topic} have been busy for {seconds:.0f} s"
            raise errors.Overloaded(reason=reason)

    def stop(self) -> None:
        """Take no more messages, and return once those taken have been answered. A second call does nothing.

        If the broker is away, this waits some seconds for it; answers that cannot be sent by then are dropped.
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
        """End all waiting for an absent broker some seconds after entry."""
        given_up: threading.Event | None = getattr(self._transport._driver, "given_up", None)  # noqa: SLF001
        if given_up is None:  # within one process the broker is always there
            yield
            return
        timer = threading.Timer(_ANSWER_SECONDS, given_up.set)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()

    def _refuse_second(self) -> bool:
        """Refuse a topic and name that another living server has: the two would share the messages.

        The consumer of a killed server leaves the broker at once. That of a lost machine stays for a while, and does
        not answer.

        :returns: whether there is known to be such a silent consumer.
        :raises ServiceNameTaken: another server of this name answers.
        :raises BusUnavailable: the broker cannot be reached.
        """
        servers = self._bus.servers_of(self._target.topic, self._target.server)
        if servers == 0:
            return False
        with suppress(errors.NoReply):
            self._ping(self._bus.namesake_seconds)
            raise self._taken
        # Where the broker does not give the number, there is probably nobody.
        return servers is not None

    def _refuse_simultaneous(self) -> None:
        """Refuse this server where another of its topic and name has begun at the same moment.

        Neither could find the other before. Of two at least the later one is refused, and perhaps both.

        :raises ServiceNameTaken: another server of this name answers.
        """
        # A broker that has gone since is waited for like at any other time.
        with suppress(errors.NoReply, errors.BusUnavailable):
            # Its own answer shows that the broker knows this server.
            self._require_own_answer()
            if self._bus.servers_of(self._target.topic, self._target.server) == 1:
                return
            # The broker gives messages to the servers of a queue in turn: one of two that asks twice has an answer of
            # each. Two that ask in step would each have their own answers for ever, so chance decides whose turn it is.
            for _ in range(_LOOKS):
                if random.getrandbits(1):
                    self._client().wake()
                self._require_own_answer()
                self._require_own_answer()

    def _require_own_answer(self) -> None:
        """Ask for an answer of a server of this name.

        :raises ServiceNameTaken: it is another's.
        :raises NoReply: there is none.
        :raises BusUnavailable: the broker cannot be reached.
        """
        if self._ping(_OWN_ANSWER_SECONDS) != self._housekeeping.identity:
            raise self._taken

    def _ping(self, seconds: float) -> str | None:
        """Return which server of this topic and name has answered."""
        return self._client(seconds).ping()

    def _client(self, seconds: float = _OWN_ANSWER_SECONDS) -> "Client":
        return self._bus.client(self._target.topic, self._target.server, seconds)

    @property
    def _taken(self) -> errors.ServiceNameTaken:
        return errors.ServiceNameTaken(name=self._target.server, topic=self._target.topic)
