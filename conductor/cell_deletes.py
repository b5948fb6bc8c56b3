"""How a cell deletes: the guest first, on every host that may have one, then all that the instance holds."""

import logging

from sqlalchemy import Connection

from conductor.cell_records import (
    ACTIVE,
    BUILDING,
    DELETED,
    DELETING,
    ENDED,
    STARTING,
    AttemptRecord,
    CellInstance,
    CellRecords,
)
from conductor.operations import Operations
from conductor.steps import BUILD, DELETE, Again, Ended, NewOperation, Next, Nothing, Operation, Outcome, Record, Step
from moorage import context, errors, ids
from moorage.bus import Bus, Client
from moorage.database import Database
from moorage.messages import DeleteAllocations, DeleteInCell, DestroyOnHost

LOG = logging.getLogger(__name__)


class CellDeletes:
    """The order to delete inside a cell, and the steps that follow from it."""

    def __init__(self, database: Database, records: CellRecords, placement: Client, cell_bus: Bus) -> None:
        self._database = database
        self._records = records
        self._placement = placement
        self._cell_bus = cell_bus

    def steps(self) -> dict[tuple[str, str], Step]:
        """Return the function for each step."""
        return {(DELETE, "destroy"): self.destroy, (DELETE, "release"): self.release}

    def order(self, connection: Connection, operations: Operations, message: DeleteInCell) -> list[Operation]:
        """Record that an instance is to be deleted, and end its build; ordered before, nothing more is to be done.

        :raises RequestInProgress: another transaction has recorded the instance just now.
        """
        uuid = message.instance_uuid
        request_id = context.current().request_id or message.request_id
        instance = self._records.lock(connection, uuid)
        if instance is None:
            self._records.add_deleting(connection, uuid, request_id)
        elif instance.state in (DELETING, DELETED):
            return []
        else:
            self._end_build(connection, operations, instance)
        new = NewOperation(
            uuid=ids.derived(message.request_id, "delete", uuid),
            kind=DELETE,
            subject=uuid,
            step="destroy",
            payload=Nothing(),
        )
        return operations.begin(connection, [new], request_id)

    def _end_build(self, connection: Connection, operations: Operations, instance: CellInstance) -> None:
        self._records.change(connection, instance.uuid, state=DELETING, reason=None)
        for attempt in self._records.attempts(connection, instance.uuid):
            if attempt.state in (STARTING, BUILDING, ACTIVE):
                self._records.change_attempt(connection, attempt.attempt_id, state=ENDED)
        build = operations.pending(connection, instance.uuid, BUILD)
        if build is not None:
            operations.redirect(connection, build, Ended("the instance is being deleted"))

    def destroy(self, operation: Operation) -> Record:
        """Destroy the guest on each host that may have one; repeated until every one of them has answered."""
        attempts = self._database.read(lambda connection: self._records.attempts(connection, operation.subject))
        faults: list[str] = []
        gone: list[str] = []
        for attempt in attempts:
            if attempt.guest_gone or attempt.claim_id is None:
                continue
            try:
                self._destroy(operation, attempt, attempt.claim_id)
                gone.append(attempt.attempt_id)
            except errors.MoorageError as fault:
                LOG.warning("The guest of %s on host %s may be left: %s", operation.subject, attempt.host, fault)
                faults.append(f"{attempt.host}: {fault}")

        def record(connection: Connection) -> Outcome:
            self._records.lock(connection, operation.subject)
            for attempt_id in gone:
                self._records.change_attempt(connection, attempt_id, guest_gone=True)
            return Again("; ".join(faults)) if faults else Next("release", Nothing())

        return record

    def _destroy(self, operation: Operation, attempt: AttemptRecord, claim_id: str) -> None:
        message = DestroyOnHost(
            request_id=operation.derived("destroy", attempt.attempt_id),
            host=attempt.host,
            instance_uuid=operation.subject,
            attempt_id=attempt.attempt_id,
            claim_id=claim_id,
        )
        agents = self._cell_bus.client(f"compute.{self._records.cell_uuid}", server=attempt.agent)
        with context.bound(attempt_id=attempt.attempt_id):
            agents.call(message)

    def release(self, operation: Operation) -> Record:
        """Release all that the instance holds, for good: a swap or a selection still on its way is refused."""
        uuid = operation.subject
        self._placement.call(
            DeleteAllocations(request_id=operation.derived("release"), consumer_uuid=uuid, for_good=True)
        )

        LOG.info("Instance %s is deleted, and holds nothing", uuid)

        def record(connection: Connection) -> Outcome:
            self._records.lock(connection, uuid)
            self._records.change(connection, uuid, state=DELETED, host=None, claim_id=None)
            return Ended()

        return record
