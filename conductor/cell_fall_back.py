"""How a cell falls back: the claim is swapped to the next host, or released when there is none."""

import logging
from functools import partial

from sqlalchemy import Connection

from conductor.acknowledging import Peer
from conductor.cell_cleanings import CellCleanings
from conductor.cell_hosts import CellHosts
from conductor.cell_payloads import Fate, Releasing, Starting, Swapping
from conductor.cell_records import BUILDING, ERROR, FAILED, STARTING, AttemptRecord, CellInstance, CellRecords
from conductor.steps import BUILD, Ended, Next, Operation, Outcome, Record, Step, Superseded, Wait
from moorage import errors
from moorage.database import Database
from moorage.messages import Claimed, DeleteAllocations, SwapClaim

LOG = logging.getLogger(__name__)

#: The store has not said whether it was done, or asks to be asked again.
UNDECIDED = (errors.Unavailable, errors.TryAgain, errors.InternalError, errors.ConsumerGenerationConflict)
#: The claim is no longer this build's: it was released, or what it belongs to was deleted.
_LOST = (errors.ClaimReleased, errors.ConsumerDeleted, errors.ConsumerNotFound)

_LONGEST_REASON = 4096


class FallBack:
    """The steps that follow a failed attempt. They need neither a scheduler nor the super conductor.

    :param timeout: seconds to wait for the report of a host that has accepted its claim after all.
    """

    def __init__(
        self,
        database: Database,
        records: CellRecords,
        hosts: CellHosts,
        cleanings: CellCleanings,
        placement: Peer,
        timeout: float,
    ) -> None:
        self._database = database
        self._records = records
        self._hosts = hosts
        self._cleanings = cleanings
        self._placement = placement
        self._timeout = timeout

    def steps(self) -> dict[tuple[str, str], Step]:
        """Return the function for each step."""
        return {(BUILD, "swap"): self.swap, (BUILD, "release"): self.release}

    def following(
        self, connection: Connection, instance: CellInstance, failed: int, reason: str, fate: Fate
    ) -> Outcome:
        """Return the step that follows a failed attempt."""
        candidate = max(attempt.number for attempt in self._records.attempts(connection, instance.uuid)) + 1
        reason = reason[:_LONGEST_REASON]
        if candidate <= len(instance.selections):
            return Next("swap", Swapping(failed=failed, candidate=candidate, fate=fate, reason=reason))
        return Next("release", Releasing(failed=failed, fate=fate, reason=reason))

    # --- swap ---------------------------------------------------------------------------------------------------------

    def swap(self, operation: Operation) -> Record:
        """Release the failed host and claim the next one, in one transaction of the store."""
        swapping = operation.read(Swapping)
        instance, failed = self._read(operation, swapping.failed)
        old, new = instance.selections[swapping.failed - 1], instance.selections[swapping.candidate - 1]
        # Only before the first sending: after it the claim may already be on that host.
        if not operation.tries and not operation.resumed:
            down = self._hosts.why_down(new.service_host)
            if down is not None:
                return partial(self._skip, operation, swapping, down)
        message = SwapClaim(
            request_id=operation.derived("swap", swapping.failed, swapping.candidate, swapping.fate),
            consumer_uuid=instance.uuid,
            # The failed attempt's, not the instance's present one: whoever is late with this is refused by the store.
            claim_id=failed.claim,
            released=old.allocation_request,
            claimed=new.allocation_request,
            root_provider_uuid=new.compute_node_uuid,
            guest_gone=swapping.fate == "gone",
            leave_residue=swapping.fate == "unknown",
        )
        try:
            claimed = self._placement.call(message)
        except errors.MoorageError as fault:
            return self._not_swapped(operation, swapping, fault)
        return partial(self._swapped, operation, swapping, claimed)

    def _not_swapped(self, operation: Operation, swapping: Swapping, fault: errors.MoorageError) -> Record:
        if isinstance(fault, errors.InvalidState):
            return partial(self._accepted, operation, swapping.failed, swapping.reason)
        if isinstance(fault, _LOST):
            # If it is not an order to delete that did this, a swap of ours whose answer was lost may have: whatever
            # the instance holds then is released, and nothing can be claimed for it any more.
            return lambda _connection: Next("release", Releasing(failed=None, fate="unknown", reason=str(fault)))
        if isinstance(fault, UNDECIDED):
            raise fault
        return partial(self._skip, operation, swapping, str(fault))

    def _skip(self, operation: Operation, swapping: Swapping, why: str, connection: Connection) -> Outcome:
        instance, candidate = self._lock(connection, operation), swapping.candidate
        LOG.info("Host %d of %s is skipped: %s", candidate, instance.uuid, why)
        self._records.add_attempt(
            connection,
            instance.uuid,
            instance.selections[candidate - 1],
            attempt_id=operation.derived("attempt", candidate),
            number=candidate,
            skipped=why,
        )
        return self.following(connection, instance, swapping.failed, swapping.reason, swapping.fate)

    def _accepted(self, operation: Operation, number: int, reason: str, connection: Connection) -> Outcome:
        """Go on where the host has accepted the claim after all: its report decides, and may have come meanwhile."""
        instance = self._lock(connection, operation)
        failed = self._records.numbered(connection, instance.uuid, number)
        if failed.guest_gone:
            return self.following(connection, instance, number, failed.reason or reason, "gone")
        return Wait("wait", Starting(number=number), self._timeout)

    def _swapped(self, operation: Operation, swapping: Swapping, claimed: Claimed, connection: Connection) -> Outcome:
        instance = self._lock(connection, operation)
        failed = self._records.numbered(connection, instance.uuid, swapping.failed)
        # Without a residue its host has said so, or its claim was never accepted and nothing was started under it.
        self._end(connection, failed, swapping.reason, gone=claimed.residue_uuid is None)
        self._clean(connection, operation, claimed.residue_uuid)
        selection = instance.selections[swapping.candidate - 1]
        self._records.add_attempt(
            connection,
            instance.uuid,
            selection,
            attempt_id=operation.derived("attempt", swapping.candidate),
            number=swapping.candidate,
            claim_id=claimed.claim_id,
        )
        self._records.change(
            connection,
            instance.uuid,
            attempt_number=swapping.candidate,
            host=selection.service_host,
            claim_id=claimed.claim_id,
        )
        return Next("start", Starting(number=swapping.candidate))

    def _end(self, connection: Connection, failed: AttemptRecord, reason: str, *, gone: bool) -> None:
        self._records.change_attempt(
            connection,
            failed.attempt_id,
            state=FAILED,
            reason=failed.reason or reason,
            guest_gone=failed.guest_gone or gone,
        )

    def _clean(self, connection: Connection, operation: Operation, residue: str | None) -> None:
        """Have every attempt cleaned up that has left a residue or may have left a guest: none is wanted any more."""
        attempts = self._records.attempts(connection, operation.subject)
        left = [attempt for attempt in attempts if attempt.may_have_a_guest or attempt.attempt_id == residue]
        self._cleanings.begin(connection, operation.subject, left, operation.request_id)

    # --- release ------------------------------------------------------------------------------------------------------

    def release(self, operation: Operation) -> Record:
        """Release what the instance holds, then record that it is in error with every attempt named."""
        releasing = operation.read(Releasing)
        claim_id = None
        if releasing.failed is not None:
            claim_id = self._read(operation, releasing.failed)[1].claim
        message = DeleteAllocations(
            request_id=operation.derived("release", releasing.failed, releasing.fate),
            consumer_uuid=operation.subject,
            claim_id=claim_id,
            for_good=claim_id is None,
            unaccepted=releasing.fate == "unstarted",
            leave_residue=releasing.fate == "unknown",
        )
        gone, residue = releasing.fate == "gone", None
        try:
            residue = self._placement.call(message).residue_uuid
            gone = residue is None
        except errors.InvalidState:
            if releasing.failed is None or releasing.fate != "unstarted":
                raise
            return partial(self._accepted, operation, releasing.failed, releasing.reason)
        except _LOST as fault:
            LOG.info("Nothing is left to release for %s: %s", operation.subject, fault)
        return partial(self._failed, operation, releasing, gone, residue)

    def _failed(
        self, operation: Operation, releasing: Releasing, gone: bool, residue: str | None, connection: Connection
    ) -> Outcome:
        instance = self._lock(connection, operation)
        if releasing.failed is not None:
            failed = self._records.numbered(connection, instance.uuid, releasing.failed)
            self._end(connection, failed, releasing.reason, gone=gone)
        for attempt in self._records.attempts(connection, instance.uuid):
            if attempt.state in (STARTING, BUILDING):
                self._records.change_attempt(connection, attempt.attempt_id, state=FAILED, reason=releasing.reason)
        self._clean(connection, operation, residue)
        attempts = self._records.attempts(connection, instance.uuid)
        why = releasing.reason if releasing.failed is None else str(_max_retries_exceeded(instance.uuid, attempts))
        self._records.change(connection, instance.uuid, state=ERROR, reason=why, host=None, claim_id=None)
        LOG.info("Instance %s is in error: %s", instance.uuid, why)
        return Ended(why)

    # ------------------------------------------------------------------------------------------------------------------

    def _read(self, operation: Operation, number: int) -> tuple[CellInstance, AttemptRecord]:
        def work(connection: Connection) -> tuple[CellInstance, AttemptRecord]:
            instance = of_build(self._records.read(connection, operation.subject))
            return instance, self._records.numbered(connection, instance.uuid, number)

        return self._database.read(work)

    def _lock(self, connection: Connection, operation: Operation) -> CellInstance:
        return of_build(self._records.lock(connection, operation.subject))


def of_build(instance: CellInstance | None) -> CellInstance:
    """Return the instance, if it is still being built: an order to delete it has ended its build's operation.

    :raises Superseded: it is not.
    """
    if instance is None or instance.state != BUILDING:
        raise Superseded
    return instance


def _max_retries_exceeded(instance_uuid: str, attempts: list[AttemptRecord]) -> errors.MaxRetriesExceeded:
    return errors.MaxRetriesExceeded(
        instance_uuid=instance_uuid,
        summary="; ".join(f"{attempt.host}: {attempt.reason}" for attempt in attempts),
        attempts=[{"host": attempt.host, "state": attempt.state, "reason": attempt.reason} for attempt in attempts],
    )
