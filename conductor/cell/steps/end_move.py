"""End a move that has arrived: confirm or revert it. The unwanted guest goes first, then the claims are put in order.

To confirm: `destroy` the guest on the source, then `end`, which releases the amounts that the migration holds there. To
revert: `destroy` the guest on the destination, then `give_back` and `restart`
(:mod:`conductor.cell.steps.return_to_source`).
"""

import logging
from functools import partial

import msgspec
from sqlalchemy import Connection

from conductor.cell.context import CellContext, CellPart
from conductor.cell.hosts.forced_down import why_waiting
from conductor.cell.payloads import EndMoveStep, Fate, GiveBackStep
from conductor.cell.records import order_numbers
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance
from conductor.cell.records.migrations import STOPPING, CellMigration
from conductor.cell.steps.cleanup import CellCleanups
from conductor.engine.conflict_policy import describe_foreign
from conductor.engine.steps import (
    CONFIRM,
    REVERT,
    CommitStep,
    Ended,
    NewOperation,
    Next,
    NoPayload,
    Operation,
    Outcome,
    Retry,
    Superseded,
    step,
)
from moorage import context, errors, ids
from moorage.messages import EndMove, MoveEnded, StopOnHost
from moorage.model.states import MigrationState

LOG = logging.getLogger(__name__)


