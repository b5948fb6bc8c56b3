"""Fall back after a failed attempt: swap the claim to the next host, or release it if there is none.

:meth:`AttemptSequences.next_step` decides whether another host is tried.
"""

import logging
from functools import partial

import msgspec
from sqlalchemy import Connection

from conductor.cell.attempt_sequence import AttemptSequence
from conductor.cell.context import CellPart
from conductor.cell.payloads import GiveBackStep, ReleaseStep, StartStep, SwapStep
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance
from conductor.cell.reshaped_alternates import translated_alternate
from conductor.cell.steps.cleanup import CellCleanups
from conductor.engine.conflict_policy import describe_foreign, find_consumer
from conductor.engine.steps import (
    BUILD,
    MOVE,
    REPEAT_UNCHANGED,
    UNSHELVE,
    CommitStep,
    Ended,
    Next,
    Operation,
    Outcome,
    Wait,
    step,
)
from moorage import errors, metrics
from moorage.messages import Claimed, DeleteAllocations, Released, SwapClaim
from moorage.model import Selection
from moorage.model.states import InstanceState

LOG = logging.getLogger(__name__)

#: The errors of the store after which the same request is sent again.
STORE_REPEAT_UNCHANGED = (*REPEAT_UNCHANGED, errors.ConsumerGenerationConflict)
#: The operation has lost its claim: the claim was released, or its consumer was deleted.
LOST = (errors.ClaimReleased, errors.ConsumerDeleted, errors.ConsumerNotFound)
#: The allocation request of an alternate does not fit the host's providers, perhaps because they were reshaped.
RESHAPED = (errors.CapacityExceeded, errors.NotFound)


