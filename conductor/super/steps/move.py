"""Move an instance: its cell reserves it, the scheduler selects a destination, and the cell carries out the move."""

import logging

from msgspec import structs
from sqlalchemy import Connection

from conductor.engine.conflict_policy import CLAIM_OWNER, MAY_HAVE_CLAIMED, describe_foreign, find_consumer
from conductor.engine.steps import ABORTED, MOVE, CommitStep, Ended, Next, Operation, Outcome, step
from conductor.super.held_consumers import without
from conductor.super.payloads import HandOverSelections, NotScheduled, ScheduleStep, all_doubted
from conductor.super.records import instances as super_records
from conductor.super.records import migrations as super_migrations
from conductor.super.steps.place_existing import PlaceExisting, within_cell, without_destination
from moorage import errors
from moorage.messages import (
    CancelMoveInCell,
    DeleteAllocations,
    EndMove,
    HealConsumers,
    MoveInCell,
    PrepareMoveInCell,
    PutAllocations,
)
from moorage.model import (
    AllocationRequest,
    Consumer,
    ConsumerAllocations,
    Flavor,
    Move,
    MoveKind,
    Name,
    Placement,
    RecordedHold,
    RequestSpec,
    SeenConsumer,
    Uuid,
    Value,
)

LOG = logging.getLogger(__name__)

#: The steps at which an order to delete the instance ends the move at once. The other steps undo late effects of the
#: move, and must be completed.
ENDED_BY_DELETION = ("prepare", "read", "select", "hand_over")

#: The reason of a move whose destination was claimed by an answer that has expired.
LOST_ANSWER = (
    "the answer of the scheduler was lost and cannot be repeated, so the destination was released: order it again"
)
#: The reason of such a move if another client has released the destination.
RELEASED = "another client has released its destination: run `moorage audit --heal --apply` to return the source"


class PrepareMoveStep(Value, frozen=True, kw_only=True):
    """The payload of step `prepare`: the order."""

    kind: MoveKind
    cell_uuid: Uuid
    host: Name | None = None
    flavor: Flavor | None = None
    drop_extras: bool = False
    #: Null in the records of earlier versions.
    order_number: int | None = None


