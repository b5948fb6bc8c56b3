"""The context of the super conductor: the records and clients that its endpoints and steps share."""

from typing import Any, Final

from oslo_config import cfg

from conductor.engine.acknowledgements import Acknowledgements, AcknowledgingClient, service_bulkheads
from conductor.engine.conflict_policy import PolicyWrites
from conductor.engine.guarded_client import GuardedClient, endpoint_bulkheads
from conductor.engine.operations import Operations
from conductor.engine.order_requests import OrderRequests
from conductor.engine.revoked_claims import RevokedClaims
from conductor.engine.worker import Worker
from conductor.schema import conductor_disowned, conductor_requests
from conductor.super.cell_clients import Cells
from moorage.bus.bus import Bus
from moorage.db.database import Database
from moorage.service.stored_requests import StoredRequests


class SuperContext:
    """The context, made once. It has all the state: a part can be made from it at any time, and more than once.

    :param service: the service name on log lines.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        database: Database,
        operations: Operations,
        acknowledgements: Acknowledgements,
        bus: Bus,
        cells: Cells,
        service: str | None,
    ) -> None:
        #: The options of the section `[conductor]`.
        self.options: Final[Any] = conf.conductor
        self.database: Final = database
        self.operations: Final = operations
        self.cells: Final = cells
        self.worker: Final = Worker(operations, conf.conductor.workers, service, cells.bulkheads, acknowledgements)
        self.stored: Final = StoredRequests(database, conductor_requests)
        #: The stored requests of orders that begin operations.
        self.requests: Final = OrderRequests(database, self.stored, self.worker)
        self.revoked_claims: Final = RevokedClaims(conductor_disowned, {})
        #: The cells that could not answer about a claim: when, by the monotonic clock, and the reason.
        self.unanswered_claims: Final[dict[str, tuple[float, str]]] = {}
        bulkheads = service_bulkheads(conf, operations.backoff)
        #: The client of the schedulers for steps: stored answers are acknowledged once the step is recorded.
        self.scheduler: Final = AcknowledgingClient(bus.client("scheduler"), acknowledgements, bulkheads)
        #: The bulkhead of the schedulers for endpoints.
        self.endpoint_bulkheads: Final = endpoint_bulkheads(conf, operations.backoff, cells.order_patience)
        #: The client of the schedulers for endpoints: the caller must get the reason before its own time-out.
        self.scheduler_client: Final = GuardedClient(
            bus.client("scheduler", timeout=cells.order_patience), self.endpoint_bulkheads, "scheduler"
        )
        #: The client of the placement role, which only steps use.
        self.placement: Final = AcknowledgingClient(bus.client("placement"), acknowledgements, bulkheads)
        #: For a step that has called a scheduler before.
        self.placement_afterwards: Final = AcknowledgingClient(
            bus.client("placement"), acknowledgements, bulkheads, may_postpone=False
        )
        #: Releases allocations through `placement`, under the conflict policy.
        self.writes: Final = PolicyWrites(conf, self.placement)


class SuperPart:
    """The base of the endpoints and steps."""

    def __init__(self, context: SuperContext) -> None:
        self._super = context
