"""Decide requests together: the requests that arrive while a batch is being decided form the next batch.

The requests of a batch are planned on one snapshot, each with the claims of those before it in place, and claimed in
one transaction. A request that cannot be decided in this way, for any reason, is taken out of the batch and decided
alone, in its own thread and with an answer or an error of its own; the other requests of the batch continue.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from msgspec import structs
from sqlalchemy import Connection

from moorage import context, errors, failpoints
from moorage.batches import Batches, BatchItem
from moorage.db.shared_transactions import PATIENCE
from moorage.messages import SelectDestinations
from moorage.model import RequestSpec
from moorage.service.stored_requests import DuplicateRequest
from placement_store.candidates.search_budget import SearchBudget
from placement_store.server_groups.rows import PlacedGroup
from scheduler.decide import destinations, request_context
from scheduler.decide.claim_writer import ClaimRefused, ClaimWriter, PlannedRequest, WrittenClaims
from scheduler.decide.decision import CLAIM, CONTEXT, FOLLOW, NOT_PLANNED, PLAN
from scheduler.decide.destinations import ClaimingDecision
from scheduler.decide.environment import DecisionEnvironment, DecisionPolicy
from scheduler.decide.host_candidates import RefusedClaims
from scheduler.decide.planner import NoHost
from scheduler.decide.request_context import RequestContext
from scheduler.decide.request_filters import Refusal
from scheduler.decide.selections import Selections
from scheduler.view.planned import PlannedView
from scheduler.view.provisional import AddedClaims
from scheduler.view.snapshot import Snapshot

#: The maximum number of requests in a batch: all of them wait for the slowest statement, and lock the rows of all their
#: providers. Arbitrary, like the limits that follow.
_TOGETHER = 32
#: The maximum number of instances of a request that is decided together with others.
_MOST_INSTANCES = 64
#: Seconds of processor time for the searches of one request: the other requests of its batch wait for it.
_SEARCH_SECONDS = 0.05
#: How often a batch is tried to be written, each time without the requests that were refused before.
_TRIES = 3


class _Request(NamedTuple):
    """A request, and its claims that the store has refused so far."""

    message: SelectDestinations
    refused_claims: RefusedClaims


#: Decides a request alone, in the thread and the context of its caller.
DecideAlone = Callable[[], Selections]
#: A request and its answer; null if it must be decided alone.
Item = BatchItem[_Request, Selections | None]


@dataclass(frozen=True, slots=True, eq=False)
class _PlannedItem:
    """Hold a request of a batch with its plan."""

    item: Item
    decision: ClaimingDecision
    request: PlannedRequest
    added: AddedClaims


class _ResolvedSpecs:
    """The request specs of a batch, resolved on its view: equal ones are resolved once."""

    def __init__(self, view: Snapshot, aggregates_as_of: float) -> None:
        self._view = view
        self._aggregates_as_of = aggregates_as_of
        self._known: list[tuple[RequestSpec, RequestSpec]] = []

    def message(self, decision: ClaimingDecision) -> SelectDestinations | Refusal:
        """Return the message of a request with its request spec checked and resolved.

        :raises MoorageError: one of :data:`NOT_PLANNED`.
        """
        message, spec = decision.message, decision.message.request_spec
        for equal, known in self._known:
            if equal == spec:
                return structs.replace(message, request_spec=known)
        decision.planner.funnel.check(spec)
        decision.check_on_view()
        resolved = decision.resolve(self._view, self._aggregates_as_of)
        # If broken plug-ins are skipped, each request must find out itself which ones are broken.
        if not isinstance(resolved, Refusal) and not decision.policy.plugin_failures.skip:
            self._known.append((spec, resolved.request_spec))
        return resolved


class _BatchRefused(Exception):
    """Report that the store has refused some requests of a batch."""

    def __init__(self, refused: Collection[_PlannedItem]) -> None:
        super().__init__()
        self.refused = refused


class SharedDecisions:
    """Decide requests, each alone or together with those that arrive while others are being decided."""

    def __init__(self, environment: DecisionEnvironment, writer: ClaimWriter) -> None:
        self._environment = environment
        self._writer = writer
        self._batches: Batches[_Request, Selections | None] = Batches(
            self._decide, _TOGETHER, "decisions", refuse_late=True
        )

    def select(self, message: SelectDestinations) -> Selections:
        """Return the answer to a request; see :func:`scheduler.decide.destinations.select` for its errors."""
        destinations.check(message)
        request = _Request(message, RefusedClaims.none(len(message.instance_uuids)))
        answer = self._batches.do(request) if self._may_be_shared(message) else None
        return self._alone(request) if answer is None else answer

    def select_many(self, calls: Sequence[BatchItem[SelectDestinations, Selections]]) -> list[DecideAlone | None]:
        """Set the answer or the error of each request; return for each a function that decides it alone, or None.

        See :func:`scheduler.decide.destinations.select` for the errors.
        """
        alone: list[DecideAlone | None] = [None] * len(calls)
        shared: dict[int, Item] = {}
        for position, call in enumerate(calls):
            request = _Request(call.value, RefusedClaims.none(len(call.value.instance_uuids)))
            try:
                destinations.check(call.value)
            except errors.InvalidRequest as fault:
                call.fail(fault)
                continue
            if self._may_be_shared(call.value):
                shared[position] = BatchItem(request, call.context)
            else:
                alone[position] = partial(self._alone, request)
        self._batches.do_all(list(shared.values()))
        for position, item in shared.items():
            try:
                answer = item.outcome()
            except Exception as fault:  # noqa: BLE001 - it is the answer to this request
                calls[position].fail(fault)
                continue
            if answer is None:
                alone[position] = partial(self._alone, item.value)
            else:
                calls[position].succeed(answer)
        return alone

    def _alone(self, request: _Request, policy: DecisionPolicy | None = None) -> Selections:
        return destinations.select(self._environment, self._writer, *request, policy=policy)

    def _may_be_shared(self, message: SelectDestinations) -> bool:
        return (
            message.move is None
            and not message.keep_held
            and not message.explain
            and len(message.instance_uuids) <= _MOST_INSTANCES
            # A plug-in that hangs must stop only its own request; see also `_decide`.
            and not self._environment.policy.plugin_failures.is_watched
            # A test that observes failpoints follows each request by itself.
            and not failpoints.are_observed()
        )

    def _decide(self, batch: Sequence[Item]) -> None:
        """Set the answer of each request of a batch; null if it must be decided alone."""
        policy = self._environment.policy
        if policy.plugin_failures.is_watched:
            # It was loaded while the requests waited for their turn. Nothing would end a plug-in that hangs here.
            for item in batch:
                item.succeed(None)
            return
        deadlines = [item.context.deadline for item in batch if item.context.deadline is not None]
        # A request must write nothing after its deadline, so the batch gets the earliest deadline of all.
        deadline = min(deadlines, default=None)
        of_batch = context.Context(service=context.current().service, deadline=deadline)
        try:
            with context.adopted(of_batch if len(batch) > 1 else batch[0].context):
                planned = self._plan(batch, policy)
                # A row that somebody keeps locked must delay only the requests that claim it. The bound is not for
                # planning, which may take longer. In a drill, a failpoint may delay a claim.
                patience = None if failpoints.are_armed() else time.monotonic() + PATIENCE
                with context.bound(deadline=patience) as claiming:
                    deadline = claiming.deadline
                    self._claim(planned)
        except (errors.StoreUnavailable, errors.Overloaded) as fault:
            # All requests get this error: alone, they would wait for the database one after another. But if the
            # deadline of the batch is over, it has ended the wait of all, and the requests may have time left.
            if deadline is None or time.monotonic() < deadline:
                raise
            if isinstance(fault, errors.StoreUnavailable):
                self._try_store(batch, policy)
        except errors.MoorageError:
            pass  # each request without an answer is decided alone, and gets its own error
        for item in batch:
            if not item.is_done:
                item.succeed(None)

    def _try_store(self, batch: Sequence[Item], policy: DecisionPolicy) -> None:
        """Decide alone the request that has the most time left, to find out whether the store is still unavailable.

        If the database is silent, the other requests then do not wait for it as well. If only its old connections are,
        all of them can be decided.

        :param policy: the policy of the batch. One that was loaded meanwhile may have plug-ins that hang, and the other
            requests would wait for them.
        :raises StoreUnavailable: it is still unavailable.
        """
        patient = max((item for item in batch if not item.is_done), key=lambda item: item.context.deadline or math.inf)
        patient.do(partial(self._alone, policy=policy))
        try:
            patient.outcome()
        except errors.StoreUnavailable:
            raise
        except Exception:  # noqa: BLE001, S110 - it is the answer to this request alone
            pass

    # --- Planning -----------------------------------------------------------------------------------------------------

    def _plan(self, batch: Sequence[Item], policy: DecisionPolicy) -> list[_PlannedItem]:
        """Plan requests on one snapshot, each with the claims of those before it in place.

        :raises StoreUnavailable: the view cannot follow the store.
        """
        env = self._environment
        decisions = [(item, self._decision(item.value.message, policy)) for item in _without_conflicts(batch)]
        oldest = max(decision.received_at for _, decision in decisions) - env.max_age
        with FOLLOW.timed(item for item, _ in decisions):
            env.follower.follow(oldest)
        contexts = self._contexts([item for item, _ in decisions])
        view: Snapshot = env.host_cache.snapshot()
        planned_view = PlannedView.of(view, view.classes, len(decisions)) if len(decisions) > 1 else None
        resolved_specs = _ResolvedSpecs(planned_view or view, oldest)
        planned = []
        for (item, decision), read in zip(decisions, contexts, strict=True):
            with context.adopted(item.context), PLAN.timed():
                found = None
                if read is not None:
                    found = _plan_one(item, decision, planned_view or view, read, oldest, resolved_specs)
            if found is not None:
                planned.append(found)
            if found is not None and planned_view is not None:
                for choice in found.request.plan.chosen:
                    planned_view.claim(choice.row, choice.allocation_request)
        return planned

    def _decision(self, message: SelectDestinations, policy: DecisionPolicy) -> ClaimingDecision:
        refused_claims = RefusedClaims(SearchBudget(seconds=_SEARCH_SECONDS))
        return ClaimingDecision(self._environment, policy, self._writer, message, refused_claims)

    def _contexts(self, items: Sequence[Item]) -> list[RequestContext | None]:
        """Read the contexts of requests in one transaction; null for a request whose context cannot be read so."""
        messages = [item.value.message for item in items]

        def work(connection: Connection) -> list[RequestContext | None]:
            members = request_context.members_of_groups(connection, messages)
            return [self._context(connection, message, members) for message in messages]

        if any(map(_has_context, messages)):
            with CONTEXT.timed(items):
                return self._environment.database.read(work)
        return [request_context.NO_CONTEXT] * len(messages)

    def _context(
        self, connection: Connection, message: SelectDestinations, members: Mapping[str, PlacedGroup]
    ) -> RequestContext | None:
        try:
            return request_context.read(connection, message, self._environment.names, members)
        except NOT_PLANNED:
            return None

    # --- Claiming -----------------------------------------------------------------------------------------------------

    def _claim(self, planned: Sequence[_PlannedItem]) -> None:
        """Claim what was planned in one transaction, without what the store refuses, and set the answers."""
        for _ in range(_TRIES):
            if not planned:
                return
            try:
                with CLAIM.timed(one.item for one in planned):
                    written = self._write(planned)
            except _BatchRefused as fault:
                planned = [one for one in planned if one not in fault.refused]
                continue
            # A stored answer must not be given without a check of its claims, as in a decision alone.
            new = [(one, claims) for one, claims in zip(planned, written, strict=True) if not claims.replayed]
            bumped_once = all(claims.bumped_once for _, claims in new)
            self._environment.host_cache.apply_claims([one.added for one, _ in new], bumped_once=bumped_once)
            for one, claims in new:
                with context.adopted(one.item.context):
                    one.item.succeed(one.decision.claimed(claims))
            return

    def _write(self, planned: Sequence[_PlannedItem]) -> list[WrittenClaims]:
        """Write the claims of planned requests in one transaction.

        :raises _BatchRefused: the store has refused some of them, and nothing was written.
        """
        try:
            if len(planned) == 1:
                return [self._writer.write(planned[0].request)]
            return self._writer.write_together([one.request for one in planned])
        except ClaimRefused as refusal:
            raise self._note_refusals(planned, refusal.provider_uuids) from refusal
        except (errors.ConsumerGenerationConflict, errors.ConsumerDeleted) as fault:
            named = fault.consumer_uuid
            raise _BatchRefused([one for one in planned if named in one.item.value.message.instance_uuids]) from fault
        except DuplicateRequest as fault:
            answered = self._writer.requests.answered([one.item.value.message.request_id for one in planned])
            raise _BatchRefused([one for one in planned if one.item.value.message.request_id in answered]) from fault

    def _note_refusals(self, planned: Sequence[_PlannedItem], provider_uuids: Collection[str]) -> _BatchRefused:
        """Return which requests the providers have refused, note this for each, and read the providers again."""
        self._environment.follower.refresh(provider_uuids)
        refused = []
        for one in planned:
            if choices := one.request.plan.refused_by(provider_uuids):
                refused.append(one)
                for choice in choices:
                    one.item.value.refused_claims.add(one.request.plan.node(choice), choice.allocation_request)
        return _BatchRefused(refused)


def _without_conflicts(batch: Sequence[Item]) -> list[Item]:
    """Return the requests of a batch without those that name a request id, instance or server group of one before them.

    The same request may have been sent twice. A member of a server group is planned with the members that the store
    has, which do not include those that the batch has planned.
    """
    named: set[str] = set()
    apart = []
    for item in batch:
        group = item.value.message.request_spec.server_group
        names = {
            item.value.message.request_id,
            *item.value.message.instance_uuids,
            *(() if group is None else (group.uuid,)),
        }
        if named.isdisjoint(names):
            named |= names
            apart.append(item)
    return apart


def _has_context(message: SelectDestinations) -> bool:
    try:
        return request_context.is_needed(message)
    except errors.InvalidRequest:
        return True  # reading the context fails, and the request is decided alone


def _plan_one(
    item: Item,
    decision: ClaimingDecision,
    view: Snapshot,
    read: RequestContext,
    oldest: float,
    resolved_specs: _ResolvedSpecs,
) -> _PlannedItem | None:
    """Return the plan of a request; null if it has none, or if its error is set."""
    try:
        resolved = resolved_specs.message(decision)
        if isinstance(resolved, Refusal):
            return None
        plan = decision.plan(view, read, oldest, resolved)
    except errors.BrokenPlugin as fault:
        # Decided alone, the plug-in would break again, and the failure would be counted twice.
        broken = fault
        item.do(lambda _request: decision.refuse(broken))
        return None
    except NOT_PLANNED:
        return None
    except Exception as fault:  # noqa: BLE001 - it is raised in the thread of this request
        item.fail(fault)
        return None
    # Decided alone, the request has more time to search.
    if isinstance(plan, NoHost) or plan.is_given_up:
        return None
    request = PlannedRequest(item.value.message, plan, read.group)
    return _PlannedItem(item, decision, request, decision.added_claims(plan, read))
