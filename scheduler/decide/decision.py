"""Decide one request: take a snapshot, resolve the request, filter, weigh, choose, claim, answer.

:meth:`Decision.run` is the whole decision, in the order in which it happens. The host view may be behind the store, so
the claim transaction has the last word: a host that refuses a claim is read again and passed over. "No valid host" is
answered only after the view has caught up with the store and the request was planned once more.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from moorage import errors, metrics, tracing
from moorage.batches import BatchItem
from moorage.messages import SelectDestinations
from placement_store.db.retries import retry_on_stale_read
from scheduler.decide import request_context
from scheduler.decide.claim_writer import ClaimRefused
from scheduler.decide.environment import DecisionEnvironment, DecisionPolicy
from scheduler.decide.host_candidates import RefusedClaims
from scheduler.decide.planner import DestinationPlan, NoHost
from scheduler.decide.request_context import NO_CONTEXT, RequestContext
from scheduler.decide.request_filters import Refusal
from scheduler.view.snapshot import Snapshot

T = TypeVar("T")


class TimedStage:
    """A stage of a decision, or of a batch of decisions; its duration is a metric, and a span of the trace."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seconds = metrics.DECISION_STAGE_SECONDS.labels(name)

    @contextmanager
    def timed(self, batch: Iterable[BatchItem[Any, Any]] | None = None) -> Iterator[None]:
        """Time one run of the stage.

        :param batch: the requests for which the stage runs at once; null for the request of this thread.
        """
        span = (
            tracing.span(self._name)
            if batch is None
            else tracing.shared_span(self._name, [each.context for each in batch])
        )
        with self._seconds.time(), span:
            yield


FOLLOW, CONTEXT, PLAN, CATCH_UP, CLAIM = map(TimedStage, ("follow", "context", "plan", "catch_up", "claim"))

#: Errors of a request that cannot be planned. Most of them mean that the instance to move is not placed as the caller
#: assumes. A repeated request may still have a stored answer when one of them is raised.
NOT_PLANNED = (
    errors.BrokenPlugin,
    errors.ClaimReleased,
    errors.ConsumerGenerationConflict,
    errors.ConsumerDeleted,
    errors.InvalidState,
    errors.AlreadyExists,
    errors.InvalidRequest,
    errors.NotFound,
    errors.SearchBoundReached,
)


class Decision(ABC, Generic[T]):
    """Decide one request.

    Subclasses define how it ends: ``select_destinations`` claims the plan, ``explain`` describes it.

    :param policy: the policy that decides this request to its end, even if another one is loaded meanwhile. The caller
        has to run a decision by a watched policy with :meth:`.PluginFailures.run_watched` of this same policy.
    :param named: hosts that an explanation describes by name.
    :param refused_claims: the claims of this request that the store has refused before.
    """

    def __init__(
        self,
        environment: DecisionEnvironment,
        policy: DecisionPolicy,
        message: SelectDestinations,
        named: Collection[str] = (),
        refused_claims: RefusedClaims | None = None,
    ) -> None:
        self.environment = environment
        self.message = message
        self.named = named
        self.received_at = environment.follower.now()
        self.policy = policy
        self.planner, self._request_filters = policy.for_request(environment.aggregates, environment.check_groups)
        self.refused_claims = refused_claims or RefusedClaims.none(len(message.instance_uuids))

    def run(self) -> T:
        """Decide the request and return its answer.

        :raises MoorageError: see :func:`scheduler.decide.destinations.select`.
        """
        env, message = self.environment, self.message
        oldest = self.received_at - env.max_age
        try:
            self.planner.funnel.check(message.request_spec)
            # From here on the view is at most `max_age` old.
            with FOLLOW.timed():
                env.follower.follow(oldest)
            self.check_on_view()
        except NOT_PLANNED as fault:
            return self.refuse(fault)
        tries, caught_up = 0, False
        while tries < env.max_tries:
            try:
                # Members of the server group and amounts of a moving instance change with every claim, and are in no
                # snapshot: read them for each plan.
                context = self.read_context()
                with PLAN.timed():
                    plan = self.plan(env.host_cache.snapshot(), context, self.received_at if caught_up else oldest)
            except NOT_PLANNED as fault:
                return self.refuse(fault)
            if isinstance(plan, NoHost):
                if caught_up:
                    return self.no_host(plan, context)
                # The view may have missed a change, so compare it with the store before refusing the request. Hosts
                # that refused it may have room again: without them, "no valid host" could be wrong.
                with CATCH_UP.timed():
                    env.follower.catch_up(self.received_at)
                self.refused_claims.try_all_again()
                caught_up = True
                continue
            try:
                # The answer is stored in the transaction that claims.
                return self.claim(plan, context)
            except ClaimRefused as refused:
                # Another decision was faster: read the refusing providers again, and plan without these candidates.
                env.follower.refresh(refused.provider_uuids)
                for choice in plan.refused_by(refused.provider_uuids):
                    self.refused_claims.add(plan.node(choice), choice.allocation_request)
                tries, caught_up = tries + 1, False
        raise errors.ClaimContention(tries=env.max_tries)

    def plan(
        self,
        view: Snapshot,
        context: RequestContext,
        aggregates_as_of: float,
        resolved: SelectDestinations | None = None,
    ) -> DestinationPlan | NoHost:
        """Plan the request on a view: filter, weigh and choose a host for each instance.

        :param aggregates_as_of: request filters get host aggregates as of this time of the follower's clock, or later.
        :param resolved: the request as it is resolved on this view, if that is known.
        :raises MoorageError: one of :data:`NOT_PLANNED`.
        """
        request = resolved or self.resolve(view, aggregates_as_of)
        if isinstance(request, Refusal):
            return NoHost.by_request_filter(view, self.message.request_spec, *request)
        # Each instance is planned with the claims before it taken into account.
        return self.planner.plan(view, request, self.refused_claims, context, self.named)

    def resolve(self, view: Snapshot, aggregates_as_of: float) -> SelectDestinations | Refusal:
        """Resolve the request with the request filters, for each plan again: aggregates and traits of the cloud change.

        :raises MoorageError: one of :data:`NOT_PLANNED`.
        """
        return self._request_filters.resolve(self.message, view, aggregates_as_of)

    # --- The steps in which decisions differ --------------------------------------------------------------------------

    def check_on_view(self) -> None:
        """Refuse a request that names something unknown, on a view that is new enough.

        :raises CellNotFound: the requested cell does not exist.
        """
        self.environment.check_cell(self.message.request_spec)

    def read_context(self) -> RequestContext:
        """Read the context of the request from the store, if it has any."""
        environment, message = self.environment, self.message
        if not request_context.is_needed(message):
            return NO_CONTEXT
        with CONTEXT.timed():
            return retry_on_stale_read(
                lambda: environment.database.read(
                    lambda connection: request_context.read(connection, message, environment.names)
                )
            )

    @abstractmethod
    def claim(self, plan: DestinationPlan, context: RequestContext) -> T:
        """Claim a plan and return the answer.

        :raises ClaimRefused: the store refuses it; the request is planned again.
        """

    @abstractmethod
    def no_host(self, no_host: NoHost, context: RequestContext) -> T:
        """Return the answer to a request for which there is no host, on a view that has caught up."""

    @abstractmethod
    def refuse(self, fault: errors.MoorageError) -> T:
        """Refuse a request that cannot be planned, or return the answer that it already has."""
