"""Destinations: planned on the view, claimed and answered in one transaction, planned anew when a host refuses.

The view proposes and the claim transaction judges. What it refuses is read anew and left out; what cannot be placed is
said only after the view has caught up with the store and everything has been planned once more.
"""

import logging
from collections.abc import Mapping
from functools import partial

from msgspec import structs
from sqlalchemy import Connection

from moorage import errors, wire
from moorage.database import Database
from moorage.messages import Claimed, SelectDestinations
from moorage.model import ResourceRequest, Selection
from moorage.requests import StoredRequests
from placement_store import candidates, cells, claims
from placement_store.claims import NewClaim
from placement_store.names import ResourceClassNames, TraitNames
from scheduler.explanation import explain, summarise
from scheduler.follow import Follower
from scheduler.picture import Picture
from scheduler.planning import Choice, Plan, Planner, Shortfall
from scheduler.serving import Refusals
from scheduler.view import Snapshot

LOG = logging.getLogger(__name__)

#: An answer is stored as one document of at most 16 MiB; a selection is about 600 bytes.
MAX_SELECTIONS = 10_000
#: A log line names no more hosts than this.
_NAMED = 5

Answer = list[list[Selection]]


class Destinations:
    """Answers ``select_destinations``.

    :param max_age: seconds; a decision first follows the store where the view is older.
    :param max_tries: how many plans may be refused before it is contention.
    """

    def __init__(
        self,
        database: Database,
        requests: StoredRequests,
        names: ResourceClassNames,
        picture: Picture,
        follower: Follower,
        planner: Planner,
        *,
        max_age: float,
        max_tries: int,
    ) -> None:
        self._database = database
        self._requests = requests
        self._names = names
        self._picture = picture
        self._follower = follower
        self._planner = planner
        self._max_age = max_age
        self._max_tries = max_tries

    def select(self, message: SelectDestinations) -> Answer:
        """Return a claimed host for each instance, in order, each followed by its alternates. All or nothing.

        :raises NoValidHost: there is nowhere to put all of them.
        :raises ClaimContention: others were faster, too often.
        :raises InvalidRequest: an instance is named twice, more selections are asked for than one answer may have, or
            the resource groups contradict each other.
        :raises ResourceClassNotFound: a resource class does not exist.
        :raises TraitNotFound: a trait does not exist.
        :raises SearchBoundReached: whether a host's providers can serve the groups could not be found out.
        :raises CellNotFound: the requested cell does not exist.
        :raises ConsumerGenerationConflict: an instance holds something already.
        :raises ConsumerDeleted: an instance has been deleted for good.
        :raises ClaimReleased: the request is a repeated one, and nothing of what it claimed stands any more.
        :raises BrokenPlugin: a filter or weigher is broken.
        """
        asked_at = self._follower.now()
        self._check(message)
        self._follower.follow(asked_at - self._max_age)
        self._check_cell(message)
        refusals = Refusals()
        for _ in range(self._max_tries):
            plan = self._planner.plan(self._picture.snapshot(), message, refusals)
            if isinstance(plan, Shortfall):
                self._follower.catch_up(asked_at)
                # Hosts that have refused this request may have room again: left out, they would make it untrue.
                refusals.try_all_again()
                plan = self._planner.plan(self._picture.snapshot(), message, refusals)
            if isinstance(plan, Shortfall):
                return self._refuse(message, plan, refusals)
            outcome = self._attempt(message, plan)
            if isinstance(outcome, list):
                return outcome
            LOG.debug("The claim was refused by %s", outcome or "nobody in particular")
            self._follower.refresh(outcome)
            for choice in plan.refused_by(outcome):
                refusals.add(plan.node(choice), choice.allocation_request)
        raise errors.ClaimContention(tries=self._max_tries)

    def _attempt(self, message: SelectDestinations, plan: Plan) -> Answer | set[str]:
        """Claim a plan and return the answer, or else the providers that have refused."""
        claims_made = [
            (uuid, part.resources)
            for choice in plan.chosen
            for uuid, part in choice.allocation_request.allocations.items()
        ]
        readings = self._picture.readings({uuid for uuid, _ in claims_made})
        try:
            answer = self._requests.once(message, partial(self._claim, message, plan))
        except errors.CapacityExceeded as refusal:
            return {miss["provider_uuid"] for miss in refusal.refusals}
        except errors.ProviderNotFound as missing:
            return {missing.name}
        except errors.ClaimContention:
            # Something has changed between two statements of the claim; nobody has refused it.
            return set()
        if answer.replayed:
            return self._replayed(message, answer.result)
        self._picture.claimed(claims_made, readings)
        hosts = sorted({claimed.service_host for claimed, *_ in answer.result})
        instances = len(plan.chosen)
        LOG.info("Claimed for %d instance(s) on %d host(s): %s", instances, len(hosts), ", ".join(hosts[:_NAMED]))
        return answer.result

    def _refuse(self, message: SelectDestinations, shortfall: Shortfall, refusals: Refusals) -> Answer:
        """Say that there is no valid host, unless this very request has already been answered."""
        instances = len(message.instance_uuids)
        explanation = explain(shortfall, message.request_spec, refusals.nodes)
        summary = summarise(explanation, shortfall.placed, instances)

        def say(_connection: Connection) -> Answer:
            for fault in shortfall.serving.given_up.values():
                # It is not known that there is none.
                raise fault
            LOG.info("No valid host for %s instance(s): %s", instances, summary)
            raise errors.NoValidHost(instances=instances, summary=summary, explanation=wire.encode(explanation))

        # Said where the answer would be stored: a forerunner with the same id, which may have taken the last room
        # just now, is waited for there, and its answer is this one's.
        return self._replayed(message, self._requests.once(message, say).result)

    def _check(self, message: SelectDestinations) -> None:
        """Refuse what is wrong with a request, whatever hosts there are."""
        _check_size(message)
        asked = message.request_spec.resource_request
        candidates.check(asked, path="$.request_spec")
        for name in {name for group in asked.groups.values() for name in group.resources}:
            self._names.id_of(name)
        if named := _traits_named(asked):
            self._database.read(lambda connection: TraitNames.require(connection, named))

    def _check_cell(self, message: SelectDestinations) -> None:
        """Tell a cell that does not exist from one that has no room."""
        wanted = message.request_spec.requested_destination
        if wanted and wanted.cell and wanted.cell not in self._picture.snapshot().cells:
            cell = wanted.cell
            self._database.read(lambda connection: cells.by_uuid(connection, cell))

    def _claim(self, message: SelectDestinations, plan: Plan, connection: Connection) -> Answer:
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
            )
            for instance_uuid, choice in zip(message.instance_uuids, plan.chosen, strict=True)
        ]
        return _answer(plan, claims.claim(connection, wanted, self._names))

    def _replayed(self, message: SelectDestinations, stored: Answer) -> Answer:
        """Return a stored answer, instance by instance: as it is where its claim stands, else marked as released."""
        standing: Mapping[str, tuple[str | None, int]] = self._database.read(
            lambda connection: claims.standing(connection, message.instance_uuids)
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


def _traits_named(asked: ResourceRequest) -> set[str]:
    named = {*asked.root_required, *asked.root_forbidden}
    for group in asked.groups.values():
        named.update(group.required, group.forbidden, *group.any_of)
    return named


def _answer(plan: Plan, claimed: list[Claimed]) -> Answer:
    # Many instances share their alternates: each host is written down once.
    selections: dict[Choice, Selection] = {}

    def selection(choice: Choice) -> Selection:
        if choice not in selections:
            selections[choice] = _selection(plan.view, choice)
        return selections[choice]

    return [
        [
            structs.replace(selection(chosen), claim_id=claim.claim_id, consumer_generation=claim.consumer_generation),
            *map(selection, alternates),
        ]
        for chosen, alternates, claim in zip(plan.chosen, plan.alternates, claimed, strict=True)
    ]


def _selection(view: Snapshot, choice: Choice) -> Selection:
    host, tree, request = view.hosts[choice.row], view.trees[choice.row], choice.allocation_request
    pools = {member.uuid for member in tree.sharing} if tree else set()
    return Selection(
        service_host=host.service_host,
        nodename=host.nodename,
        compute_node_uuid=host.compute_node_uuid,
        cell_uuid=host.cell_uuid,
        agent=host.agent,
        availability_zone=host.availability_zone,
        allocation_request=request,
        shared_providers=tuple(sorted(pools & request.allocations.keys())),
        limits=view.limits(choice.row, {name for part in request.allocations.values() for name in part.resources}),
        weight=choice.weight,
    )
