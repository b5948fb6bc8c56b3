"""Steps `stop`, `start` and `wait`: order a host to start the guest, then wait for its report, until the timeout.

Before a cold migration or a resize the guest on the source is stopped.
"""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from msgspec import structs
from sqlalchemy import Connection

from conductor.cell.attempt_sequence import AttemptSequence
from conductor.cell.context import CellPart
from conductor.cell.hosts import owners
from conductor.cell.hosts.hosts import IS_RETURNING
from conductor.cell.payloads import Fate, GiveBackStep, StartStep
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance
from conductor.cell.steps.fall_back import STORE_REPEAT_UNCHANGED
from conductor.engine.preconditions import not_forced_down
from conductor.engine.step_calls import Calling
from conductor.engine.steps import (
    BUILD,
    MOVE,
    UNSHELVE,
    CommitStep,
    Next,
    Operation,
    Outcome,
    Retry,
    Superseded,
    Wait,
    step,
)
from moorage import context, errors, ids
from moorage.messages import BuildOnHost, StopOnHost
from moorage.model import AllocationRequest, Selection

LOG = logging.getLogger(__name__)

NO_ANSWER = "the agent did not answer"
TIMED_OUT = "timed out"
COULD_NOT_REPORT = "its host could not report for some time, and is waited for once more"

#: Errors after which another try may succeed: the outcome is unknown, or the host has not returned yet.
_NOT_NOW = (*STORE_REPEAT_UNCHANGED, errors.InvalidState)


@dataclass(frozen=True, slots=True)
class StartOrder:
    """The order to start an attempt, and the agent of its host."""

    agent: str
    message: BuildOnHost
    #: The host is returning, so no build may begin there yet.
    is_returning: bool

    @classmethod
    def of(cls, selection: Selection, *, agent: str | None = None, is_returning: bool = False, **attempt: Any) -> Self:
        """Return the order to start an attempt on the host of the selection.

        :param agent: the agent that now serves the host, if it is known; by default that of the selection.
        :param attempt: the other fields of the message.
        """
        message = BuildOnHost(
            host=selection.service_host,
            node=selection.nodename,
            resources=selection.resources,
            allocation_request=_if_divided(selection),
            **attempt,
        )
        return cls(agent or selection.agent, message, is_returning)


