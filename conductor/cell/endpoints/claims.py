"""The endpoint that answers whether an unaccepted claim is wanted; if it is not, the store releases it."""

import logging

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.engine.steps import DELETE, ENDED_BY_DELETE
from moorage import errors
from moorage.bus.bus import serves
from moorage.messages import Ownership, OwnsClaimInCell

LOG = logging.getLogger(__name__)


class CellClaims(CellPart):
    """Serves `owns_claim` for the instances of this cell. An answer is valid only at the moment, so none is stored."""

    @serves(OwnsClaimInCell)
    def owns_claim(self, message: OwnsClaimInCell) -> Ownership:
        """Return whether a claim is wanted; if not, record it as revoked before the answer is sent.

        :raises InstanceNotFound: the consumer is unknown here, which does not prove that the claim is unwanted.
        """
        return self._cell.database.write(lambda connection: self._ownership(connection, message))

    def _ownership(self, connection: Connection, message: OwnsClaimInCell) -> Ownership:
        uuid = message.consumer_uuid
        instance = self._cell.records.lock(connection, uuid)
        if instance is None:
            if self._cell.migrations.read(connection, uuid) is not None:
                return Ownership(owned=True)  # the claim of a source: its host has accepted it, it is never revoked
            raise errors.InstanceNotFound(name=uuid)
        current = instance.claim_id == message.claim_id and instance.state not in ("deleting", "deleted")
        # While the instance is being placed, an order with the new claim may be on its way to this cell.
        placed = instance.state in ("moving", "unshelving")
        operations = self._cell.operations
        if current or placed or operations.lock_one_pending(connection, uuid, DELETE, *ENDED_BY_DELETE) is not None:
            return Ownership(owned=True)
        LOG.info("Claim %s of instance %s, in state %s, is not wanted", message.claim_id, uuid, instance.state)
        self._cell.revoked_claims.add(connection, message.claim_id, uuid)
        return Ownership(owned=False)
