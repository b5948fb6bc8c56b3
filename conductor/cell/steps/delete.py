"""How a cell deletes: the guest first, on every host that may have one, then all that the instance holds."""

import logging

from oslo_config import cfg
from sqlalchemy import Connection

from conductor.cell.agents import CellAgents
from conductor.cell.payloads import Deleting, Destroying, Releasing, ReturningToSource, Starting, Swapping, Writing
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance, CellRecords
from conductor.cell.records.migrations import MigrationRecords
from conductor.cell.steps.cleanup import CellCleanups
from conductor.cell.steps.resources import record_claim
from conductor.engine.conflict_policy import PolicyWrites, describe_foreign
from conductor.engine.operations import Operations
from conductor.engine.steps import (
    ATTACH,
    BUILD,
    CONFIRM,
    DELETE,
    DETACH,
    HEAL,
    MOVE,
    REBUILD,
    REVERT,
    SHELVE,
    UNSHELVE,
    CommitStep,
    Ended,
    NewOperation,
    Next,
    Operation,
    Outcome,
    Retry,
    Step,
)
from moorage import context, errors, ids
from moorage.db.database import Database
from moorage.messages import DeleteAllocations, DeleteInCell, Released
from moorage.model import AllocationRequest

LOG = logging.getLogger(__name__)

#: What an order to delete ends, wherever it stands.
ENDED_BY_DELETION = (BUILD, MOVE, CONFIRM, REVERT, SHELVE, UNSHELVE, REBUILD, ATTACH, DETACH, HEAL)


