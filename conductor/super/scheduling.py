"""How the super conductor asks the scheduler for an instance that is there already: to move it, or to place it again.

The generation of its consumer is read, written down and named. If others write meanwhile, the policy says what is done;
the instance has at most one answer all the same, for each request names the generation that the one before it would
have moved.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from oslo_config import cfg
from sqlalchemy import Connection

from conductor.engine import conflict_policy
from conductor.engine.acknowledgements import AcknowledgingClient
from conductor.engine.steps import Again, Backoff, CommitStep, Next, Operation, Outcome, Step
from conductor.super.records import instances as super_records
from moorage import errors
from moorage.messages import GetAllocations, SelectDestinations
from moorage.model import Consumer, Generation, Move, RequestSpec, Selection, Value

LOG = logging.getLogger(__name__)

#: Answers from which it cannot be told whether the scheduler has claimed, or will yet.
_UNDECIDED = (errors.Unavailable, errors.RequestInProgress, errors.InternalError)

#: Between two requests to the scheduler after losing to other claims: long enough for those to be seen by its view.
_CONTENTION = Backoff(first=0.1, longest=2.0)


class Asked(Value, frozen=True, kw_only=True):
    """A request that may have been sent: its number, and all in which it differs from the others of its operation."""

    number: int
    generation: Generation | None
    keep_held: bool = False


class Asking(Value, frozen=True, kw_only=True):
    """Steps `read`, `select` and `recover`: what is asked for, and what came of it so far."""

    request_spec: RequestSpec
    num_alternates: int
    move: Move | None = None
    current: Asked = Asked(number=0, generation=None)
    #: How many requests have lost to other claims, and how many to other writers of the consumer.
    lost: int = 0
    conflicts: int = 0
    #: Earlier requests that may have been carried out, or may be yet.
    doubtful: tuple[Asked, ...] = ()
    #: The number of the order that is carried out; null in the records of earlier versions.
    order_number: int | None = None


class Chosen(Value, frozen=True, kw_only=True):
    """Step `hand_over`: what was asked for, and the answer, of which the first is claimed."""

    request_spec: RequestSpec
    move: Move | None = None
    selections: tuple[Selection, ...]
    order_number: int | None = None


class Refused(Value, frozen=True, kw_only=True):
    """Steps `fence` and `cancel`: nothing was claimed, and why; until it is fenced, as far as it is known."""

    reason: str
    explanation: dict[str, Any] | None = None
    #: The instance has been deleted.
    deleted: bool = False
    asking: Asking | None = None
    order_number: int | None = None


class Asker:
    """The steps that ask, the same for every kind of operation; after them comes `hand_over`, `fence` or `cancel`."""

    def __init__(self, conf: cfg.ConfigOpts, scheduler: AcknowledgingClient, placement: AcknowledgingClient) -> None:
        self._conf = conf.conductor
        self._scheduler = scheduler
        self._placement = placement

    def steps(self, kind: str) -> dict[tuple[str, str], Step]:
        """Return the function for each step of operations of this kind."""
        return {(kind, "read"): self.read, (kind, "select"): self.select, (kind, "recover"): self.recover}

    def asking(self, request_spec: RequestSpec, move: Move | None = None, *, order_number: int | None = None) -> Asking:
        """Return what to begin step `read` with."""
        alternates = self._conf.max_attempts - 1
        return Asking(request_spec=request_spec, num_alternates=alternates, move=move, order_number=order_number)

    # --- read ---------------------------------------------------------------------------------------------------------

    def read(self, operation: Operation) -> CommitStep:
        """Read the generation to be named, and whether an earlier request has been carried out."""
        asking, uuid = operation.read(Asking), operation.subject
        try:
            consumer = self._placement.call(GetAllocations(consumer_uuid=uuid))
        except errors.ConsumerNotFound:
            consumer = None
        if asking.doubtful and _claim_of(consumer) != (asking.move and asking.move.claim_id):
            return lambda _connection: Next("recover", asking)
        if (fault := self._not_askable(operation.subject, consumer, asking.move)) is not None:
            return _refused(operation, asking, fault)
        current = Asked(
            number=asking.current.number + 1,
            generation=None if consumer is None else consumer.generation,
            keep_held=asking.move is None and consumer is not None and self._policy == conflict_policy.COMBINE,
        )
        return lambda _connection: Next("select", msgspec.structs.replace(asking, current=current))

    def _not_askable(self, uuid: str, consumer: Consumer | None, move: Move | None) -> errors.MoorageError | None:
        """Return why an instance cannot be moved, or nothing be added to what one holds that no host has, if so."""
        if consumer is None:
            return None if move is None else errors.ConsumerNotFound(name=uuid)
        if move is not None:
            return None
        if consumer.claim_id is not None:
            return errors.InvalidState(
                reason=f"consumer {consumer.uuid} is placed already, by claim {consumer.claim_id}"
            )
        if consumer.allocations and self._policy != conflict_policy.COMBINE:
            return errors.InvalidState(
                reason=f"others have put something on consumer {consumer.uuid}, "
                f"and consumer_conflict_policy is {self._policy}"
            )
        return None

    # --- select -------------------------------------------------------------------------------------------------------

    def select(self, operation: Operation) -> CommitStep:
        """Ask the scheduler for a claimed host; not answered, ask the same again for as long as it takes."""
        asking = operation.read(Asking)
        try:
            selections = self._ask(operation, asking, asking.current)
        except errors.MoorageError as fault:
            return self._not_selected(operation, asking, fault)
        return _chosen(asking, selections)

    def _ask(self, operation: Operation, asking: Asking, asked: Asked) -> Sequence[Selection]:
        uuid = operation.subject
        [selections] = self._scheduler.call(
            SelectDestinations(
                request_id=operation.derived("select", asked.number),
                request_spec=asking.request_spec,
                instance_uuids=(uuid,),
                num_alternates=asking.num_alternates,
                owner="conductor",
                consumer_generations={} if asked.generation is None else {uuid: asked.generation},
                move=asking.move,
                keep_held=asked.keep_held,
            )
        )
        claimed = selections[0]
        if claimed.released:
            raise errors.ClaimReleased(consumer_uuid=uuid, claim_id=str(claimed.claim_id))
        LOG.info(
            "Instance %s is to go to host %s, with %d alternate(s)", uuid, claimed.service_host, len(selections) - 1
        )
        return selections

    def _not_selected(self, operation: Operation, asking: Asking, fault: errors.MoorageError) -> CommitStep:
        if isinstance(fault, _UNDECIDED):
            raise fault
        # It may have been sent before, and that sending may be slower than this answer.
        doubted = msgspec.structs.replace(asking, doubtful=(*asking.doubtful, asking.current))
        if operation.tries or operation.resumed:
            asking = doubted
        match fault:
            case errors.ClaimContention() if asking.lost < self._conf.max_contention_retries:
                again = msgspec.structs.replace(asking, lost=asking.lost + 1)
                return lambda _connection: Next("read", again, delay=_CONTENTION.seconds(again.lost))
            case errors.ConsumerGenerationConflict() if self._asks_again(fault, asking.conflicts + 1):
                again = msgspec.structs.replace(asking, conflicts=asking.conflicts + 1)
                return lambda _connection: Next("read", again, delay=conflict_policy.BACKOFF.seconds(again.conflicts))
        # Also of one that was sent once a second copy may arrive, when there is room again: it would claim what nobody
        # wants, and take the source away from a server that stays on it.
        return _refused(operation, doubted, fault)

    def _asks_again(self, fault: errors.ConsumerGenerationConflict, conflicts: int) -> bool:
        return conflict_policy.retries(self._policy, fault, conflicts, self._conf.max_contention_retries)

    @property
    def _policy(self) -> str:
        policy: str = self._conf.consumer_conflict_policy
        return policy

    # --- recover ------------------------------------------------------------------------------------------------------

    def recover(self, operation: Operation) -> CommitStep:
        """Get the answer of whichever earlier request has been carried out: each is repeated as it was."""
        asking = operation.read(Asking)
        refusal: errors.MoorageError = errors.ConsumerNotFound(name=operation.subject)
        for asked in asking.doubtful:
            try:
                return _chosen(asking, self._ask(operation, asking, asked))
            except _UNDECIDED:
                raise
            except errors.ConsumerDeleted as fault:
                return _refused(operation, asking, fault)
            except errors.MoorageError as fault:
                refusal = fault
        return partial(_not_recovered, operation, refusal)


def _claim_of(consumer: Consumer | None) -> str | None:
    return None if consumer is None else consumer.claim_id


def _not_recovered(operation: Operation, refusal: errors.MoorageError, connection: Connection) -> Outcome:
    if super_records.is_deleted(connection, operation.subject):
        return Next("cancel", Refused(reason=str(refusal), deleted=True))
    # It holds something that none of the requests knows of any more: nothing that could be undone from here.
    return Again(str(refusal))


def _chosen(asking: Asking, selections: Sequence[Selection]) -> CommitStep:
    chosen = Chosen(
        request_spec=asking.request_spec,
        move=asking.move,
        selections=tuple(selections),
        order_number=asking.order_number,
    )
    return lambda _connection: Next("hand_over", chosen)


def _refused(operation: Operation, asking: Asking, fault: errors.MoorageError) -> CommitStep:
    deleted = isinstance(fault, errors.ConsumerDeleted) and fault.consumer_uuid == operation.subject
    LOG.info("Instance %s stays where it is: %s", operation.subject, fault)
    refused = Refused(
        reason=str(fault),
        explanation=dict(fault.explanation) if isinstance(fault, errors.NoValidHost) else None,
        deleted=deleted,
        asking=asking if asking.doubtful else None,
        order_number=asking.order_number,
    )
    # The consumer is buried: whatever comes late is refused as well.
    return lambda _connection: Next("fence" if asking.doubtful and not deleted else "cancel", refused)
