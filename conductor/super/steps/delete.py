"""Delete an instance: here if no cell can have it, otherwise through its cell."""

import logging
from functools import partial

from sqlalchemy import Connection

from conductor.engine.conflict_policy import RelyingOnGenerations, describe_foreign
from conductor.engine.order_requests import origin
from conductor.engine.steps import DELETE, MOVE, UNSHELVE, CommitStep, Ended, NoPayload, Operation, Outcome, step
from conductor.super.context import SuperPart
from conductor.super.held_consumers import why_kept
from conductor.super.records import instances as super_records
from conductor.super.records import migrations as super_migrations
from conductor.super.steps.move import ENDED_BY_DELETION
from moorage import errors, ids
from moorage.messages import DeleteAllocations, DeleteInCell, DeleteInstance, Released

LOG = logging.getLogger(__name__)


class SuperDeletes(SuperPart):
    """The order to delete an instance, and the steps of the deletion."""

    @step(DELETE, "release")
    def release(self, operation: Operation) -> CommitStep:
        """Delete the instance's consumer for good: a claim that arrives later is refused.

        If the consumer has a claim, all its allocations are released, because the allocations of the claim are not
        recorded here. Without a claim, all allocations of the consumer are foreign, and the instance's record names
        them. A claim that a host has accepted is not released: no cell has the instance, so it is another client's.
        """
        uuid, keeps = operation.subject, self._super.writes.keeps_foreign
        if (kept := why_kept(self._super.placement, uuid)) is not None:
            LOG.warning("Instance %s is deleted; %s", uuid, kept)
            return partial(self._deleted, uuid, kept)

        def message(relied: RelyingOnGenerations) -> DeleteAllocations:
            return DeleteAllocations(
                request_id=self._super.writes.request_id(operation, "release", relied),
                consumer_uuid=uuid,
                for_good=True,
                keep_extras=keeps,
                consumer_generation=relied.generation,
            )

        released = self._super.writes.write(operation, operation.read(RelyingOnGenerations), message)
        if not isinstance(released, Released):
            return released
        reason = describe_foreign(released.extras, stay=keeps)
        LOG.info("Instance %s is deleted; %s", uuid, reason or "it holds nothing")
        return partial(self._deleted, uuid, reason)

    @staticmethod
    def _deleted(uuid: str, reason: str | None, connection: Connection) -> Outcome:
        super_records.set_state(connection, [uuid], "deleted", reason)
        # Its cell was deleted: no cell will report the end of the migration.
        if (migration_uuid := super_migrations.open_of(connection, uuid)) is not None:
            super_migrations.change(connection, migration_uuid, state="ended", reason="the instance was deleted")
        return Ended()

    @step(DELETE, "in_cell")
    def in_cell(self, operation: Operation) -> CommitStep:
        """Order the cell to delete the instance; its state becomes deleted when the cell reports it as deleted.

        A cell without hosts may be deleted while it has instances, for example shelved ones: they are deleted here.
        """
        known = self._super.database.read(lambda connection: super_records.read(connection, operation.subject))
        if known.cell_uuid is None:
            # The cell has refused to take the instance, and has nothing of it.
            return self.release(operation)
        message = DeleteInCell(request_id=operation.derived("in_cell"), instance_uuid=operation.subject)
        try:
            self._super.cells.call(known.cell_uuid, message)
        except errors.CellNotFound:
            # The list of cells may be restored from a backup that is older than the cell.
            if why_kept(self._super.placement, operation.subject) is not None:
                raise
            return self.release(operation)
        return lambda _connection: Ended()

    def _end_placing(self, connection: Connection, uuid: str) -> None:
        """End a move or an unshelving that the cell does not carry out yet.

        Its requests to the scheduler may have claimed for the instance, and for the migration that the cell has
        prepared. These claims are deleted with the instance in one write; the tombstones refuse later claims.
        """
        reason = "the instance is being deleted"
        for pending in self._super.operations.lock_pending(connection, uuid, (MOVE, UNSHELVE)):
            if pending.step in ENDED_BY_DELETION:
                self._super.operations.redirect(connection, pending, Ended(reason))
                super_migrations.change(connection, pending.uuid, state="ended", reason=reason)

    def order(self, connection: Connection, message: DeleteInstance) -> list[Operation]:
        """Record the operation that deletes an instance; if it was ordered before, retry its current step at once.

        The instance's record decides which conductor deletes it. The cell is recorded before anything is sent there,
        and it is not recorded for an instance that is being deleted. So without a cell in the record, no cell has it.

        :raises InstanceNotFound: there is no such instance.
        """
        uuid = message.instance_uuid
        row = super_records.lock_known(connection, uuid)
        if row.state in ("deleting", "deleted"):
            # It was ordered before. If that operation has ended, the cell has the order, and gets it again below: the
            # cell may have lost it, because its database was restored from a backup.
            under_way = self._super.operations.retry_now(connection, uuid, DELETE)
            if under_way or row.cell_uuid is None:
                return under_way
        if row.state != "deleted":
            super_records.set_state(connection, [uuid], "deleting")
            self._end_placing(connection, uuid)
        first = "release" if row.cell_uuid is None else "in_cell"
        operation_uuid = ids.derived(message.request_id, "delete")
        new = Operation.new(origin(message), operation_uuid, DELETE, uuid, first, NoPayload())
        return self._super.operations.begin(connection, [new])
