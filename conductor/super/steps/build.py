"""Build instances: ask the scheduler for hosts, hand the instances over to their cells, release failed ones.

::

    select ──> hand_over ──> (end)
     └─┘ again   └──> release ──> (end)
                       └─┘ the next ones

A request for several instances is all or nothing. It is repeated until it is answered or the build gives it up.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import field, structs
from sqlalchemy import Connection

from conductor.engine import conflict_policy
from conductor.engine.conflict_policy import CLAIM_OWNER, CONTENTION, MAY_HAVE_CLAIMED
from conductor.engine.step_calls import Calling
from conductor.engine.steps import BUILD, CommitStep, Ended, Next, Operation, Outcome, SharedCommit, step
from conductor.super.context import SuperPart
from conductor.super.held_consumers import node_of, on_node, why_kept
from conductor.super.records import instances as super_records
from conductor.super.steps.hand_over import HandOverStep
from moorage import errors
from moorage.config.conductor import TRIES_WHILE_AWAY
from moorage.messages import DeleteAllocations, SelectDestinations
from moorage.model import Generation, Name, RequestSpec, Selection, Uuid, Value

LOG = logging.getLogger(__name__)

#: A request that met these errors is tried more often.
_AWAY = (errors.StoreUnavailable, errors.BusUnavailable)
#: The most instances that one step releases: a conductor that stops waits for the end of the step, and a step that
#: fails is repeated as a whole. Arbitrary: two calls for each of them take less than a second.
_RELEASED_TOGETHER = 20


class SelectStep(Value, frozen=True, kw_only=True):
    """The payload of step `select`: the next request to the scheduler and the tries so far."""

    #: Distinguishes this request from the earlier requests of the operation.
    number: int
    instance_uuids: tuple[str, ...]
    #: The number of earlier requests that failed because other claims were faster.
    lost: int = 0
    #: A request of this operation may have been sent without an answer, and may still claim.
    doubtful: bool = False
    #: The generations of the consumers that exist: the claim is added to their allocations.
    generations: dict[Uuid, Generation] = field(default_factory=dict)
    #: The number of earlier requests that have met a consumer at another generation.
    conflicts: int = 0
    #: The number of alternates, as configured when the build was ordered, so that a repeated request has the same
    #: content. Null in the records of earlier versions.
    num_alternates: int | None = None
    #: The compute node of which an instance has allocations: it can be placed only there. Earlier versions named it.
    node_uuid: Uuid | None = None
    node: Name | None = None


class _Selected(NamedTuple):
    """The answer of the scheduler to the request of one operation."""

    payload: SelectStep
    spec: RequestSpec
    answer: Sequence[Sequence[Selection]]

    @property
    def placed(self) -> dict[str, Sequence[Selection]]:
        """The selections of each instance."""
        return dict(zip(self.payload.instance_uuids, self.answer, strict=True))


class SuperBuilds(SuperPart):
    """The steps of a build."""

    # --- select -------------------------------------------------------------------------------------------------------

    @step(BUILD, "select")
    def select(self, operation: Operation) -> Calling[CommitStep]:
        """Ask the scheduler for a claimed host for each instance."""
        payload = operation.read(SelectStep)
        spec = operation.carried_as(RequestSpec) or self._super.database.read(
            lambda connection: super_records.spec_of(connection, operation.uuid)
        )
        alternates = self._super.options.max_attempts - 1 if payload.num_alternates is None else payload.num_alternates
        asked = on_node(spec, payload.node_uuid, payload.node)
        # A retry of this step sends the same request under the same id: the scheduler repeats its answer.
        message = SelectDestinations(
            request_id=operation.derived("select", payload.number),
            request_spec=asked,
            instance_uuids=payload.instance_uuids,
            num_alternates=alternates,
            owner=CLAIM_OWNER,
            consumer_generations=payload.generations,
            keep_held=bool(payload.generations),
        )
        try:
            answer = yield from self._super.scheduler.calling(message)
        except errors.ConsumerGenerationConflict as conflict:
            # The request is not doubtful: while that consumer exists, each copy of the request is refused in the same
            # way. The consumer may belong to another client, and must not be deleted.
            if conflict_policy.is_placed(conflict):
                # The generations agree, but the consumer has a claim, or allocations on another host than the chosen.
                return self._on_its_node(payload, asked, conflict)
            return partial(self._refused, payload=payload, fault=conflict)
        except errors.MoorageError as fault:
            return self._not_selected(operation, payload, fault)
        for uuid, (claimed, *alternates) in zip(payload.instance_uuids, answer, strict=True):
            if not claimed.released:
                others = len(alternates)
                LOG.info("Instance %s is placed on host %s, with %d alternate(s)", uuid, claimed.service_host, others)
        return SharedCommit(self._selected, _Selected(self._doubt(operation, payload), spec, answer))

    def _on_its_node(
        self, payload: SelectStep, spec: RequestSpec, conflict: errors.ConsumerGenerationConflict
    ) -> CommitStep:
        """Restrict the next request to the one host on which an instance has allocations already, or fail the build."""
        uuid = conflict.consumer_uuid
        try:
            node = node_of(self._super.placement_afterwards, uuid, spec, instances=len(payload.instance_uuids))
        except errors.InvalidState as refusal:
            return partial(self._refused, payload=payload, fault=refusal)
        LOG.info("Instance %s has allocations on compute node %s, and is placed there", uuid, node)
        following = structs.replace(_following(payload, payload.instance_uuids), node_uuid=node)
        return lambda _connection: Next("select", following)

    def _doubt(self, operation: Operation, payload: SelectStep) -> SelectStep:
        """Return the payload, marked as doubtful if the request may have been sent before without an answer."""
        return structs.replace(payload, doubtful=payload.doubtful or operation.is_repeated)

    def _selected(self, connection: Connection, selected: Sequence["_Selected"]) -> list[Outcome]:
        """Record the selections of instances that are still wanted; ask again for those whose claim was released.

        An instance whose deletion is recorded is left out: the deletion finds no cell in its record, and releases the
        claim for good, before or after this transaction.
        """
        placed = {uuid: found for each in selected for uuid, found in each.placed.items()}
        # Lock first: an order to delete an instance is then recorded either before this transaction or after it.
        wanted = super_records.lock_building(connection, placed)
        # If the reconciler was answered that a claim is not wanted, the claim must not be used any more.
        claims = [found[0].claim_id for found in placed.values() if found[0].claim_id is not None]
        revoked = self._super.revoked_claims.among(connection, claims)
        chosen = {
            uuid: found
            for uuid, found in placed.items()
            if uuid in wanted and not found[0].released and found[0].claim_id not in revoked
        }
        super_records.select_for(connection, chosen)
        return [self._after_selection(connection, each, wanted, chosen) for each in selected]

    def _after_selection(
        self,
        connection: Connection,
        selected: "_Selected",
        wanted: Collection[str],
        chosen: Mapping[str, Sequence[Selection]],
    ) -> Outcome:
        payload = selected.payload
        missing = [uuid for uuid in payload.instance_uuids if uuid in wanted and uuid not in chosen]
        if missing:
            # The released claim has left their consumers: the next request must name the generations of these.
            payload = structs.replace(
                payload, generations=payload.generations | _generations_after_release(selected.answer, payload)
            )
            return self._ask_again(connection, payload, missing, errors.ClaimContention(tries=payload.lost + 1))
        of_operation = {uuid: chosen[uuid] for uuid in payload.instance_uuids if uuid in chosen}
        # The first request is for all instances: no earlier request has selections that must be handed over too.
        builds = super_records.builds_of(selected.spec, of_operation) if payload.number == 1 else None
        return Next("hand_over", HandOverStep(), carried=builds)

    def _not_selected(self, operation: Operation, payload: SelectStep, fault: errors.MoorageError) -> CommitStep:
        retries: int = self._super.options.max_unanswered_retries
        if isinstance(fault, _AWAY):
            retries = max(retries, TRIES_WHILE_AWAY)
        if isinstance(fault, MAY_HAVE_CLAIMED) and operation.tries < retries:
            raise fault
        # An unanswered request may still be carried out, and claim. So may an earlier copy of a request that is
        # answered now. A request whose answer is too large for the bus was carried out.
        doubted = self._doubt(operation, payload)
        if isinstance(fault, (*MAY_HAVE_CLAIMED, errors.ReplyTooLarge)):
            doubted = structs.replace(payload, doubtful=True)
        return lambda connection: self._refused(connection, doubted, fault)

    def _refused(self, connection: Connection, payload: SelectStep, fault: errors.MoorageError) -> Outcome:
        wanted = super_records.lock_building(connection, payload.instance_uuids)
        match fault:
            case errors.ConsumerDeleted():
                # The deletion of the instance overtook this request, which was all or nothing: ask again for the
                # others. If no deletion is recorded here, the uuid has been used before.
                gone = fault.consumer_uuid
                super_records.fail(connection, [gone], str(fault))
                rest = [uuid for uuid in payload.instance_uuids if uuid in wanted and uuid != gone]
                return Next("select", _following(payload, rest)) if rest else self._stop_selecting(payload, [], None)
            case errors.ClaimContention() | errors.ClaimReleased():
                return self._ask_again(connection, payload, [u for u in payload.instance_uuids if u in wanted], fault)
            case errors.ConsumerGenerationConflict() if self._combines(fault):
                return self._combine(payload, [u for u in payload.instance_uuids if u in wanted], fault)
        return self._fail(connection, payload, payload.instance_uuids, fault)

    def _combines(self, fault: errors.ConsumerGenerationConflict) -> bool:
        """Return whether the claim is added to foreign allocations of a consumer that existed before its instance."""
        # Under both `retry` and `fail`, the consumer of a new instance must be new too.
        return self._super.writes.policy == conflict_policy.COMBINE and not conflict_policy.is_placed(fault)

    def _combine(self, payload: SelectStep, uuids: Sequence[str], fault: errors.ConsumerGenerationConflict) -> Outcome:
        if not uuids:
            return self._stop_selecting(payload, [], None)
        others = {uuid: named for uuid, named in payload.generations.items() if uuid != fault.consumer_uuid}
        found = {} if fault.found is None else {fault.consumer_uuid: fault.found}
        following = structs.replace(
            _following(payload, uuids), generations=others | found, conflicts=payload.conflicts + 1
        )
        return Next("select", following, delay=conflict_policy.BACKOFF.seconds(following.conflicts))

    def _ask_again(
        self, connection: Connection, payload: SelectStep, uuids: Sequence[str], fault: errors.MoorageError
    ) -> Outcome:
        """Send a request with a new id, at most `max_contention_retries` times."""
        if not uuids:
            return self._stop_selecting(payload, [], None)
        if payload.lost >= self._super.options.max_contention_retries:
            return self._fail(connection, payload, uuids, fault)
        following = _following(payload, uuids, lost=payload.lost + 1)
        return Next("select", following, delay=CONTENTION.seconds(following.lost))

    def _fail(
        self, connection: Connection, payload: SelectStep, uuids: Sequence[str], fault: errors.MoorageError
    ) -> Outcome:
        explanation = fault.explanation if isinstance(fault, errors.NoValidHost) else None
        super_records.fail(connection, uuids, str(fault), explanation)
        LOG.info("%d instance(s) cannot be placed: %s", len(uuids), fault)
        return self._stop_selecting(payload, uuids, str(fault))

    def _stop_selecting(self, payload: SelectStep, uuids: Sequence[str], reason: str | None) -> Outcome:
        """Hand over the claims of earlier requests of this operation, then release the instances that are in doubt.

        A request that was never answered may still be carried out. The fence is to delete its consumers for good: its
        claims are released, and later claims are refused.
        """
        return Next("hand_over", HandOverStep(release=tuple(uuids) if payload.doubtful else (), reason=reason))

    # --- release ------------------------------------------------------------------------------------------------------

    @step(BUILD, "release")
    def release(self, operation: Operation) -> CommitStep:
        """Delete the allocations of instances in error for good, so that a late request can claim nothing for them.

        The next step releases those beyond the first ones. The policy decides whether foreign allocations are deleted
        too; the instance's reason names them.
        """
        payload, writes, foreign = operation.read(HandOverStep), self._super.writes, dict[str, str]()
        rest = payload.release[_RELEASED_TOGETHER:]
        for uuid in payload.release[:_RELEASED_TOGETHER]:
            if (stays := why_kept(self._super.placement, uuid)) is not None:
                LOG.warning("Nothing is released: %s", stays)
                continue
            message = DeleteAllocations(
                request_id=writes.release_id(operation, "release", uuid),
                consumer_uuid=uuid,
                for_good=True,
                keep_extras=writes.keeps_foreign,
            )
            released = self._super.placement.call(message)
            if named := conflict_policy.describe_foreign(released.extras, stay=writes.keeps_foreign):
                foreign[uuid] = named

        def record(connection: Connection) -> Outcome:
            super_records.add_to_reasons(connection, foreign)
            return Next("release", structs.replace(payload, release=rest)) if rest else Ended(payload.reason)

        return record


def _generations_after_release(answer: Sequence[Sequence[Selection]], payload: SelectStep) -> dict[str, int]:
    """Return the consumer generations of the instances whose claims were released since the answer was stored."""
    return {
        uuid: claimed.consumer_generation
        for uuid, (claimed, *_) in zip(payload.instance_uuids, answer, strict=True)
        if claimed.released and claimed.consumer_generation is not None
    }


def _following(payload: SelectStep, uuids: Sequence[str], lost: int | None = None) -> SelectStep:
    return structs.replace(
        payload,
        number=payload.number + 1,
        instance_uuids=tuple(uuids),
        lost=payload.lost if lost is None else lost,
        # The scheduler refuses the generation of an instance that is not in the request.
        generations={uuid: named for uuid, named in payload.generations.items() if uuid in uuids},
    )
