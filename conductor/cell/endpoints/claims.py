"""What a cell says of a claim that no host has accepted: whether anybody here wants it."""

import logging

from sqlalchemy import Connection

from conductor.cell.records.instances import CellRecords
from conductor.cell.records.migrations import MigrationRecords
from conductor.cell.steps.delete import ENDED_BY_DELETION
from conductor.engine.operations import Operations
from conductor.engine.revoked_claims import RevokedClaims
from conductor.engine.steps import DELETE
from moorage import errors
from moorage.bus.bus import serves
from moorage.db.database import Database
from moorage.messages import Ownership, OwnsClaimInCell

LOG = logging.getLogger(__name__)


class CellClaims:
    """Answers for the instances that this cell has on record. True when it is said, so none of it is stored."""

    def __init__(
        self,
        database: Database,
        records: CellRecords,
        migrations: MigrationRecords,
        operations: Operations,
        revoked_claims: RevokedClaims,
    ) -> None:
        self._database = database
        self._records = records
        self._migrations = migrations
        self._operations = operations
        self._revoked_claims = revoked_claims

    @serves(OwnsClaimInCell)
    def owns_claim(self, message: OwnsClaimInCell) -> Ownership:
        """Answer whether a claim is wanted; a "no" is on record before it is said.

        :raises InstanceNotFound: there is no record of the consumer, which proves nothing.
        """
        return self._database.write(lambda connection: self._ownership(connection, message))

    def _ownership(self, connection: Connection, message: OwnsClaimInCell) -> Ownership:
        uuid = message.consumer_uuid
        instance = self._records.lock(connection, uuid)
        if instance is None:
            if self._migrations.read(connection, uuid) is not None:
                return Ownership(owned=True)  # a source's, which a host has accepted: nobody gives that up unheard
            raise errors.InstanceNotFound(name=uuid)
        current = instance.claim_id == message.claim_id and instance.state not in ("deleting", "deleted")
        # Taken to be placed: what is claimed for it has yet to arrive here.
        placed = instance.state in ("moving", "unshelving")
        kinds = (DELETE, *ENDED_BY_DELETION)
        if current or placed or any(self._operations.pending(connection, uuid, kind) for kind in kinds):
            return Ownership(owned=True)
        LOG.info("Claim %s of instance %s, which is %s, is not wanted", message.claim_id, uuid, instance.state)
        self._revoked_claims.add(connection, message.claim_id, uuid)
        return Ownership(owned=False)
