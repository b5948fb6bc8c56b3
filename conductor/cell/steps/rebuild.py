"""Rebuild an instance: its guest is replaced, on the same host, by one from another image. Its claim stays as it is."""

import logging
from functools import partial

import msgspec
from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.cell.payloads import RebuildStep
from conductor.cell.records import order_numbers
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance
from conductor.engine.order_requests import origin
from conductor.engine.preconditions import require_settled
from conductor.engine.steps import REBUILD, CommitStep, Ended, NewOperation, Operation, Outcome, Superseded, step
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import Done, RebuildInCell, RebuildOnHost
from moorage.model.states import InstanceState

LOG = logging.getLogger(__name__)


class CellRebuilds(CellPart):
    """The step `rebuild`, the only one of its operation."""

    @step(REBUILD, "rebuild")
    def rebuild(self, operation: Operation) -> CommitStep:
        """Order the host to replace the guest, until it answers; if it refuses, the instance is in error."""
        payload = operation.read(RebuildStep)

        def work(connection: Connection) -> tuple[CellInstance, AttemptRecord]:
            instance = _rebuilding(self._cell.records.read(connection, operation.subject))
            return instance, self._cell.records.numbered(connection, instance.uuid, instance.attempt_number)

        instance, attempt = self._cell.database.read(work)
        message = RebuildOnHost(
            request_id=operation.derived("rebuild"),
            host=attempt.host,
            instance_uuid=operation.subject,
            attempt_id=attempt.attempt_id,
            claim_id=attempt.claim,
            rebuild_id=operation.derived("rebuild"),
            image=payload.image,
            order_number=instance.guest_order,
        )
        # A silent host is not waited for: in error the instance can be evacuated from it, or rebuilt once more.
        why = self._cell.guests.why_silent(attempt) or self._cell.guests.order(operation, attempt, message)
        return partial(self._rebuilt, operation, payload, why)

    def _rebuilt(self, operation: Operation, payload: RebuildStep, why: str | None, connection: Connection) -> Outcome:
        instance = _rebuilding(self._cell.records.lock(connection, operation.subject))
        # The new image is recorded also after a failure: nothing of the former one may be left on the host.
        spec = msgspec.structs.replace(instance.spec, image=payload.image)
        state: InstanceState = "active" if why is None else "error"
        reason = None if why is None else f"it could not be rebuilt: {why}"
        self._cell.records.change(
            connection, instance.uuid, state=state, request_spec=msgspec.json.encode(spec), reason=reason
        )
        LOG.info("Instance %s has been rebuilt, and is %s", instance.uuid, state)
        return Ended(reason)


class RebuildOrders(CellPart):
    """The endpoint for orders to rebuild: recorded as operations, then carried out by the worker."""

    @serves(RebuildInCell)
    def rebuild_instance(self, message: RebuildInCell) -> Done:
        """Begin to replace an instance's guest; one in error may be rebuilt too, if it is on a host.

        :raises InstanceNotFound: this cell has no record of it.
        :raises InvalidState: it is not in a state to be rebuilt.
        """

        def work(connection: Connection, begun: list[Operation]) -> Done:
            instance = self._cell.records.lock_known(connection, message.instance_uuid)
            order_numbers.take(self._cell.records, connection, instance, message)
            if instance.state not in ("active", "error") or instance.claim_id is None:
                where = "" if instance.claim_id else " and on no host"
                raise errors.InvalidState(
                    reason=f"instance {instance.uuid} is {instance.state}{where}; it has to be active or error"
                )
            require_settled(connection, self._cell.operations, instance.uuid)
            self._cell.records.change(connection, instance.uuid, state="rebuilding", reason=None)
            order_numbers.next_guest_order(self._cell.records, connection, instance)
            new = NewOperation(
                uuid=ids.derived(message.request_id, REBUILD, instance.uuid),
                kind=REBUILD,
                subject=instance.uuid,
                step="rebuild",
                payload=RebuildStep(image=message.image),
            )
            begun += self._cell.operations.begin(connection, [new], origin(message))
            return Done()

        return self._cell.requests.once(message, work)


def _rebuilding(instance: CellInstance | None) -> CellInstance:
    if instance is None or instance.state != "rebuilding":
        raise Superseded
    return instance
