"""Place an existing instance, to move or unshelve it: the steps that both operations have in common.

::

    prepare ──> read ──> select ──> hand_over ──> (end)
       │         │ └─> recover ─────┘
       └─────────┴──> fence ──> cancel ──> (end)

The generation of the instance's consumer is read, recorded, and only then named in a request to the scheduler. If
another client writes meanwhile, `[conductor] consumer_conflict_policy` decides whether to try again. Even then at most
one request claims, because a claim by an earlier request bumps the generation that the later requests name.

A request that was sent without an answer may be carried out later. It is kept as doubtful until `recover` has its
answer, or `fence` has made sure that it will be refused. If a doubtful request has claimed, and its stored answer has
expired, `recover` releases the claim: nobody else can know it. So does `hand_over` if the cell was deleted; then the
operation ends as after a refusal.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from msgspec import structs
from sqlalchemy import Connection

from conductor.engine import conflict_policy
from conductor.engine.conflict_policy import CLAIM_OWNER, CONTENTION, MAY_HAVE_CLAIMED
from conductor.engine.steps import KIND_OF_CLASS, CommitStep, Next, Operation, Outcome, Retry, step
from conductor.super.cell_clients import was_refused
from conductor.super.context import SuperPart
from conductor.super.held_consumers import foreign_beside
from conductor.super.payloads import HandOverSelections, NotScheduled, ScheduleStep, SentRequest, all_doubted
from conductor.super.records import instances as super_records
from moorage import errors
from moorage.messages import SelectDestinations
from moorage.messages.wire import Message
from moorage.model import LONGEST_TEXT, Consumer, Destination, Move, RequestSpec, Selection

LOG = logging.getLogger(__name__)


class PlaceExisting(SuperPart, ABC):
    """The steps of an operation that places an instance which exists in its cell.

    A subclass adds the messages to the cell and the records of its operation, with the step `prepare`:
    :class:`SuperMoves` and :class:`SuperUnshelves`.
    """

    kind: ClassVar[str]

    # --- prepare ------------------------------------------------------------------------------------------------------

    def first_step(
        self, request_spec: RequestSpec, move: Move | None = None, *, order_number: int | None = None
    ) -> ScheduleStep:
        """Return the payload of the first step `read`."""
        alternates = self._super.options.max_attempts - 1
        return ScheduleStep(request_spec=request_spec, num_alternates=alternates, move=move, order_number=order_number)

    def _not_prepared(
        self, operation: Operation, fault: errors.MoorageError, order_number: int | None = None
    ) -> CommitStep:
        """Return the commit step after a failed preparation.

        :raises MoorageError: the ``fault``, if the outcome is unknown: the cell may have carried the message out.
        """
        # A deleted cell never answers, and nothing is claimed yet.
        needs_cancel = isinstance(fault, errors.ReplyTooLarge | errors.CellNotFound)
        if not needs_cancel and not was_refused(fault):
            raise fault
        refused = NotScheduled(reason=str(fault), order_number=order_number)
        if needs_cancel or operation.is_repeated:
            # An earlier copy may arrive after this refusal: after the cancellation it is refused too.
            return lambda _connection: Next("cancel", refused)
        # The message was sent only once, and the cell refuses any later copy because of the order number.
        return partial(self._end, operation, refused)

    # --- read ---------------------------------------------------------------------------------------------------------

    @step(KIND_OF_CLASS, "read")
    def read(self, operation: Operation) -> CommitStep:
        """Read the consumer generation for the next request, and find out whether an earlier one has claimed."""
        payload, uuid = operation.read(ScheduleStep), operation.subject
        consumer = conflict_policy.find_consumer(self._super.placement, uuid)
        claim_id = None if consumer is None else consumer.claim_id
        # Another claim than before the first request: one of the doubtful requests was carried out after all.
        if payload.doubtful and claim_id != (payload.move and payload.move.claim_id):
            return lambda _connection: Next("recover", payload)
        if (fault := self._not_claimable(uuid, consumer, payload.move)) is not None:
            return _not_scheduled(operation, payload, fault)
        current = SentRequest(
            number=payload.current.number + 1,
            generation=None if consumer is None else consumer.generation,
            keep_held=payload.move is None and consumer is not None and self._combines,
        )
        foreign = {} if consumer is None or payload.move is None else foreign_beside(consumer, payload.move.held)
        return lambda _connection: Next("select", structs.replace(payload, current=current, foreign=foreign))

    def _not_claimable(self, uuid: str, consumer: Consumer | None, move: Move | None) -> errors.MoorageError | None:
        """Return the error that explains why nothing can be claimed for the consumer in its state, or None."""
        if consumer is None:
            return None if move is None else errors.ConsumerNotFound(name=uuid)
        if move is not None:
            return None
        if consumer.claim_id is not None:
            return self._placed_already(consumer)
        if consumer.allocations and not self._combines:
            return errors.InvalidState(
                reason=f"consumer {consumer.uuid} has foreign allocations, "
                f"and consumer_conflict_policy is {self._super.writes.policy}"
            )
        return None

    @staticmethod
    def _placed_already(consumer: Consumer) -> errors.InvalidState:
        return errors.InvalidState(reason=f"consumer {consumer.uuid} is placed already, by claim {consumer.claim_id}")

    @property
    def _combines(self) -> bool:
        return self._super.writes.policy == conflict_policy.COMBINE

    # --- select -------------------------------------------------------------------------------------------------------

    @step(KIND_OF_CLASS, "select")
    def select(self, operation: Operation) -> CommitStep:
        """Ask the scheduler for a claimed host; repeat the same request until it is answered."""
        payload = operation.read(ScheduleStep)
        try:
            selections = self._select(operation, payload, payload.current)
        except errors.MoorageError as fault:
            return self._not_selected(operation, payload, fault)
        return _selected(payload, selections)

    def _select(self, operation: Operation, payload: ScheduleStep, request: SentRequest) -> Sequence[Selection]:
        uuid = operation.subject
        message = SelectDestinations(
            # For one number it is always the same request: it claims at most once.
            request_id=operation.derived("select", request.number),
            request_spec=payload.request_spec,
            instance_uuids=(uuid,),
            num_alternates=payload.num_alternates,
            owner=CLAIM_OWNER,
            consumer_generations={} if request.generation is None else {uuid: request.generation},
            move=payload.move,
            keep_held=request.keep_held,
        )
        [selections] = self._super.scheduler.call(message)
        claimed = selections[0]
        # The stored answer was repeated, and its claim was released since.
        if claimed.released:
            raise errors.ClaimReleased(consumer_uuid=uuid, claim_id=str(claimed.claim_id))
        LOG.info(
            "Instance %s is to move to host %s, with %d alternate(s)", uuid, claimed.service_host, len(selections) - 1
        )
        return selections

    def _not_selected(self, operation: Operation, payload: ScheduleStep, fault: errors.MoorageError) -> CommitStep:
        if isinstance(fault, MAY_HAVE_CLAIMED):
            raise fault
        # The request may have been sent before, and the earlier copy may arrive after this answer.
        doubted = all_doubted(payload)
        if operation.is_repeated:
            payload = doubted
        match fault:
            case errors.ClaimContention() if payload.lost < self._super.options.max_contention_retries:
                following = structs.replace(payload, lost=payload.lost + 1)
                return lambda _connection: Next("read", following, delay=CONTENTION.seconds(following.lost))
            case errors.ConsumerGenerationConflict() if self._super.writes.retries(fault, payload.conflicts + 1):
                following = structs.replace(payload, conflicts=payload.conflicts + 1)
                delay = conflict_policy.BACKOFF.seconds(following.conflicts)
                return lambda _connection: Next("read", following, delay=delay)
        # Even a request that was sent once is doubtful: a second copy of it may arrive when there is room again. It
        # would claim a host that nobody uses, and take the source's allocations from an instance that stays there.
        return _not_scheduled(operation, doubted, fault)

    # --- recover ------------------------------------------------------------------------------------------------------

    @step(KIND_OF_CLASS, "recover")
    def recover(self, operation: Operation) -> CommitStep:
        """Repeat the doubtful requests unchanged until one answers: that one has claimed.

        If all are refused, the stored answer to the one that has claimed has expired: release its claim.
        """
        payload = operation.read(ScheduleStep)
        refusal: errors.MoorageError = errors.ConsumerNotFound(name=operation.subject)
        for request in payload.doubtful:
            try:
                return _selected(payload, self._select(operation, payload, request))
            except MAY_HAVE_CLAIMED:
                raise
            except errors.ConsumerDeleted as fault:
                return _not_scheduled(operation, payload, fault)
            except errors.MoorageError as fault:
                refusal = fault
        if self._super.database.read(lambda connection: super_records.is_deleted(connection, operation.subject)):
            # The deletion releases everything, and its tombstones refuse every late request.
            return lambda _connection: Next("cancel", NotScheduled(reason=str(refusal), deleted=True))
        return self._release_claim(operation, payload, refusal)

    @abstractmethod
    def _release_claim(self, operation: Operation, payload: ScheduleStep, refusal: errors.MoorageError) -> CommitStep:
        """Release a claim that no cell will use, unless a host has accepted it; return the commit step.

        It is the claim of a doubtful request whose answer has expired, or one in a deleted cell.

        :param refusal: the answer to the repetition of that request, or the error of the deleted cell.
        :raises MoorageError: the present state does not allow it, or the placement role does not answer.
        """

    # --- hand_over ----------------------------------------------------------------------------------------------------

    @step(KIND_OF_CLASS, "hand_over")
    def hand_over(self, operation: Operation) -> CommitStep:
        """Send the claimed host to the cell until it answers: the cell may already use the host.

        If the cell was deleted, the claim is released and the operation ends.
        """
        payload = operation.read(HandOverSelections)
        cell_uuid = payload.selections[0].cell_uuid
        try:
            refusal = self._refusal(cell_uuid, self._hand_over_message(operation, payload))
        except errors.CellNotFound as deleted:
            return self._without_cell(operation, payload, deleted)
        if refusal is not None:
            return partial(self._not_taken, operation, str(refusal))
        return partial(self._handed_over, operation, payload)

    @abstractmethod
    def _hand_over_message(self, operation: Operation, payload: HandOverSelections) -> Message[Any]:
        """Return the message that hands the instance over to its cell."""

    @abstractmethod
    def _handed_over(self, operation: Operation, payload: HandOverSelections, connection: Connection) -> Outcome:
        """Record that the cell has the selections."""

    def _without_cell(
        self, operation: Operation, payload: HandOverSelections, deleted: errors.CellNotFound
    ) -> CommitStep:
        """Release the claim, and return the commit step, because the cell was deleted.

        :raises CellNotFound: a host has accepted the claim, so the cell has the instance: the list of cells may be
            restored from a backup that is older than the cell.
        """
        consumer = conflict_policy.find_consumer(self._super.placement, operation.subject)
        if consumer is not None and consumer.accepted_by is not None:
            raise deleted
        claimed = self.first_step(payload.request_spec, payload.move, order_number=payload.order_number)
        if consumer is not None:
            beside = foreign_beside(consumer, payload.selections[0].allocation_request)
            claimed = structs.replace(claimed, foreign=beside)
        return self._release_claim(operation, claimed, deleted)

    def _not_taken(self, operation: Operation, reason: str, connection: Connection) -> Outcome:
        # A cell that has reserved the instance for this operation refuses it only if it is being deleted.
        if not super_records.is_deleted(connection, operation.subject):
            return Retry(reason)
        return self._end(operation, NotScheduled(reason=reason, deleted=True), connection)

    # --- fence and cancel ---------------------------------------------------------------------------------------------

    @step(KIND_OF_CLASS, "fence")
    def fence(self, operation: Operation) -> CommitStep:
        """Make sure that every doubtful request will be refused, or find that one of them has claimed."""
        refused = operation.read(NotScheduled)
        if (payload := refused.asking) is None:
            raise ValueError(f"operation {operation.uuid} has nothing to fence")
        if self._fence(operation, payload.request_spec):
            return lambda _connection: Next("cancel", structs.replace(refused, asking=None))
        return lambda _connection: Next("recover", payload)

    @abstractmethod
    def _fence(self, operation: Operation, spec: RequestSpec) -> bool:
        """Invalidate all doubtful requests; return false if one of them has claimed."""

    @step(KIND_OF_CLASS, "cancel")
    def cancel(self, operation: Operation) -> CommitStep:
        """End the reservation of the instance in its cell; repeat until the cell answers. A deleted one has none.

        :raises MoorageError: the cell has not carried the message out, and the instance may still be reserved.
        """
        refused = operation.read(NotScheduled)
        known = self._super.database.read(lambda connection: super_records.read(connection, operation.subject))
        # A plug-in may explain its refusal at any length, and the cell takes no longer text.
        short = structs.replace(refused, reason=refused.reason[:LONGEST_TEXT])
        try:
            refusal = self._refusal(str(known.cell_uuid), self._cancel_message(operation, short))
        except errors.CellNotFound as deleted:
            refusal = deleted
        if refusal is not None:
            # A cell that does not understand the message has not looked at the instance.
            if not isinstance(refusal, errors.NotFound | errors.InvalidState | errors.StaleOrder):
                raise refusal
            LOG.info("There is nothing to cancel for instance %s: %s", operation.subject, refusal)
        return partial(self._end, operation, refused)

    @abstractmethod
    def _cancel_message(self, operation: Operation, refused: NotScheduled) -> Message[Any]:
        """Return the message that ends the reservation of the instance in its cell."""

    @abstractmethod
    def _end(self, operation: Operation, refused: NotScheduled, connection: Connection) -> Outcome:
        """Record that the instance was not placed, and why; end the operation."""

    def _refusal(self, cell_uuid: str, message: Message[Any]) -> errors.MoorageError | None:
        """Send a message to a cell; return the error if the cell has refused it, or None.

        :raises MoorageError: any other error: the cell may have carried the message out.
        """
        try:
            self._super.cells.call(cell_uuid, message)
        except errors.MoorageError as fault:
            if not was_refused(fault):
                raise
            return fault
        return None


def without_destination(spec: RequestSpec) -> RequestSpec:
    """Return a request without the hosts that were required or ignored for one operation."""
    return structs.replace(spec, requested_destination=None, ignore_hosts=(), force_hosts=(), force_nodes=())


def within_cell(spec: RequestSpec, cell_uuid: str, host: str | None) -> RequestSpec:
    """Return a request that is restricted to a cell and, if ``host`` is given, to a host of it."""
    return structs.replace(without_destination(spec), requested_destination=Destination(cell=cell_uuid, host=host))


def _selected(payload: ScheduleStep, selections: Sequence[Selection]) -> CommitStep:
    following = HandOverSelections(
        request_spec=payload.request_spec,
        move=payload.move,
        selections=tuple(selections),
        order_number=payload.order_number,
    )
    return lambda _connection: Next("hand_over", following)


def _not_scheduled(operation: Operation, payload: ScheduleStep, fault: errors.MoorageError) -> CommitStep:
    deleted = isinstance(fault, errors.ConsumerDeleted) and fault.consumer_uuid == operation.subject
    LOG.info("Instance %s stays where it is: %s", operation.subject, fault)
    refused = NotScheduled(
        reason=str(fault),
        explanation=dict(fault.explanation) if isinstance(fault, errors.NoValidHost) else None,
        deleted=deleted,
        asking=payload if payload.doubtful else None,
        order_number=payload.order_number,
    )
    # A deleted consumer needs no fence: its tombstone refuses every late request.
    return lambda _connection: Next("fence" if payload.doubtful and not deleted else "cancel", refused)
