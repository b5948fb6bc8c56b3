"""The context of a cell's conductor: the records and clients that its endpoints and steps share."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
from oslo_config import cfg
from sqlalchemy import Connection

from conductor.cell.agents import CellAgents
from conductor.cell.attempt_sequence import AttemptSequences
from conductor.cell.gates import Gates
from conductor.cell.hosts.forced_down import ForcedDownHosts
from conductor.cell.hosts.hosts import CellHosts
from conductor.cell.records import order_numbers
from conductor.cell.records.instances import CellRecords
from conductor.cell.records.migrations import MigrationRecords
from conductor.engine.acknowledgements import Acknowledgements, AcknowledgingClient, service_bulkheads
from conductor.engine.conflict_policy import PolicyWrites
from conductor.engine.guarded_client import GuardedClient, endpoint_bulkheads
from conductor.engine.operations import Operations
from conductor.engine.order_requests import OrderRequests, origin
from conductor.engine.revoked_claims import RevokedClaims
from conductor.engine.steps import Operation
from conductor.engine.worker import Worker
from conductor.schema import cell_disowned, cell_requests
from moorage import errors, ids
from moorage.bus.bus import Bus
from moorage.db.database import Database
from moorage.messages import DeleteInCell
from moorage.messages.basis import NumberedOrder
from moorage.messages.wire import Message, Mutation, R
from moorage.model import Cell, Value
from moorage.service.stored_requests import StoredAnswer, StoredRequests


class CellRequests(OrderRequests):
    """The stored requests of one cell. If an order is refused, later orders with its number are refused too.

    Several cells may share a table: the ids in it are derived for each cell.
    """

    def __init__(self, database: Database, requests: StoredRequests, cell_uuid: str, worker: Worker) -> None:
        super().__init__(database, requests, worker)
        self._cell_uuid = cell_uuid

    def _stored(self, message: Mutation[R]) -> Mutation[R]:
        """Return a message with the request id under which its order is stored in this cell."""
        return msgspec.structs.replace(message, request_id=ids.derived(self._cell_uuid, message.request_id))

    def _carry_out_and_enqueue(
        self, message: Mutation[R], carry_out: Callable[[Mutation[R], list[Operation]], StoredAnswer[R]]
    ) -> R:
        """Carry out an order and queue its operations; if it is refused, record that its number was refused."""
        try:
            return super()._carry_out_and_enqueue(message, carry_out)
        except (errors.RequestIdReused, errors.RequestInProgress) as fault:
            raise type(fault)(request_id=message.request_id) from fault
        except errors.CallerError:
            if isinstance(message, NumberedOrder) and message.order_number is not None:
                self._database.write(partial(order_numbers.refuse, cell_uuid=self._cell_uuid, message=message))
            raise


class CellContext:
    """The context, made once. It has all the state: a part can be made from it at any time, and more than once.

    :param bus: the main bus, with the placement role.
    :param cell_bus: the bus of the cell, with its agents.
    :param service: the service name on log lines.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        cell: Cell,
        database: Database,
        operations: Operations,
        acknowledgements: Acknowledgements,
        bus: Bus,
        cell_bus: Bus,
        service: str,
    ) -> None:
        #: The options of the section `[conductor]`.
        self.options: Final[Any] = conf.conductor
        self.cell_uuid: Final = cell.uuid
        #: Its name when this conductor was started.
        self.cell_name: Final = cell.name
        self.database: Final = database
        self.operations: Final = operations
        self.records: Final = CellRecords(cell.uuid)
        self.migrations: Final = MigrationRecords(self.records)
        self.sequences: Final = AttemptSequences(self.records, self.migrations)
        self.gates: Final = Gates(database, self.records, self.sequences, operations)
        self.revoked_claims: Final = RevokedClaims(cell_disowned, {"cell_uuid": cell.uuid})
        self.hosts: Final = CellHosts(conf, database, cell.uuid)
        # Shorter than the time that the super conductor waits for this cell's answer: a third of `call_timeout`.
        patience: float = conf.rpc.call_timeout / 4
        impatient = bus.client("placement", timeout=patience)
        #: The bulkhead of the placement role for calls that cannot be postponed.
        self.endpoint_bulkheads: Final = endpoint_bulkheads(conf, operations.backoff, patience)
        #: The client for the gates, which wait only for a short time.
        self.gate_client: Final = GuardedClient(impatient, self.endpoint_bulkheads, "placement")
        self.forced_down: Final = ForcedDownHosts(cell.uuid, self.gate_client, database, self.records)
        self.agents: Final = CellAgents(conf, cell.uuid, cell_bus, self.hosts, operations.backoff)
        bulkheads = self.agents.bulkheads
        self.worker: Final = Worker(operations, conf.conductor.workers, service, bulkheads, acknowledgements)
        self.stored: Final = StoredRequests(database, cell_requests)
        #: The stored requests of the orders to this cell.
        self.requests: Final = CellRequests(database, self.stored, cell.uuid, self.worker)
        #: The client of the placement role for steps: stored answers are acknowledged once the step is recorded.
        self.placement: Final = AcknowledgingClient(
            bus.client("placement"), acknowledgements, service_bulkheads(conf, operations.backoff)
        )
        self._placement_client = GuardedClient(bus.client("placement"), self.endpoint_bulkheads, "placement")
        #: Releases allocations through `placement`, under the conflict policy.
        self.writes: Final = PolicyWrites(conf, self.placement)

    def call_placement(self, message: Message[R]) -> R:
        """Send a message to the placement role for the caller of an endpoint, and return its answer.

        :raises Overloaded: the placement role has not answered for a while, and the message was not sent.
        :raises StoreUnavailable: the placement role does not answer; the message may have been carried out.
        """
        try:
            return self._placement_client.call(message)
        except (errors.NoReply, errors.BusUnavailable) as fault:
            # Not the error itself: the caller would take this cell, or its bus, for the one that does not answer.
            reason = f"the placement role does not answer: {fault}".rstrip(".")
            raise errors.StoreUnavailable(schema="main", reason=reason) from fault


class CellPart:
    """The base of the endpoints and steps."""

    def __init__(self, cell: CellContext) -> None:
        self._cell = cell

    def _begin(
        self, connection: Connection, order: DeleteInCell | NumberedOrder[Any], kind: str, step: str, payload: Value
    ) -> list[Operation]:
        """Record the operation that carries out an order about an instance, and take its lease."""
        uuid = order.instance_uuid
        new = Operation.new(origin(order), ids.derived(order.request_id, kind, uuid), kind, uuid, step, payload)
        return self._cell.operations.begin(connection, [new])
