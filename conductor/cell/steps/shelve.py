"""Shelve an instance: first its guest is destroyed, then all its allocations are released."""

import logging
from functools import partial

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.cell.hosts.forced_down import why_waiting
from conductor.cell.payloads import StartStep
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance
from conductor.cell.steps.cleanup import CellCleanups
from conductor.engine.conflict_policy import describe_foreign
from conductor.engine.steps import SHELVE, CommitStep, Ended, Next, Operation, Outcome, Retry, step
from moorage import errors
from moorage.messages import DeleteAllocations, Released

LOG = logging.getLogger(__name__)


class CellShelves(CellPart):
    """The steps of shelving. An unshelving uses the steps of a build."""

    @step(SHELVE, "destroy")
    def destroy(self, operation: Operation) -> CommitStep:
        """Destroy the guest; repeat until its host has answered, because its amounts must stay allocated until then.

        The operation does not wait for a host that is forced down meanwhile. The shelving is never undone, because an
        order to destroy may be in flight, or may have been carried out.
        """
        payload = operation.read(StartStep)
        attempt = self._attempt(operation, payload)
        fault = self._cell.agents.why_left(operation, attempt)
        is_forced_down = fault is not None and self._cell.forced_down.has(attempt.host)

        def record(connection: Connection) -> Outcome:
            self._lock(connection, operation)
            if fault is None:
                self._cell.records.change_attempt(connection, attempt.attempt_id, guest_gone=True)
            # The host may have reported it meanwhile.
            elif not self._cell.records.numbered(connection, operation.subject, payload.number).guest_gone:
                return Next("leave", payload) if is_forced_down else Retry(why_waiting(attempt.host, fault))
            return Next("release", payload)

        return record

    @step(SHELVE, "release")
    def release(self, operation: Operation) -> CommitStep:
        """Release all allocations of the instance."""
        return self._released(operation, leave_residue=False)

    @step(SHELVE, "leave")
    def leave(self, operation: Operation) -> CommitStep:
        """Release the allocations outside the host, which is forced down; those on the host stay as a residue.

        This is a separate step, so that a conductor of an older release leaves it to a newer one.
        """
        return self._released(operation, leave_residue=True)

    def _released(self, operation: Operation, *, leave_residue: bool) -> CommitStep:
        attempt = self._attempt(operation, operation.read(StartStep))
        message = DeleteAllocations(
            # "name extras": earlier versions sent another request, whose answer did not name foreign allocations.
            request_id=operation.derived(operation.step, "name extras"),
            consumer_uuid=operation.subject,
            claim_id=attempt.claim,
            leave_residue=leave_residue,
            claimed_with=attempt.claimed_with,
        )
        try:
            released = self._cell.placement.call(message)
        except (errors.ClaimReleased, errors.ConsumerNotFound) as fault:
            # Another client has removed the claim and written other allocations. Or an earlier try has released it, and
            # the stored answer has expired, which may have named a residue.
            LOG.warning("%s has nothing left to release: %s", operation.subject, fault)
            released = Released(residue_uuid=attempt.attempt_id if leave_residue else None)
        return partial(self._shelved, operation, attempt, released)

    def _shelved(
        self, operation: Operation, attempt: AttemptRecord, released: Released, connection: Connection
    ) -> Outcome:
        instance = self._lock(connection, operation)
        parts = [describe_foreign(released.extras, stay=False)]
        may_be_left = self._cell.records.numbered(connection, instance.uuid, attempt.number).may_have_a_guest
        # The host may have reported the guest as gone after this step was recorded. Then the residue exists
        # nevertheless, and only a cleanup releases it.
        if operation.step == "leave" and (may_be_left or released.residue_uuid is not None):
            parts.insert(0, f"host {attempt.host} is forced down: what it may still use there stays held, as a residue")
            CellCleanups(self._cell).begin(connection, instance.uuid, [attempt], operation.request_id)
        reason = "; ".join(part for part in parts if part is not None) or None
        self._cell.records.change(connection, instance.uuid, state="shelved", host=None, claim_id=None, reason=reason)
        LOG.info("Instance %s is shelved; %s", instance.uuid, reason or "it holds nothing")
        return Ended()

    def _attempt(self, operation: Operation, payload: StartStep) -> AttemptRecord:
        return self._cell.database.read(
            lambda connection: self._cell.records.numbered(connection, operation.subject, payload.number)
        )

    def _lock(self, connection: Connection, operation: Operation) -> CellInstance:
        return self._cell.records.expect(connection, operation.subject, "shelving", lock=True)
