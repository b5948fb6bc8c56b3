"""Explaining: where a request would go now, and why; nothing is claimed, nothing is stored."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from msgspec import structs
from sqlalchemy import Connection

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import ExplainRequest, SelectDestinations
from moorage.model import Explanation, Resources
from placement_store.allocations import consumers
from placement_store.allocations.consumers import Holding
from placement_store.db.names import ResourceClassNames
from placement_store.providers import rows as providers
from scheduler.decide import request_context
from scheduler.decide.decision import Deciding
from scheduler.decide.host_candidates import RefusedClaims, budget_for
from scheduler.decide.planner import DestinationPlan
from scheduler.decide.request_context import RequestContext


class ExplainEndpoint:
    """Answers ``explain``: by the decision that ``select_destinations`` would make, up to the claim."""

    def __init__(self, deciding: Deciding) -> None:
        self._deciding = deciding

    @serves(ExplainRequest)
    def explain(self, message: ExplainRequest) -> Explanation:
        """Answer :class:`~moorage.messages.ExplainRequest`; see :meth:`_explained` for its errors.

        :raises SlowPlugin: a filter, weigher or request filter does not come to an end.
        """
        return self._deciding.apart(lambda: self._explained(message))

    def _explained(self, message: ExplainRequest) -> Explanation:
        """Explain a request.

        :raises HostNotFound: a host that is to be told of does not exist.
        :raises InvalidRequest: several instances are asked for where one is that exists; or what
            :meth:`~scheduler.decide.destinations.Destinations.select` raises it for.
        :raises ConsumerNotFound: the instance that is to move holds nothing.
        :raises SearchBoundReached: whether a host's providers can serve the groups could not be found out.
        :raises BrokenPlugin: a filter, weigher or request filter is broken.
        :raises StoreUnavailable: the view cannot follow the store.
        """
        if message.instance_uuid is not None and message.instances > 1:
            raise errors.InvalidRequest(path="$.instances", reason="an instance that exists is explained by itself")
        if message.moving is not None and message.instance_uuid is None:
            raise errors.InvalidRequest(path="$.moving", reason="it is not said which instance is to move")
        asked = _as_if_asked(message)
        read = partial(self._circumstances, message, asked)
        decision, refused_claims = self._deciding.begin(asked, read), RefusedClaims(budget_for(message.instances))
        self._check_hosts(message.hosts)
        known, plan = decision.plan(refused_claims, message.hosts)
        if isinstance(plan, DestinationPlan):
            explanation = plan.explanations[0]
        else:
            for fault in plan.host_candidates.undecided.values():
                # It is not known that there is none.
                raise fault
            explanation = decision.why_not(plan, refused_claims, message.hosts)
        if not message.what_if:
            return explanation
        # As many as it asks for itself may be planned on the view of the plan: the count begins before them.
        view = self._deciding.host_cache.snapshot()
        return structs.replace(explanation, what_if=decision.how_many(view, known, message.patience))

    def _check_hosts(self, hosts: Collection[str]) -> None:
        known = self._deciding.host_cache.snapshot().names
        for name in hosts:
            if name.casefold() not in known.by_host:
                raise errors.HostNotFound(name=name)

    def _circumstances(self, message: ExplainRequest, asked: SelectDestinations) -> RequestContext:
        """Read what the answer depends on beside the hosts, if anything."""
        uuid, moving = message.instance_uuid, message.moving
        if uuid is None and not request_context.is_needed(asked):
            return request_context.NO_CONTEXT

        def read(connection: Connection) -> RequestContext:
            known = request_context.read(connection, asked, self._deciding.names)
            if uuid is None:
                return known
            holding = consumers.holdings(connection, [uuid]).get(uuid)
            if holding is None or not holding.rows:
                if moving is not None:
                    raise errors.ConsumerNotFound(name=uuid)
                return known
            return _of_instance(connection, known, holding, moving, self._deciding.names)

        return self._deciding.database.read(read)


def _as_if_asked(message: ExplainRequest) -> SelectDestinations:
    """Return the request that would be decided on; its seed is new each time, as that of any request is."""
    uuid = message.instance_uuid
    return SelectDestinations(
        request_id=ids.fresh(),
        request_spec=message.request_spec,
        instance_uuids=tuple(ids.fresh() for _ in range(message.instances)) if uuid is None else (uuid,),
        num_alternates=0,
        explain=True,
    )


def _of_instance(
    connection: Connection, known: RequestContext, holding: Holding, moving: str | None, names: ResourceClassNames
) -> RequestContext:
    """Return the same for an instance that holds something.

    Placed as if for the first time, it has all of that to spend. On its way, it has what it holds of pools, and its
    host is left out.
    """
    root_id = holding.root_provider_id
    uuids = providers.uuids_of(connection, {id_ for id_, _ in holding.rows} | ({root_id} if root_id else set()))
    tree = set(providers.tree_ids(connection, [root_id])) if root_id else set()
    held: dict[str, Resources] = {}
    for (provider_id, class_id), row in holding.rows.items():
        if moving is None or provider_id not in tree:
            held.setdefault(uuids[provider_id], {})[names.name_of(class_id, connection)] = row.amount
    source = uuids.get(root_id) if root_id else None
    leaving = source if moving not in (None, "resize") else None
    return replace(known, pooled=held, source=source, leaving=leaving)
