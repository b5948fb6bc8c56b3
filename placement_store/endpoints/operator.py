"""Serve the methods of topic `placement` for operators and other services: lists, audit, heals and reports."""

import logging

from sqlalchemy import Connection

from moorage.bus.bus import serves
from moorage.messages import (
    AcknowledgeRequests,
    AuditStore,
    Done,
    HealConsumers,
    Healed,
    ListClaims,
    ListReconciled,
    ListServices,
    Recounted,
    RecountInventories,
    ReportService,
)
from moorage.model.inspection import ClaimState, ReconcilerAction, ServiceState, StoreAudit
from placement_store.claims import heal as heals
from placement_store.claims import list as claim_list
from placement_store.db.retries import retry_on_stale_read
from placement_store.endpoints import StoreEndpoint
from placement_store.upkeep import audit, reconciler_log, recount, services

LOG = logging.getLogger(__name__)


class OperatorEndpoint(StoreEndpoint):
    """Serve inspection of the store, its repair, and the reports of services.

    `report_service` and `acknowledge_requests` store no reply: repeating them has the same effect.
    """

    # --- Inspection -------------------------------------------------------------------------------------------------

    @serves(ListClaims)
    def list_claims(self, message: ListClaims) -> list[ClaimState]:
        """Return the consumers that a claim places, and on request residues, the oldest first; or one page of them."""
        return self._database.read(lambda connection: claim_list.claims(connection, message))

    @serves(AuditStore)
    def audit_store(self, message: AuditStore) -> StoreAudit:
        """Return the audit of the store, or one page of it; see :func:`placement_store.upkeep.audit.report`."""
        read = self._database.read_one_moment if message.amounts else self._database.read
        return read(lambda connection: audit.report(connection, message))

    @serves(ListReconciled)
    def list_reconciled(self, _message: ListReconciled) -> list[ReconcilerAction]:
        """Return the findings of the reconciler, the newest first."""
        return self._database.read(reconciler_log.actions)

    @serves(ListServices)
    def list_services(self, _message: ListServices) -> list[ServiceState]:
        """Return the services that have reported, by kind and name."""
        return self._database.read(services.services_heard)

    # --- Repair -----------------------------------------------------------------------------------------------------

    @serves(HealConsumers)
    def heal_consumers(self, message: HealConsumers) -> Healed:
        """Set the allocations of consumers to the recorded ones; see :func:`placement_store.claims.heal.heal`."""
        healed = self._once(message, lambda connection: heals.heal(connection, message, self._names))
        LOG.warning("Healed: consumers %s", ", ".join(sorted(message.seen)))
        return healed

    @serves(RecountInventories)
    def recount_inventories(self, message: RecountInventories) -> Recounted:
        """Recount the usage of inventories; see :func:`placement_store.upkeep.recount.recount`."""
        counted = self._once(message, lambda connection: recount.recount(connection, message.provider_uuids))
        LOG.warning(
            "Recounted: %d inventories corrected, %d allocations without a consumer removed",
            counted.inventories,
            counted.orphans,
        )
        return counted

    # --- Reports of services ----------------------------------------------------------------------------------------

    @serves(ReportService)
    def report_service(self, message: ReportService) -> Done:
        """Record that a service is running, or is being stopped."""

        def work(connection: Connection) -> Done:
            services.report(connection, message.service, stopped=message.stopped)
            return Done()

        return retry_on_stale_read(lambda: self._database.write(work))

    @serves(AcknowledgeRequests)
    def acknowledge_requests(self, message: AcknowledgeRequests) -> Done:
        """Mark the stored replies of these requests as received, for pruning; ids without one are skipped."""
        self._requests.acknowledge(message.request_ids)
        LOG.debug("Acknowledged: %d requests", len(message.request_ids))
        return Done()