class FallBack(CellPart):
    """The steps that follow a failed attempt. They call neither a scheduler nor the super conductor."""

    # --- swap ---------------------------------------------------------------------------------------------------------

    @step((BUILD, MOVE, UNSHELVE), "swap")
    def swap(self, operation: Operation) -> CommitStep:
        """Release the failed host and claim the next one, in one transaction of the store."""
        payload = operation.read(SwapStep)
        instance, sequence, failed = self._read(operation, payload.failed)
        new = _selection(sequence, payload)
        # Skip a host that is known to be unusable, but only before the request is sent for the first time. After that
        # the claim may already be on that host, and only the repeated request can find out.
        if not operation.is_repeated:
            if (down := self._why_skipped(new.service_host)) is not None:
                return partial(self._skip, operation, payload, down)
            if (returning := self._cell.hosts.why_returning(new.service_host)) is not None:
                # Hosts that fail together return at nearly the same time: a short wait may save an alternate.
                if payload.waited >= self._cell.options.max_unanswered_retries:
                    return partial(self._skip, operation, payload, returning)
                waiting = msgspec.structs.replace(payload, waited=payload.waited + 1)
                return lambda _connection: Next("swap", waiting, self._cell.operations.backoff.seconds(waiting.waited))
        translated = () if payload.translated is None else ("translated",)
        # Release the failed host and claim the next one, in one transaction of the store. The derived id names
        # everything that the content depends on, so that a repetition is answered from the stored request.
        message = SwapClaim(
            request_id=operation.derived("swap", payload.failed, payload.candidate, payload.fate, *translated),
            consumer_uuid=instance.uuid,
            # The claim of the failed attempt, not the current one: the store refuses a late copy of the request.
            claim_id=failed.claim,
            released=failed.selection.allocation_request,
            claimed=new.allocation_request,
            root_provider_uuid=new.compute_node_uuid,
            guest_gone=payload.fate == "gone",
            leave_residue=payload.fate == "unknown",
            migration_uuid=sequence.migration_uuid,
            held=None if sequence.migration is None else sequence.migration.held,
        )
        try:
            claimed = self._cell.placement.call(message)
        except errors.MoorageError as fault:
            return self._not_swapped(operation, payload, sequence, failed, fault)
        metrics.ALTERNATES.labels("claimed").inc()
        return partial(self._swapped, operation, payload, claimed)

    def _why_skipped(self, service_host: str) -> str | None:
        down = self._cell.hosts.why_silent(service_host)
        if down is None and self._cell.forced_down.has(service_host, or_disabled=True):
            return f"host {service_host} is forced down or disabled"
        return down

    def _not_swapped(
        self,
        operation: Operation,
        payload: SwapStep,
        sequence: AttemptSequence,
        failed: AttemptRecord,
        fault: errors.MoorageError,
    ) -> CommitStep:
        if isinstance(fault, errors.InvalidState):
            # The residue cannot be left: the reason is on record until an operator has removed what is in its place.
            if payload.fate != "unstarted":
                raise fault
            # The host has accepted the claim of the "failed" attempt after all: it is building, and its report decides.
            return partial(self.wait_for_accepted, operation, payload.failed, payload.reason)
        if isinstance(fault, LOST):
            if (claimed := self._claimed_before(operation, payload, sequence, failed)) is not None:
                return partial(self._swapped, operation, payload, claimed)
            # The claim was lost: there is nothing to swap.
            return partial(_lost, operation, payload, failed.claim, str(fault))
        if isinstance(fault, STORE_REPEAT_UNCHANGED):
            raise fault
        # The host's tree may have been reshaped since it was selected: try once with the request translated to its
        # current providers. That is another request, so it is recorded as another step.
        if payload.translated is None and isinstance(fault, RESHAPED):
            alternate = sequence.selection(payload.candidate)
            translated = translated_alternate(self._cell.placement, sequence.spec, alternate)
            if translated is not None:
                LOG.info("Host %s of %s was reshaped since it was chosen", alternate.service_host, operation.subject)
                following = msgspec.structs.replace(payload, translated=translated)
                return lambda _connection: Next("swap", following)
        # The store has refused this host, for instance because it has no room: skip it, and try the next one.
        return partial(self._skip, operation, payload, str(fault))

    def _claimed_before(
        self, operation: Operation, payload: SwapStep, sequence: AttemptSequence, failed: AttemptRecord
    ) -> Claimed | None:
        """Return the claim that an earlier try has made, if its stored answer has expired; else None.

        Nothing else claims a host for the instance during this operation, and no host can have accepted the claim yet.
        """
        consumer = find_consumer(self._cell.placement, operation.subject)
        if consumer is None or consumer.claim_id in (None, failed.claim) or consumer.accepted_by is not None:
            return None
        if consumer.root_provider_uuid != sequence.selection(payload.candidate).compute_node_uuid:
            return None
        # The answer may have named a residue: a cleanup finds out.
        residue = failed.attempt_id if payload.fate == "unknown" else None
        return Claimed(claim_id=str(consumer.claim_id), consumer_generation=consumer.generation, residue_uuid=residue)

    def _skip(self, operation: Operation, payload: SwapStep, why: str, connection: Connection) -> Outcome:
        (instance, sequence), candidate = self._lock(connection, operation), payload.candidate
        selection = _selection(sequence, payload)
        LOG.info("Host %s is skipped for instance %s: %s", selection.service_host, instance.uuid, why)
        metrics.ALTERNATES.labels("skipped").inc()
        self._cell.records.add_attempt(
            connection,
            instance.uuid,
            selection,
            attempt_id=operation.derived("attempt", candidate),
            number=candidate,
            skipped=why,
            migration_uuid=sequence.migration_uuid,
        )
        return self._cell.sequences.next_step(connection, instance, payload.failed, payload.reason, payload.fate)

    def wait_for_accepted(self, operation: Operation, number: int, reason: str, connection: Connection) -> Outcome:
        """Wait for the report of a host that has accepted the claim after all; the report may have come meanwhile."""
        instance, sequence = self._lock(connection, operation)
        failed = self._cell.records.numbered(connection, instance.uuid, number)
        if failed.guest_gone:
            return self._cell.sequences.next_step(connection, instance, number, failed.reason or reason, "gone")
        # An earlier life of the host has reported the failure: there is nothing to wait for.
        if failed.ended:
            return self._cell.sequences.next_step(connection, instance, number, failed.reason or reason, "unknown")
        # The operator has aborted the move: do not wait for the host; the attempt cannot pass a gate any more.
        if sequence.is_aborted:
            self._cell.records.change_attempt(connection, failed.attempt_id, state="failed", reason=reason)
            return self._cell.sequences.next_step(connection, instance, number, reason, "unknown")
        return Wait("wait", StartStep(number=number), self._cell.options.build_timeout)

    def _swapped(self, operation: Operation, payload: SwapStep, claimed: Claimed, connection: Connection) -> Outcome:
        instance, sequence = self._lock(connection, operation)
        failed = self._cell.records.numbered(connection, instance.uuid, payload.failed)
        # First the failed attempt. The swap has also released foreign allocations on its host: log and record them.
        foreign = describe_foreign(claimed.extras, stay=False)
        if foreign is not None:
            LOG.warning("Host %s is abandoned for instance %s; %s", failed.host, instance.uuid, foreign)
        # Without a residue, the guest was reported as gone, or the claim never accepted, so that none was started.
        self.record_failure(connection, failed, payload.reason, gone=claimed.residue_uuid is None, foreign=foreign)
        self.begin_cleanups(connection, operation, claimed.residue_uuid)
        # Then the new one, under the claim that the store has just made.
        number, selection = payload.candidate, _selection(sequence, payload)
        attempt_id = operation.derived("attempt", number)
        self._cell.records.add_attempt(
            connection,
            instance.uuid,
            selection,
            attempt_id=attempt_id,
            number=number,
            claim_id=claimed.claim_id,
            migration_uuid=sequence.migration_uuid,
        )
        self._cell.records.change(connection, instance.uuid, attempt_number=number, claim_id=claimed.claim_id)
        # The operator has aborted the move while the swap was in flight: the new attempt fails before it is sent.
        if sequence.is_aborted:
            reason = "it was aborted before it began here"
            self._cell.records.change_attempt(connection, attempt_id, state="failed", reason=reason, guest_gone=True)
            return self._cell.sequences.next_step(connection, instance, number, reason, "gone")
        # The host of a moving instance is its source until the guest runs on the destination.
        if sequence.migration is None:
            self._cell.records.change(connection, instance.uuid, host=selection.service_host)
        else:
            migration_uuid = sequence.migration.uuid
            self._cell.migrations.change(connection, migration_uuid, destination_host=selection.service_host)
        return Next("start", StartStep(number=number))

    def record_failure(
        self, connection: Connection, failed: AttemptRecord, reason: str, *, gone: bool, foreign: str | None = None
    ) -> None:
        """Record that an attempt has failed; its first recorded reason stays.

        :param gone: no guest of the attempt is left.
        :param foreign: a description of the foreign allocations that were released with it.
        """
        self._cell.records.change_attempt(
            connection,
            failed.attempt_id,
            state="failed",
            reason="; ".join(filter(None, [failed.reason or reason, foreign])),
            guest_gone=failed.guest_gone or gone,
        )

    def begin_cleanups(self, connection: Connection, operation: Operation, residue: str | None) -> None:
        """Begin the cleanup of every ended attempt that has left a residue or may have left a guest."""
        ended = [attempt for attempt in self._cell.records.attempts(connection, operation.subject) if attempt.ended]
        left = [attempt for attempt in ended if attempt.may_have_a_guest or attempt.attempt_id == residue]
        CellCleanups(self._cell).begin(connection, operation.subject, left, operation.request_id)

    # --- release ------------------------------------------------------------------------------------------------------

    @step((BUILD, UNSHELVE), "release")
    def release(self, operation: Operation) -> CommitStep:
        """Release the instance's allocations, then record it as in error or shelved, with the reasons of attempts."""
        payload = operation.read(ReleaseStep)
        claim_id, claimed_with = payload.claim_id, {}
        if payload.failed is not None:
            failed = self._read(operation, payload.failed)[2]
            claim_id, claimed_with = failed.claim, failed.claimed_with
        message = DeleteAllocations(
            # "name extras": earlier versions sent another request, whose answer did not name foreign allocations.
            request_id=operation.derived("release", payload.failed, payload.fate, "name extras"),
            consumer_uuid=operation.subject,
            claim_id=claim_id,
            # A build that has lost its claim is over: refuse any later claim. A shelved instance can be placed again.
            for_good=claim_id is None and operation.kind == BUILD,
            unaccepted=payload.fate == "unstarted",
            leave_residue=payload.fate == "unknown",
            claimed_with=claimed_with,
        )
        released, gone = Released(), payload.fate == "gone"
        try:
            released = self._cell.placement.call(message)
            gone = released.residue_uuid is None
        except errors.InvalidState:
            # The host has accepted the claim after all: it is building, and its report decides.
            if payload.failed is None or payload.fate != "unstarted":
                raise
            return partial(self.wait_for_accepted, operation, payload.failed, payload.reason)
        except LOST as fault:
            LOG.info("%s has nothing left to release: %s", operation.subject, fault)
            # If an earlier try has released it, the stored answer has expired, which may have named a residue.
            if payload.failed is not None and payload.fate == "unknown":
                released = Released(residue_uuid=failed.attempt_id)
        return partial(self._failed, operation, payload, gone, released)

    def _failed(
        self, operation: Operation, payload: ReleaseStep, gone: bool, released: Released, connection: Connection
    ) -> Outcome:
        instance, sequence = self._lock(connection, operation)
        if payload.failed is not None:
            failed = self._cell.records.numbered(connection, instance.uuid, payload.failed)
            self.record_failure(connection, failed, payload.reason, gone=gone)
        # Without a failed attempt, the claim was lost or revoked. The current attempt has not ended yet: end it here.
        for attempt in self._cell.records.attempts(connection, instance.uuid):
            if not attempt.ended:
                self._cell.records.change_attempt(connection, attempt.attempt_id, state="failed", reason=payload.reason)
        self.begin_cleanups(connection, operation, released.residue_uuid)
        attempts = [
            attempt
            for attempt in self._cell.records.attempts(connection, instance.uuid)
            if attempt.number >= sequence.first_number
        ]
        why = payload.reason if payload.failed is None else str(_max_retries_exceeded(instance.uuid, attempts))
        foreign = describe_foreign(released.extras, stay=False)
        reason = "; ".join(filter(None, [why, foreign]))
        state: InstanceState = "shelved" if operation.kind == UNSHELVE else "error"
        self._cell.records.change(connection, instance.uuid, state=state, reason=reason, host=None, claim_id=None)
        LOG.info("Instance %s is %s: %s", instance.uuid, state, reason)
        return Ended(reason)

    def _read(self, operation: Operation, number: int) -> tuple[CellInstance, AttemptSequence, AttemptRecord]:
        def work(connection: Connection) -> tuple[CellInstance, AttemptSequence, AttemptRecord]:
            instance, sequence = self._cell.sequences.of(
                connection, self._cell.records.read(connection, operation.subject)
            )
            return instance, sequence, self._cell.records.numbered(connection, instance.uuid, number)

        return self._cell.database.read(work)

    def _lock(self, connection: Connection, operation: Operation) -> tuple[CellInstance, AttemptSequence]:
        return self._cell.sequences.of(connection, self._cell.records.lock(connection, operation.subject))


