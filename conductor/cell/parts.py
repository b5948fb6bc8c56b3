"""Wire a cell conductor: the steps of its operations, and the endpoints of its topic."""

from oslo_config import cfg

from conductor.cell.agents import CellAgents
from conductor.cell.attempt_sequence import AttemptSequences
from conductor.cell.endpoints.builds import CellOrders
from conductor.cell.endpoints.claims import CellClaims
from conductor.cell.endpoints.gates import CellGates
from conductor.cell.endpoints.inspection import CellInspection
from conductor.cell.endpoints.moves import CellMoves
from conductor.cell.endpoints.providers import CellProviders
from conductor.cell.endpoints.resources import ResourceOrders
from conductor.cell.endpoints.returns import CellReturns
from conductor.cell.endpoints.shelving import ShelfOrders
from conductor.cell.guest_orders import CellGuests
from conductor.cell.holds import CellHolds
from conductor.cell.hosts.forced_down import ForcedDownHosts
from conductor.cell.hosts.hosts import CellHosts
from conductor.cell.records.instances import CellRecords
from conductor.cell.records.migrations import MigrationRecords
from conductor.cell.requests import CellRequests
from conductor.cell.steps.cleanup import CellCleanups
from conductor.cell.steps.delete import CellDeletes
from conductor.cell.steps.end_move import CellMoveEnds
from conductor.cell.steps.fall_back import FallBack
from conductor.cell.steps.heal import CellHeals, HealOrders
from conductor.cell.steps.rebuild import CellRebuilds, RebuildOrders
from conductor.cell.steps.resources import CellResources
from conductor.cell.steps.return_to_source import ReturnToSource
from conductor.cell.steps.shelve import CellShelves
from conductor.cell.steps.start import CellBuilds
from conductor.cell.steps.stop import CellStops
from conductor.engine.acknowledgements import AcknowledgingClient
from conductor.engine.conflict_policy import PolicyWrites
from conductor.engine.operation_list import OperationStates
from conductor.engine.operations import Operations
from conductor.engine.revoked_claims import RevokedClaims
from conductor.engine.steps import Step
from conductor.engine.worker import Worker
from conductor.schema import cell_disowned, cell_operations
from moorage.bus.bus import Bus, Client
from moorage.db.database import Database
from moorage.service.stored_requests import StoredRequests


class CellParts:
    """Constructs the parts of one cell conductor, in the order of their dependencies, without opening anything.

    The worker is made between the two halves: it needs the steps, and the endpoints need it.

    :param peer: the placement role, as steps send to it.
    :param declared: what its operator says of the cell's hosts.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        database: Database,
        cell_uuid: str,
        operations: Operations,
        bus: Bus,
        peer: AcknowledgingClient,
        forced_down: ForcedDownHosts,
    ) -> None:
        self._conf = conf
        self._database = database
        self._operations = operations
        self.scope = {"cell_uuid": cell_uuid}
        self.revoked_claims = RevokedClaims(cell_disowned, self.scope)
        self._records = CellRecords(cell_uuid)
        self._migrations = MigrationRecords(self._records)
        self._sequences = AttemptSequences(self._records, self._migrations)
        self.hosts = CellHosts(conf, database, cell_uuid)
        self.agents = self._agents = CellAgents(conf, cell_uuid, bus, self.hosts, operations.backoff)
        self._guests = CellGuests(conf, self._agents)
        self._peer = peer
        self._forced_down = forced_down
        self._cleanups = CellCleanups(database, self._records, operations, self._agents, peer)
        self._writes = PolicyWrites(conf, peer)
        self._deletes = CellDeletes(
            conf, database, self._records, self._migrations, operations, self._agents, self._cleanups, self._writes
        )
        self._holds = CellHolds(database, self._records, self._migrations, operations)
        self._ends = CellMoveEnds(
            conf,
            database,
            self._records,
            self._migrations,
            operations,
            self._agents,
            self._guests,
            forced_down,
            self._cleanups,
            self._writes,
        )

    def steps(self) -> dict[tuple[str, str], Step]:
        """Map each kind of operation and step to its function."""
        conf, database, records = self._conf, self._database, self._records
        fall_back = FallBack(
            conf,
            database,
            records,
            self._sequences,
            self.hosts,
            self._cleanups,
            self._forced_down,
            self._peer,
            self._operations.backoff,
        )
        builds = CellBuilds(conf, database, records, self.hosts, self._agents, self._sequences)
        return_to_source = ReturnToSource(database, records, self._migrations, self._guests, fall_back, self._writes)
        stops = CellStops(conf, database, records, self._migrations, self._operations, self._guests)
        return (
            builds.steps()
            | stops.steps()
            | CellShelves(database, records, self._agents, self._forced_down, self._cleanups, self._peer).steps()
            | CellRebuilds(database, records, self._guests).steps()
            | CellResources(conf, database, records, self._peer).steps()
            | fall_back.steps()
            | return_to_source.steps()
            | self._ends.steps()
            | self._deletes.steps()
            | self._cleanups.steps()
            | CellHeals(database, records, self._holds, self._peer).steps()
        )

    def endpoints(self, stored: StoredRequests, worker: Worker, placement: Client) -> list[object]:
        """Return the endpoints of the cell's topic."""
        database, records, operations = self._database, self._records, self._operations
        requests = CellRequests(database, stored, records.cell_uuid, worker)
        return [
            CellOrders(database, requests, records, operations, self._deletes, self.revoked_claims),
            CellMoves(requests, records, self._migrations, operations, self.revoked_claims, self._ends),
            ShelfOrders(database, requests, records, operations, self.revoked_claims, self._forced_down),
            RebuildOrders(requests, records, operations),
            ResourceOrders(requests, records, operations),
            HealOrders(requests, records, operations, self._holds),
            self._holds,
            CellGates(database, records, operations, worker, self._sequences, self._cleanups, self._ends, placement),
            *self.reports(worker),
            CellClaims(database, records, self._migrations, operations, self.revoked_claims),
            CellProviders(database, self.scope["cell_uuid"], placement),
            CellInspection(database, records, self._migrations, OperationStates(cell_operations, self.scope)),
        ]

    def reports(self, worker: Worker) -> list[object]:
        """Return the endpoints for heartbeats and for returning hosts, which need only the cell's database."""
        returns = CellReturns(
            self._database, self._records, self._operations, worker, self.hosts, self._sequences, self._cleanups
        )
        return [self.hosts, returns]