class SuperMoves(PlaceExisting):
    """The steps of a move; its operation and its migration have one uuid."""

    kind = MOVE

    @step(MOVE, "prepare")
    def prepare(self, operation: Operation) -> CommitStep:
        """Reserve the instance for the move in its cell, and get its current placement from the cell."""
        preparing = operation.read(PrepareMoveStep)
        message = PrepareMoveInCell(
            request_id=operation.derived("prepare"),
            instance_uuid=operation.subject,
            migration_uuid=operation.uuid,
            kind=preparing.kind,
            order_number=preparing.order_number,
        )
        try:
            placement = self._super.cells.call(preparing.cell_uuid, message)
        except errors.MoorageError as fault:
            return self._not_prepared(operation, fault)
        if preparing.kind == "evacuation":
            self._claim_lost_source(operation, placement)
        spec = within_cell(placement.request_spec, preparing.cell_uuid, preparing.host)
        if preparing.flavor is not None:
            spec = structs.replace(spec, flavor=preparing.flavor)
        move = Move(
            migration_uuid=operation.uuid,
            kind=preparing.kind,
            claim_id=placement.claim_id,
            held=placement.selection.allocation_request,
            drop_extras=preparing.drop_extras,
        )
        following = self.first_step(spec, move)

        def commit(connection: Connection) -> Outcome:
            super_migrations.change(connection, operation.uuid, source_host=placement.selection.service_host)
            return Next("read", following)

        return commit

    def _claim_lost_source(self, operation: Operation, placement: Placement) -> None:
        """Give the recorded claim back to an instance that the store has lost, so that the move finds it.

        With its amounts, if the store still has its host with room for them; otherwise without, because the instance is
        to leave that host. If the store refuses both, the next step finds no claim to move.

        :raises Unavailable: the placement role does not answer; the step is repeated with the same requests.
        """
        found = find_consumer(self._super.placement, operation.subject)
        if found is not None and found.claim_id is not None:
            return
        seen = SeenConsumer() if found is None else SeenConsumer(generation=found.generation)
        recorded = _hold_of_source(operation.subject, placement)
        for hold in (recorded, structs.replace(recorded, allocations={}, pools=(), group=None)):
            amounts = "amounts" if hold.allocations else "no amounts"
            message = HealConsumers(
                request_id=operation.derived("claim source", amounts, seen.generation),
                seen={operation.subject: seen},
                holds=(hold,),
            )
            try:
                self._super.placement.call(message)
            except MAY_HAVE_CLAIMED:
                raise
            except errors.MoorageError as fault:
                LOG.warning("The claim of %s could not be restored with %s: %s", operation.subject, amounts, fault)
            else:
                LOG.warning("The store had lost the claim of %s: restored with %s", operation.subject, amounts)
                return

    def abort(self, connection: Connection, instance_uuid: str, migration_uuid: str | None) -> list[Operation]:
        """End a move for which no claim is known yet, however long the scheduler does not answer.

        The cell knows already that the move is aborted: if step `fence` finds a claim, the cell returns it.
        """
        super_records.lock_known(connection, instance_uuid)
        move = self._super.operations.lock_one_pending(connection, instance_uuid, MOVE)
        if move is None or move.uuid != migration_uuid or move.step not in ("prepare", "read", "select"):
            return []
        following = Next("cancel", NotScheduled(reason=ABORTED))
        if move.step != "prepare":
            following = Next("fence", NotScheduled(reason=ABORTED, asking=all_doubted(move.read(ScheduleStep))))
        redirected = self._super.operations.redirect(connection, move, following)
        return [] if redirected is None else [redirected]

    def _release_claim(self, operation: Operation, payload: ScheduleStep, refusal: errors.MoorageError) -> CommitStep:
        """Return the source to the instance and release the destination; the move ends with its reason.

        Only a doubtful request gives the source to the migration. If none has, there is nothing to return.
        """
        instance = find_consumer(self._super.placement, operation.subject)
        migration = find_consumer(self._super.placement, operation.uuid)
        if instance is None or migration is None or migration.claim_id is None:
            return lambda _connection: Next("fence", NotScheduled(reason=str(refusal), asking=payload))
        if instance.claim_id is None:
            # The migration keeps the amounts of the guest, and refuses every other request as long as it exists.
            LOG.warning("Migration %s of instance %s fails: %s", migration.uuid, instance.uuid, RELEASED)
            return lambda _connection: Next("cancel", NotScheduled(reason=RELEASED))
        foreign = self._return_source(operation, payload, instance, instance.claim_id)
        why = str(refusal) if isinstance(refusal, errors.CellNotFound) else LOST_ANSWER
        LOG.warning("Instance %s stays where it is: %s", instance.uuid, why)
        reason = "; ".join(filter(None, [why, foreign]))
        return lambda _connection: Next("fence", NotScheduled(reason=reason, asking=payload))

    def _return_source(
        self, operation: Operation, payload: ScheduleStep, instance: Consumer, claim_id: str
    ) -> str | None:
        """Revert the move in the store; return a description of the foreign allocations on the destination."""
        move, writes = payload.move, self._super.writes
        if move is None:
            raise ValueError(f"operation {operation.uuid} is no move")
        # The allocation request of the destination was in the lost answer.
        claimed = without(instance.allocations, payload.foreign) or move.held.allocations
        message = EndMove(
            request_id=writes.release_id(operation, "undo", instance.generation),
            consumer_uuid=instance.uuid,
            migration_uuid=operation.uuid,
            claim_id=claim_id,
            outcome="revert",
            held=move.held,
            claimed=AllocationRequest(allocations=claimed),
            consumer_generation=instance.generation,
            keep_extras=writes.keeps_foreign,
        )
        return describe_foreign(self._super.placement.call(message).extras, stay=writes.keeps_foreign)

    def _hand_over_message(self, operation: Operation, payload: HandOverSelections) -> MoveInCell:
        if payload.move is None:
            raise ValueError(f"operation {operation.uuid} is no move")
        return MoveInCell(
            request_id=operation.derived("hand_over"),
            instance_uuid=operation.subject,
            migration_uuid=operation.uuid,
            request_spec=without_destination(payload.request_spec),
            held=payload.move.held,
            selections=payload.selections,
        )

    def _handed_over(self, operation: Operation, payload: HandOverSelections, connection: Connection) -> Outcome:
        destination = payload.selections[0].service_host
        super_migrations.change(connection, operation.uuid, state="moving", destination_host=destination)
        return Ended()

    def _fence(self, operation: Operation, spec: RequestSpec) -> bool:
        """Create the migration's consumer without allocations, and delete it for good.

        Each doubtful request would create this consumer, so it is refused from now on.
        """
        uuid = operation.uuid
        empty = ConsumerAllocations(
            allocations={},
            project_id=spec.project_id,
            user_id=spec.user_id,
            consumer_type="MIGRATION",
            consumer_generation=None,
        )
        try:
            self._super.placement.call(
                PutAllocations(request_id=operation.derived("fence"), consumer_uuid=uuid, wanted=empty)
            )
        except errors.ConsumerGenerationConflict:
            # The consumer exists: a doubtful request has claimed. Or an earlier try has created it, and the stored
            # answer has expired: then it has no claim.
            migration = find_consumer(self._super.placement, uuid)
            if migration is None or migration.claim_id is not None:
                return False
        except errors.ConsumerDeleted:
            LOG.info("Migration %s has ended with its instance", uuid)
        self._super.placement.call(
            DeleteAllocations(request_id=operation.derived("bury"), consumer_uuid=uuid, for_good=True)
        )
        return True

    def _cancel_message(self, operation: Operation, refused: NotScheduled) -> CancelMoveInCell:
        return CancelMoveInCell(
            request_id=operation.derived("cancel"),
            instance_uuid=operation.subject,
            migration_uuid=operation.uuid,
            reason=refused.reason,
        )

    def _end(self, operation: Operation, refused: NotScheduled, connection: Connection) -> Outcome:
        deleted = refused.deleted or super_records.is_deleted(connection, operation.subject)
        super_migrations.change(
            connection,
            operation.uuid,
            state="ended" if deleted else "failed",
            reason=refused.reason,
            explanation=refused.explanation,
        )
        return Ended(refused.reason)


def _hold_of_source(instance_uuid: str, placement: Placement) -> RecordedHold:
    """Return the hold of an instance at its present place."""
    spec, selection = placement.request_spec, placement.selection
    allocations = selection.allocation_request.allocations
    return RecordedHold(
        consumer_uuid=instance_uuid,
        consumer_type="INSTANCE",
        claim_id=placement.claim_id,
        root_provider_uuid=selection.compute_node_uuid,
        accepted_by=placement.attempt_id,
        accepted_host=selection.service_host,
        allocations=allocations,
        pools=tuple(uuid for uuid in selection.shared_providers if uuid in allocations),
        project_id=spec.project_id,
        user_id=spec.user_id,
        group=spec.server_group,
        owner=CLAIM_OWNER,
    )
