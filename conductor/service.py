"""The super conductor and the cell conductor as services: assemble the parts, start and stop them."""

from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial

from oslo_config import cfg
from sqlalchemy import Table

from conductor.cell import parts as cell_parts
from conductor.cell.context import CellContext
from conductor.cell.hosts.forwarder import HostForwarder
from conductor.cell.hosts.hosts import CellHosts
from conductor.cell.hosts.loads import CellLoads
from conductor.engine import step_counts
from conductor.engine.acknowledgements import Acknowledgements
from conductor.engine.operations import Operations
from conductor.engine.steps import Backoff
from conductor.engine.worker import Worker
from conductor.housekeeping import Housekeeping, prune
from conductor.retention import CellDeletedInstances, CellEndedRecords, SuperDeletedInstances, SuperEndedRecords
from conductor.schema import CELL, CONDUCTOR, cell_operations, conductor_operations
from conductor.super import parts as super_parts
from conductor.super.cell_clients import Cells
from conductor.super.context import SuperContext
from conductor.super.endpoints.migrations import SuperMigrationView
from moorage import logs
from moorage.bus.bus import Bus, BusServer
from moorage.config.conductor import LONGEST_BACKOFF
from moorage.config.options import main_database
from moorage.db.database import Database
from moorage.db.schemas import SchemaProbe
from moorage.messages import REPORTS_TOPIC, LocateCell, reports_topic
from moorage.model import Cell
from moorage.service.heartbeat import Heartbeat
from moorage.service.process import ComposedService, Periodic, Service, until_available
from moorage.service.stored_requests import Retention

#: Threads for the reports of agents. Arbitrary: they wait only for the database.
_REPORT_THREADS = 4


class _Conductor(ComposedService):
    """The base of both conductors: their start checks the schema, resumes the operations on record, and takes orders.

    A stop finishes the steps in progress, and leaves the rest to other conductors.

    :param name: its unique name among the super conductors, or among the conductors of its cell; the operations of an
        earlier process of this name are resumed at once.
    """

    def __init__(self, conf: cfg.ConfigOpts, name: str, backoff: Backoff | None = None) -> None:
        super().__init__()
        self._conf = conf
        self._name = name
        first = conf.conductor.retry_backoff
        self._backoff = backoff or Backoff(first=first, longest=first * LONGEST_BACKOFF)

    def _observe(
        self,
        probe: SchemaProbe,
        table: Table,
        scope: Mapping[str, str],
        worker: Worker,
        heartbeat: Heartbeat,
        *servers: BusServer,
    ) -> None:
        """Set the checks of its readiness, and the samplers of its metrics."""

        def check_servers() -> None:
            for server in servers:
                server.check()

        self._checks = {
            "database": probe.check,
            "broker": check_servers,
            "placement": heartbeat.check,
            "workers": worker.check,
        }
        self._samplers = {"operations": partial(step_counts.pending, probe.database, table, scope)}

    def _operations(self, database: Database, table: Table, scope: dict[str, str]) -> Operations:
        return Operations(database, table, self._name, scope, self._backoff, self._conf.conductor.lease_seconds)

    def _start(self, opened: ExitStack, *parts: Service) -> None:
        """Start parts one after the other; on closing, the last one stops first."""
        for part in parts:
            opened.callback(part.stop)
            part.start()


class SuperConductor(_Conductor):
    """The service of topic `conductor` on the main bus."""

    def _open(self, opened: ExitStack) -> None:
        """Open the parts.

        :raises SchemaMismatch: `moorage db upgrade` is needed.
        :raises StoreUnavailable: the database cannot be reached.
        :raises BusUnavailable: the bus cannot be reached.
        """
        conf = self._conf
        url = conf.conductor.connection or main_database(conf)
        database = opened.enter_context(closing(Database.configured(conf, url, "conductor")))
        CONDUCTOR.check(database)
        bus = opened.enter_context(closing(Bus(conf)))
        cells = opened.enter_context(closing(Cells(conf, bus, self._backoff)))
        cells.bulkheads.start()
        acknowledgements = Acknowledgements(bus.client("placement"))
        operations = self._operations(database, conductor_operations, {})
        service = logs.service_name(conf)
        context = SuperContext(conf, database, operations, acknowledgements, bus, cells, service)
        self._start(opened, context.endpoint_bulkheads)
        steps = super_parts.steps(context)
        ended = SuperEndedRecords(database, conductor_operations, {}, _records_kept(conf))
        deleted = SuperDeletedInstances(database, cells, _instances_kept(conf))
        housekeeping = Housekeeping(
            conf,
            acknowledgements,
            partial(prune, database, context.stored, context.revoked_claims, ended, deleted, Retention.of(conf)),
            service,
            [
                ("deleted instances", deleted.sync_with_cells),
                ("migrations", SuperMigrationView(context).sync_with_cells),
            ],
        )
        server = bus.server("conductor", self._name, super_parts.endpoints(context), conf.rpc.threads)
        self._start(opened, housekeeping)
        opened.callback(context.worker.stop)
        context.worker.start(steps)
        heartbeat = Heartbeat(conf, bus, "conductor", self._name)
        self._start(opened, server, heartbeat)
        probe = opened.enter_context(closing(SchemaProbe(conf, CONDUCTOR, url, "conductor")))
        self._observe(probe, conductor_operations, {}, context.worker, heartbeat, server)


