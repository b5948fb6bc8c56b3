"""The endpoint with the two gates of an attempt, and the report that an attempt has failed.

A host starts a guest only after `accept_claim`, the first gate. A running guest counts only if its attempt is still the
current one at `build_finished`, the second gate.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.cell.payloads import Fate
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.gates import AttemptAtGate
from conductor.cell.records.instances import CellInstance
from conductor.cell.steps.cleanup import CellCleanups
from conductor.cell.steps.end_move import CellMoveEnds
from conductor.engine.bulkheads import CircuitOpen
from conductor.engine.preconditions import not_forced_down
from conductor.engine.steps import CONFIRM, Operation
from moorage import context, errors
from moorage.batches import BatchItem
from moorage.bus.bus import LaterCalls, serves, serves_many
from moorage.messages import AcceptClaim, AcceptInCell, BuildFailedInCell, BuildFinished, Done

LOG = logging.getLogger(__name__)

M = TypeVar("M", AcceptInCell, BuildFinished)
R = TypeVar("R")


class CellGates(CellPart):
    """Serves the reports of agents about attempts. An answer is valid only at the moment, so none is stored."""

    @serves(AcceptInCell)
    def accept_claim(self, message: AcceptInCell) -> Done:
        """Let the current attempt start on its host, once the store has recorded that the claim is accepted.

        :raises RequestInProgress: the host is returning: nothing may begin there until it has listed its guests; or the
            placement role has not answered for a while.
        :raises InvalidState: the attempt is of an evacuation whose source is not forced down.
        :raises StoreUnavailable: it is unknown whether that source is forced down.
        :raises NotFound: the instance or the attempt is unknown here.
        :raises ClaimReleased: the attempt is not the current one, or the instance is no longer wanted.
        """
        # Check here first, without a lock, so that the store is called only for an attempt that may pass.
        return self._accept(message, self._cell.gates.looks.do(message))

    @serves_many(AcceptInCell)
    def accept_many(
        self, calls: Sequence[BatchItem[AcceptInCell, Done]]
    ) -> list[Callable[[], Done] | LaterCalls | None]:
        """Look up the attempts of messages that came together; one separate thread then calls the store for all."""
        passing: list[BatchItem[AcceptInCell, Done]] = []
        later = LaterCalls(lambda: self._accept_many(passing))

        def accept_later(call: BatchItem[AcceptInCell, Done], seen: AttemptAtGate) -> LaterCalls | Done:
            if self._was_accepted(seen):
                return Done()
            passing.append(call)
            return later

        return _with_outcomes(calls, self._cell.gates.looks.do_many, accept_later, self._accept)

    def _accept(self, message: AcceptInCell, seen: AttemptAtGate) -> Done:
        if self._was_accepted(seen):
            return Done()
        try:
            self._cell.gate_client.call_if_admitted(_in_store(message))
        except CircuitOpen as away:
            raise _not_now(message) from away
        self._cell.gates.acceptances.do(message)
        return Done()

    def _accept_many(
        self, calls: Sequence[BatchItem[AcceptInCell, Done]]
    ) -> Iterator[dict[BatchItem[AcceptInCell, Done], Callable[[], Done] | None]]:
        """Do the store's part of the first gate and record it for several calls; see :class:`LaterCalls`."""
        of: dict[BatchItem[Any, Any], BatchItem[AcceptInCell, Done]] = {
            BatchItem(_in_store(call.value), call.context): call for call in calls
        }
        try:
            for portion in self._cell.gate_client.call_many_if_admitted(list(of)):
                accepted = []
                for asked in portion:
                    if asked.error is None:
                        accepted.append(of[asked])
                    else:
                        of[asked].fail(asked.error)
                yield dict.fromkeys(of[asked] for asked in portion) | self._record_acceptances(accepted)
        except CircuitOpen:
            for call in calls:
                call.fail(_not_now(call.value))
            yield dict.fromkeys(calls)

    def _record_acceptances(
        self, calls: Sequence[BatchItem[AcceptInCell, Done]]
    ) -> dict[BatchItem[AcceptInCell, Done], Callable[[], Done] | None]:
        """Record that attempts have passed the first gate; a call gets a function if its row may be locked for long."""
        records: list[BatchItem[AcceptInCell, None]] = [BatchItem(call.value, call.context) for call in calls]
        ends: dict[BatchItem[AcceptInCell, Done], Callable[[], Done] | None] = dict.fromkeys(calls)
        alone = self._cell.gates.acceptances.do_many(records)
        for call, record, record_alone in zip(calls, records, alone, strict=True):
            if record_alone is not None:
                ends[call] = partial(_done_after, record_alone)
            elif record.error is not None:
                call.fail(record.error)
            else:
                call.succeed(Done())
        return ends

    def _was_accepted(self, seen: AttemptAtGate) -> bool:
        """Return whether a claim was accepted before; the guest is being moved away.

        :raises InvalidState: the attempt is of an evacuation whose source is not forced down.
        """
        if seen.state == "held":
            return True
        # The order to start may have waited at the agent for a long time: the evacuated host may be back.
        if seen.evacuated is not None and not self._cell.forced_down.surely_has(seen.evacuated):
            # The agent makes sure that nothing starts, and reports the attempt as failed.
            raise not_forced_down(seen.evacuated)
        return False

    @serves(BuildFinished)
    def build_finished(self, message: BuildFinished) -> Done:
        """Record that the guest of the current attempt runs: a build ends here, and a move has arrived.

        :raises NotFound: the instance or the attempt is unknown here.
        :raises ClaimReleased: the attempt is not the current one, or the instance is no longer wanted.
        """
        return self._finished(message, self._cell.gates.finishes.do(message))

    @serves_many(BuildFinished)
    def finish_many(
        self, calls: Sequence[BatchItem[BuildFinished, Done]]
    ) -> list[Callable[[], Done] | LaterCalls | None]:
        """Do as :meth:`build_finished` for messages that came together; each move is finished in its own thread."""

        def end_or_defer(call: BatchItem[BuildFinished, Done], is_build: bool) -> Callable[[], Done] | Done:
            end = partial(self._finished, call.value, is_build)
            return end() if is_build else end

        return _with_outcomes(calls, self._cell.gates.finishes.do_many, end_or_defer, self._finished)

    def _finished(self, message: BuildFinished, is_build: bool) -> Done:
        if is_build:
            LOG.info("Instance %s is active", message.instance_uuid)
        else:
            self._cell.worker.enqueue(self._cell.database.write(partial(self._moved, message)))
        return Done()

    def _moved(self, message: BuildFinished, connection: Connection) -> Operation | None:
        """Record that the guest of a move has arrived; return the operation that confirms it automatically, if any."""
        instance, attempt = self._cell.gates.locked(connection, message)
        kind = self._cell.sequences.kind(instance)
        # Another copy of this message has reported it before: nothing changes.
        if attempt.state in ("active", "held") or kind is None:
            return None
        confirmed = self._cell.sequences.record_arrival(connection, instance, attempt)
        self._cell.operations.end_pending(connection, [instance.uuid], kind)
        # A live migration or an evacuation is confirmed automatically, by another operation.
        if confirmed is None:
            return None
        LOG.info("Migration %s is confirmed automatically, on host %s", confirmed.uuid, attempt.host)
        return CellMoveEnds(self._cell).begin(connection, CONFIRM, confirmed)

    @serves(BuildFailedInCell)
    def build_failed(self, message: BuildFailedInCell) -> Done:
        """Record that an attempt has failed and left no guest; if it is the current one, try the next host."""

        def work(connection: Connection) -> Operation | None:
            instance = self._cell.records.lock(connection, message.instance_uuid)
            attempt = self._cell.records.attempt(connection, message.instance_uuid, message.attempt_id)
            if instance is None or attempt is None or attempt.claim_id != message.claim_id:
                LOG.warning("A failure is reported for the unknown attempt %s", message.attempt_id)
                return None
            return self.fail(connection, instance, attempt, message)

        self._cell.worker.enqueue(self._cell.database.write(work))
        return Done()

    def fail(
        self, connection: Connection, instance: CellInstance, attempt: AttemptRecord, report: BuildFailedInCell
    ) -> Operation | None:
        """Record that an attempt has failed and left no guest; return the operation that goes on, if there is one.

        The instance is locked.
        """
        if attempt.state in ("active", "held"):
            LOG.warning("A failure is reported for attempt %s, although its guest runs", report.attempt_id)
            return None
        if attempt.state in ("starting", "building"):
            self._cell.records.change_attempt(
                connection,
                attempt.attempt_id,
                state="failed",
                reason=report.reason,
                no_other_host=bool(report.no_other_host),
            )
        if not self._is_of_this_life(connection, report, attempt):
            # The report is from an earlier life of the host: in the current life the guest may be spawning.
            return self._fall_back(connection, instance, attempt, report.reason, "unknown")
        # A cleanup of this attempt may be waiting for this report; otherwise the operation falls back.
        cleanup = CellCleanups(self._cell).gone(connection, attempt)
        return cleanup or self._fall_back(connection, instance, attempt, report.reason, "gone")

    def _fall_back(
        self, connection: Connection, instance: CellInstance, attempt: AttemptRecord, reason: str, fate: Fate
    ) -> Operation | None:
        kind = self._cell.sequences.kind(instance)
        if kind is None or instance.attempt_number != attempt.number or attempt.state == "failed":
            return None
        pending = self._cell.operations.lock_one_pending(connection, instance.uuid, kind)
        # Do not change a pending swap, because its request may have been sent. It reads this report afterwards.
        if pending is None or pending.step not in ("start", "wait"):
            return None
        following = self._cell.sequences.next_step(connection, instance, attempt.number, reason, fate)
        return self._cell.operations.redirect(connection, pending, following)

    def _is_of_this_life(self, connection: Connection, message: BuildFailedInCell, attempt: AttemptRecord) -> bool:
        """Return True if a report is of the host's current life: by the life that it names, or else the attempt's."""
        named = attempt.host_life if message.life is None else message.life
        return named == self._cell.records.lives.of_host(connection, attempt.host).number


