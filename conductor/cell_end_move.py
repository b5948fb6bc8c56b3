"""How a cell has the store end a move, under the policy for what others have written meanwhile."""

from collections.abc import Callable

import msgspec
from oslo_config import cfg
from sqlalchemy import Connection

from conductor import conflict_policy
from conductor.acknowledging import Peer
from conductor.cell_payloads import Ending, GivingBack
from conductor.steps import MOVE, Next, Operation, Outcome, Record, Wait
from moorage import errors
from moorage.messages import EndMove, GetAllocations, MoveEnded

#: Given the generation to name, what is to be sent.
Message = Callable[[int | None], EndMove]


class MoveEnder:
    """Sends `end_move`. It never fails back: what others write only makes it later.

    A generation is read, written down, and only then named: a request that is repeated is the same one. Under
    `combine` none is named, since the store works out itself what is the move's and what others have put there; so it
    is, under every policy, where a failed move is taken back, for nobody could order that again.
    """

    def __init__(self, conf: cfg.ConfigOpts, placement: Peer) -> None:
        self._policy: str = conf.conductor.consumer_conflict_policy
        self._placement = placement

    def end(self, operation: Operation, payload: Ending | GivingBack, message: Message) -> MoveEnded | Record:
        """Return how the move has ended, or what is to be recorded first.

        :raises MoorageError: what the store has raised.
        """
        names_one = self._policy != conflict_policy.COMBINE and operation.kind != MOVE
        if names_one and payload.generation is None:
            consumer = self._placement.call(GetAllocations(consumer_uuid=operation.subject))
            following = msgspec.structs.replace(payload, generation=consumer.generation)
            return lambda _connection: Next(operation.step, following)
        try:
            return self._placement.call(message(payload.generation))
        except errors.ConsumerGenerationConflict as conflict:
            if payload.generation is None:
                raise
            return self._conflict(operation, payload, conflict)

    def _conflict(
        self, operation: Operation, payload: Ending | GivingBack, conflict: errors.ConsumerGenerationConflict
    ) -> Record:
        following = msgspec.structs.replace(payload, generation=None, conflicts=payload.conflicts + 1)

        def record(_connection: Connection) -> Outcome:
            if self._policy == conflict_policy.FAIL:
                return Wait(operation.step, following, reason=f"{conflict} Order it again.")
            return Next(operation.step, following, delay=conflict_policy.BACKOFF.seconds(following.conflicts))

        return record
