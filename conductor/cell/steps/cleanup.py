"""Clean up after an attempt whose host has not confirmed that its guest is gone: the guest first, then the residue."""

import logging
from collections.abc import Iterable

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.cell.payloads import CleanStep
from conductor.cell.records.attempts import AttemptRecord
from conductor.engine.conflict_policy import find_consumer
from conductor.engine.steps import CLEAN, CommitStep, Ended, Next, Operation, Outcome, Wait, step
from moorage import ids
from moorage.messages import DeleteAllocations

LOG = logging.getLogger(__name__)

#: The wait for a silent host, in longest back-offs between two tries of a step. Arbitrary.
_BACKOFFS = 10


class CellCleanups(CellPart):
    """The operation `clean`, whose subject is an attempt.

    It ends when no guest of the attempt is left; or, if the host is silent, when the residue has no allocations.
    """

    # --- Records: in the caller's transaction, which has locked the instance ------------------------------------------

    def begin(
        self,
        connection: Connection,
        instance_uuid: str,
        attempts: Iterable[AttemptRecord],
        request_id: str,
        residue_uuid: str | None = None,
    ) -> None:
        """Begin the cleanup of ended attempts, once for each; the next sweep of a worker takes the operations.

        :param residue_uuid: the consumer that holds the residue, if its uuid is not the attempt's id.
        """
        for attempt in attempts:
            uuid, payload = _uuid(attempt.attempt_id), CleanStep(instance_uuid=instance_uuid, residue_uuid=residue_uuid)
            new = Operation.new(request_id, uuid, CLEAN, attempt.attempt_id, "destroy", payload)
            if not self._cell.operations.exists(connection, new.uuid):
                LOG.info("Host %s may have a guest of %s, and must destroy it", attempt.host, instance_uuid)
                self._cell.operations.begin(connection, [new], taken=False)

    def begun(self, connection: Connection, attempt: AttemptRecord) -> bool:
        """Return True if the cleanup of an attempt has begun, ended or not."""
        return self._cell.operations.exists(connection, _uuid(attempt.attempt_id))

    def gone(self, connection: Connection, attempt: AttemptRecord) -> Operation | None:
        """Record that a host has reported an attempt as gone; return its cleanup if the release can begin."""
        if not attempt.guest_gone:
            self._cell.records.change_attempt(connection, attempt.attempt_id, guest_gone=True)
        pending = self._cell.operations.lock_one_pending(connection, attempt.attempt_id, CLEAN)
        # At step `release` the guest is already known to be gone.
        if pending is None or pending.step != "destroy":
            return None
        return self._cell.operations.redirect(connection, pending, Next("release", pending.read(CleanStep)))

    # --- Steps --------------------------------------------------------------------------------------------------------

    @step(CLEAN, "destroy")
    def destroy(self, operation: Operation) -> CommitStep:
        """Order the host to destroy the guest of this attempt and never to start it; repeat until the host answers.

        The operation does not wait for a silent host if the residue holds nothing, for instance because the host was
        deleted. If the host returns later, it destroys the guest, because the record says that the attempt has ended.
        """
        payload, attempt_id = operation.read(CleanStep), operation.subject
        attempt = self._cell.database.read(
            lambda connection: self._cell.records.attempt(connection, payload.instance_uuid, attempt_id)
        )
        # The record of an attempt is pruned only after its guest is known to be gone.
        if attempt is not None and not attempt.guest_gone:
            silent = self._cell.hosts.why_silent(attempt.host)
            if silent and not self._is_held(attempt_id, payload.residue_uuid):
                return lambda _connection: Ended(f"host {attempt.host} is away, and nothing is held there for it")
            if silent and not self._cell.hosts.is_withheld(attempt.host):
                # When the host returns, it reports the attempt as gone. Meanwhile only its deletion is to be noticed:
                # thousands of cleanups may wait for the hosts of a dead rack.
                seconds = _BACKOFFS * self._cell.operations.backoff.longest
                return lambda _connection: Wait("destroy", payload, seconds, f"{attempt.host}: {silent}")
            self._cell.agents.destroy(operation, attempt)

        def record(connection: Connection) -> Outcome:
            self._cell.records.lock(connection, payload.instance_uuid)
            self._cell.records.change_attempt(connection, attempt_id, guest_gone=True)
            return Next("release", payload)

        return record

    def _is_held(self, *uuids: str | None) -> bool:
        """Return True if a residue with one of these uuids has allocations."""
        found = (find_consumer(self._cell.placement, uuid) for uuid in uuids if uuid is not None)
        return any(consumer is not None and consumer.allocations for consumer in found)

    @step(CLEAN, "release")
    def release(self, operation: Operation) -> CommitStep:
        """Release the residue with the attempt's id for good, and the residue with another uuid, if there is one."""
        residue_uuid = operation.read(CleanStep).residue_uuid
        released = {operation.subject: operation.derived("release")}
        if residue_uuid is not None and residue_uuid != operation.subject:
            released[residue_uuid] = operation.derived("release", residue_uuid)
        for uuid, request_id in released.items():
            self._cell.placement.call(DeleteAllocations(request_id=request_id, consumer_uuid=uuid, for_good=True))
        LOG.info("Nothing is left of attempt %s", operation.subject)
        return lambda _connection: Ended()


def _uuid(attempt_id: str) -> str:
    return ids.derived(attempt_id, "clean")