def _in_store(message: AcceptInCell) -> AcceptClaim:
    """Return the store's part of the first gate.

    The store refuses a released claim. Once it has answered, the reconciler does not release the claim as unaccepted.
    """
    return AcceptClaim(
        request_id=message.request_id,
        consumer_uuid=message.instance_uuid,
        claim_id=message.claim_id,
        attempt_id=message.attempt_id,
        host=message.host,
    )


def _done_after(record: Callable[[], None]) -> Done:
    record()
    return Done()


def _not_now(message: AcceptInCell) -> errors.RequestInProgress:
    """Return the error for an attempt whose store does not answer: the agent repeats its request.

    Otherwise all attempts that are to begin would hold the threads of this server, and the cell would answer nobody.
    """
    return errors.RequestInProgress(request_id=message.request_id)


def _with_outcomes(
    calls: Sequence[BatchItem[M, Done]],
    check_all: Callable[[Sequence[BatchItem[M, R]]], Sequence[Callable[[], R] | None]],
    following: Callable[[BatchItem[M, Done], R], Callable[[], Done] | LaterCalls | Done],
    end_alone: Callable[[M, R], Done],
) -> list[Callable[[], Done] | LaterCalls | None]:
    """Check the attempts of calls that came together, and give each call its answer or its error.

    :param check_all: sets the result or the error of each item; returns functions for those to be checked alone.
    :param following: returns, for a call and its result, the answer or what ends the call.
    :param end_alone: returns the answer to a message that was checked alone, for its result.
    :return: for each call null, or what ends it.
    """
    checked: list[BatchItem[M, R]] = [BatchItem(call.value, call.context) for call in calls]
    ends: list[Callable[[], Done] | LaterCalls | None] = []
    for call, item, check_alone in zip(calls, checked, check_all(checked), strict=True):
        ends.append(None)
        if check_alone is not None:
            ends[-1] = partial(_check_and_end, call.value, check_alone, end_alone)
            continue
        try:
            with context.adopted(call.context):
                answer = following(call, item.outcome())
        except Exception as fault:  # noqa: BLE001 - it is this call's outcome
            call.fail(fault)
            continue
        if isinstance(answer, Done):
            call.succeed(answer)
        else:
            ends[-1] = answer
    return ends


def _check_and_end(message: M, check: Callable[[], R], end: Callable[[M, R], Done]) -> Done:
    return end(message, check())
