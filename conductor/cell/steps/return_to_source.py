"""Return an instance to the source of its move: first the claim (step `give_back`), then its guest (`restart`)."""

import logging
from functools import partial

from sqlalchemy import Connection

from conductor.cell.context import CellContext, CellPart
from conductor.cell.payloads import GiveBackStep, RestartStep
from conductor.cell.records import order_numbers
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance
from conductor.cell.records.migrations import STOPPING, CellMigration
from conductor.cell.steps.fall_back import FallBack
from conductor.engine.conflict_policy import describe_foreign
from conductor.engine.steps import MOVE, REVERT, CommitStep, Ended, Next, Operation, Outcome, Superseded, step
from moorage import errors
from moorage.messages import EndMove, MoveEnded, StartOnHost

LOG = logging.getLogger(__name__)


class ReturnToSource(CellPart):
    """The steps of a move that has failed on every host, and of one that is reverted."""

    def __init__(self, cell: CellContext) -> None:
        super().__init__(cell)
        self._fall_back = FallBack(cell)

    @step((MOVE, REVERT), "give_back")
    def return_to_source(self, operation: Operation) -> CommitStep:
        """Move the source's amounts from the migration back to the instance, and release the destination."""
        payload = operation.read(GiveBackStep)

        def work(connection: Connection) -> tuple[CellMigration, AttemptRecord]:
            instance, migration = self._of(connection, self._cell.records.read(connection, operation.subject))
            return migration, self._cell.records.numbered(connection, instance.uuid, payload.failed)

        migration, failed = self._cell.database.read(work)
        _spec, held = migration.claimed_with

        def message(payload: GiveBackStep) -> EndMove:
            return EndMove(
                request_id=self._cell.writes.request_id(operation, "give_back", payload, payload.failed, payload.fate),
                consumer_uuid=operation.subject,
                migration_uuid=migration.uuid,
                claim_id=failed.claim,
                outcome="revert",
                held=held,
                claimed=failed.selection.allocation_request,
                consumer_generation=payload.generation,
                migration_generation=payload.migration_generation,
                guest_gone=payload.fate == "gone",
                leave_residue=payload.fate == "unknown",
                keep_extras=self._cell.writes.keeps_foreign,
            )

        try:
            ended = self._cell.writes.write(operation, payload, message, migration.uuid)
        except errors.InvalidState as fault:
            if payload.fate != "unstarted":
                raise
            # The destination has accepted the claim after all: it is building, and its report decides.
            return partial(self._fall_back.accepted, operation, payload.failed, payload.reason or str(fault))
        return partial(self._returned, operation, payload, ended) if isinstance(ended, MoveEnded) else ended

    def _returned(
        self, operation: Operation, payload: GiveBackStep, ended: MoveEnded, connection: Connection
    ) -> Outcome:
        instance, migration = self._of(connection, self._cell.records.lock(connection, operation.subject))
        failed = self._cell.records.numbered(connection, instance.uuid, payload.failed)
        # First the destination. A reverted move has no reason: its attempt has ended before, and did not fail.
        if payload.reason is not None:
            self._fall_back.end(connection, failed, payload.reason, gone=ended.residue_uuid is None)
        elif ended.residue_uuid is None:
            self._cell.records.change_attempt(connection, failed.attempt_id, guest_gone=True)
        self._fall_back.clean(connection, operation, ended.residue_uuid)
        # Then the source: its attempt is the current one again, under the claim that the store has put back.
        source = self._cell.records.numbered(connection, instance.uuid, migration.source_number)
        self._cell.records.change_attempt(connection, source.attempt_id, state="active")
        self._cell.records.change(
            connection, instance.uuid, attempt_number=source.number, claim_id=ended.claim_id, host=source.host
        )
        foreign = describe_foreign(ended.extras, stay=self._cell.writes.keeps_foreign)
        # Last the guest there: started again if it was stopped for the move.
        if migration.kind in STOPPING and payload.stopped:
            # With the number raised the agent refuses a late order to stop it.
            order_numbers.next_guest_order(self._cell.records, connection, instance)
            return Next("restart", RestartStep(reason=payload.reason, extras=foreign))
        return self._back(connection, operation, payload.reason, None, foreign)

    @step((MOVE, REVERT), "restart")
    def restart(self, operation: Operation) -> CommitStep:
        """Start the guest on the source; repeat until it is answered. On a refusal the instance is in error."""
        payload = operation.read(RestartStep)

        def work(connection: Connection) -> tuple[CellInstance, AttemptRecord]:
            instance, _migration = self._of(connection, self._cell.records.read(connection, operation.subject))
            return instance, self._cell.records.numbered(connection, instance.uuid, instance.attempt_number)

        instance, source = self._cell.database.read(work)
        message = StartOnHost(
            request_id=operation.derived("restart"),
            host=source.host,
            instance_uuid=operation.subject,
            attempt_id=source.attempt_id,
            claim_id=source.claim,
            order_number=instance.guest_order,
        )
        why = self._cell.guests.why_silent(source) or self._cell.guests.order(operation, source, message)
        return lambda connection: self._back(connection, operation, payload.reason, why, payload.extras)

    def _back(
        self,
        connection: Connection,
        operation: Operation,
        reason: str | None,
        stopped: str | None,
        foreign: str | None,
    ) -> Outcome:
        """Record the instance's former state, or error if its guest does not run, and end the migration.

        :param reason: why the move has failed; null for one that is reverted.
        :param stopped: why the guest on the source does not run, if so.
        :param foreign: a description of the foreign allocations on the destination.
        """
        instance, migration = self._of(connection, self._cell.records.lock(connection, operation.subject))
        if stopped is None:
            self._cell.records.change(connection, instance.uuid, state=migration.instance_state, migration_uuid=None)
        else:
            why = f"it is back on its host, and its guest does not run there: {stopped}"
            self._cell.records.change(connection, instance.uuid, state="error", reason=why, migration_uuid=None)
        if operation.kind == REVERT:
            what = "; ".join(filter(None, (stopped, foreign))) or None
            self._cell.migrations.change(connection, migration.uuid, state="reverted", reason=what)
            LOG.info("Migration %s of instance %s is reverted", migration.uuid, instance.uuid)
            return Ended(stopped)
        why = "; ".join(filter(None, (self._why(connection, migration, reason), foreign)))
        self._cell.migrations.change(connection, migration.uuid, state="failed", destination_host=None, reason=why)
        LOG.info("Migration %s of instance %s has failed: %s", migration.uuid, instance.uuid, why)
        return Ended(why)

    def _why(self, connection: Connection, migration: CellMigration, reason: str | None) -> str:
        """Return the reason of a failed move: that of each of its attempts."""
        if migration.is_aborted:
            return "it was broken off"
        attempts = [
            attempt
            for attempt in self._cell.records.attempts(connection, migration.instance_uuid)
            if attempt.migration_uuid == migration.uuid
        ]
        return "; ".join(f"{attempt.host}: {attempt.reason or reason}" for attempt in attempts)

    def _of(self, connection: Connection, instance: CellInstance | None) -> tuple[CellInstance, CellMigration]:
        if instance is None or instance.state not in ("moving", "moved"):
            raise Superseded
        return instance, self._cell.migrations.of(connection, instance)
