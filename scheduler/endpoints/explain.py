"""The endpoint of `explain`: the decision for a request up to the claim, and the reasons for it; nothing is stored."""

from dataclasses import replace

from msgspec import structs
from sqlalchemy import Connection

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import ExplainRequest, SelectDestinations
from moorage.model import Explanation, Resources, WhatIf
from placement_store.allocations import consumers
from placement_store.allocations.consumers import Holding
from placement_store.db.names import ResourceClassNames
from placement_store.providers import rows as providers
from scheduler.decide import request_context
from scheduler.decide.decision import Decision
from scheduler.decide.environment import DecisionEnvironment, DecisionPolicy
from scheduler.decide.planner import DestinationPlan, NoHost
from scheduler.decide.request_context import RequestContext
from scheduler.decide.request_filters import Refusal


class ExplainEndpoint:
    """Serve ``explain`` with the decision that ``select_destinations`` would make, up to the claim."""

    def __init__(self, environment: DecisionEnvironment) -> None:
        self._environment = environment

    @serves(ExplainRequest)
    def explain(self, message: ExplainRequest) -> Explanation:
        """Answer :class:`~moorage.messages.ExplainRequest`.

        :raises HostNotFound: a host to be described by name does not exist.
        :raises InvalidRequest: several instances are wanted, but an existing one is named; or for the reasons of
            :func:`scheduler.decide.destinations.select`.
        :raises ConsumerNotFound: the instance that is to move holds nothing.
        :raises SearchBoundReached: the search for a host's candidates was too long to finish.
        :raises BrokenPlugin: a filter, weigher or request filter is broken.
        :raises SlowPlugin: a filter, weigher or request filter does not return.
        :raises StoreUnavailable: the view cannot follow the store.
        """
        if message.instance_uuid is not None and message.instances > 1:
            raise errors.InvalidRequest(path="$.instances", reason="an existing instance must be explained alone")
        if message.moving is not None and message.instance_uuid is None:
            raise errors.InvalidRequest(path="$.moving", reason="the instance to move is missing")
        policy = self._environment.policy
        return policy.plugin_failures.run_watched(lambda: ExplainedDecision(self._environment, policy, message).run())


class ExplainedDecision(Decision[Explanation]):
    """Decide a request, and explain the plan instead of claiming it."""

    def __init__(self, environment: DecisionEnvironment, policy: DecisionPolicy, explained: ExplainRequest) -> None:
        super().__init__(environment, policy, _as_selection(explained), explained.hosts)
        self._explained = explained

    def check_on_view(self) -> None:
        """Refuse a cell or a host that does not exist.

        :raises CellNotFound: the requested cell does not exist.
        :raises HostNotFound: a host to be described by name does not exist.
        """
        super().check_on_view()
        known = self.environment.host_cache.snapshot().names
        for name in self.named:
            if name.casefold() not in known.by_host:
                raise errors.HostNotFound(name=name)

    def read_context(self) -> RequestContext:
        """Read the context of the request; for an instance that exists, with the amounts that it holds.

        :raises ConsumerNotFound: the instance that is to move holds nothing.
        """
        environment, uuid, moving = self.environment, self._explained.instance_uuid, self._explained.moving
        if uuid is None:
            return super().read_context()

        def read(connection: Connection) -> RequestContext:
            context = request_context.read(connection, self.message, environment.names)
            holding = consumers.holdings(connection, [uuid]).get(uuid)
            if holding is None or not holding.rows:
                if moving is not None:
                    raise errors.ConsumerNotFound(name=uuid)
                return context
            context = replace(context, under_way=bool(self._explained.under_way))
            return _of_instance(connection, context, holding, moving, environment.names)

        return environment.database.read(read)

    def claim(self, plan: DestinationPlan, context: RequestContext) -> Explanation:
        """Return why the first instance would go to its host; nothing is claimed."""
        return self._with_what_if(plan.explanations[0], context)

    def no_host(self, no_host: NoHost, context: RequestContext) -> Explanation:
        """Return why there is no host.

        :raises SearchBoundReached: a search was not finished, so it is not known whether there is a host.
        """
        if (fault := no_host.unfinished_search) is not None:
            raise fault
        explanation = self.planner.why_not(no_host, self.message, self.refused_claims, self.named)
        return self._with_what_if(explanation, context)

    def refuse(self, fault: errors.MoorageError) -> Explanation:
        """Raise the error: an explanation is not stored, so no earlier answer replaces it."""
        raise fault

    def _with_what_if(self, explanation: Explanation, context: RequestContext) -> Explanation:
        """Add how many more such instances would fit, if the request wants it."""
        if not self._explained.what_if:
            return explanation
        # A new snapshot has no planned claims in it: the planned instances count among those that would fit.
        view = self.environment.host_cache.snapshot()
        request = self.resolve(view, self.received_at - self.environment.max_age)
        if isinstance(request, Refusal):
            return structs.replace(explanation, what_if=WhatIf(more=0))
        what_if = self.planner.how_many(view, request, context, self._explained.patience)
        return structs.replace(explanation, what_if=what_if)


def _as_selection(message: ExplainRequest) -> SelectDestinations:
    """Return the request to decide; like every new request, it gets a new id, and so another seed."""
    uuid = message.instance_uuid
    return SelectDestinations(
        request_id=ids.fresh(),
        request_spec=message.request_spec,
        instance_uuids=tuple(ids.fresh() for _ in range(message.instances)) if uuid is None else (uuid,),
        num_alternates=0,
        explain=True,
    )


def _of_instance(
    connection: Connection, context: RequestContext, holding: Holding, moving: str | None, names: ResourceClassNames
) -> RequestContext:
    """Return the context with the amounts that an instance holds, which are free for its own plan.

    If it is placed as if for the first time, these are all its amounts. If it moves, these are its amounts of pools,
    and its host is left out unless the move is a resize.
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
    return replace(context, pooled=held, source=source, leaving=leaving)