class CellBuilds(CellPart):
    """The steps that builds, moves and unshelvings share. They call neither a scheduler nor the super conductor."""

    @step(MOVE, "stop")
    def stop(self, operation: Operation) -> CommitStep:
        """Stop the guest on the source; repeat until the host answers. After the build timeout the move fails."""
        payload = operation.read(StartStep)

        def work(connection: Connection) -> tuple[CellInstance, AttemptRecord]:
            instance, migration = self._cell.migrations.expect(connection, operation.subject, "moving")
            return instance, self._cell.migrations.source(connection, migration)

        instance, source = self._cell.database.read(work)
        # A silent host is not called, because nobody knows when it would answer.
        why = self._cell.hosts.why_silent(source.host)
        if why is not None:
            # If no order to stop was sent, the guest runs and need not be started again.
            stopped = operation.is_repeated
            return partial(self._not_stopped, operation, payload.number, f"{source.host}: {why}", stopped)
        message = source.order(StopOnHost, operation.derived("stop"), instance.guest_order)
        try:
            why = self._cell.agents.order(operation, source, message)
        except errors.MoorageError as fault:
            return partial(self._try_again, operation, payload.number, f"{source.host}: {fault}")
        if why is not None:
            return partial(self._not_stopped, operation, payload.number, f"{source.host}: {why}", True)
        LOG.info("The guest of instance %s on host %s is stopped", operation.subject, source.host)
        return lambda _connection: Next("start", payload)

    def _try_again(self, operation: Operation, number: int, why: str, connection: Connection) -> Outcome:
        if self._cell.operations.age(connection, operation) < self._cell.options.build_timeout:
            return Retry(why)
        return self._not_stopped(operation, number, why, True, connection)

    def _not_stopped(
        self, operation: Operation, number: int, why: str, stopped: bool, connection: Connection
    ) -> Outcome:
        self._cell.migrations.expect(connection, operation.subject, "moving", lock=True)
        # Nothing was sent to the destination yet, so its attempt can fail with fate "gone", and its claim is released.
        reason = f"the guest on its source could not be stopped, {why}"
        attempt = self._cell.records.numbered(connection, operation.subject, number)
        self._cell.records.change_attempt(
            connection, attempt.attempt_id, state="failed", reason=reason, guest_gone=True
        )
        return Next("give_back", GiveBackStep(failed=number, fate="gone", reason=reason, stopped=stopped))

    @step((BUILD, MOVE, UNSHELVE), "start")
    def start(self, operation: Operation) -> Calling[CommitStep]:
        """Order the host's agent to start the attempt, then wait for the host's report until the build timeout."""
        payload = operation.read(StartStep)
        order = operation.carried_as(StartOrder) or self._cell.database.read(partial(self._order, operation, payload))
        message = order.message
        with context.bound(attempt_id=message.attempt_id):
            # The host of an evacuated guest may be back, with the guest: the order may have waited for a long time.
            if (source := message.moving) is not None and source.kind == "evacuation":
                try:
                    is_forced_down = yield partial(self._cell.forced_down.surely_has, source.source_host)
                except errors.StoreUnavailable as fault:
                    LOG.warning("The evacuation of instance %s waits: %s", operation.subject, fault)
                    return self._wait_for_placement(payload, str(fault))
                if not is_forced_down:
                    return partial(_not_evacuated, payload.number, not_forced_down(source.source_host).reason)
            LOG.info("Attempt %d of instance %s, on host %s", payload.number, operation.subject, message.host)
            try:
                # The guests of a returning host are compared with the records: a guest that starts now would look lost.
                if order.is_returning:
                    raise errors.InvalidState(reason=IS_RETURNING)
                yield from self._cell.agents.calling(order.agent, message)
            except errors.BusUnavailable:
                raise  # the message bus is down, not this host: an alternate could not be reached either
            except errors.MoorageError as fault:
                return self._not_started(operation, payload, fault, order)
        waiting = StartStep(number=payload.number)
        return lambda _connection: Wait("wait", waiting, self._cell.options.build_timeout)

    def _wait_for_placement(self, payload: StartStep, reason: str) -> CommitStep:
        """Return the result of a start that has sent no order: the tries of the step are left to the host."""
        waiting = structs.replace(payload, waited=payload.waited + 1)
        seconds = self._cell.operations.backoff.seconds(waiting.waited)
        return lambda _connection: Wait("start", waiting, seconds, reason)

    def _order(self, operation: Operation, payload: StartStep, connection: Connection) -> StartOrder:
        instance, sequence, attempt = self._current(operation, payload, connection)
        selection = sequence.selection(payload.number)
        moving = None
        if sequence.migration is not None:
            source = self._cell.migrations.source(connection, sequence.migration)
            moving = sequence.migration.guest(source)
        return StartOrder.of(
            selection,
            agent=owners.agent_of(connection, self._cell.cell_uuid, attempt.host),
            is_returning=self._cell.records.lives.of_host(connection, attempt.host).is_returning,
            request_id=start_id(operation.uuid, payload.number),
            instance_uuid=instance.uuid,
            attempt_id=attempt.attempt_id,
            # Not the claim of the selection: after a swap the selection names none.
            claim_id=attempt.claim,
            request_spec=sequence.spec,
            moving=moving,
        )

    def _not_started(
        self, operation: Operation, payload: StartStep, fault: errors.MoorageError, order: StartOrder
    ) -> CommitStep:
        may_succeed = isinstance(fault, _NOT_NOW) or self._went_to_former_agent(fault, order)
        if may_succeed and operation.tries < self._cell.options.max_unanswered_retries:
            raise fault
        # Even if the order is refused, an earlier copy may have been carried out, and its answer lost. So the fate is
        # "unstarted": the store releases the claim only if no host has accepted it, and then no host can accept it.
        reason = NO_ANSWER if isinstance(fault, (errors.NoReply, errors.AgentUnreachable)) else str(fault)
        LOG.warning("Attempt %d of %s was not started: %s", payload.number, operation.subject, reason)

        def record(connection: Connection) -> Outcome:
            instance, _sequence = self._cell.sequences.of(
                connection, self._cell.records.lock(connection, operation.subject)
            )
            return self._cell.sequences.next_step(connection, instance, payload.number, reason, "unstarted")

        return record

    def _went_to_former_agent(self, fault: errors.MoorageError, order: StartOrder) -> bool:
        """Return whether the host of an order is unknown to the agent that was addressed, because another one has it.

        The first order goes to the agent that the scheduler knows; its repetition goes to the agent on record.
        """
        if not isinstance(fault, errors.HostNotFound):
            return False
        return self._cell.hosts.agent_of(order.message.host) not in (None, order.agent)

    @step((BUILD, MOVE, UNSHELVE), "wait")
    def time_out(self, operation: Operation) -> CommitStep:
        """Fail the attempt of a host that has not reported in time. From now on it cannot pass a gate.

        If no report could arrive for a part of that time, the report may be on its way, and is waited for once more.
        """
        payload = operation.read(StartStep)
        patience = min(self._cell.options.build_timeout, self._cell.hosts.down_after)

        def record(connection: Connection) -> Outcome:
            # Of an operation that is older than the patience, the last part is enough.
            age = self._cell.operations.age(connection, operation)
            if not self._cell.hosts.reach.has_lasted(min(age, patience)):
                return Wait("wait", payload, patience, COULD_NOT_REPORT)
            instance, _sequence, attempt = self._current(operation, payload, connection, lock=True)
            LOG.warning("Host %s is abandoned for instance %s: %s", attempt.host, instance.uuid, TIMED_OUT)
            self._cell.records.change_attempt(connection, attempt.attempt_id, state="failed", reason=TIMED_OUT)
            # The host may have a guest, unless it has reported the guest as gone.
            fate: Fate = "gone" if attempt.guest_gone else "unknown"
            return self._cell.sequences.next_step(connection, instance, payload.number, TIMED_OUT, fate)

        return record

    def _current(
        self, operation: Operation, payload: StartStep, connection: Connection, *, lock: bool = False
    ) -> tuple[CellInstance, AttemptSequence, AttemptRecord]:
        read = self._cell.records.lock if lock else self._cell.records.read
        instance, sequence = self._cell.sequences.of(connection, read(connection, operation.subject))
        if instance.attempt_number != payload.number:
            raise Superseded
        return instance, sequence, self._cell.records.numbered(connection, instance.uuid, payload.number)


def _not_evacuated(number: int, reason: str, _connection: Connection) -> Outcome:
    """Return the step after an evacuation was stopped before its order to start.

    An earlier copy of the order may have been sent: then its host has accepted the claim, or can no longer accept it.
    """
    return Next("give_back", GiveBackStep(failed=number, fate="unstarted", reason=reason))


def start_id(operation_uuid: str, number: int) -> str:
    """Return the request id of the order to start the attempt with this number."""
    return ids.derived(operation_uuid, "start", number)


def _if_divided(selection: Selection) -> AllocationRequest | None:
    """Return the allocation request if it names providers besides the compute node; else None: amounts are enough."""
    request = selection.allocation_request
    return None if request.allocations.keys() == {selection.compute_node_uuid} else request
