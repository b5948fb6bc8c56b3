"""What a cell orders its compute agents to do."""

from conductor.cell_hosts import CellHosts
from conductor.cell_records import AttemptRecord
from conductor.steps import Operation
from moorage import context, errors
from moorage.bus import Bus
from moorage.messages import BuildOnHost, DestroyOnHost


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
