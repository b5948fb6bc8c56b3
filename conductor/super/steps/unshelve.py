"""How the super conductor places a shelved instance again: the scheduler chooses in its cell, which starts it there."""

import logging
from functools import partial

import msgspec
from sqlalchemy import Connection

from conductor.engine.acknowledgements import AcknowledgingClient
from conductor.engine.operations import Operations
from conductor.engine.steps import UNSHELVE, Again, CommitStep, Ended, NewOperation, Next, Operation, Outcome, Step
from conductor.super.cell_clients import Cells
from conductor.super.records import instances as super_records
from conductor.super.scheduling import Asker, Chosen, Refused
from conductor.super.steps.move import was_refused, within_cell
from moorage import errors
from moorage.db.database import Database
from moorage.messages import (
    CancelUnshelveInCell,
    GetAllocations,
    PrepareUnshelveInCell,
    PutAllocations,
    UnshelveInCell,
)
from moorage.model import Consumer, ConsumerAllocations, Name, RequestSpec, Uuid, Value

LOG = logging.getLogger(__name__)


class PreparingUnshelve(Value, frozen=True, kw_only=True):
    """Step `prepare`: what was ordered."""

    cell_uuid: Uuid
    host: Name | None = None
    #: Null in the records of earlier versions.
    order_number: int | None = None


class SuperUnshelves:
    """The steps of unshelving."""

    def __init__(self, database: Database, asker: Asker, placement: AcknowledgingClient, cells: Cells) -> None:
        self._database = database
        self._asker = asker
        self._placement = placement
        self._cells = cells

    def steps(self) -> dict[tuple[str, str], Step]:
        """Return the function for each step."""
        return self._asker.steps(UNSHELVE) | {
            (UNSHELVE, "prepare"): self.prepare,
            (UNSHELVE, "fence"): self.fence,
            (UNSHELVE, "cancel"): self.cancel,
            (UNSHELVE, "hand_over"): self.hand_over,
        }

    @staticmethod
    def begin(
        connection: Connection,
        operations: Operations,
        preparing: PreparingUnshelve,
        *,
        uuid: str,
        instance_uuid: str,
        origin: str,
    ) -> list[Operation]:
        """Record the operation that places an instance again; why it could not be the last time is forgotten.

        :param origin: the request that it all began with.
        """
        super_records.explain(connection, instance_uuid, None)
        new = NewOperation(uuid=uuid, kind=UNSHELVE, subject=instance_uuid, step="prepare", payload=preparing)
        return operations.begin(connection, [new], origin)

    def prepare(self, operation: Operation) -> CommitStep:
        """Have the cell take the instance, and say what is to be asked for."""
        preparing = operation.read(PreparingUnshelve)
        number = preparing.order_number
        message = PrepareUnshelveInCell(
            request_id=operation.derived("prepare"), instance_uuid=operation.subject, order_number=number
        )
        try:
            spec = self._cells.call(preparing.cell_uuid, message)
        except errors.MoorageError as fault:
            if not was_refused(fault):
                raise
            # An earlier sending of it may be slower than this refusal; cancelled, it is refused as well.
            step = "cancel" if operation.tries or operation.resumed else None
            return partial(_refused, operation, Refused(reason=str(fault), order_number=number), step)
        asking = self._asker.asking(within_cell(spec, preparing.cell_uuid, preparing.host), order_number=number)
        return lambda _connection: Next("read", asking)

    def hand_over(self, operation: Operation) -> CommitStep:
        """Give the cell the instance with its claimed host, until it is answered: it may have started it already."""
        chosen = operation.read(Chosen)
        selections = chosen.selections
        message = UnshelveInCell(
            request_id=operation.derived("hand_over"),
            instance_uuid=operation.subject,
            selections=selections,
            order_number=chosen.order_number,
        )
        try:
            self._cells.call(selections[0].cell_uuid, message)
        except errors.MoorageError as fault:
            if not was_refused(fault):
                raise
            return partial(_not_taken, operation, str(fault))
        return lambda _connection: Ended()

    def fence(self, operation: Operation) -> CommitStep:
        """See to it that no earlier request is carried out any more, or find that one has been.

        Each of them names a generation of the consumer that has been read before. So what the consumer holds is written
        once more: that bumps its generation beyond all of them.
        """
        refused, uuid = operation.read(Refused), operation.subject
        if (asking := refused.asking) is None:
            raise ValueError(f"operation {operation.uuid} has nothing to fence")
        consumer = self._consumer(uuid)
        if consumer is not None and consumer.claim_id is not None:
            return lambda _connection: Next("recover", asking)
        same = _as_it_is(consumer, asking.request_spec)
        # At this generation it is the same write, whoever sends it and however often.
        request_id = operation.derived("fence", same.consumer_generation)
        try:
            self._placement.call(PutAllocations(request_id=request_id, consumer_uuid=uuid, wanted=same))
        except errors.ConsumerDeleted:
            LOG.info("Instance %s is deleted: nothing can be claimed for it any more", uuid)
        return lambda _connection: Next("cancel", msgspec.structs.replace(refused, asking=None))

    def _consumer(self, uuid: str) -> Consumer | None:
        try:
            return self._placement.call(GetAllocations(consumer_uuid=uuid))
        except errors.ConsumerNotFound:
            return None

    def cancel(self, operation: Operation) -> CommitStep:
        """Have the cell leave the instance shelved, until it is answered; it knows if it is gone meanwhile."""
        refused = operation.read(Refused)
        known = self._database.read(lambda connection: super_records.read(connection, operation.subject))
        message = CancelUnshelveInCell(
            request_id=operation.derived("cancel"),
            instance_uuid=operation.subject,
            reason=refused.reason,
            order_number=refused.order_number,
        )
        try:
            self._cells.call(str(known.cell_uuid), message)
        except errors.MoorageError as fault:
            if not was_refused(fault):
                raise
            LOG.info("There is nothing to cancel for instance %s: %s", operation.subject, fault)
        return partial(_refused, operation, refused, None)


def _as_it_is(consumer: Consumer | None, spec: RequestSpec) -> ConsumerAllocations:
    """Return a write that changes nothing of a consumer but its generation, or creates one that holds nothing."""
    if consumer is None:
        return ConsumerAllocations(
            allocations={}, project_id=spec.project_id, user_id=spec.user_id, consumer_generation=None
        )
    # The generations of the providers are of no interest here.
    held = {at: msgspec.structs.replace(amounts, generation=None) for at, amounts in consumer.allocations.items()}
    return ConsumerAllocations(
        allocations=held,
        project_id=consumer.project_id,
        user_id=consumer.user_id,
        consumer_type=consumer.consumer_type,
        consumer_generation=consumer.generation,
    )


def _refused(operation: Operation, refused: Refused, step: str | None, connection: Connection) -> Outcome:
    super_records.explain(connection, operation.subject, refused.explanation)
    return Ended(refused.reason) if step is None else Next(step, refused)


def _not_taken(operation: Operation, reason: str, connection: Connection) -> Outcome:
    # A cell that has taken the instance to place it has no reason to refuse, unless it is being deleted.
    return Ended(reason) if super_records.is_deleted(connection, operation.subject) else Again(reason)
