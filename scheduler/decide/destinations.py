"""Destinations: planned on the view, claimed and answered in one transaction, planned anew when a host refuses.

The view proposes and the claim transaction judges. What it refuses is read anew and left out; what cannot be placed is
said only after the view has caught up with the store and everything has been planned once more.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from functools import partial

from msgspec import structs
from sqlalchemy import Connection

from moorage import errors
from moorage.db.database import Database
from moorage.messages import MAX_SELECTIONS, SelectDestinations, wire
from moorage.service.stored_requests import StoredRequests
from placement_store.claims import begin_move, isolated_groups
from placement_store.claims import claim as claims
from placement_store.claims.claim import NewClaim
from placement_store.db.names import ResourceClassNames
from placement_store.server_groups import rows as groups
from scheduler.decide.decision import Deciding, Decision, Rules
from scheduler.decide.host_candidates import RefusedClaims, budget_for
from scheduler.decide.planner import DestinationPlan, NoHost, Planner
from scheduler.decide.request_context import RequestContext
from scheduler.decide.request_filters import RequestFilterChain
from scheduler.decide.selections import Selections, selections_of
from scheduler.view.follower import Follower
from scheduler.view.host_cache import HostCache

LOG = logging.getLogger(__name__)

#: An instance that is to move is not placed as the caller believes it to be.
MOVED_AWAY = (
    errors.ClaimReleased,
    errors.ConsumerGenerationConflict,
    errors.ConsumerDeleted,
    errors.InvalidState,
    errors.AlreadyExists,
)
#: A log line names no more hosts than this.
_NAMED = 5


class Destinations:
    """Answers ``select_destinations``.

    :param max_age: seconds; a decision first follows the store where the view is older.
    :param max_tries: how many plans may be refused before it is contention.
    :param narrowing: what requests mean here; without it they mean what they say.
    """

    def __init__(
        self,
        database: Database,
        requests: StoredRequests,
        names: ResourceClassNames,
        host_cache: HostCache,
        follower: Follower,
        planner: Planner,
        *,
        max_age: float,
        max_tries: int,
        narrowing: RequestFilterChain | None = None,
    ) -> None:
        self._database = database
        self._requests = requests
        self._names = names
        self._host_cache = host_cache
        self._follower = follower
        self._max_tries = max_tries
        rules = Rules(planner, narrowing or RequestFilterChain())
        self.deciding = Deciding(database, names, host_cache, follower, rules, max_age)

    def select(self, message: SelectDestinations) -> Selections:
        """Return a claimed host for each instance, in order, each followed by its alternates. All or nothing.

        :raises NoValidHost: there is nowhere to put all of them.
        :raises ClaimContention: others were faster, too often.
        :raises InvalidRequest: an instance is named twice, more selections are asked for than one answer may have, the
            resource groups contradict each other, a hint or extra spec is not what a filter understands, the server
            group is known with another rule, or several instances are to move, or one whose generation is not named.
        :raises ResourceClassNotFound: a resource class does not exist.
        :raises TraitNotFound: a trait does not exist.
        :raises SearchBoundReached: whether a host's providers can serve the groups could not be found out.
        :raises CellNotFound: the requested cell does not exist.
        :raises ConsumerGenerationConflict: an instance holds something already, or is not at the generation named.
        :raises ConsumerDeleted: an instance has been deleted for good.
        :raises ClaimReleased: the request is a repeated one, and nothing of what it claimed stands any more; or the
            instance that is to move is placed by another claim by now.
        :raises InvalidState: no host has accepted the claim of the instance that is to move.
        :raises CannotCarryOver: it holds what others have put on providers that it would leave.
        :raises BrokenPlugin: a filter, weigher or request filter is broken.
        """
        _check_size(message)
        _check_move(message)
        refused_claims = RefusedClaims(budget_for(len(message.instance_uuids)))
        try:
            decision = self.deciding.begin(message)
        except errors.InvalidRequest as fault:
            # Under the policy of another time it may have been understood, and answered.
            return self._refuse(message, fault)
        for _ in range(self._max_tries):
            try:
                known, plan = decision.plan(refused_claims)
            except (*MOVED_AWAY, errors.InvalidRequest, errors.NotFound) as fault:
                return self._refuse(message, fault)
            if isinstance(plan, NoHost):
                return self._refuse(message, self._no_valid_host(message, decision, plan, refused_claims))
            outcome = self._attempt(message, plan, known)
            if isinstance(outcome, list):
                return outcome
            LOG.debug("The claim was refused by %s", outcome or "nobody in particular")
            self._follower.refresh(outcome)
            for choice in plan.refused_by(outcome):
                refused_claims.add(plan.node(choice), choice.allocation_request)
        raise errors.ClaimContention(tries=self._max_tries)

    def _attempt(
        self, message: SelectDestinations, plan: DestinationPlan, known: RequestContext
    ) -> Selections | set[str]:
        """Claim a plan and return the answer, or else the providers that have refused."""
        claims_made = [
            (uuid, known.growth(uuid, part.resources))
            for choice in plan.chosen
            for uuid, part in choice.allocation_request.allocations.items()
        ]
        # One that stays on its host is counted there already.
        placed = Counter(node for choice in plan.chosen if (node := plan.node(choice)) != known.source)
        versions = self._host_cache.versions({uuid for uuid, _ in claims_made} | placed.keys())
        try:
            answer = self._requests.once(message, partial(self._claim, message, plan))
        except errors.CapacityExceeded as refusal:
            return {miss["provider_uuid"] for miss in refusal.refusals}
        except errors.ProviderNotFound as missing:
            return {missing.name}
        except errors.GroupRuleRefused as refusal:
            return {refusal.provider_uuid}
        except errors.ClaimContention:
            # Something has changed between two statements of the claim; nobody has refused it.
            return set()
        if answer.replayed:
            return self._replayed(message, answer.result)
        self._host_cache.apply_claims(claims_made, versions, placed)
        hosts = sorted({claimed.service_host for claimed, *_ in answer.result})
        instances = len(plan.chosen)
        LOG.info("Claimed for %d instance(s) on %d host(s): %s", instances, len(hosts), ", ".join(hosts[:_NAMED]))
        return answer.result

    def _no_valid_host(
        self, message: SelectDestinations, decision: Decision, no_host: NoHost, refused_claims: RefusedClaims
    ) -> errors.MoorageError:
        """Return what is to be said where no plan was found."""
        for fault in no_host.host_candidates.undecided.values():
            # It is not known that there is none.
            return fault
        instances = len(message.instance_uuids)
        explanation = decision.why_not(no_host, refused_claims)
        summary = explanation.summary()
        return errors.NoValidHost(instances=instances, summary=summary, explanation=wire.encode(explanation))

    def _refuse(self, message: SelectDestinations, fault: errors.MoorageError) -> Selections:
        """Refuse a request, unless this very request has already been answered."""

        def say(connection: Connection) -> Selections:
            if isinstance(fault, errors.NoValidHost):
                if (group := message.request_spec.server_group) is not None:
                    # Decided by another rule than the group's own, it would not be the truth.
                    groups.bind(connection, group)
                LOG.info("No valid host for %s instance(s): %s", fault.instances, fault.summary)
            raise fault

        # Said where the answer would be stored: a forerunner with the same id, which may have taken the last room
        # just now, is waited for there, and its answer is this one's.
        return self._replayed(message, self._requests.once(message, say).result)

    def _claim(self, message: SelectDestinations, plan: DestinationPlan, connection: Connection) -> Selections:
        """Claim all that was planned; part of the transaction that stores what it returns."""
        spec = message.request_spec
        wanted = [
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
        if message.move is not None:
            claimed = [begin_move.begin(connection, wanted[0], message.move, self._names)]
        else:
            claimed = claims.claim(connection, wanted, self._names, keep_held=message.keep_held)
        return selections_of(plan, claimed, spec.server_group)

    def _replayed(self, message: SelectDestinations, stored: Selections) -> Selections:
        """Return a stored answer, instance by instance: as it is where its claim stands, else marked as released."""
        standing: Mapping[str, tuple[str | None, int]] = self._database.read(
            lambda connection: claims.current_claims(connection, message.instance_uuids)
        )
        answer = []
        for instance_uuid, (claimed, *alternates) in zip(message.instance_uuids, stored, strict=True):
            claim_id, generation = standing.get(instance_uuid, (None, None))
            if claim_id == claimed.claim_id:
                answer.append([claimed, *alternates])
            else:
                released = structs.replace(claimed, released=True, consumer_generation=generation)
                answer.append([released, *alternates])
        if all(claimed.released for claimed, *_ in answer):
            raise errors.ClaimReleased(consumer_uuid=message.instance_uuids[0], claim_id=str(stored[0][0].claim_id))
        return answer


def _check_size(message: SelectDestinations) -> None:
    count = len(message.instance_uuids)
    if len(set(message.instance_uuids)) < count:
        raise errors.InvalidRequest(path="$.instance_uuids", reason="an instance is named twice")
    if count * (1 + message.num_alternates) > MAX_SELECTIONS:
        raise errors.InvalidRequest(
            path="$.num_alternates", reason=f"that makes more than {MAX_SELECTIONS} selections in one answer"
        )


def _check_move(message: SelectDestinations) -> None:
    move = message.move
    if move is None:
        return
    if len(message.instance_uuids) > 1:
        raise errors.InvalidRequest(path="$.instance_uuids", reason="one instance moves at a time")
    [instance_uuid] = message.instance_uuids
    if instance_uuid not in message.consumer_generations:
        raise errors.InvalidRequest(
            path="$.consumer_generations", reason="the generation of the instance that is to move is not named"
        )
    if move.migration_uuid == instance_uuid:
        raise errors.InvalidRequest(path="$.move.migration_uuid", reason="it is the instance itself")
    if message.keep_held:
        raise errors.InvalidRequest(path="$.keep_held", reason="a move says itself what is kept")
