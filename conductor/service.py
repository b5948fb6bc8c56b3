"""The super conductor and the cell conductor as services: assemble the parts, start and stop them."""

import contextlib

from oslo_config import cfg

from conductor.cell.hosts.forced_down import ForcedDownHosts
from conductor.cell.hosts.forwarder import HostForwarder
from conductor.cell.hosts.loads import CellLoads
from conductor.cell.parts import CellParts
from conductor.engine.acknowledgements import Acknowledgements, AcknowledgingClient
from conductor.engine.operation_list import OperationStates
from conductor.engine.operations import Operations
from conductor.engine.revoked_claims import RevokedClaims
from conductor.engine.steps import Backoff
from conductor.engine.worker import Worker
from conductor.housekeeping import Housekeeping, pruner
from conductor.retention import CellDeletedInstances, CellEndedRecords, SuperDeletedInstances, SuperEndedRecords
from conductor.schema import (
    CELL,
    CONDUCTOR,
    cell_operations,
    cell_requests,
    conductor_disowned,
    conductor_operations,
    conductor_requests,
)
from conductor.super.cell_clients import Cells
from conductor.super.endpoints.builds import SuperOrders
from conductor.super.endpoints.claims import SuperClaims
from conductor.super.endpoints.forwarded import ForwardedOrders
from conductor.super.endpoints.inspection import SuperInspection
from conductor.super.endpoints.instances import SuperView
from conductor.super.endpoints.migrations import SuperMigrationView
from conductor.super.endpoints.moves import SuperMoveOrders
from conductor.super.endpoints.targets import Targets
from conductor.super.steps.build import SuperBuilds
from conductor.super.steps.delete import SuperDeletes
from conductor.super.steps.move import SuperMoves
from conductor.super.steps.unshelve import SuperUnshelves
from moorage import logs
from moorage.bus.bus import Bus, BusServer
from moorage.config.options import main_database
from moorage.db.database import Database
from moorage.messages import REPORTS_TOPIC, LocateCell, reports_topic
from moorage.model import Cell
from moorage.service.heartbeat import Heartbeat
from moorage.service.process import until_available
from moorage.service.stored_requests import Retention, StoredRequests

#: Threads for the reports of agents. Arbitrary: they wait only for the database.
_REPORT_THREADS = 4


class _Conductor:
    """The base of both conductors: opens its parts one by one, and closes them in the reverse order."""

    def __init__(self, conf: cfg.ConfigOpts, name: str, backoff: Backoff | None) -> None:
        self._conf = conf
        self._name = name
        first = conf.conductor.retry_backoff
        self._backoff = backoff or Backoff(first=first, longest=first * 30)
        self._closing = contextlib.ExitStack()

    def start(self) -> None:
        """Check the database schema, resume the operations on record, and take orders.

        :raises SchemaMismatch: `moorage db upgrade` is needed.
        :raises StoreUnavailable: the database cannot be reached.
        :raises BusUnavailable: a bus cannot be reached.
        :raises CellNotFound: a cell conductor's cell does not exist.
        """
        with contextlib.ExitStack() as opened:
            self._open(opened)
            self._closing = opened.pop_all()

    def stop(self) -> None:
        """Take no more orders, finish the steps under way, and leave the rest to other conductors."""
        self._closing.close()

    def _open(self, opened: contextlib.ExitStack) -> None:
        raise NotImplementedError

    def _database(self, opened: contextlib.ExitStack, url: str, schema: str) -> Database:
        database = Database.configured(self._conf, url, schema)
        opened.callback(database.close)
        return database

    def _bus(self, opened: contextlib.ExitStack, transport_url: str | None = None) -> Bus:
        bus = Bus(self._conf, transport_url)
        opened.callback(bus.close)
        return bus

    def _serve(self, opened: contextlib.ExitStack, server: BusServer, heartbeat: Heartbeat) -> None:
        """Start to serve, then the heartbeat; on closing, the heartbeat stops first."""
        opened.callback(server.stop)
        server.start()
        opened.callback(heartbeat.stop)
        heartbeat.start()


