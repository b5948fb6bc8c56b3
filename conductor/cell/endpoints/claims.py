"""The endpoint that answers whether an unaccepted claim is wanted: the store releases it otherwise."""

import logging

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.engine.steps import DELETE, ENDED_BY_DELETE
from moorage import errors
from moorage.bus.bus import serves
from moorage.messages import Ownership, OwnsClaimInCell

LOG = logging.getLogger(__name__)


class CellClaims(CellPart):
    """Serves `owns_claim` for the instances of this cell. An answer holds for the moment: requests are not stored."""

    @serves(OwnsClaimInCell)
    def owns_claim(self, message: OwnsClaimInCell) -> Ownership:
        """Return whether a claim is wanted; a revocation is recorded before it is answered.

        :raises InstanceNotFound: the consumer is unknown here, which does not prove that the claim is unwanted.
        """
        return self._cell.database.write(lambda connection: self._ownership(connection, message))

    def _ownership(self, connection: Connection, message: OwnsClaimInCell) -> Ownership:
        uuid = message.consumer_uuid
        instance = self._cell.records.lock(connection, uuid)
        if instance is None:
            if self._cell.migrations.read(connection, uuid) is not None:
                return Ownership(owned=True)  # that of a source, which its host has accepted: it is never revoked here
            raise errors.InstanceNotFound(name=uuid)
        current = instance.claim_id == message.claim_id and instance.state not in ("deleting", "deleted")
        # Being placed: an order with the new claim may be on its way here.
        placed = instance.state in ("moving", "unshelving")
        if current or placed or self._cell.operations.pending(connection, uuid, DELETE, *ENDED_BY_DELETE) is not None:
            return Ownership(owned=True)
        LOG.info("Claim %s of instance %s, in state %s, is not wanted", message.claim_id, uuid, instance.state)
        self._cell.revoked_claims.add(connection, message.claim_id, uuid)
        return Ownership(owned=False)