class CellMoveEnds(CellPart):
    """Takes orders to confirm and to revert, and has the steps of both up to the return to the source."""

    def __init__(self, cell: CellContext) -> None:
        super().__init__(cell)
        self._cleanups = CellCleanups(cell)

    # --- Records: in the caller's transaction, which has locked the instance ------------------------------------------

    def begin_confirming(
        self, connection: Connection, instance_uuid: str, migration_uuid: str, arrived: AttemptRecord
    ) -> Operation:
        """Begin to confirm a move that needs no order, because its guest has just arrived."""
        LOG.info("Migration %s is confirmed by itself, on host %s", migration_uuid, arrived.host)
        return self._begin(connection, CONFIRM, instance_uuid, migration_uuid)

    def order(self, connection: Connection, instance: CellInstance, kind: str, request_id: str) -> list[Operation]:
        """Begin to confirm or revert a move; if that is under way, its present step is tried again at once.

        :raises InvalidState: the instance has no move that waits to be confirmed or reverted.
        """
        if retried := self._cell.operations.retry_now(connection, instance.uuid, kind):
            return retried
        migration = self._waiting(connection, instance)
        state: MigrationState = "confirming" if kind == CONFIRM else "reverting"
        self._cell.migrations.change(connection, migration.uuid, state=state)
        if kind == REVERT:
            # A revert begins with an order to the guest on the source, which is numbered.
            order_numbers.next_guest_order(self._cell.records, connection, instance)
        # The uuid follows from the request too, so that a revert which was given up can be ordered again.
        return [self._begin(connection, kind, instance.uuid, migration.uuid, request_id)]

    def _begin(
        self, connection: Connection, kind: str, instance_uuid: str, migration_uuid: str, *further: str
    ) -> Operation:
        uuid = ids.derived(migration_uuid, kind, *further)
        new = NewOperation(uuid=uuid, kind=kind, subject=instance_uuid, step="destroy", payload=NoPayload())
        [begun] = self._cell.operations.begin(connection, [new], context.current().request_id or uuid)
        return begun

    def _waiting(self, connection: Connection, instance: CellInstance) -> CellMigration:
        migration = None
        if instance.state == "moved" and instance.migration_uuid is not None:
            migration = self._cell.migrations.read(connection, instance.migration_uuid)
        if migration is None or migration.state != "moved":
            what = f"instance {instance.uuid} is {instance.state}"
            if migration is not None:
                what = f"migration {migration.uuid} is {migration.state}"
            raise errors.InvalidState(reason=f"{what}: there is no move that waits to be confirmed or reverted")
        return migration

    # --- Steps --------------------------------------------------------------------------------------------------------

    @step(CONFIRM, "destroy")
    def destroy_source(self, operation: Operation) -> CommitStep:
        """Destroy the guest on the source; repeat until its host answers, for a live migration within the patience.

        The source of an evacuation is forced down: it is not called, and its amounts stay held by a residue. The same
        holds for another host that does not answer and is forced down, now or later.
        """
        instance, migration = self._cell.database.read(lambda connection: self._read(connection, operation))
        if migration.kind == "evacuation":
            return partial(self._destroyed, operation, migration.source_number, "unknown")
        # A cold migration or a resize is confirmed by an order: it stays pending, and the order can be repeated. A live
        # migration confirms itself: after the patience the guest is left to a cleanup.
        patience = None if migration.kind in STOPPING else self._cell.options.delete_patience
        return self._destroy(operation, instance, migration.source_number, patience)

    @step(REVERT, "destroy")
    def destroy_destination(self, operation: Operation) -> CommitStep:
        """Check that the source has its guest, then destroy the one on the destination; repeat within the patience.

        If nothing has been destroyed yet and the source has no guest that could be started, the revert is given up: the
        server runs on where it is, and can be confirmed, or reverted later.
        """
        instance, migration = self._cell.database.read(lambda connection: self._read(connection, operation))
        arrived = self._cell.database.read(
            lambda connection: self._cell.records.numbered(connection, instance.uuid, instance.attempt_number)
        )
        # If the attempt has ended, an earlier try may have destroyed the guest: there is no way back to giving up.
        if not arrived.ended:
            try:
                why = self._why_no_source(operation, instance, migration)
            except errors.MoorageError as fault:
                return partial(self._source_unknown, operation, str(fault))
            if why is not None:
                return partial(self._given_up, operation, why)
            # Recorded before the order to destroy is sent: from then on the guest may be gone, and the revert goes on.
            self._cell.database.write(lambda connection: self._leave(connection, operation, arrived))
        return self._destroy(operation, instance, instance.attempt_number, self._cell.options.delete_patience)

    def _why_no_source(self, operation: Operation, instance: CellInstance, migration: CellMigration) -> str | None:
        """Order the source to keep its guest stopped; return nothing if the guest is there, else the reason."""
        source = self._cell.database.read(
            lambda connection: self._cell.records.numbered(connection, instance.uuid, migration.source_number)
        )
        message = StopOnHost(
            request_id=operation.derived("source"),
            host=source.host,
            instance_uuid=instance.uuid,
            attempt_id=source.attempt_id,
            claim_id=source.claim,
            order_number=instance.guest_order,
        )
        why = self._cell.guests.why_silent(source) or self._cell.guests.order(operation, source, message)
        return None if why is None else f"its source is not there to go back to, {source.host}: {why}"

    def _leave(self, connection: Connection, operation: Operation, arrived: AttemptRecord) -> None:
        """End the attempt on the destination: it passes no gate any more, and a returning host destroys its guest."""
        self._read(connection, operation, lock=True)
        self._cell.records.change_attempt(connection, arrived.attempt_id, state="ended", reason="its move was reverted")

    def _source_unknown(self, operation: Operation, why: str, connection: Connection) -> Outcome:
        is_over = self._cell.operations.age(connection, operation) >= self._cell.options.delete_patience
        return self._given_up(operation, why, connection) if is_over else Retry(why)

    def _given_up(self, operation: Operation, why: str, connection: Connection) -> Outcome:
        _instance, migration = self._read(connection, operation, lock=True)
        self._cell.migrations.change(connection, migration.uuid, state="moved", reason=why)
        LOG.warning("The revert of migration %s is given up: %s", migration.uuid, why)
        return Ended(why)

    def _destroy(self, operation: Operation, instance: CellInstance, number: int, patience: float | None) -> CommitStep:
        attempt = self._cell.database.read(
            lambda connection: self._cell.records.numbered(connection, instance.uuid, number)
        )
        if not attempt.guest_gone:
            try:
                self._cell.agents.destroy(operation, instance.uuid, attempt)
            except errors.MoorageError as fault:
                LOG.warning("The guest of %s on host %s may be left: %s", instance.uuid, attempt.host, fault)
                # Forced down: the operator vouches that nothing runs there, so the host is not waited for.
                if self._cell.forced_down.has(attempt.host):
                    return partial(self._destroyed, operation, number, "unknown")
                why = why_waiting(attempt.host, fault) if patience is None else f"{attempt.host}: {fault}"
                return partial(self._not_destroyed, operation, number, patience, why)
        return partial(self._destroyed, operation, number, "gone")

    def _not_destroyed(
        self, operation: Operation, number: int, patience: float | None, why: str, connection: Connection
    ) -> Outcome:
        is_over = patience is not None and self._cell.operations.age(connection, operation) >= patience
        # After the patience the amounts of the guest stay held by a residue, and a cleanup goes on with the host.
        if is_over or self._is_gone(connection, operation, number):
            return self._destroyed(operation, number, "unknown", connection)
        return Retry(why)

    def _destroyed(self, operation: Operation, number: int, fate: Fate, connection: Connection) -> Outcome:
        self._read(connection, operation, lock=True)
        if self._is_gone(connection, operation, number):
            fate = "gone"  # its host has reported so meanwhile
        if fate == "gone":
            left = self._cell.records.numbered(connection, operation.subject, number)
            self._cell.records.change_attempt(connection, left.attempt_id, guest_gone=True)
        # From here on the fate stands in the payload, so that a repeated request to the store has the same content.
        if operation.kind == CONFIRM:
            return Next("end", EndMoveStep(fate=fate))
        return Next("give_back", GiveBackStep(failed=number, fate=fate, reason=None))

    def _is_gone(self, connection: Connection, operation: Operation, number: int) -> bool:
        return self._cell.records.numbered(connection, operation.subject, number).guest_gone

    @step(CONFIRM, "end")
    def end(self, operation: Operation) -> CommitStep:
        """Release the amounts that the migration holds of the source; if a guest may be left, they become a residue."""
        payload = operation.read(EndMoveStep)

        def work(connection: Connection) -> tuple[CellMigration, AttemptRecord]:
            instance, migration = self._read(connection, operation)
            return migration, self._cell.records.numbered(connection, instance.uuid, instance.attempt_number)

        migration, arrived = self._cell.database.read(work)
        _spec, held = migration.claimed_with

        def message(payload: EndMoveStep) -> EndMove:
            return EndMove(
                request_id=self._cell.writes.request_id(operation, "end", payload, payload.fate),
                consumer_uuid=operation.subject,
                migration_uuid=migration.uuid,
                claim_id=arrived.claim,
                outcome="confirm",
                held=held,
                claimed=arrived.selection.allocation_request,
                consumer_generation=payload.generation,
                migration_generation=payload.migration_generation,
                guest_gone=payload.fate == "gone",
                leave_residue=payload.fate == "unknown",
                keep_extras=self._cell.writes.keeps_foreign,
            )

        try:
            ended = self._cell.writes.write(operation, payload, message, migration.uuid)
        except errors.ConsumerNotFound as fault:
            if fault.name != migration.uuid:
                raise
            # Somebody else, an operator for instance, has released the migration's allocations already.
            LOG.warning("Nothing is left to release for migration %s: %s", migration.uuid, fault)
            return partial(self._confirmed, operation, payload.fate, None, None)
        if not isinstance(ended, MoveEnded):
            return ended  # not carried out: generations to read, or a conflict, are recorded first
        foreign = describe_foreign(ended.extras, stay=self._cell.writes.keeps_foreign)
        return partial(self._confirmed, operation, payload.fate, ended.residue_uuid, foreign)

    def _confirmed(
        self, operation: Operation, fate: Fate, residue: str | None, foreign: str | None, connection: Connection
    ) -> Outcome:
        instance, migration = self._read(connection, operation, lock=True)
        source = self._cell.records.numbered(connection, instance.uuid, migration.source_number)
        self._cell.records.change_attempt(connection, source.attempt_id, state="ended")
        # The host has not reported the guest as gone: it is destroyed when the host answers, then its residue released.
        if fate != "gone":
            self._cleanups.begin(connection, instance.uuid, [source], operation.request_id, residue)
        # Only now does the instance have the new request (of a resize: the new flavor); a revert keeps the former.
        spec, _held = migration.claimed_with
        self._cell.records.change(
            connection,
            instance.uuid,
            state="active",
            request_spec=msgspec.json.encode(spec),
            migration_uuid=None,
            reason=None,
        )
        self._cell.migrations.change(connection, migration.uuid, state="confirmed", reason=foreign)
        LOG.info("Migration %s of instance %s is confirmed; %s", migration.uuid, instance.uuid, foreign or "it is all")
        return Ended()

    def _read(
        self, connection: Connection, operation: Operation, *, lock: bool = False
    ) -> tuple[CellInstance, CellMigration]:
        read = self._cell.records.lock if lock else self._cell.records.read
        instance = read(connection, operation.subject)
        if instance is None or instance.state != "moved":
            raise Superseded
        return instance, self._cell.migrations.of(connection, instance)
