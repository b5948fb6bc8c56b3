"""End a move that has arrived: confirm or revert it. First destroy the unwanted guest, then change the claims.

Confirm: `destroy` the guest on the source, then `end`, which releases the amounts that the migration holds there.
Revert: `destroy` the guest on the destination, then `give_back` and `restart`
(:mod:`conductor.cell.steps.return_to_source`).
"""

import logging
from functools import partial
from typing import Literal, TypeVar

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
from conductor.engine.preconditions import require_settled
from conductor.engine.steps import (
    CONFIRM,
    REVERT,
    CommitStep,
    Ended,
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

P = TypeVar("P", EndMoveStep, GiveBackStep)


class CellMoveEnds(CellPart):
    """Takes orders to confirm and to revert, and has the steps of both up to the return to the source."""

    # --- Records: in the caller's transaction, which has locked the instance ------------------------------------------

    def order(self, connection: Connection, instance: CellInstance, kind: str, request_id: str) -> list[Operation]:
        """Begin to confirm or revert a move; if that is in progress, retry its current step at once.

        :raises InvalidState: the instance has no move that waits to be confirmed or reverted, or is being healed.
        """
        if retried := self._cell.operations.retry_now(connection, instance.uuid, kind):
            return retried
        migration = self._waiting(connection, instance)
        # Refuse during a heal, which writes the present allocations of both sides.
        require_settled(connection, self._cell.operations, instance.uuid)
        state: MigrationState = "confirming" if kind == CONFIRM else "reverting"
        self._cell.migrations.change(connection, migration.uuid, state=state)
        if kind == REVERT:
            # A revert begins with an order to the guest on the source, which is numbered.
            order_numbers.next_guest_order(self._cell.records, connection, instance)
        # The uuid is derived from the request id too, so that a revert that was given up can be ordered again.
        return [self.begin(connection, kind, migration, request_id)]

    def begin(self, connection: Connection, kind: str, migration: CellMigration, *further: str) -> Operation:
        """Begin to confirm or revert a move; further parts of the operation's uuid name the order, if there is one."""
        if kind == CONFIRM:
            # A confirm is never given up. So from now on the source's attempt cannot pass a gate, and a returning host
            # destroys its guest, however long the confirm takes.
            source = self._cell.migrations.source(connection, migration)
            self._cell.records.change_attempt(connection, source.attempt_id, state="ended")
        uuid = ids.derived(migration.uuid, kind, *further)
        request_id = context.current().request_id or uuid
        new = Operation.new(request_id, uuid, kind, migration.instance_uuid, "destroy", NoPayload())
        [begun] = self._cell.operations.begin(connection, [new])
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
        """Destroy the guest on the source; repeat until the host answers, for a live migration within the patience.

        The source of an evacuation is never waited for: it is called once if it may have reported since shortly before
        the order and its agent answers a probe, and a residue holds its amounts if it does not answer. A host that does
        not answer and is forced down, now or later, is not waited for either.
        """
        _instance, migration, source, _arrived = self._cell.database.read(partial(self._read, operation))
        if migration.kind == "evacuation":
            # The host may have returned before or during the evacuation, when its guest was still wanted. Then it is
            # called, but not waited for: an agent that was killed a moment before the order only costs a probe.
            reported = self._cell.hosts.has_reported_since(source.host, migration.created_at)
            if reported and self._cell.agents.answers(source):
                return self._destroy(operation, source, 0.0)
            return partial(self._destroyed, operation, source.number, "unknown")
        # A cold migration or a resize is confirmed by an order: it stays pending, and the order can be repeated. A live
        # migration is confirmed automatically: after the patience a cleanup destroys the guest.
        patience = None if migration.kind in STOPPING else self._cell.options.delete_patience
        return self._destroy(operation, source, patience)

    @step(REVERT, "destroy")
    def destroy_destination(self, operation: Operation) -> CommitStep:
        """Check that the source has its guest, then destroy the guest on the destination; repeat within the patience.

        If nothing was destroyed yet and the source has no guest that can be started, the revert is given up: the
        instance keeps running on the destination, and can be confirmed, or reverted later.
        """
        instance, _migration, source, arrived = self._cell.database.read(partial(self._read, operation))
        # If the attempt has ended, an earlier try may have destroyed the guest: the revert cannot be given up any more.
        if not arrived.ended:
            try:
                why = self._why_no_source(operation, instance, source)
            except errors.MoorageError as fault:
                return partial(self._source_unknown, operation, str(fault))
            if why is not None:
                return partial(self._given_up, operation, why)
            # Record it before the order to destroy: from then on the guest may be gone, and the revert must go on.
            reason = "its move was reverted"
            self._cell.database.write(lambda connection: self._leave(connection, operation, arrived, reason=reason))
        return self._destroy(operation, arrived, self._cell.options.delete_patience)

    def _why_no_source(self, operation: Operation, instance: CellInstance, source: AttemptRecord) -> str | None:
        """Order the source to keep its guest stopped; return None if the guest is there, else the reason."""
        message = source.order(StopOnHost, operation.derived("source"), instance.guest_order)
        why = self._cell.hosts.why_silent(source.host) or self._cell.agents.order(operation, source, message)
        return None if why is None else f"the source has no guest to return to, {source.host}: {why}"

    def _leave(self, connection: Connection, operation: Operation, left: AttemptRecord, **values: str) -> None:
        """End an attempt that is left: it passes no gate any more, and a returning host destroys its guest.

        :raises Superseded: another conductor has taken over the operation, and has ended it.
        """
        self._lock(connection, operation)
        if not self._cell.operations.is_pending(connection, operation.uuid):
            raise Superseded
        self._cell.records.change_attempt(connection, left.attempt_id, state="ended", **values)

    def _source_unknown(self, operation: Operation, why: str, connection: Connection) -> Outcome:
        is_over = self._cell.operations.age(connection, operation) >= self._cell.options.delete_patience
        return self._given_up(operation, why, connection) if is_over else Retry(why)

    def _given_up(self, operation: Operation, why: str, connection: Connection) -> Outcome:
        instance, migration = self._lock(connection, operation)
        # A slow conductor that had the operation before may have ended the attempt after this step read it. Then that
        # conductor destroys the guest, and the revert goes on.
        if self._cell.records.current(connection, instance).ended:
            return Retry(why)
        self._cell.migrations.change(connection, migration.uuid, state="moved", reason=why)
        LOG.warning("The revert of migration %s is given up: %s", migration.uuid, why)
        return Ended(why)

    def _destroy(self, operation: Operation, attempt: AttemptRecord, patience: float | None) -> CommitStep:
        fault = self._cell.agents.why_left(operation, attempt)
        if fault is None:
            return partial(self._destroyed, operation, attempt.number, "gone")
        # If the host is forced down, the operator guarantees that nothing runs there: do not wait for it.
        if self._cell.forced_down.has(attempt.host):
            return partial(self._destroyed, operation, attempt.number, "unknown")
        why = why_waiting(attempt.host, fault) if patience is None else f"{attempt.host}: {fault}"
        return partial(self._not_destroyed, operation, attempt.number, patience, why)

    def _not_destroyed(
        self, operation: Operation, number: int, patience: float | None, why: str, connection: Connection
    ) -> Outcome:
        is_over = patience is not None and self._cell.operations.age(connection, operation) >= patience
        # After the patience a residue holds the amounts of the guest, and a cleanup continues with the host.
        if is_over or self._cell.records.numbered(connection, operation.subject, number).guest_gone:
            return self._destroyed(operation, number, "unknown", connection)
        return Retry(why)

    def _destroyed(self, operation: Operation, number: int, fate: Fate, connection: Connection) -> Outcome:
        self._lock(connection, operation)
        left = self._cell.records.numbered(connection, operation.subject, number)
        if fate == "gone":
            self._cell.records.change_attempt(connection, left.attempt_id, guest_gone=True)
        elif left.guest_gone:
            fate = "gone"  # the host has reported it meanwhile
        # Record the fate in the payload, so that a repeated request to the store has the same content.
        if operation.kind == CONFIRM:
            return Next("end", EndMoveStep(fate=fate))
        return Next("give_back", GiveBackStep(failed=number, fate=fate, reason=None))

    @step(CONFIRM, "end")
    def end(self, operation: Operation) -> CommitStep:
        """Release the amounts that the migration holds on the source; if a guest may be left, they become a residue."""
        payload = operation.read(EndMoveStep)
        _instance, migration, source, arrived = self._cell.database.read(partial(self._read, operation))
        # A confirm that was begun by an earlier version has not ended the source's attempt.
        if not source.ended:
            self._cell.database.write(lambda connection: self._leave(connection, operation, source))
        try:
            ended = send_end(self._cell, operation, payload, migration, arrived, "confirm", payload.fate)
        except errors.ConsumerNotFound as fault:
            if fault.name != migration.uuid:
                raise
            # Another client, for instance an operator, has already released the migration's allocations. Or an earlier
            # try has ended the move, and its stored answer has expired: then the migration may be a residue.
            LOG.warning("Migration %s has nothing left to release: %s", migration.uuid, fault)
            return partial(self._confirmed, operation, payload.fate, migration.uuid, None)
        if not isinstance(ended, MoveEnded):
            return ended  # not carried out: first record the generations that were read, or a conflict
        foreign = describe_foreign(ended.extras, stay=self._cell.writes.keeps_foreign)
        return partial(self._confirmed, operation, payload.fate, ended.residue_uuid, foreign)

    def _confirmed(
        self, operation: Operation, fate: Fate, residue: str | None, foreign: str | None, connection: Connection
    ) -> Outcome:
        instance, migration = self._lock(connection, operation)
        source = self._cell.migrations.source(connection, migration)
        # The guest is not reported as gone: a cleanup destroys it when the host answers, then releases the residue.
        if fate != "gone":
            CellCleanups(self._cell).begin(connection, instance.uuid, [source], operation.request_id, residue)
        # Only now the instance gets the new request (after a resize: the new flavor); after a revert it keeps its own.
        spec, _held = migration.claimed_with
        # A reason stays: the destination has returned without the guest.
        self._cell.records.change(
            connection, instance.uuid, state="active", request_spec=msgspec.json.encode(spec), migration_uuid=None
        )
        self._cell.migrations.change(connection, migration.uuid, state="confirmed", reason=foreign)
        left = foreign or "nothing else was held there"
        LOG.info("Migration %s of instance %s is confirmed; %s", migration.uuid, instance.uuid, left)
        return Ended()

    def _read(
        self, operation: Operation, connection: Connection
    ) -> tuple[CellInstance, CellMigration, AttemptRecord, AttemptRecord]:
        """Return the instance and the migration, and the attempts on the source and on the destination."""
        instance, migration = self._cell.migrations.expect(connection, operation.subject, "moved")
        source = self._cell.migrations.source(connection, migration)
        return instance, migration, source, self._cell.records.current(connection, instance)

    def _lock(self, connection: Connection, operation: Operation) -> tuple[CellInstance, CellMigration]:
        return self._cell.migrations.expect(connection, operation.subject, "moved", lock=True)


def send_end(
    cell: CellContext,
    operation: Operation,
    payload: P,
    migration: CellMigration,
    attempt: AttemptRecord,
    outcome: Literal["confirm", "revert"],
    *named: object,
) -> MoveEnded | CommitStep:
    """End a move in the store, or return what must be recorded first: generations that were read, or a conflict.

    :param attempt: the attempt on the destination.
    :param named: further parts of the request id: everything that the content of the request depends on.
    :raises MoorageError: the store has refused the request, or does not answer.
    """
    _spec, held = migration.claimed_with

    def message(payload: P) -> EndMove:
        return EndMove(
            request_id=cell.writes.request_id(operation, operation.step, payload, *named),
            consumer_uuid=operation.subject,
            migration_uuid=migration.uuid,
            claim_id=attempt.claim,
            outcome=outcome,
            held=held,
            claimed=attempt.selection.allocation_request,
            consumer_generation=payload.generation,
            migration_generation=payload.migration_generation,
            guest_gone=payload.fate == "gone",
            leave_residue=payload.fate == "unknown",
            keep_extras=cell.writes.keeps_foreign,
        )

    return cell.writes.write(operation, payload, message, migration.uuid)
