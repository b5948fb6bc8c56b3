"""The context of the super conductor: the records and clients that its endpoints and steps share."""

from dataclasses import dataclass
from typing import Any

from oslo_config import cfg

from conductor.engine.acknowledgements import Acknowledgements, AcknowledgingClient
from conductor.engine.conflict_policy import PolicyWrites
from conductor.engine.operations import Operations
from conductor.engine.order_requests import OrderRequests
from conductor.engine.revoked_claims import RevokedClaims
from conductor.engine.worker import Worker
from conductor.schema import conductor_disowned, conductor_requests
from conductor.super.cell_clients import Cells
from conductor.super.scheduling import Scheduling
from moorage.bus.bus import Bus, Client
from moorage.db.database import Database
from moorage.service.stored_requests import StoredRequests


@dataclass(frozen=True, kw_only=True)
class SuperContext:
    """The context, made once. It alone has state: a part can be made of it at any time, and more than once."""

    #: The options of the section `[conductor]`.
    options: Any
    database: Database
    operations: Operations
    worker: Worker
    stored: StoredRequests
    #: The same, for orders that begin operations.
    requests: OrderRequests
    revoked_claims: RevokedClaims
    cells: Cells
    #: The schedulers as the steps send to them: stored answers are acknowledged once the step is recorded.
    scheduling: Scheduling
    #: The schedulers as the endpoints send to them.
    scheduler_client: Client
    #: The placement role, to which only steps send.
    placement: AcknowledgingClient
    #: Releases through `placement`, under the conflict policy.
    writes: PolicyWrites

    @classmethod
    def of(
        cls,
        conf: cfg.ConfigOpts,
        database: Database,
        operations: Operations,
        acknowledgements: Acknowledgements,
        bus: Bus,
        cells: Cells,
        service: str | None,
    ) -> "SuperContext":
        """Make the context; nothing of it is started yet.

        :param service: the service name on log lines.
        """
        worker = Worker(operations, conf.conductor.workers, service, cells.bulkheads, acknowledgements)
        stored = StoredRequests(database, conductor_requests)
        placement = AcknowledgingClient(bus.client("placement"), acknowledgements)
        return cls(
            options=conf.conductor,
            database=database,
            operations=operations,
            worker=worker,
            stored=stored,
            requests=OrderRequests(stored, worker),
            revoked_claims=RevokedClaims(conductor_disowned, {}),
            cells=cells,
            scheduling=Scheduling(AcknowledgingClient(bus.client("scheduler"), acknowledgements)),
            scheduler_client=bus.client("scheduler"),
            placement=placement,
            writes=PolicyWrites(conf, placement),
        )


class SuperPart:
    """The base of the endpoints and steps."""

    def __init__(self, context: SuperContext) -> None:
        self._super = context
