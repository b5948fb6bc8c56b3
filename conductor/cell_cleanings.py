"""How a cell cleans up after attempts that ended without their host's word: the guest first, then its residue."""

import logging
from collections.abc import Iterable

from sqlalchemy import Connection

from conductor.acknowledging import Peer
from conductor.cell_agents import CellAgents
from conductor.cell_payloads import Cleaning
from conductor.cell_records import AttemptRecord, CellRecords
from conductor.operations import Operations
from conductor.steps import CLEAN, Ended, NewOperation, Next, Operation, Outcome, Record, Step, Superseded
from moorage import ids
from moorage.database import Database
from moorage.messages import DeleteAllocations

LOG = logging.getLogger(__name__)


class CellCleanings:
    """The operation `clean` of an attempt. It never ends before nothing of the guest is left."""

    def __init__(
        self,
        database: Database,
        records: CellRecords,
        operations: Operations,
        agents: CellAgents,
        placement: Peer,
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
        self, connection: Connection, instance_uuid: str, attempts: Iterable[AttemptRecord], request_id: str
    ) -> None:
        """Record that these ended attempts are to be cleaned up; whoever looks next for what is due begins."""
        for attempt in attempts:
            new = NewOperation(
                uuid=_uuid(attempt.attempt_id),
                kind=CLEAN,
                subject=attempt.attempt_id,
                step="destroy",
                payload=Cleaning(instance_uuid=instance_uuid),
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

    def destroy(self, operation: Operation) -> Record:
        """Order the host to destroy the guest, and to start none of this attempt; repeated until it has answered."""
        cleaning, attempt_id = operation.read(Cleaning), operation.subject
        attempt = self._database.read(
            lambda connection: self._records.attempt(connection, cleaning.instance_uuid, attempt_id)
        )
        if attempt is None:
            raise Superseded
        if not attempt.guest_gone:
            self._agents.destroy(operation, cleaning.instance_uuid, attempt)

        def record(connection: Connection) -> Outcome:
            self._records.lock(connection, cleaning.instance_uuid)
            self._records.change_attempt(connection, attempt_id, guest_gone=True)
            return Next("release", cleaning)

        return record

    def release(self, operation: Operation) -> Record:
        """Release what was held for the guest, if there was anything; it was known by the attempt's id."""
        self._placement.call(
            DeleteAllocations(request_id=operation.derived("release"), consumer_uuid=operation.subject, for_good=True)
        )
        LOG.info("Nothing is left of attempt %s", operation.subject)
        return lambda _connection: Ended()


def _uuid(attempt_id: str) -> str:
    return ids.derived(attempt_id, "clean")