class CellConductor(_Conductor):
    """The service of topic `conductor.<cell uuid>` on a cell's bus."""

    def __init__(self, conf: cfg.ConfigOpts, name: str, cell_name: str, backoff: Backoff | None = None) -> None:
        super().__init__(conf, name, backoff)
        self._cell_name = cell_name

    def _open(self, opened: ExitStack) -> None:
        """Open the parts; besides the errors of the super conductor's start there is one.

        :raises CellNotFound: the cell does not exist.
        """
        conf = self._conf
        bus = opened.enter_context(closing(Bus(conf)))
        cell = until_available(lambda: self._cell(bus), f"the placement role, to learn of cell {self._cell_name}")
        url, schema = cell.database_connection or main_database(conf), f"cell {self._cell_name}"
        database = opened.enter_context(closing(Database.configured(conf, url, schema)))
        CELL.check(database)
        own = cell.transport_url
        cell_bus = bus if own is None else opened.enter_context(closing(Bus(conf, own)))
        acknowledgements = Acknowledgements(bus.client("placement"))
        scope = {"cell_uuid": cell.uuid}
        operations = self._operations(database, cell_operations, scope)
        service = logs.service_name(conf) or self._name
        context = CellContext(conf, cell, database, operations, acknowledgements, bus, cell_bus, service)
        self._start(opened, context.agents.bulkheads, context.endpoint_bulkheads)
        steps = cell_parts.steps(context)
        deleted_hosts = context.forced_down.deleted
        ended = CellEndedRecords(database, cell_operations, scope, _records_kept(conf), deleted_hosts=deleted_hosts)
        deleted = CellDeletedInstances(database, cell.uuid, _instances_kept(conf))
        pruning = partial(prune, database, context.stored, context.revoked_claims, ended, deleted, Retention.of(conf))
        housekeeping = Housekeeping(conf, acknowledgements, pruning, service)
        loads = CellLoads(conf, database, cell.uuid)
        forwarder = HostForwarder(conf, cell.uuid, context.hosts, loads, bus.client(REPORTS_TOPIC), service)
        topic = f"conductor.{cell.uuid}"
        server = cell_bus.server(topic, self._name, cell_parts.endpoints(context), conf.rpc.threads)
        endpoints = cell_parts.reports(context)
        reports = cell_bus.server(reports_topic(cell.uuid), self._name, endpoints, _REPORT_THREADS)
        heartbeat = Heartbeat(conf, bus, "cell conductor", self._name, cell.uuid)
        self._start(opened, housekeeping)
        opened.callback(context.worker.stop)
        context.worker.start(steps)
        self._start(opened, forwarder, reports, server, heartbeat, _watch_of_reports(conf, context.hosts, reports))
        probe = opened.enter_context(closing(SchemaProbe(conf, CELL, url, schema)))
        self._observe(probe, cell_operations, scope, context.worker, heartbeat, reports, server)

    def _cell(self, bus: Bus) -> Cell:
        placement = bus.client("placement", timeout=min(self._conf.rpc.call_timeout, 5.0))
        return placement.call(LocateCell(name=self._cell_name, with_database=True))


def _watch_of_reports(conf: cfg.ConfigOpts, hosts: CellHosts, reports: BusServer) -> Periodic:
    """Return a thread that checks whether reports of hosts can arrive and be recorded."""

    def check() -> float:
        reports.check()
        return hosts.database_clock()

    return Periodic("reports of hosts", partial(hosts.reach.note, check), conf.scheduler.host_down_after / 3)


def _records_kept(conf: cfg.ConfigOpts) -> float:
    """Return the seconds for which an ended operation is kept: at least as long as any tombstone that may name it."""
    kept: float = conf.conductor.record_retention
    return max(kept, Retention.of(conf).tombstones)


def _instances_kept(conf: cfg.ConfigOpts) -> float:
    """Return the seconds for which a deleted instance is kept: at least as long as its operations."""
    kept: float = conf.conductor.deleted_instance_retention
    return max(kept, _records_kept(conf))
