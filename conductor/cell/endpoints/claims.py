"""The endpoint that answers whether an unaccepted claim is wanted: the store releases it otherwise."""

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
    """Serves `owns_claim` for the instances of this cell. An answer holds for the moment: requests are not stored."""

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
        """Return whether a claim is wanted; a revocation is recorded before it is answered.

        :raises InstanceNotFound: the consumer is unknown here, which does not prove that the claim is unwanted.
        """
        return self._database.write(lambda connection: self._ownership(connection, message))

    def _ownership(self, connection: Connection, message: OwnsClaimInCell) -> Ownership:
        uuid = message.consumer_uuid
        instance = self._records.lock(connection, uuid)
        if instance is None:
            if self._migrations.read(connection, uuid) is not None:
                return Ownership(owned=True)  # that of a source, which its host has accepted: it is never revoked here
            raise errors.InstanceNotFound(name=uuid)
        current = instance.claim_id == message.claim_id and instance.state not in ("deleting", "deleted")
        # Being placed: an order with the new claim may be on its way here.
        placed = instance.state in ("moving", "unshelving")
        kinds = (DELETE, *ENDED_BY_DELETION)
        if current or placed or any(self._operations.pending(connection, uuid, kind) for kind in kinds):
            return Ownership(owned=True)
        LOG.info("Claim %s of instance %s, which is %s, is not wanted", message.claim_id, uuid, instance.state)
        self._revoked_claims.add(connection, message.claim_id, uuid)
        return Ownership(owned=False)
