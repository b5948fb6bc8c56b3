"""Answer ``select_destinations``: decide, and claim the plan in the transaction that stores the answer."""

import logging
from collections import Counter
from collections.abc import Mapping

from msgspec import structs
from sqlalchemy import Connection

from moorage import errors
from moorage.messages import MAX_SELECTIONS, SelectDestinations, wire
from placement_store.claims import claim as claims
from placement_store.server_groups import rows as groups
from scheduler.decide.claim_writer import ClaimWriter, PlannedRequest, WrittenClaims
from scheduler.decide.decision import CLAIM, Decision
from scheduler.decide.environment import DecisionEnvironment, DecisionPolicy
from scheduler.decide.host_candidates import RefusedClaims
from scheduler.decide.planner import DestinationPlan, NoHost
from scheduler.decide.request_context import RequestContext
from scheduler.decide.selections import Selections
from scheduler.view.provisional import AddedClaims

LOG = logging.getLogger(__name__)

#: The number of selections that are as long as one explanation may be: about a hundred kilobytes.
_AN_EXPLANATION = 100
#: The maximum number of hosts that a log line names.
_NAMED = 5


def check(message: SelectDestinations) -> None:
    """Refuse a message that contradicts itself or requests too much.

    :raises InvalidRequest: see :func:`select`.
    """
    count, move = len(message.instance_uuids), message.move
    if len(set(message.instance_uuids)) < count:
        raise errors.InvalidRequest(path="$.instance_uuids", reason="an instance is named twice")
    if count * (1 + message.num_alternates) > MAX_SELECTIONS:
        raise errors.InvalidRequest(
            path="$.num_alternates", reason=f"that makes more than {MAX_SELECTIONS} selections in one answer"
        )
    if message.explain and count * (1 + message.num_alternates + _AN_EXPLANATION) > MAX_SELECTIONS:
        raise errors.InvalidRequest(
            path="$.explain", reason="the explanations of so many instances may not fit into one answer"
        )
    if move is None:
        return
    if count > 1:
        raise errors.InvalidRequest(path="$.instance_uuids", reason="one instance moves at a time")
    [instance_uuid] = message.instance_uuids
    if instance_uuid not in message.consumer_generations:
        raise errors.InvalidRequest(
            path="$.consumer_generations", reason="the generation of the instance that is to move is not named"
        )
    if move.migration_uuid == instance_uuid:
        raise errors.InvalidRequest(path="$.move.migration_uuid", reason="it is the instance itself")
    if message.keep_held:
        raise errors.InvalidRequest(path="$.keep_held", reason="`keep_held` cannot be combined with `move`")


def select(
    environment: DecisionEnvironment,
    writer: ClaimWriter,
    message: SelectDestinations,
    refused_claims: RefusedClaims | None = None,
    policy: DecisionPolicy | None = None,
) -> Selections:
    """Return a claimed host for each instance, in order, each followed by its alternates. All or nothing.

    :param refused_claims: the claims of this request that the store has refused before.
    :param policy: the policy to decide by; null for the present one.
    :raises NoValidHost: there is no host for one of them.
    :raises ClaimContention: the store has refused too many plans, because other decisions were faster.
    :raises InvalidRequest: an instance is named twice, more selections are wanted than one answer may have, the
        resource groups contradict each other, a filter cannot parse a hint or extra spec, the server group exists with
        another rule, or several instances are to move, or one without its generation.
    :raises ResourceClassNotFound: a resource class does not exist.
    :raises TraitNotFound: a trait does not exist.
    :raises SearchBoundReached: the search for a host's candidates was too long to finish.
    :raises CellNotFound: the requested cell does not exist.
    :raises ConsumerGenerationConflict: an instance holds something already, or is not at the generation named.
    :raises ConsumerDeleted: an instance has been deleted for good.
    :raises ClaimReleased: the request was repeated, and none of its claims is current any more; or another claim has
        placed the instance that is to move.
    :raises InvalidState: no host has accepted the claim of the instance that is to move.
    :raises CannotCarryOver: the instance that is to move holds foreign allocations of providers that it would leave.
    :raises BrokenPlugin: a filter, weigher or request filter is broken.
    """
    check(message)
    policy = policy or environment.policy
    if policy.plugin_failures.is_watched:
        # A decision that runs again without a slow plug-in starts from the beginning: the abandoned thread may still
        # use the search budget, which counts the time of one thread only.
        refused_claims = None
    return policy.plugin_failures.run_watched(
        lambda: ClaimingDecision(environment, policy, writer, message, refused_claims).run()
    )


