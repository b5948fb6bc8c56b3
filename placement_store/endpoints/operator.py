"""What an operator and the other services ask of topic `placement` beside placement itself."""

import logging

from sqlalchemy import Connection

from moorage.bus.bus import serves
from moorage.db.database import Database
from moorage.messages import (
    AcknowledgeRequests,
    AuditStore,
    Done,
    ListClaims,
    ListReconciled,
    ListServices,
    ReportService,
)
from moorage.model.inspection import ClaimState, ReconcilerAction, ServiceState, StoreAudit
from moorage.service.stored_requests import StoredRequests
from placement_store.claims import list as claim_list
from placement_store.db.retries import retry_on_stale_read
from placement_store.schema import requests
from placement_store.upkeep import audit, reconciler_log, services

LOG = logging.getLogger(__name__)


class InspectionEndpoint:
    """The methods of topic `placement` that show, and those that keep the books in order.

    Its mutations store no answer: each says the same however often it is said.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._requests = StoredRequests(database, requests)

    @serves(ListClaims)
    def list_claims(self, message: ListClaims) -> list[ClaimState]:
        """Return the consumers that a claim places, and on request residues, the oldest first; or a part of them."""
        return self._database.read(lambda connection: claim_list.claims(connection, message))

    @serves(AuditStore)
    def audit_store(self, message: AuditStore) -> StoreAudit:
        """Return what the store says of itself, or a part of it."""
        read = self._database.read_one_moment if message.amounts else self._database.read
        return read(lambda connection: audit.report(connection, message))

    @serves(ListReconciled)
    def list_reconciled(self, _message: ListReconciled) -> list[ReconcilerAction]:
        """Return what the reconciler found, the newest first."""
        return self._database.read(reconciler_log.actions)

    @serves(ListServices)
    def list_services(self, _message: ListServices) -> list[ServiceState]:
        """Return the services that have reported, by kind and name."""
        return self._database.read(services.services_heard)

    @serves(ReportService)
    def report_service(self, message: ReportService) -> Done:
        """Note that a service is running."""

        def work(connection: Connection) -> Done:
            services.report(connection, message.service, stopped=message.stopped)
            return Done()

        return retry_on_stale_read(lambda: self._database.write(work))

    @serves(AcknowledgeRequests)
    def acknowledge_requests(self, message: AcknowledgeRequests) -> Done:
        """Let the stored answers of these requests go in due time; ids without one are passed over."""
        self._requests.acknowledge(message.request_ids)
        LOG.debug("Acknowledged: %d requests", len(message.request_ids))
        return Done()