class SuperConductor(_Conductor):
    """The service of topic `conductor` on the main bus.

    :param name: its unique name among the super conductors; the operations of a former process of this name are
        resumed at once.
    :param backoff: the wait before a step is retried.
    """

    def __init__(self, conf: cfg.ConfigOpts, name: str, backoff: Backoff | None = None) -> None:
        super().__init__(conf, name, backoff)

    def _open(self, opened: contextlib.ExitStack) -> None:
        conf = self._conf
        database = self._database(opened, conf.conductor.connection or main_database(conf), "conductor")
        CONDUCTOR.check(database)
        bus = self._bus(opened)
        cells = Cells(conf, bus, self._backoff)
        opened.callback(cells.close)
        cells.bulkheads.start()
        acknowledgements = Acknowledgements(bus.client("placement"))
        placement = AcknowledgingClient(bus.client("placement"), acknowledgements)
        scheduler = AcknowledgingClient(bus.client("scheduler"), acknowledgements)

        operations = Operations(
            database, conductor_operations, self._name, {}, self._backoff, conf.conductor.lease_seconds
        )
        revoked_claims = RevokedClaims(conductor_disowned, {})
        builds = SuperBuilds(conf, database, revoked_claims, scheduler, placement, cells)
        deletes = SuperDeletes(conf, database, placement, cells)
        moves = SuperMoves(conf, database, scheduler, placement, cells)
        unshelves = SuperUnshelves(conf, database, scheduler, placement, cells)
        steps = builds.steps() | deletes.steps() | moves.steps() | unshelves.steps()
        service = logs.service_name(conf)
        worker = Worker(operations, steps, conf.conductor.workers, service, cells.bulkheads, acknowledgements)
        requests = StoredRequests(database, conductor_requests)
        orders = SuperOrders(requests, operations, worker, builds, deletes)
        view = SuperView(database, cells)
        migrations = SuperMigrationView(database, cells)
        targets = Targets(bus.client("scheduler"))
        move_orders = SuperMoveOrders(database, requests, operations, worker, view, targets)
        relays = ForwardedOrders(conf, database, requests, operations, cells)
        ended = SuperEndedRecords(database, conductor_operations, {}, _records_kept(conf))
        deleted = SuperDeletedInstances(database, cells, _instances_kept(conf))
        housekeeping = Housekeeping(
            acknowledgements,
            pruner(database, requests, revoked_claims, ended, deleted, Retention.of(conf)),
            conf.conductor.housekeeping_interval,
            service,
            [("deleted instances", deleted.sync_with_cells), ("migrations", migrations.sync_with_cells)],
        )
        claims = SuperClaims(conf, database, operations, revoked_claims, cells)
        inspection = SuperInspection(database, OperationStates(conductor_operations, {}), cells)

        reads = [view, migrations, claims, inspection]
        server = bus.server("conductor", self._name, [orders, move_orders, relays, *reads], conf.rpc.threads)
        opened.callback(housekeeping.stop)
        housekeeping.start()
        opened.callback(worker.stop)
        worker.start()
        self._serve(opened, server, Heartbeat(conf, bus, "conductor", self._name))


class CellConductor(_Conductor):
    """The service of topic `conductor.<cell uuid>` on a cell's bus.

    :param name: its unique name among the conductors of the cell; the operations of a former process of this name are
        resumed at once.
    :param cell_name: the name of the cell.
    :param backoff: the wait before a step is retried.
    """

    def __init__(self, conf: cfg.ConfigOpts, name: str, cell_name: str, backoff: Backoff | None = None) -> None:
        super().__init__(conf, name, backoff)
        self._cell_name = cell_name

    def _open(self, opened: contextlib.ExitStack) -> None:
        conf = self._conf
        bus = self._bus(opened)
        cell = until_available(lambda: self._cell(bus), f"the placement role, to learn of cell {self._cell_name}")
        database = self._database(opened, cell.database_connection or main_database(conf), f"cell {self._cell_name}")
        CELL.check(database)
        cell_bus = bus if cell.transport_url is None else self._bus(opened, cell.transport_url)
        acknowledgements = Acknowledgements(bus.client("placement"))
        placement = AcknowledgingClient(bus.client("placement"), acknowledgements)
        service = logs.service_name(conf) or self._name

        scope, lease = {"cell_uuid": cell.uuid}, conf.conductor.lease_seconds
        operations = Operations(database, cell_operations, self._name, scope, self._backoff, lease)
        # Shorter than the third of it that the super conductor waits for this cell's answer.
        forced_down = ForcedDownHosts(cell.uuid, bus.client("placement", timeout=conf.rpc.call_timeout / 4))
        parts = CellParts(conf, database, cell.uuid, operations, cell_bus, placement, forced_down)
        bulkheads = parts.agents.bulkheads
        opened.callback(bulkheads.stop)
        bulkheads.start()
        worker = Worker(operations, parts.steps(), conf.conductor.workers, service, bulkheads, acknowledgements)
        requests = StoredRequests(database, cell_requests)
        ended = CellEndedRecords(database, cell_operations, scope, _records_kept(conf))
        deleted = CellDeletedInstances(database, cell.uuid, _instances_kept(conf))
        prune = pruner(database, requests, parts.revoked_claims, ended, deleted, Retention.of(conf))
        housekeeping = Housekeeping(acknowledgements, prune, conf.conductor.housekeeping_interval, service)
        loads = CellLoads(conf, database, cell.uuid)
        forwarder = HostForwarder(conf, cell.uuid, parts.hosts, loads, bus.client(REPORTS_TOPIC), service)

        endpoints = parts.endpoints(requests, worker, bus.client("placement"))
        server = cell_bus.server(f"conductor.{cell.uuid}", self._name, endpoints, conf.rpc.threads)
        opened.callback(housekeeping.stop)
        housekeeping.start()
        opened.callback(worker.stop)
        worker.start()
        opened.callback(forwarder.stop)
        forwarder.start()
        reports = cell_bus.server(reports_topic(cell.uuid), self._name, parts.reports(worker), _REPORT_THREADS)
        opened.callback(reports.stop)
        reports.start()
        self._serve(opened, server, Heartbeat(conf, bus, "cell conductor", self._name, cell.uuid))

    def _cell(self, bus: Bus) -> Cell:
        placement = bus.client("placement", timeout=min(self._conf.rpc.call_timeout, 5.0))
        return placement.call(LocateCell(name=self._cell_name, with_database=True))


def _records_kept(conf: cfg.ConfigOpts) -> float:
    """Return the seconds for which an ended operation is kept: as long as any tombstone that may name it."""
    kept: float = conf.conductor.record_retention
    return max(kept, Retention.of(conf).tombstones)


def _instances_kept(conf: cfg.ConfigOpts) -> float:
    """Return the seconds for which a deleted instance is kept: at least as long as its operations."""
    kept: float = conf.conductor.deleted_instance_retention
    return max(kept, _records_kept(conf))
