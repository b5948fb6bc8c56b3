"""What a cell orders its compute agents to do."""

from conductor.cell_attempts import AttemptRecord
from conductor.cell_hosts import CellHosts
from conductor.steps import Operation
from moorage import context, errors
from moorage.bus import Bus
from moorage.messages import BuildOnHost, DestroyOnHost, RebuildOnHost, StartOnHost, StopOnHost

#: What is done to a guest that is there.
GuestOrder = StopOnHost | StartOnHost | RebuildOnHost


class CellAgents:
    """The agents of a cell, each addressed by its name."""

    def __init__(self, cell_uuid: str, bus: Bus, hosts: CellHosts) -> None:
        self._topic = f"compute.{cell_uuid}"
        self._bus = bus
        self._hosts = hosts

    def build(self, agent: str, message: BuildOnHost) -> None:
        """Order a host to start an attempt.

        :raises MoorageError: what the agent has raised, or that it did not answer.
        """
        self._bus.client(self._topic, server=agent).call(message)

    def order(self, agent: str, message: GuestOrder) -> None:
        """Order a host to do something to a guest; when this returns, it is done.

        :raises MoorageError: what the agent has raised, or that it did not answer.
        """
        client = self._bus.client(self._topic, server=agent)
        # One by one: each message has a type of its own.
        match message:
            case StopOnHost():
                client.call(message)
            case StartOnHost():
                client.call(message)
            case RebuildOnHost():
                client.call(message)

    def why_silent(self, host: str) -> str | None:
        """Return since when a host is missed, or nothing if it is not."""
        return self._hosts.why_silent(host)

    def destroy(self, operation: Operation, instance_uuid: str, attempt: AttemptRecord) -> None:
        """Order a host to destroy what an attempt has started; when this returns, nothing is left of it.

        A host that has been silent for long is not asked: one thread would wait for each of many dead ones.

        :raises InvalidState: the host is silent.
        :raises MoorageError: what the agent has raised, or that it did not answer.
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
            self._bus.client(self._topic, server=attempt.agent).call(message)