class CellDeletes:
    """The order to delete inside a cell, and the steps that follow from it."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        database: Database,
        records: CellRecords,
        migrations: MigrationRecords,
        operations: Operations,
        agents: CellAgents,
        cleanups: CellCleanups,
        writes: PolicyWrites,
    ) -> None:
        self._patience: float = conf.conductor.delete_patience
        self._database = database
        self._records = records
        self._migrations = migrations
        self._operations = operations
        self._agents = agents
        self._cleanups = cleanups
        self._writes = writes

    def steps(self) -> dict[tuple[str, str], Step]:
        """Return the function for each step."""
        return {(DELETE, "destroy"): self.destroy, (DELETE, "release"): self.release}

    def order(self, connection: Connection, message: DeleteInCell) -> list[Operation]:
        """Record that an instance is to be deleted, and end what is under way; ordered before, it is tried at once.

        :raises RequestInProgress: another transaction has recorded the instance just now.
        """
        uuid = message.instance_uuid
        request_id = context.current().request_id or message.request_id
        instance = self._records.lock(connection, uuid)
        destroying = Destroying()
        if instance is None:
            self._records.add_deleting(connection, uuid, request_id)
        elif instance.state in ("deleting", "deleted"):
            return self._operations.at_once(connection, uuid, DELETE)
        else:
            destroying = self._end_all(connection, instance)
        new = NewOperation(
            uuid=ids.derived(message.request_id, "delete", uuid),
            kind=DELETE,
            subject=uuid,
            step="destroy",
            payload=destroying,
        )
        return self._operations.begin(connection, [new], request_id)

    def _end_all(self, connection: Connection, instance: CellInstance) -> Destroying:
        left: list[str] = []
        self._records.change(connection, instance.uuid, state="deleting", reason=None)
        for attempt in self._records.attempts(connection, instance.uuid):
            if not attempt.ended:
                self._records.change_attempt(connection, attempt.attempt_id, state="ended")
        if instance.migration_uuid is not None:
            # It stays the instance's: what it holds is released together with what the instance holds.
            reason = "the instance was deleted"
            self._migrations.change(connection, instance.migration_uuid, state="ended", reason=reason)
        for kind in ENDED_BY_DELETION:
            operation = self._operations.pending(connection, instance.uuid, kind)
            if operation is not None:
                if operation.kind == ATTACH and operation.step != "choose":
                    # It may be held already, and is the instance's own.
                    record_claim(self._records, connection, instance, operation.read(Writing))
                if (number := _leaving(operation)) is not None:
                    left.append(self._records.numbered(connection, instance.uuid, number).attempt_id)
                self._operations.redirect(connection, operation, Ended("the instance is being deleted"))
        return Destroying(left=tuple(left))

    def destroy(self, operation: Operation) -> CommitStep:
        """Destroy the guest on each host that may have one; repeated until every one of them has answered, for a time.

        Attempts that are being cleaned up are not waited for: what their hosts may have is held by residues.
        """
        attempts = self._database.read(lambda connection: self._to_destroy(connection, operation.subject))
        faults: list[str] = []
        gone: list[AttemptRecord] = []
        for attempt in attempts:
            try:
                self._agents.destroy(operation, operation.subject, attempt)
                gone.append(attempt)
            except errors.MoorageError as fault:
                LOG.warning("The guest of %s on host %s may be left: %s", operation.subject, attempt.host, fault)
                faults.append(f"{attempt.host}: {fault}")

        def record(connection: Connection) -> Outcome:
            self._records.lock(connection, operation.subject)
            for attempt in gone:
                self._records.change_attempt(connection, attempt.attempt_id, guest_gone=True)
            if faults and self._operations.age(connection, operation) < self._patience:
                return Retry("; ".join(faults))
            gone_here = self._held_for_nothing(connection, operation.subject)
            left = operation.read(Destroying).left
            return Next("release", Deleting(leave_residue=bool(faults), guests_gone=gone_here, left=left))

        return record

    def _held_for_nothing(self, connection: Connection, instance_uuid: str) -> tuple[str, ...]:
        """Return those of the instance's and its migration's attempts whose hosts have said that nothing is left."""
        instance = self._records.read(connection, instance_uuid)
        if instance is None:
            return ()
        return tuple(each.attempt_id for each in self._current(connection, instance) if each.guest_gone)

    def _current(self, connection: Connection, instance: CellInstance) -> list[AttemptRecord]:
        """Return the instance's current attempt, and beside it that of the source of its move."""
        numbers = {instance.attempt_number}
        if instance.migration_uuid is not None:
            numbers.add(self._migrations.of(connection, instance).source_number)
        return [each for each in self._records.attempts(connection, instance.uuid) if each.number in numbers]

    def _claimed_with(self, connection: Connection, instance: CellInstance) -> dict[str, AllocationRequest]:
        """Return, by claim, what was claimed for the instance and for its migration; nothing where it has no claim.

        It stays the same from the order to delete on: nothing else changes an instance that is being deleted.
        """
        if instance.claim_id is None:
            return {}
        return {
            claim: request
            for each in self._current(connection, instance)
            for claim, request in each.claimed_with.items()
        }

    def _to_destroy(self, connection: Connection, instance_uuid: str) -> list[AttemptRecord]:
        return [
            attempt
            for attempt in self._records.attempts(connection, instance_uuid)
            if attempt.may_have_a_guest and not self._cleanups.begun(connection, attempt)
        ]

    def release(self, operation: Operation) -> CommitStep:
        """Release all that the instance holds, for good: a swap or a selection still on its way is refused.

        What a host may still have a guest for stays held by a residue, until that host has been cleaned up. What
        others have put there goes too, or stays, and is named in the instance's record.
        """
        uuid, deleting = operation.subject, operation.read(Deleting)
        instance, claimed_with = self._database.read(lambda connection: self._going(connection, uuid))
        migration_uuid = None if instance is None else instance.migration_uuid

        def message(deleting: Deleting) -> DeleteAllocations:
            return DeleteAllocations(
                request_id=self._writes.request_id(operation, "release", deleting),
                consumer_uuid=uuid,
                for_good=True,
                leave_residue=deleting.leave_residue,
                migration_uuids=() if migration_uuid is None else (migration_uuid,),
                guests_gone=deleting.guests_gone,
                claimed_with=claimed_with,
                keep_extras=self._writes.keeps_foreign,
                consumer_generation=deleting.generation,
                migration_generation=deleting.migration_generation,
            )

        released = self._writes.write(operation, deleting, message, migration_uuid)
        if not isinstance(released, Released):
            return released
        residues = {released.residue_uuid, *released.residue_uuids, *deleting.left}
        reason = describe_foreign(released.extras, stay=self._writes.keeps_foreign)

        def record(connection: Connection) -> Outcome:
            self._records.lock(connection, uuid)
            self._records.change(
                connection, uuid, state="deleted", host=None, claim_id=None, migration_uuid=None, reason=reason
            )
            # Its host's word may have come between the two: the residue is there all the same.
            attempts = self._records.attempts(connection, uuid)
            left = [each for each in attempts if each.may_have_a_guest or each.attempt_id in residues]
            self._cleanups.begin(connection, uuid, left, operation.request_id)
            LOG.info("Instance %s is deleted; %s", uuid, reason or "it holds nothing")
            return Ended()

        return record

    def _going(self, connection: Connection, uuid: str) -> tuple[CellInstance | None, dict[str, AllocationRequest]]:
        instance = self._records.read(connection, uuid)
        return instance, {} if instance is None else self._claimed_with(connection, instance)


def _leaving(operation: Operation) -> int | None:
    """Return the number of the attempt of which a step, cut short by a deletion, may have left a residue unrecorded."""
    match operation.kind, operation.step:
        case _, "swap":
            swapping = operation.read(Swapping)
            return swapping.failed if swapping.fate == "unknown" else None
        case _, "give_back":
            giving = operation.read(ReturningToSource)
            return giving.failed if giving.fate == "unknown" else None
        case _, "release" if operation.kind in (BUILD, UNSHELVE):
            releasing = operation.read(Releasing)
            return releasing.failed if releasing.fate == "unknown" else None
        case _, "leave":
            return operation.read(Starting).number
    return None
