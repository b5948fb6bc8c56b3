"""Write the claims of decisions: those that come while a transaction is under way share the next one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

from sqlalchemy import Connection

from moorage import context, errors, failpoints
from moorage.batches import Batches, BatchItem
from moorage.messages import SelectDestinations
from moorage.service.stored_requests import DuplicateRequest, StoredRequests
from placement_store.claims import begin_move, isolated_groups
from placement_store.claims import claim as claims
from placement_store.claims.claim import NewClaim
from placement_store.db.names import ResourceClassNames
from scheduler.decide.planner import DestinationPlan
from scheduler.decide.selections import Selections, selections_of

#: The most requests whose claims share a transaction. Arbitrary: all of them wait for the slowest statement, and hold
#: the rows of all their providers.
_TOGETHER = 32


@dataclass(frozen=True)
class PlannedRequest:
    """A request with its plan, and with the claims that the plan makes."""

    message: SelectDestinations
    plan: DestinationPlan
    claims: Sequence[NewClaim] = field(init=False)

    def __post_init__(self) -> None:
        message, plan, spec = self.message, self.plan, self.message.request_spec
        made = [
            NewClaim(
                consumer_uuid=instance_uuid,
                project_id=spec.project_id,
                user_id=spec.user_id,
                root_provider_uuid=plan.node(choice),
                allocations={uuid: part.resources for uuid, part in choice.allocation_request.allocations.items()},
                owner=message.owner,
                consumer_generation=message.consumer_generations.get(instance_uuid),
                group=spec.server_group,
                isolated=isolated_groups.suffixed(choice.allocation_request.mappings) if plan.is_isolated else {},
            )
            for instance_uuid, choice in zip(message.instance_uuids, plan.chosen, strict=True)
        ]
        object.__setattr__(self, "claims", made)

    @property
    def may_be_shared(self) -> bool:
        """True if its claims may stand in one write with those of other requests."""
        return self.message.move is None and not self.message.keep_held

    @cached_property
    def answer(self) -> Selections:
        """The answer that is stored with the claims."""
        claimed = [new.claimed for new in self.claims]
        return selections_of(self.plan, claimed, self.message.request_spec.server_group)


class WrittenClaims(NamedTuple):
    """The answer to a request whose claims are written."""

    answer: Selections
    #: Whether the request had been answered before, and this is the stored answer.
    replayed: bool
    #: Stands for the transaction, which several requests may share; null if it has written more than the claims.
    transaction: object


class ClaimWriter:
    """Write the claims of planned requests, each with its answer, all or nothing for each."""

    def __init__(self, requests: StoredRequests, names: ResourceClassNames) -> None:
        self.requests = requests
        self._names = names
        self._batches: Batches[PlannedRequest, WrittenClaims] = Batches(self._write_batch, _TOGETHER)

    def write(self, planned: PlannedRequest) -> WrittenClaims:
        """Claim what a request has planned, alone or together with others.

        :raises MoorageError: as :func:`placement_store.claims.claim.claim` and, for a move,
            :func:`placement_store.claims.begin_move.begin` do.
        """
        return self._batches.do(planned) if planned.may_be_shared else self._write_one(planned)

    def _write_batch(self, batch: Sequence[BatchItem[PlannedRequest, WrittenClaims]]) -> None:
        # At the failpoints of a drill each request stands for itself.
        if len(batch) > 1 and not failpoints.are_observed() and self._write_together(batch):
            return
        # Alone each gets the answer or the error that is its own.
        for item in batch:
            item.do(self._write_one)

    def _write_together(self, batch: Sequence[BatchItem[PlannedRequest, WrittenClaims]]) -> bool:
        """Write the claims of several requests in one transaction; return False if one of them is in the way."""
        planned = [item.value for item in batch]
        made = [new for one in planned for new in one.claims]
        if len({new.consumer_uuid for new in made}) < len(made):
            return False  # the same request has been sent twice, or two want the same instance
        deadlines = [item.context.deadline for item in batch if item.context.deadline is not None]
        try:
            # A late request is to write nothing: the transaction has the earliest deadline of all.
            with context.bound(deadline=min(deadlines, default=None)):
                self.requests.once_together(
                    [(one.message, one.answer) for one in planned],
                    lambda connection: claims.claim(connection, made, self._names),
                )
        except (errors.StoreUnavailable, errors.Overloaded):
            raise  # to each of them: alone they would wait for the database one after another
        except (errors.MoorageError, DuplicateRequest):
            return False
        transaction = object()
        for item in batch:
            item.succeed(WrittenClaims(item.value.answer, replayed=False, transaction=transaction))
        return True

    def _write_one(self, planned: PlannedRequest) -> WrittenClaims:
        stored = self.requests.once(planned.message, partial(self._claim, planned), planned.answer)
        return WrittenClaims(stored.result, stored.replayed, object() if planned.may_be_shared else None)

    def _claim(self, planned: PlannedRequest, connection: Connection) -> Selections:
        """Claim the hosts of a plan; part of the transaction that stores the answer."""
        message = planned.message
        if message.move is None:
            claims.claim(connection, planned.claims, self._names, keep_held=message.keep_held)
        else:
            [new] = planned.claims
            begin_move.begin(connection, new, message.move, self._names)
        return planned.answer