def _selection(sequence: AttemptSequence, payload: SwapStep) -> Selection:
    """Return the selection of the next host, its allocation request translated if the host was reshaped."""
    chosen = sequence.selection(payload.candidate)
    if payload.translated is None:
        return chosen
    return msgspec.structs.replace(chosen, allocation_request=payload.translated)


def _lost(operation: Operation, payload: SwapStep, claim_id: str, why: str, _connection: Connection) -> Outcome:
    """Return the step after the claim was lost because of an order to delete or another client of the store.

    A build releases all allocations of the instance. A move returns to its source; only the store can refuse that. An
    unshelving releases only the lost claim, because the instance may have been placed again by then.
    """
    if operation.kind == MOVE:
        return Next("give_back", GiveBackStep(failed=payload.failed, fate=payload.fate, reason=why))
    lost = claim_id if operation.kind == UNSHELVE else None
    return Next("release", ReleaseStep(failed=None, fate="unknown", reason=why, claim_id=lost))


def _max_retries_exceeded(instance_uuid: str, attempts: list[AttemptRecord]) -> errors.MaxRetriesExceeded:
    return errors.MaxRetriesExceeded(
        instance_uuid=instance_uuid,
        summary="; ".join(f"{attempt.host}: {(attempt.reason or '').rstrip('.')}" for attempt in attempts),
        attempts=[{"host": attempt.host, "state": attempt.state, "reason": attempt.reason} for attempt in attempts],
    )
