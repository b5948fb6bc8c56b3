"""Return an instance to the source of its move: first the claim (step `give_back`), then the guest (`restart`)."""

import logging
from functools import partial

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.cell.holds import hold_of_residue, hold_of_source
from conductor.cell.payloads import GiveBackStep, RestartStep
from conductor.cell.records import order_numbers
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance
from conductor.cell.records.migrations import STOPPING, CellMigration
from conductor.cell.steps.end_move import send_end
from conductor.cell.steps.fall_back import FallBack
from conductor.engine.conflict_policy import describe_foreign, find_consumer
from conductor.engine.steps import ABORTED, MOVE, REVERT, CommitStep, Ended, Next, Operation, Outcome, step
from moorage import errors
from moorage.messages import HealConsumers, MoveEnded, StartOnHost
from moorage.model import SeenConsumer
from moorage.model.states import InstanceState

LOG = logging.getLogger(__name__)

#: The states of an instance that returns because its move has failed or is reverted.
_RETURNING: tuple[InstanceState, ...] = ("moving", "moved")


class ReturnToSource(CellPart):
    """The steps of a move that has failed on every host, and of a move that is reverted."""

    @step((MOVE, REVERT), "give_back")
    def return_to_source(self, operation: Operation) -> CommitStep:
        """Move the source's amounts from the migration back to the instance, and release the destination."""
        payload = operation.read(GiveBackStep)

        def work(connection: Connection) -> tuple[CellInstance, CellMigration, AttemptRecord, AttemptRecord]:
            instance, migration = self._cell.migrations.expect(connection, operation.subject, *_RETURNING)
            source = self._cell.migrations.source(connection, migration)
            return instance, migration, source, self._cell.records.numbered(connection, instance.uuid, payload.failed)

        instance, migration, source, failed = self._cell.database.read(work)
        named = (payload.failed, payload.fate)
        try:
            ended = send_end(self._cell, operation, payload, migration, failed, "revert", *named)
        except (errors.ClaimReleased, errors.ConsumerNotFound, errors.InvalidState) as fault:
            consumer = find_consumer(self._cell.placement, instance.uuid)
            has_accepted = consumer is not None and consumer.claim_id == failed.claim and consumer.accepted_by
            if consumer is not None and consumer.claim_id == source.claim:
                # Only the end of this move gives the source's claim back. So an earlier try has ended it, and its
                # stored answer has expired. It may have named a residue: a cleanup finds out.
                residue = None if payload.fate == "gone" else failed.attempt_id
                ended = MoveEnded(claim_id=source.claim, consumer_generation=consumer.generation, residue_uuid=residue)
            elif payload.fate == "unstarted" and has_accepted:
                # The destination has accepted the claim after all: it is building, and its report decides.
                return partial(
                    FallBack(self._cell).wait_for_accepted, operation, payload.failed, payload.reason or str(fault)
                )
            elif (claimed := self._claim_again(operation, payload, instance, migration, source, failed)) is not None:
                ended = claimed
            else:
                raise
        return partial(self._returned, operation, payload, ended) if isinstance(ended, MoveEnded) else ended

    def _claim_again(
        self,
        operation: Operation,
        payload: GiveBackStep,
        instance: CellInstance,
        migration: CellMigration,
        source: AttemptRecord,
        failed: AttemptRecord,
    ) -> MoveEnded | None:
        """Claim the source as recorded, if another client has released what one side of the move held; else None.

        What the migration holds of the source is released in the same write, and so is the destination. A residue holds
        its amounts unless its guest is gone: the host may accept the claim until this write.

        :raises MoorageError: the source has no room any more, or the store does not answer: the step is repeated.
        """
        found = [find_consumer(self._cell.placement, uuid) for uuid in (instance.uuid, migration.uuid)]
        consumer, holder = found
        if consumer is None or consumer.claim_id not in (None, failed.claim):
            return None  # it has another claim
        if source.encoded_selection is None:
            return None  # an earlier version has lost it
        if holder is not None:
            is_residue = holder.claim_id is None and holder.accepted_by is not None
            if is_residue or holder.claim_id not in (None, source.claim):
                return None
        is_left = consumer.claim_id is not None and payload.fate != "gone"
        if is_left and holder is not None and holder.claim_id is not None:
            return None  # both sides have their claims: the store has another reason to refuse
        seen = {each.uuid: SeenConsumer(generation=each.generation, claim_id=each.claim_id) for each in found if each}
        residue = hold_of_residue(instance, failed) if is_left else []
        message = HealConsumers(
            request_id=operation.derived(
                "claim_again", payload.failed, payload.fate, *(each and each.generation for each in found)
            ),
            seen=seen | {hold.consumer_uuid: SeenConsumer() for hold in residue},
            holds=(*hold_of_source(instance, migration, source), *residue),
            for_good=() if holder is None else (migration.uuid,),
        )
        healed = self._cell.placement.call(message)
        LOG.warning(
            "Instance %s has claimed its source again, because another client had released a part", instance.uuid
        )
        # The destination may have accepted its claim before that was released: a cleanup finds out.
        left = None if payload.fate == "gone" else failed.attempt_id
        return MoveEnded(
            claim_id=source.claim, consumer_generation=healed.generations[instance.uuid], residue_uuid=left
        )

    def _returned(
        self, operation: Operation, payload: GiveBackStep, ended: MoveEnded, connection: Connection
    ) -> Outcome:
        instance, migration = self._lock(connection, operation)
        fall_back = FallBack(self._cell)
        failed = self._cell.records.numbered(connection, instance.uuid, payload.failed)
        # First the destination. A reverted move has no reason, because its attempt ended before and did not fail.
        if payload.reason is not None:
            fall_back.record_failure(connection, failed, payload.reason, gone=ended.residue_uuid is None)
        elif ended.residue_uuid is None:
            self._cell.records.change_attempt(connection, failed.attempt_id, guest_gone=True)
        fall_back.begin_cleanups(connection, operation, ended.residue_uuid)
        # Then the source: its attempt is the current one again, with the claim that the store has restored.
        source = self._cell.migrations.source(connection, migration)
        self._cell.records.change_attempt(connection, source.attempt_id, state="active")
        self._cell.records.change(
            connection, instance.uuid, attempt_number=source.number, claim_id=ended.claim_id, host=source.host
        )
        foreign = describe_foreign(ended.extras, stay=self._cell.writes.keeps_foreign)
        # Last the guest on the source: start it again if it was stopped for the move.
        if migration.kind in STOPPING and payload.stopped:
            # Raise the number, so that the agent refuses a late order to stop the guest.
            order_numbers.next_guest_order(self._cell.records, connection, instance)
            return Next("restart", RestartStep(reason=payload.reason, extras=foreign))
        return self._back(connection, operation, payload.reason, None, foreign)

    @step((MOVE, REVERT), "restart")
    def restart(self, operation: Operation) -> CommitStep:
        """Start the guest on the source; repeat until the host answers. If it refuses, the instance is in error.

        So it is if the order is in progress for longer than the build timeout.
        """
        payload = operation.read(RestartStep)

        def work(connection: Connection) -> tuple[CellInstance, AttemptRecord]:
            instance, _migration = self._cell.migrations.expect(connection, operation.subject, *_RETURNING)
            return instance, self._cell.records.current(connection, instance)

        instance, source = self._cell.database.read(work)
        message = source.order(StartOnHost, operation.derived("restart"), instance.guest_order)
        try:
            why = self._cell.hosts.why_silent(source.host) or self._cell.agents.order(operation, source, message)
        except errors.RequestInProgress:
            return partial(self._still_starting, operation, payload, source.host)
        return lambda connection: self._back(connection, operation, payload.reason, why, payload.extras)

    def _still_starting(self, operation: Operation, payload: RestartStep, host: str, connection: Connection) -> Outcome:
        wait = self._cell.agents.wait_for_order("restart", payload, host, connection)
        if isinstance(wait, str):
            return self._back(connection, operation, payload.reason, wait, payload.extras)
        return wait

    def _back(
        self, connection: Connection, operation: Operation, reason: str | None, stopped: str | None, foreign: str | None
    ) -> Outcome:
        """Restore the instance's state before the move, or set error if its guest does not run; end the migration.

        :param reason: why the move has failed; null for a revert.
        :param stopped: why the guest on the source does not run; null if it runs.
        :param foreign: a description of the foreign allocations on the destination.
        """
        instance, migration = self._lock(connection, operation)
        if stopped is None:
            # After a revert a reason would be about the host that the instance has left.
            left: dict[str, None] = {"reason": None} if operation.kind == REVERT else {}
            self._cell.records.change(
                connection, instance.uuid, state=migration.instance_state, migration_uuid=None, **left
            )
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
        """Return the reason of a failed move: the reasons of all its attempts, unless it ends because of an abort."""
        if reason == ABORTED:
            return reason
        attempts = [
            attempt
            for attempt in self._cell.records.attempts(connection, migration.instance_uuid)
            if attempt.migration_uuid == migration.uuid
        ]
        return "; ".join(f"{attempt.host}: {attempt.reason or reason}" for attempt in attempts)

    def _lock(self, connection: Connection, operation: Operation) -> tuple[CellInstance, CellMigration]:
        return self._cell.migrations.expect(connection, operation.subject, *_RETURNING, lock=True)
