"""The context of a cell's conductor: the records and clients that its endpoints and steps share."""

from dataclasses import dataclass
from typing import Any

from oslo_config import cfg

from conductor.cell.agents import CellAgents
from conductor.cell.attempt_sequence import AttemptSequences
from conductor.cell.guest_orders import CellGuests
from conductor.cell.hosts.forced_down import ForcedDownHosts
from conductor.cell.hosts.hosts import CellHosts
from conductor.cell.records.instances import CellRecords
from conductor.cell.records.migrations import MigrationRecords
from conductor.cell.requests import CellRequests
from conductor.engine.acknowledgements import Acknowledgements, AcknowledgingClient
from conductor.engine.conflict_policy import PolicyWrites
from conductor.engine.operations import Operations
from conductor.engine.revoked_claims import RevokedClaims
from conductor.engine.worker import Worker
from conductor.schema import cell_disowned, cell_requests
from moorage.bus.bus import Bus, Client
from moorage.db.database import Database
from moorage.service.stored_requests import StoredRequests


@dataclass(frozen=True, kw_only=True)
class CellContext:
    """The context, made once. It alone has state: a part can be made of it at any time, and more than once."""

    #: The options of the section `[conductor]`.
    options: Any
    cell_uuid: str
    database: Database
    operations: Operations
    worker: Worker
    stored: StoredRequests
    #: The same, for the orders to this cell.
    requests: CellRequests
    revoked_claims: RevokedClaims
    records: CellRecords
    migrations: MigrationRecords
    sequences: AttemptSequences
    hosts: CellHosts
    forced_down: ForcedDownHosts
    agents: CellAgents
    guests: CellGuests
    #: The placement role as the steps send to it: stored answers are acknowledged once the step is recorded.
    placement: AcknowledgingClient
    #: The placement role as the endpoints send to it.
    placement_client: Client
    #: Releases through `placement`, under the conflict policy.
    writes: PolicyWrites

    @classmethod
    def of(
        cls,
        conf: cfg.ConfigOpts,
        cell_uuid: str,
        database: Database,
        operations: Operations,
        acknowledgements: Acknowledgements,
        bus: Bus,
        cell_bus: Bus,
        service: str,
    ) -> "CellContext":
        """Make the context; nothing of it is started yet.

        :param bus: the main bus, with the placement role.
        :param cell_bus: the bus of the cell, with its agents.
        :param service: the service name on log lines.
        """
        records = CellRecords(cell_uuid)
        migrations = MigrationRecords(records)
        hosts = CellHosts(conf, database, cell_uuid)
        agents = CellAgents(conf, cell_uuid, cell_bus, hosts, operations.backoff)
        worker = Worker(operations, conf.conductor.workers, service, agents.bulkheads, acknowledgements)
        stored = StoredRequests(database, cell_requests)
        placement = AcknowledgingClient(bus.client("placement"), acknowledgements)
        return cls(
            options=conf.conductor,
            cell_uuid=cell_uuid,
            database=database,
            operations=operations,
            worker=worker,
            stored=stored,
            requests=CellRequests(database, stored, cell_uuid, worker),
            revoked_claims=RevokedClaims(cell_disowned, {"cell_uuid": cell_uuid}),
            records=records,
            migrations=migrations,
            sequences=AttemptSequences(records, migrations),
            hosts=hosts,
            # Shorter than the third of it that the super conductor waits for this cell's answer.
            forced_down=ForcedDownHosts(cell_uuid, bus.client("placement", timeout=conf.rpc.call_timeout / 4)),
            agents=agents,
            guests=CellGuests(conf, agents),
            placement=placement,
            placement_client=bus.client("placement"),
            writes=PolicyWrites(conf, placement),
        )


class CellPart:
    """The base of the endpoints and steps."""

    def __init__(self, cell: CellContext) -> None:
        self._cell = cell