class ClaimingDecision(Decision[Selections]):
    """Decide a request and claim its plan; the answer is stored in the transaction of the claims."""

    def __init__(
        self,
        environment: DecisionEnvironment,
        policy: DecisionPolicy,
        writer: ClaimWriter,
        message: SelectDestinations,
        refused_claims: RefusedClaims | None = None,
    ) -> None:
        super().__init__(environment, policy, message, refused_claims=refused_claims)
        self._writer = writer

    def claim(self, plan: DestinationPlan, context: RequestContext) -> Selections:
        """Claim all hosts of a plan in one transaction, and add the claims to the host cache.

        :raises ClaimRefused: a provider has no room any more, is gone, or breaks the rule of the server group.
        """
        added = self.added_claims(plan, context)
        with CLAIM.timed():
            written = self._writer.write(PlannedRequest(self.message, plan, context.group))
        if written.replayed:
            return self._replayed(written.answer)
        self.environment.host_cache.apply_claims([added], bumped_once=written.bumped_once)
        return self.claimed(written)

    def added_claims(self, plan: DestinationPlan, context: RequestContext) -> AddedClaims:
        """Return what to add to the host cache once a plan is claimed; called before the transaction."""
        amounts = [
            (uuid, context.growth(uuid, part.resources))
            for choice in plan.chosen
            for uuid, part in choice.allocation_request.allocations.items()
        ]
        # An instance that stays on its host is already counted there.
        placed = Counter(node for choice in plan.chosen if (node := plan.node(choice)) != context.source)
        # Take the versions before the transaction: a provider that is read again meanwhile may already have the claim.
        versions = self.environment.host_cache.versions({uuid for uuid, _ in amounts} | placed.keys())
        return AddedClaims(amounts, versions, placed)

    def claimed(self, written: WrittenClaims) -> Selections:
        """Log the written claims, and return the answer."""
        hosts = sorted({selection.service_host for selection, *_ in written.answer})
        instances = len(self.message.instance_uuids)
        LOG.info("Claimed for %d instance(s) on %d host(s): %s", instances, len(hosts), ", ".join(hosts[:_NAMED]))
        return written.answer

    def no_host(self, no_host: NoHost, context: RequestContext) -> Selections:  # noqa: ARG002
        """Refuse the request with an explanation."""
        if (fault := no_host.unfinished_search) is not None:
            # It is not known that there is no host.
            return self.refuse(fault)
        explanation = self.planner.why_not(no_host, self.message, self.refused_claims)
        instances, summary = len(self.message.instance_uuids), explanation.summary()
        return self.refuse(
            errors.NoValidHost(instances=instances, summary=summary, explanation=wire.encode(explanation))
        )

    def refuse(self, fault: errors.MoorageError) -> Selections:
        """Refuse the request, unless this very request has already been answered."""

        def fail(connection: Connection) -> Selections:
            if isinstance(fault, errors.NoValidHost):
                if (group := self.message.request_spec.server_group) is not None:
                    # If the group exists with another rule, this fails: the decision used the wrong rule.
                    groups.bind(connection, [group])
                LOG.info("No valid host for %s instance(s): %s", fault.instances, fault.summary)
            raise fault

        # Raise the error in the transaction that would store the answer: there, this request waits for a duplicate with
        # the same id. If the duplicate has just taken the last room, its answer is the answer to this request, too.
        return self._replayed(self._writer.requests.once(self.message, fail).result)

    def _replayed(self, stored: Selections) -> Selections:
        """Return a stored answer, with each instance whose claim is no longer current marked as released.

        :raises ClaimReleased: none of the claims is current any more.
        """
        uuids = self.message.instance_uuids
        standing: Mapping[str, tuple[str | None, int]] = self.environment.database.read(
            lambda connection: claims.current_claims(connection, uuids)
        )
        answer = []
        for instance_uuid, (claimed, *alternates) in zip(uuids, stored, strict=True):
            claim_id, generation = standing.get(instance_uuid, (None, None))
            if claim_id != claimed.claim_id:
                claimed = structs.replace(claimed, released=True, consumer_generation=generation)
            answer.append([claimed, *alternates])
        if all(claimed.released for claimed, *_ in answer):
            raise errors.ClaimReleased(consumer_uuid=uuids[0], claim_id=str(stored[0][0].claim_id))
        return answer
