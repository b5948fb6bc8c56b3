"""Unshelve an instance: its cell reserves it, the scheduler selects a host of that cell, the cell starts it there."""

import logging

from sqlalchemy import Connection

from conductor.engine.conflict_policy import CLAIM_OWNER, find_consumer, unchanged
from conductor.engine.steps import UNSHELVE, CommitStep, Ended, Next, Operation, Outcome, step
from conductor.super.payloads import HandOverSelections, NotScheduled, ScheduleStep
from conductor.super.records import instances as super_records
from conductor.super.steps.place_existing import PlaceExisting, within_cell
from moorage import errors
from moorage.messages import (
    CancelUnshelveInCell,
    DeleteAllocations,
    PrepareUnshelveInCell,
    PutAllocations,
    UnshelveInCell,
)
from moorage.model import ConsumerAllocations, Name, RequestSpec, Uuid, Value

LOG = logging.getLogger(__name__)


class PrepareUnshelveStep(Value, frozen=True, kw_only=True):
    """The payload of step `prepare`: the order."""

    cell_uuid: Uuid
    host: Name | None = None
    #: Null in the records of earlier versions.
    order_number: int | None = None


class SuperUnshelves(PlaceExisting):
    """The steps of unshelving."""

    kind = UNSHELVE

    @step(UNSHELVE, "prepare")
    def prepare(self, operation: Operation) -> CommitStep:
        """Reserve the instance for unshelving in its cell, and get its request from there."""
        preparing = operation.read(PrepareUnshelveStep)
        number = preparing.order_number
        message = PrepareUnshelveInCell(
            request_id=operation.derived("prepare"), instance_uuid=operation.subject, order_number=number
        )
        try:
            spec = self._super.cells.call(preparing.cell_uuid, message)
        except errors.MoorageError as fault:
            return self._not_prepared(operation, fault, number)
        following = self.first_step(within_cell(spec, preparing.cell_uuid, preparing.host), order_number=number)
        return lambda _connection: Next("read", following)

    def _release_claim(self, operation: Operation, payload: ScheduleStep, refusal: errors.MoorageError) -> CommitStep:
        """Release the claim, and send a new request; end the unshelving if another claim stands, or without a cell.

        The consumer had no claim when the first request was sent, and nothing else claims for it as a conductor.
        """
        consumer = find_consumer(self._super.placement, operation.subject)
        claim_id = None if consumer is None else consumer.claim_id
        if consumer is not None and claim_id is not None:
            if consumer.owner != CLAIM_OWNER or consumer.accepted_by is not None:
                # Each doubtful request names an older generation, so it needs no fence.
                refused = NotScheduled(reason=str(self._placed_already(consumer)), order_number=payload.order_number)
                return lambda _connection: Next("cancel", refused)
            message = DeleteAllocations(
                request_id=operation.derived("undo", claim_id),
                consumer_uuid=operation.subject,
                claim_id=claim_id,
                unaccepted=True,
            )
            self._super.placement.call(message)
            LOG.warning(
                "Released all allocations of instance %s with its claim %s, which no cell will use: %s",
                consumer.uuid,
                claim_id,
                refusal,
            )
        if isinstance(refusal, errors.CellNotFound):
            # Each doubtful request names a generation from before the claim, so it needs no fence.
            refused = NotScheduled(reason=str(refusal), order_number=payload.order_number)
            return lambda _connection: Next("cancel", refused)
        return lambda _connection: Next("read", payload)

    def _hand_over_message(self, operation: Operation, payload: HandOverSelections) -> UnshelveInCell:
        return UnshelveInCell(
            request_id=operation.derived("hand_over"),
            instance_uuid=operation.subject,
            selections=payload.selections,
            order_number=payload.order_number,
        )

    def _handed_over(self, _operation: Operation, _payload: HandOverSelections, _connection: Connection) -> Outcome:
        return Ended()

    def _fence(self, operation: Operation, spec: RequestSpec) -> bool:
        """Write the consumer's allocations again, unchanged, to bump its generation.

        Each doubtful request names an older generation, so it is refused from now on.
        """
        uuid = operation.subject
        consumer = find_consumer(self._super.placement, uuid)
        if consumer is not None and consumer.claim_id is not None:
            return False
        empty = ConsumerAllocations(
            allocations={}, project_id=spec.project_id, user_id=spec.user_id, consumer_generation=None
        )
        same = empty if consumer is None else unchanged(consumer)
        # For one generation it is always the same write, from any conductor and in any try.
        request_id = operation.derived("fence", same.consumer_generation)
        try:
            self._super.placement.call(PutAllocations(request_id=request_id, consumer_uuid=uuid, wanted=same))
        except errors.ConsumerDeleted:
            LOG.info("Instance %s is deleted: nothing can be claimed for it any more", uuid)
        return True

    def _cancel_message(self, operation: Operation, refused: NotScheduled) -> CancelUnshelveInCell:
        return CancelUnshelveInCell(
            request_id=operation.derived("cancel"),
            instance_uuid=operation.subject,
            reason=refused.reason,
            order_number=refused.order_number,
        )

    def _end(self, operation: Operation, refused: NotScheduled, connection: Connection) -> Outcome:
        super_records.explain(connection, operation.subject, refused.explanation)
        return Ended(refused.reason)
