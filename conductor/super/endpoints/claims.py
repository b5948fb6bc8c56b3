"""Answer the reconciler whether the owner wants a claim that no host has accepted."""

import logging

from oslo_config import cfg
from sqlalchemy import Connection

from conductor.engine.operations import Operations
from conductor.engine.revoked_claims import RevokedClaims
from conductor.engine.steps import DELETE, MOVE, UNSHELVE
from conductor.super.cell_clients import Cells
from conductor.super.records import instances as super_records
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.db.database import Database
from moorage.messages import Ownership, OwnsClaim, OwnsClaimInCell

LOG = logging.getLogger(__name__)


class SuperClaims:
    """Answers from the records here for instances without a cell, else by asking the cell. Answers are not stored."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        database: Database,
        operations: Operations,
        revoked_claims: RevokedClaims,
        cells: Cells,
    ) -> None:
        self._timeout: float = conf.rpc.call_timeout / 3
        self._database = database
        self._operations = operations
        self._revoked_claims = revoked_claims
        self._cells = cells

    @serves(OwnsClaim)
    def owns_claim(self, message: OwnsClaim) -> Ownership:
        """Return whether a claim is wanted; if not, it is recorded as revoked before the answer is sent.

        :raises InstanceNotFound: there is no record of the consumer, which proves nothing about the claim.
        :raises CellUnreachable: the cell, which has the instance, does not answer.
        """
        cell_uuid, owned = self._database.write(lambda connection: self._here(connection, message))
        if cell_uuid is None:
            return Ownership(owned=owned)
        return self._cells.call(
            cell_uuid,
            OwnsClaimInCell(
                request_id=ids.derived(message.request_id, "in_cell"),
                consumer_uuid=message.consumer_uuid,
                claim_id=message.claim_id,
            ),
            # Shorter than the time-out of the caller, which must get CellUnreachable and not NoReply.
            timeout=self._timeout,
        )

    def _here(self, connection: Connection, message: OwnsClaim) -> tuple[str | None, bool]:
        """Return the cell to ask and false, or null and whether the claim is wanted by the records here."""
        uuid = message.consumer_uuid
        instance = super_records.lock(connection, [uuid]).get(uuid)
        if instance is None:
            raise errors.InstanceNotFound(name=uuid)
        if self._operations.is_pending(connection, instance.operation_uuid):
            # The claim may be that of its request to the scheduler, or be handed over at this moment.
            return None, True
        if any(self._operations.pending(connection, uuid, kind) is not None for kind in (MOVE, UNSHELVE)):
            return None, True
        if instance.cell_uuid is not None:
            return instance.cell_uuid, False
        if self._operations.pending(connection, uuid, DELETE) is not None:
            return None, True
        LOG.info("Claim %s of instance %s, which is %s, is not wanted", message.claim_id, uuid, instance.state)
        self._revoked_claims.add(connection, message.claim_id, uuid)
        return None, False
