"""Record the reports of the cloud's services, and list the services."""

from typing import Any

from sqlalchemy import Connection, Row, select

from moorage.db.columns import now
from moorage.messages import ListServices, ReportService
from moorage.model.inspection import ServiceReport, ServiceState
from placement_store.db import bulk
from placement_store.db.retries import stale_if_taken
from placement_store.db.store import reads, writes
from placement_store.schema import services


@writes(ReportService, is_stored=False)
def report(connection: Connection, message: ReportService) -> None:
    """Record that a service is running, or that it is being shut down gracefully.

    :raises StaleRead: two first reports of the service are concurrent; a new transaction succeeds.
    """
    service = message.service
    key = {"kind": service.kind, "name": service.name, "cell_uuid": service.cell_uuid or ""}
    described: dict[str, Any] = {"machine": service.machine, "version": service.version}
    stamps = ["heard_at", "stopped_at"] if message.stopped else ["heard_at"]
    same = [services.c[column] == value for column, value in key.items()]
    # UPDATE services SET heard_at = :now, machine = :machine, version = :version
    #  WHERE kind = :kind AND name = :name AND cell_uuid = :cell
    at = dict.fromkeys(stamps, now())
    known = connection.execute(services.update().where(*same).values(**described, **at))
    if known.rowcount == 0:
        with stale_if_taken():
            bulk.insert(connection, services, [key | described], stamps=["first_heard_at", *stamps])


@reads(ListServices)
def list_services(connection: Connection, _message: ListServices) -> list[ServiceState]:
    """Return the services by kind and name."""
    query = select(
        services, (now() - services.c.heard_at).label("heard"), (now() - services.c.first_heard_at).label("running")
    ).order_by(services.c.kind, services.c.name, services.c.cell_uuid)
    return [_state(row) for row in connection.execute(query)]


def prune(connection: Connection, silent_for: float) -> int:
    """Delete services that have been silent for more than this many seconds; return their number."""
    return connection.execute(services.delete().where(services.c.heard_at < now() - silent_for)).rowcount


def _state(row: Row[Any]) -> ServiceState:
    return ServiceState(
        service=ServiceReport(
            name=row.name, kind=row.kind, machine=row.machine, version=row.version, cell_uuid=row.cell_uuid or None
        ),
        heard=max(0.0, row.heard),
        running=max(0.0, row.running),
        stopped=row.stopped_at is not None and row.stopped_at >= row.heard_at,
    )
