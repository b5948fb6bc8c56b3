"""Answer the reconciler whether the owner wants a claim that no host has accepted."""

import logging
import time

from sqlalchemy import Connection

from conductor.engine.steps import DELETE, MOVE, UNSHELVE
from conductor.super.context import SuperPart
from conductor.super.records import instances as super_records
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import Ownership, OwnsClaim, OwnsClaimInCell
from moorage.model import Cell

LOG = logging.getLogger(__name__)

#: A cell that could not answer about a claim is not asked about others for this many times the patience for an order:
#: the reconciler has one thread, and a cell whose database is silent may use up the patience each time.
_PAUSE = 3


class SuperClaims(SuperPart):
    """Answers from the records here for instances without a cell, and asks the cell otherwise; stores no answers."""

    @serves(OwnsClaim)
    def owns_claim(self, message: OwnsClaim) -> Ownership:
        """Return whether a claim is wanted; if not, record it as revoked before the answer is sent.

        :raises InstanceNotFound: there is no record of the consumer, which proves nothing about the claim.
        :raises CellUnreachable: the cell that has the instance does not answer, or cannot serve at present, or could
            not answer about another claim a moment ago.
        :raises Unavailable: the database here or the placement role cannot be reached.
        """
        cell_uuid, owned = self._super.database.write(lambda connection: self._ownership(connection, message))
        if cell_uuid is None:
            return Ownership(owned=owned)
        cell = self._super.cells.cell(cell_uuid)
        failed_at, why = self._super.unanswered_claims.get(cell.uuid, (float("-inf"), ""))
        if time.monotonic() - failed_at < _PAUSE * self._super.cells.order_patience:
            raise errors.CellUnreachable(cell=cell.name, reason=why)
        try:
            return self._in_cell(cell, message)
        except errors.CellUnreachable as fault:
            # That the caller's time is over proves nothing about the cell.
            if not isinstance(fault.__cause__, errors.DeadlineExceeded):
                self._super.unanswered_claims[cell.uuid] = time.monotonic(), fault.reason
            raise

    def _in_cell(self, cell: Cell, message: OwnsClaim) -> Ownership:
        question = OwnsClaimInCell(
            request_id=ids.derived(message.request_id, "in_cell"),
            consumer_uuid=message.consumer_uuid,
            claim_id=message.claim_id,
        )
        try:
            return self._super.cells.call(cell.uuid, question, timeout=self._super.cells.order_patience)
        except errors.CellUnreachable:
            raise
        except errors.Unavailable as fault:
            # Its database, for example: the reconciler must not take this conductor for the one that is away.
            raise errors.CellUnreachable(cell=cell.name, reason=str(fault).rstrip(".")) from fault

    def _ownership(self, connection: Connection, message: OwnsClaim) -> tuple[str | None, bool]:
        """Return the cell to ask and false, or null and whether the claim is wanted by the records here."""
        uuid = message.consumer_uuid
        instance = super_records.lock_known(connection, uuid)
        if self._super.operations.is_pending(connection, instance.operation_uuid):
            # The claim may come from the pending request to the scheduler, or may be handed over at this moment.
            return None, True
        if self._super.operations.lock_one_pending(connection, uuid, MOVE, UNSHELVE) is not None:
            return None, True
        if instance.cell_uuid is not None:
            return instance.cell_uuid, False
        if self._super.operations.lock_one_pending(connection, uuid, DELETE) is not None:
            return None, True
        LOG.info("Claim %s of instance %s, in state %s, is not wanted", message.claim_id, uuid, instance.state)
        self._super.revoked_claims.add(connection, message.claim_id, uuid)
        return None, False
