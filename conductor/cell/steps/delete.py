"""Delete an instance: first its guest, on every host that may have one, then all its allocations."""

import logging

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.cell.payloads import (
    DestroyAllStep,
    GiveBackStep,
    ReleaseAllStep,
    ReleaseStep,
    StartStep,
    SwapStep,
    WriteStep,
)
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance
from conductor.cell.steps.cleanup import CellCleanups
from conductor.cell.steps.resources import record_claim
from conductor.engine.conflict_policy import describe_foreign
from conductor.engine.order_requests import origin
from conductor.engine.steps import (
    ATTACH,
    BUILD,
    DELETE,
    ENDED_BY_DELETE,
    UNSHELVE,
    CommitStep,
    Ended,
    Next,
    Operation,
    Outcome,
    Retry,
    step,
)
from moorage.messages import DeleteAllocations, DeleteInCell, Released
from moorage.model import AllocationRequest

LOG = logging.getLogger(__name__)


class CellDeletes(CellPart):
    """Takes orders to delete, and has the steps `destroy` and `release`."""

    def order(self, connection: Connection, message: DeleteInCell) -> list[Operation]:
        """Begin to delete an instance and end all other operations on it; retry a deletion in progress at once.

        :raises RequestInProgress: another transaction has just recorded the instance.
        """
        uuid = message.instance_uuid
        instance = self._cell.records.lock(connection, uuid)
        payload = DestroyAllStep()
        if instance is None:
            # The order to build the instance has not arrived yet, and will find it deleted.
            self._cell.records.add_deleting(connection, uuid, origin(message))
        elif instance.state in ("deleting", "deleted"):
            return self._cell.operations.retry_now(connection, uuid, DELETE)
        else:
            payload = self._end_all(connection, instance)
        return self._begin(connection, message, DELETE, "destroy", payload)

    def _end_all(self, connection: Connection, instance: CellInstance) -> DestroyAllStep:
        left: list[str] = []
        self._cell.records.change(connection, instance.uuid, state="deleting", reason=None)
        # From now on no attempt can pass a gate, and a host that returns destroys its guest.
        for attempt in self._cell.records.attempts(connection, instance.uuid):
            if not attempt.ended:
                self._cell.records.change_attempt(connection, attempt.attempt_id, state="ended")
        if instance.migration_uuid is not None:
            # The instance keeps the migration's uuid, because both consumers are released in one write.
            reason = "the instance was deleted"
            self._cell.migrations.change(connection, instance.migration_uuid, state="ended", reason=reason)
        for operation in self._cell.operations.lock_pending(connection, instance.uuid, ENDED_BY_DELETE):
            if operation.kind == ATTACH and operation.step != "choose":
                # The group may already be in the store. Record it as claimed, so that its allocations are released as
                # the instance's own, and not reported as foreign.
                record_claim(self._cell.records, connection, instance, operation.read(WriteStep))
            # An interrupted step may have left a residue in the store that no record names.
            if (number := _leaving(operation)) is not None:
                left.append(self._cell.records.numbered(connection, instance.uuid, number).attempt_id)
            self._cell.operations.redirect(connection, operation, Ended("the instance is being deleted"))
        return DestroyAllStep(left=tuple(left))

    @step(DELETE, "destroy")
    def destroy(self, operation: Operation) -> CommitStep:
        """Destroy the guest on each host that may have one; repeat until all have answered, at most for the patience.

        Do not wait for attempts that are being cleaned up: residues hold the amounts of their guests. Do not wait for
        hosts that are forced down either.
        """
        attempts = self._cell.database.read(lambda connection: self._to_destroy(connection, operation.subject))
        results = [(attempt, self._cell.agents.why_left(operation, attempt)) for attempt in attempts]
        gone = [attempt for attempt, fault in results if fault is None]
        faults = [f"{attempt.host}: {fault}" for attempt, fault in results if fault is not None]
        silent = {attempt.host for attempt, fault in results if fault is not None}
        waits = any(not self._cell.forced_down.has(host) for host in silent)

        def record(connection: Connection) -> Outcome:
            instance = self._cell.records.lock(connection, operation.subject)
            for attempt in gone:
                self._cell.records.change_attempt(connection, attempt.attempt_id, guest_gone=True)
            if waits and self._cell.operations.age(connection, operation) < self._cell.options.delete_patience:
                return Retry("; ".join(faults))
            # No answer is waited for any more. Record the release with the present results, so that a repeated request
            # has the same content even if a host reports meanwhile.
            current = [] if instance is None else self._current(connection, instance)
            guests_gone = tuple(attempt.attempt_id for attempt in current if attempt.guest_gone)
            left = operation.read(DestroyAllStep).left
            return Next("release", ReleaseAllStep(leave_residue=bool(faults), guests_gone=guests_gone, left=left))

        return record

    def _current(self, connection: Connection, instance: CellInstance) -> list[AttemptRecord]:
        """Return the instance's current attempt, and the attempt on the source of its migration if there is one."""
        numbers = {instance.attempt_number}
        if instance.migration_uuid is not None:
            numbers.add(self._cell.migrations.of(connection, instance).source_number)
        return [each for each in self._cell.records.attempts(connection, instance.uuid) if each.number in numbers]

    def _to_destroy(self, connection: Connection, instance_uuid: str) -> list[AttemptRecord]:
        return [
            attempt
            for attempt in self._cell.records.attempts(connection, instance_uuid)
            if attempt.may_have_a_guest and not CellCleanups(self._cell).begun(connection, attempt)
        ]

    @step(DELETE, "release")
    def release(self, operation: Operation) -> CommitStep:
        """Release all allocations of the instance for good: the store refuses a late swap or claim.

        If a host may still have a guest, a residue holds the amounts there until the host is cleaned up. The policy
        decides whether foreign allocations are released or kept; the instance's record names them.
        """
        uuid, payload = operation.subject, operation.read(ReleaseAllStep)
        migration_uuid, claimed_with = self._cell.database.read(lambda connection: self._claimed(connection, uuid))

        def message(payload: ReleaseAllStep) -> DeleteAllocations:
            return DeleteAllocations(
                request_id=self._cell.writes.request_id(operation, "release", payload),
                consumer_uuid=uuid,
                for_good=True,
                leave_residue=payload.leave_residue,
                migration_uuids=() if migration_uuid is None else (migration_uuid,),
                guests_gone=payload.guests_gone,
                claimed_with=claimed_with,
                keep_extras=self._cell.writes.keeps_foreign,
                consumer_generation=payload.generation,
                migration_generation=payload.migration_generation,
            )

        released = self._cell.writes.write(operation, payload, message, migration_uuid)
        if not isinstance(released, Released):
            return released  # not carried out: first record the generations that were read, or a conflict
        residues = {released.residue_uuid, *released.residue_uuids, *payload.left}
        reason = describe_foreign(released.extras, stay=self._cell.writes.keeps_foreign)

        def record(connection: Connection) -> Outcome:
            instance = self._cell.records.lock(connection, uuid)
            self._cell.records.change(
                connection, uuid, state="deleted", host=None, claim_id=None, migration_uuid=None, reason=reason
            )
            # A host may have reported its guest as gone after this step was recorded. Then the residue exists
            # nevertheless, and only a cleanup releases it. A repeated answer may not name it, because the first one has
            # expired.
            if instance is not None and payload.leave_residue:
                current = {each.attempt_id for each in self._current(connection, instance)}
                residues.update(current.difference(payload.guests_gone))
            attempts = self._cell.records.attempts(connection, uuid)
            left = [each for each in attempts if each.may_have_a_guest or each.attempt_id in residues]
            cleanups = CellCleanups(self._cell)
            if migration_uuid is not None and migration_uuid in residues:
                # A confirm that this deletion has interrupted has left a residue on the source.
                migration = self._cell.migrations.read(connection, migration_uuid)
                source = [each for each in attempts if migration and each.number == migration.source_number]
                cleanups.begin(connection, uuid, source, operation.request_id, migration_uuid)
            cleanups.begin(connection, uuid, left, operation.request_id)
            LOG.info("Instance %s is deleted; %s", uuid, reason or "it holds nothing")
            return Ended()

        return record

    def _claimed(self, connection: Connection, uuid: str) -> tuple[str | None, dict[str, AllocationRequest]]:
        """Return the migration of an instance, and the allocation requests of both, keyed by claim.

        They stay the same after the order to delete: nothing else changes an instance that is being deleted.
        """
        instance = self._cell.records.read(connection, uuid)
        if instance is None or instance.claim_id is None:
            return None if instance is None else instance.migration_uuid, {}
        current = self._current(connection, instance)
        return instance.migration_uuid, {claim: made for each in current for claim, made in each.claimed_with.items()}


def _leaving(operation: Operation) -> int | None:
    """Return the number of the attempt for which an interrupted step may have left a residue without a record, or None.

    A deletion has interrupted the step: its request may have reached the store, but its outcome is not recorded.
    """
    match operation.kind, operation.step:
        case _, "swap":
            swapping = operation.read(SwapStep)
            return swapping.failed if swapping.fate == "unknown" else None
        case _, "give_back":
            giving = operation.read(GiveBackStep)
            # If another client has released the source, the guest of an unstarted attempt may get a residue too.
            return giving.failed if giving.fate != "gone" else None
        case _, "release" if operation.kind in (BUILD, UNSHELVE):
            releasing = operation.read(ReleaseStep)
            return releasing.failed if releasing.fate == "unknown" else None
        case _, "leave":
            return operation.read(StartStep).number
    return None
