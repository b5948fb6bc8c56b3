"""How a cell cleans up after attempts that ended without their host's word: the guest first, then its residue."""

import logging
from collections.abc import Iterable

from sqlalchemy import Connection

from conductor.cell.agents import CellAgents
from conductor.cell.payloads import Cleaning
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellRecords
from conductor.engine.acknowledgements import AcknowledgingClient
from conductor.engine.operations import Operations
from conductor.engine.steps import CLEAN, CommitStep, Ended, NewOperation, Next, Operation, Outcome, Step, Superseded
from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import DeleteAllocations, GetAllocations

LOG = logging.getLogger(__name__)


class CellCleanups:
    """The operation `clean` of an attempt. It never ends before nothing of the guest is left."""

    def __init__(
        self,
        database: Database,
        records: CellRecords,
        operations: Operations,
        agents: CellAgents,
        placement: AcknowledgingClient,
    ) -> None:
        self._database = database
        self._records = records
        self._operations = operations
        self._agents = agents
        self._placement = placement

    def steps(self) -> dict[tuple[str, str], Step]:
        """Return the function for each step."""
        return {(CLEAN, "destroy"): self.destroy, (CLEAN, "release"): self.release}

    # --- Records: within the transaction of whoever found out, which has locked the instance --------------------------

    def begin(
        self,
        connection: Connection,
        instance_uuid: str,
        attempts: Iterable[AttemptRecord],
        request_id: str,
        residue_uuid: str | None = None,
    ) -> None:
        """Record that these ended attempts are to be cleaned up; whoever looks next for what is due begins.

        :param residue_uuid: what is held for the guest, where that is not known by the attempt's id.
        """
        for attempt in attempts:
            new = NewOperation(
                uuid=_uuid(attempt.attempt_id),
                kind=CLEAN,
                subject=attempt.attempt_id,
                step="destroy",
                payload=Cleaning(instance_uuid=instance_uuid, residue_uuid=residue_uuid),
            )
            if not self._operations.known(connection, new.uuid):
                LOG.info("Host %s may have a guest of %s, and is to destroy it", attempt.host, instance_uuid)
                self._operations.begin(connection, [new], request_id, taken=False)

    def begun(self, connection: Connection, attempt: AttemptRecord) -> bool:
        """Return whether an attempt is being cleaned up, or has been."""
        return self._operations.known(connection, _uuid(attempt.attempt_id))

    def gone(self, connection: Connection, attempt: AttemptRecord) -> Operation | None:
        """Record a host's word that nothing of an attempt is left; return its cleaning, where that can go on."""
        if not attempt.guest_gone:
            self._records.change_attempt(connection, attempt.attempt_id, guest_gone=True)
        cleaning = self._operations.pending(connection, attempt.attempt_id, CLEAN)
        if cleaning is None or cleaning.step != "destroy":
            return None
        return self._operations.redirect(connection, cleaning, Next("release", cleaning.read(Cleaning)))

    # --- Steps --------------------------------------------------------------------------------------------------------

    def destroy(self, operation: Operation) -> CommitStep:
        """Order the host to destroy the guest, and to start none of this attempt; repeated until it has answered.

        Nobody waits for a host that is missed once nothing is held for the guest, for instance because the host was
        deleted. Should it return all the same, it destroys the guest upon the record of its attempt.
        """
        cleaning, attempt_id = operation.read(Cleaning), operation.subject
        attempt = self._database.read(
            lambda connection: self._records.attempt(connection, cleaning.instance_uuid, attempt_id)
        )
        if attempt is None:
            raise Superseded
        if not attempt.guest_gone:
            if self._agents.why_silent(attempt.host) and not self._is_held(attempt_id, cleaning.residue_uuid):
                return lambda _connection: Ended(f"host {attempt.host} is away, and nothing is held there for it")
            self._agents.destroy(operation, cleaning.instance_uuid, attempt)

        def record(connection: Connection) -> Outcome:
            self._records.lock(connection, cleaning.instance_uuid)
            self._records.change_attempt(connection, attempt_id, guest_gone=True)
            return Next("release", cleaning)

        return record

    def _is_held(self, *uuids: str | None) -> bool:
        """Tell whether anything is held for the guest: by a residue, under one of these uuids."""
        for uuid in uuids:
            try:
                if uuid is not None and self._placement.call(GetAllocations(consumer_uuid=uuid)).allocations:
                    return True
            except errors.ConsumerNotFound:
                continue
        return False

    def release(self, operation: Operation) -> CommitStep:
        """Release what was held for the guest, if there was anything, by the attempt's id or by another."""
        residue_uuid = operation.read(Cleaning).residue_uuid
        self._placement.call(
            DeleteAllocations(request_id=operation.derived("release"), consumer_uuid=operation.subject, for_good=True)
        )
        if residue_uuid is not None and residue_uuid != operation.subject:
            request_id = operation.derived("release", residue_uuid)
            self._placement.call(DeleteAllocations(request_id=request_id, consumer_uuid=residue_uuid, for_good=True))
        LOG.info("Nothing is left of attempt %s", operation.subject)
        return lambda _connection: Ended()


def _uuid(attempt_id: str) -> str:
    return ids.derived(attempt_id, "clean")
