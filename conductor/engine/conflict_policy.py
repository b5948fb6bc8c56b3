"""Apply `[conductor] consumer_conflict_policy`: another client wrote to a consumer between our read and our write.

:class:`PolicyWrites` sends the requests that release an instance's allocations; the rest serves claims too.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from oslo_config import cfg
from sqlalchemy import Connection

from conductor.engine.acknowledgements import AcknowledgingClient
from conductor.engine.steps import MOVE, Backoff, CommitStep, Next, Operation, Outcome, Wait
from moorage import errors
from moorage.messages import GetAllocations
from moorage.messages.wire import Mutation, R
from moorage.model import Allocations, Consumer, ConsumerAllocations, Value
from moorage.model.allocations import amounts_of, in_words

FAIL = "fail"
COMBINE = "combine"

#: The owner of all claims of conductors.
CLAIM_OWNER = "conductor"
#: Errors after which it is unknown whether the scheduler has claimed, or will claim later.
MAY_HAVE_CLAIMED = (errors.Unavailable, errors.RequestInProgress, errors.InternalError)
#: Seconds between two reads of a consumer that other clients keep writing to. Arbitrary: a write takes milliseconds.
BACKOFF = Backoff(first=0.1, longest=5.0)
#: Seconds between two requests after other claims were faster: the scheduler's view must show these claims first.
CONTENTION = Backoff(first=0.1, longest=2.0)


def is_placed(conflict: errors.ConsumerGenerationConflict) -> bool:
    """Return whether the generations agree: the consumer has allocations already, and another read would not help."""
    return conflict.named == conflict.found


def find_consumer(placement: AcknowledgingClient, uuid: str) -> Consumer | None:
    """Return a consumer, or None if it does not exist.

    :raises Unavailable: the placement role does not answer.
    """
    try:
        return placement.call(GetAllocations(consumer_uuid=uuid))
    except errors.ConsumerNotFound:
        return None


def describe_foreign(foreign: Allocations, *, stay: bool) -> str | None:
    """Describe for operators which foreign allocations were deleted or stay; return None if there were none."""
    if not foreign:
        return None
    outcome = "foreign allocations stay" if stay else "foreign allocations were deleted"
    return f"{outcome}: {in_words(amounts_of(foreign))}"


def unchanged(consumer: Consumer) -> ConsumerAllocations:
    """Return the write that leaves a consumer unchanged; it names only the generation of the consumer."""
    held = {uuid: msgspec.structs.replace(part, generation=None) for uuid, part in consumer.allocations.items()}
    return ConsumerAllocations(
        allocations=held,
        project_id=consumer.project_id,
        user_id=consumer.user_id,
        consumer_type=consumer.consumer_type,
        consumer_generation=consumer.generation,
    )


class RelyingOnGenerations(Value, frozen=True, kw_only=True):
    """The payload of a step that releases allocations: the consumer generations that its request names, if any."""

    #: The generations were read, even if there was no consumer to read.
    is_read: bool = False
    generation: int | None = None
    migration_generation: int | None = None
    #: The number of conflicts so far: writes of other clients between our read and our write.
    conflicts: int = 0


P = TypeVar("P", bound=RelyingOnGenerations)


class PolicyWrites:
    """Sends the requests that end a move or an instance. A conflict never fails the operation; it only delays it.

    Generations are read and recorded before a request names them, so that a repeated request has the same content.
    Under `combine` no generation is named: the store itself separates foreign allocations from those of the instance.
    The same holds under every policy when a failed move is rolled back, because no order could repeat the rollback.
    """

    def __init__(self, conf: cfg.ConfigOpts, placement: AcknowledgingClient) -> None:
        self.policy: str = conf.conductor.consumer_conflict_policy
        self._most_retries: int = conf.conductor.max_contention_retries
        self.keeps_foreign: bool = not conf.conductor.delete_foreign_amounts
        self._placement = placement

    def retries(self, conflict: errors.ConsumerGenerationConflict, conflicts: int) -> bool:
        """Return whether a step reads the consumer again and repeats its write after its ``conflicts``-th conflict."""
        if self.policy == FAIL or is_placed(conflict):
            return False
        return self.policy == COMBINE or conflicts <= self._most_retries

    def request_id(self, operation: Operation, step: str, payload: P, *parts: object) -> str:
        """Return the request id of a write that names the generations of its payload."""
        return self.release_id(operation, step, *parts, payload.generation, payload.conflicts)

    def release_id(self, operation: Operation, step: str, *parts: object) -> str:
        """Return the request id of a release; it depends on `delete_foreign_amounts`, which a restart may change."""
        kept = ("keep extras",) if self.keeps_foreign else ()
        return operation.derived(step, *parts, *kept)

    def write(
        self, operation: Operation, payload: P, message: Callable[[P], Mutation[R]], migration_uuid: str | None = None
    ) -> R | CommitStep:
        """Send a message and return its answer, or return the commit step that must be recorded before it is sent.

        :param message: returns the message, with the generations that the payload names.
        :param migration_uuid: the migration that ends with this write, if any.
        :raises MoorageError: the store has refused the message, or does not answer.
        """
        names_some = self.policy != COMBINE and operation.kind != MOVE
        if names_some and not payload.is_read:
            following = msgspec.structs.replace(
                payload,
                is_read=True,
                generation=self._generation(operation.subject),
                migration_generation=None if migration_uuid is None else self._generation(migration_uuid),
            )
            return lambda _connection: Next(operation.step, following)
        try:
            return self._placement.call(message(payload))
        except errors.ConsumerGenerationConflict as conflict:
            if not payload.is_read:
                raise
            return self._conflict(operation, payload, conflict)

    def _generation(self, uuid: str) -> int | None:
        consumer = find_consumer(self._placement, uuid)
        return None if consumer is None else consumer.generation

    def _conflict(self, operation: Operation, payload: P, conflict: errors.ConsumerGenerationConflict) -> CommitStep:
        following = msgspec.structs.replace(
            payload, is_read=False, generation=None, migration_generation=None, conflicts=payload.conflicts + 1
        )

        def commit(_connection: Connection) -> Outcome:
            if self.policy == FAIL:
                return Wait(operation.step, following, reason=f"{conflict} Order it again.")
            return Next(operation.step, following, delay=BACKOFF.seconds(following.conflicts))

        return commit
