"""What a cell conductor is made of: the steps of its operations, and what its topic serves."""

from oslo_config import cfg

from conductor.acknowledging import Peer
from conductor.cell_agents import CellAgents
from conductor.cell_builds import CellBuilds
from conductor.cell_claims import CellClaims
from conductor.cell_cleanings import CellCleanings
from conductor.cell_courses import Courses
from conductor.cell_deletes import CellDeletes
from conductor.cell_fall_back import FallBack
from conductor.cell_gates import CellGates
from conductor.cell_give_back import GiveBack
from conductor.cell_guests import CellGuests
from conductor.cell_heals import CellHeals, HealOrders
from conductor.cell_holds import CellHolds
from conductor.cell_hosts import CellHosts
from conductor.cell_inspection import CellInspection
from conductor.cell_migrations import MigrationRecords
from conductor.cell_move_ends import CellMoveEnds
from conductor.cell_moves import CellMoves
from conductor.cell_orders import CellOrders
from conductor.cell_providers import CellProviders
from conductor.cell_rebuilds import CellRebuilds, RebuildOrders
from conductor.cell_records import CellRecords
from conductor.cell_requests import CellRequests
from conductor.cell_resource_orders import ResourceOrders
from conductor.cell_resources import CellResources
from conductor.cell_returns import CellReturns
from conductor.cell_shelf_orders import ShelfOrders
from conductor.cell_shelves import CellShelves
from conductor.cell_stops import CellStops
from conductor.declared_down import DeclaredDown
from conductor.disowned import DisownedClaims
from conductor.operation_states import OperationStates
from conductor.operations import Operations
from conductor.policy_writes import PolicyWrites
from conductor.schema import cell_disowned, cell_operations
from conductor.steps import Step
from conductor.worker import Worker
from moorage.bus import Bus, Client
from moorage.database import Database
from moorage.requests import StoredRequests


class CellParts:
    """The parts of one cell conductor, made in the order in which they need each other.

    Nothing is opened here. The worker comes between the two halves: it needs the steps, and whoever takes orders
    needs it.

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
        peer: Peer,
        declared: DeclaredDown,
    ) -> None:
        self._conf = conf
        self._database = database
        self._operations = operations
        self.scope = {"cell_uuid": cell_uuid}
        self.disowned = DisownedClaims(cell_disowned, self.scope)
        self._records = CellRecords(cell_uuid)
        self._migrations = MigrationRecords(self._records)
        self._courses = Courses(self._records, self._migrations)
        self.hosts = CellHosts(conf, database, cell_uuid)
        self.agents = self._agents = CellAgents(conf, cell_uuid, bus, self.hosts, operations.backoff)
        self._guests = CellGuests(conf, self._agents)
        self._peer = peer
        self._declared = declared
        self._cleanings = CellCleanings(database, self._records, operations, self._agents, peer)
        self._writes = PolicyWrites(conf, peer)
        self._deletes = CellDeletes(
            conf, database, self._records, self._migrations, operations, self._agents, self._cleanings, self._writes
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
            declared,
            self._cleanings,
            self._writes,
        )

    def steps(self) -> dict[tuple[str, str], Step]:
        """Return the function for each step of each kind of operation."""
        conf, database, records = self._conf, self._database, self._records
        fall_back = FallBack(
            conf,
            database,
            records,
            self._courses,
            self.hosts,
            self._cleanings,
            self._declared,
            self._peer,
            self._operations.backoff,
        )
        builds = CellBuilds(conf, database, records, self.hosts, self._agents, self._courses)
        give_back = GiveBack(database, records, self._migrations, self._guests, fall_back, self._writes)
        stops = CellStops(conf, database, records, self._migrations, self._operations, self._guests)
        return (
            builds.steps()
            | stops.steps()
            | CellShelves(database, records, self._agents, self._declared, self._cleanings, self._peer).steps()
            | CellRebuilds(database, records, self._guests).steps()
            | CellResources(conf, database, records, self._peer).steps()
            | fall_back.steps()
            | give_back.steps()
            | self._ends.steps()
            | self._deletes.steps()
            | self._cleanings.steps()
            | CellHeals(database, records, self._holds, self._peer).steps()
        )

    def endpoints(self, stored: StoredRequests, worker: Worker, placement: Client) -> list[object]:
        """Return what the cell's topic serves."""
        database, records, operations = self._database, self._records, self._operations
        requests = CellRequests(database, stored, records.cell_uuid, worker)
        return [
            CellOrders(database, requests, records, operations, self._deletes, self.disowned),
            CellMoves(requests, records, self._migrations, operations, self.disowned, self._ends),
            ShelfOrders(database, requests, records, operations, self.disowned, self._declared),
            RebuildOrders(requests, records, operations),
            ResourceOrders(requests, records, operations),
            HealOrders(requests, records, operations, self._holds),
            self._holds,
            CellGates(database, records, operations, worker, self._courses, self._cleanings, self._ends, placement),
            *self.reports(worker),
            CellClaims(database, records, self._migrations, operations, self.disowned),
            CellProviders(database, self.scope["cell_uuid"], placement),
            CellInspection(database, records, self._migrations, OperationStates(cell_operations, self.scope)),
        ]

    def reports(self, worker: Worker) -> list[object]:
        """Return what keeps hosts up, and has those that were away return: it needs the cell's database alone."""
        returns = CellReturns(
            self._database, self._records, self._operations, worker, self.hosts, self._courses, self._cleanings
        )
        return [self.hosts, returns]
