"""Rebuild an instance: replace its guest by one from another image, on the same host. The claim stays unchanged."""

import logging
from functools import partial

import msgspec
from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.cell.payloads import RebuildStep
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance
from conductor.engine.steps import REBUILD, CommitStep, Ended, Operation, Outcome, step
from moorage import errors
from moorage.messages import RebuildOnHost
from moorage.model.states import InstanceState

LOG = logging.getLogger(__name__)


class CellRebuilds(CellPart):
    """The step `rebuild`, the only one of its operation."""

    @step(REBUILD, "rebuild")
    def rebuild(self, operation: Operation) -> CommitStep:
        """Order the host to replace the guest, until it answers; if it refuses, the instance is in error.

        So it is if the order is in progress for longer than the build timeout.
        """
        payload = operation.read(RebuildStep)

        def work(connection: Connection) -> tuple[CellInstance, AttemptRecord]:
            instance = self._cell.records.expect(connection, operation.subject, "rebuilding")
            return instance, self._cell.records.current(connection, instance)

        instance, attempt = self._cell.database.read(work)
        uuid = operation.derived("rebuild")
        message = attempt.order(RebuildOnHost, uuid, instance.guest_order, rebuild_id=uuid, image=payload.image)
        # Do not wait for a silent host: an instance in error can be evacuated from it, or rebuilt again.
        try:
            why = self._cell.hosts.why_silent(attempt.host) or self._cell.agents.order(operation, attempt, message)
        except errors.RequestInProgress:
            return partial(self._still_rebuilding, operation, payload, attempt.host)
        return partial(self._rebuilt, operation, payload, why)

    def _still_rebuilding(
        self, operation: Operation, payload: RebuildStep, host: str, connection: Connection
    ) -> Outcome:
        wait = self._cell.agents.wait_for_order("rebuild", payload, host, connection)
        return self._rebuilt(operation, payload, wait, connection) if isinstance(wait, str) else wait

    def _rebuilt(self, operation: Operation, payload: RebuildStep, why: str | None, connection: Connection) -> Outcome:
        instance = self._cell.records.expect(connection, operation.subject, "rebuilding", lock=True)
        # Record the new image even after a failure, because nothing of the old one may be left on the host.
        spec = msgspec.structs.replace(instance.spec, image=payload.image)
        state: InstanceState = "active" if why is None else "error"
        reason = None if why is None else f"it could not be rebuilt: {why}"
        self._cell.records.change(
            connection, instance.uuid, state=state, request_spec=msgspec.json.encode(spec), reason=reason
        )
        LOG.info("Instance %s has been rebuilt, and is %s", instance.uuid, state)
        return Ended(reason)
