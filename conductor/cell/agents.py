"""Send orders to a cell's compute agents."""

from typing import TypeVar

from oslo_config import cfg

from conductor.cell.hosts.hosts import CellHosts
from conductor.cell.records.attempts import AttemptRecord
from conductor.engine.bulkheads import Bulkheads, CircuitOpen, worker_share
from conductor.engine.steps import Backoff, Operation
from moorage import context, errors
from moorage.bus.bus import Bus
from moorage.messages import BuildOnHost, DestroyOnHost, RebuildOnHost, StartOnHost, StopOnHost
from moorage.messages.wire import Message

R = TypeVar("R")

#: The longest timeout of a probe, in seconds; no order waits for a probe.
_PROBE_SECONDS = 2.0
#: The orders to a guest that exists.
GuestOrder = StopOnHost | StartOnHost | RebuildOnHost


class CellAgents:
    """Sends orders to the agents of a cell, each addressed by its name.

    :param backoff: the seconds between two probes of an agent that does not answer.
    """

    def __init__(self, conf: cfg.ConfigOpts, cell_uuid: str, bus: Bus, hosts: CellHosts, backoff: Backoff) -> None:
        self._topic = f"compute.{cell_uuid}"
        self._bus = bus
        self._hosts = hosts
        timeout: float = conf.rpc.call_timeout
        self._probe_seconds = min(timeout / 3, _PROBE_SECONDS)
        #: One for the orders to each agent. A refused order is repeated a few times; then the next host is tried.
        self.bulkheads = Bulkheads(
            "agent", worker_share(conf), backoff, (errors.NoReply,), timeout / 3, postpones=False
        )

    def build(self, agent: str, message: BuildOnHost) -> None:
        """Order a host to start an attempt.

        :raises MoorageError: the agent has raised it, or has not answered.
        """
        self._call(agent, message)

    def order(self, agent: str, message: GuestOrder) -> None:
        """Order a host to stop, start or rebuild a guest; when this returns, it is done.

        :raises MoorageError: the agent has raised it, or has not answered.
        """
        # One by one, for the type checker: each message has an answer of its own type.
        match message:
            case StopOnHost():
                self._call(agent, message)
            case StartOnHost():
                self._call(agent, message)
            case RebuildOnHost():
                self._call(agent, message)

    def why_silent(self, host: str) -> str | None:
        """Return the reason if a host has been silent for longer than `host_down_after`, else nothing."""
        return self._hosts.why_silent(host)

    def destroy(self, operation: Operation, instance_uuid: str, attempt: AttemptRecord) -> None:
        """Order a host to destroy the guest of an attempt; when this returns, the guest is gone.

        A silent host is not called: with many dead hosts, a thread would wait for each.

        :raises InvalidState: the host is silent.
        :raises MoorageError: the agent has raised it, or has not answered.
        """
        if attempt.claim_id is None:
            return
        silent = self._hosts.why_silent(attempt.host)
        if silent is not None:
            raise errors.InvalidState(reason=silent)
        message = DestroyOnHost(
            request_id=operation.derived("destroy", attempt.attempt_id),
            host=attempt.host,
            instance_uuid=instance_uuid,
            attempt_id=attempt.attempt_id,
            claim_id=attempt.claim_id,
        )
        with context.bound(attempt_id=attempt.attempt_id):
            self._call(attempt.agent, message)

    def _call(self, agent: str, message: Message[R]) -> R:
        client = self._bus.client(self._topic, server=agent)
        try:
            with self.bulkheads.admit(agent, agent, lambda: client.ping(self._probe_seconds)):
                return client.call(message)
        except CircuitOpen as silent:
            raise errors.AgentUnreachable(agent=agent, reason=str(silent)) from silent
