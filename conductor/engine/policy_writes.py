"""How a conductor has the store end what an instance holds, under the policy for what others have written meanwhile."""

from collections.abc import Callable
from typing import TypeVar

import msgspec
from oslo_config import cfg
from sqlalchemy import Connection

from conductor.engine import conflict_policy
from conductor.engine.acknowledgements import Peer
from conductor.engine.steps import MOVE, Next, Operation, Outcome, Record, Wait
from moorage import errors
from moorage.messages import GetAllocations
from moorage.messages.wire import Mutation, R
from moorage.model import Value


class Relied(Value, frozen=True, kw_only=True):
    """A step that ends what an instance holds: the generations that it relies on, where the conflict policy says so."""

    #: They have been read, also where there was no consumer to be read.
    is_read: bool = False
    generation: int | None = None
    migration_generation: int | None = None
    #: How many writes of others have come between reading and writing.
    conflicts: int = 0


P = TypeVar("P", bound=Relied)


class PolicyWrites:
    """Sends what ends a move or an instance. It never fails back: what others write only makes it later.

    Generations are read, written down, and only then named: a request that is repeated is the same one. Under
    `combine` none is named, since the store works out itself what is the instance's and what others have put there; so
    it is, under every policy, where a failed move is taken back, for nobody could order that again.
    """

    def __init__(self, conf: cfg.ConfigOpts, placement: Peer) -> None:
        self._policy: str = conf.conductor.consumer_conflict_policy
        self.keeps_extras: bool = not conf.conductor.delete_foreign_amounts
        self._placement = placement

    def request_id(self, operation: Operation, step: str, payload: P, *parts: object) -> str:
        """Return the request id of a write; after a restart the option may say otherwise: that is another request."""
        kept = ("keep extras",) if self.keeps_extras else ()
        return operation.derived(step, *parts, payload.generation, payload.conflicts, *kept)

    def write(
        self,
        operation: Operation,
        payload: P,
        message: Callable[[P], Mutation[R]],
        migration_uuid: str | None = None,
    ) -> R | Record:
        """Return the answer to a message, or what is to be recorded first.

        :param message: makes the message, with the generations that the payload names.
        :param migration_uuid: the migration that ends as well.
        :raises MoorageError: what the store has raised.
        """
        names_some = self._policy != conflict_policy.COMBINE and operation.kind != MOVE
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
        try:
            return self._placement.call(GetAllocations(consumer_uuid=uuid)).generation
        except errors.ConsumerNotFound:
            return None

    def _conflict(self, operation: Operation, payload: P, conflict: errors.ConsumerGenerationConflict) -> Record:
        following = msgspec.structs.replace(
            payload, is_read=False, generation=None, migration_generation=None, conflicts=payload.conflicts + 1
        )

        def record(_connection: Connection) -> Outcome:
            if self._policy == conflict_policy.FAIL:
                return Wait(operation.step, following, reason=f"{conflict} Order it again.")
            return Next(operation.step, following, delay=conflict_policy.BACKOFF.seconds(following.conflicts))

        return record
