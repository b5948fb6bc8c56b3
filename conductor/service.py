"""The two conductors as services: assembled from their parts, started and stopped."""

import contextlib

from oslo_config import cfg

from conductor.cell_builds import CellBuilds
from conductor.cell_deletes import CellDeletes
from conductor.cell_gates import CellGates
from conductor.cell_hosts import CellHosts, HostForwarder
from conductor.cell_orders import CellOrders
from conductor.cell_records import CellRecords
from conductor.cells import Cells
from conductor.operations import Operations
from conductor.schema import (
    CELL,
    CONDUCTOR,
    cell_operations,
    cell_requests,
    conductor_operations,
    conductor_requests,
)
from conductor.steps import Backoff
from conductor.super_builds import SuperBuilds
from conductor.super_deletes import SuperDeletes
from conductor.super_orders import SuperOrders
from conductor.super_view import SuperView
from conductor.worker import Worker
from moorage import errors, logs
from moorage.bus import Bus
from moorage.database import Database
from moorage.messages import ListCells
from moorage.model import Cell
from moorage.requests import StoredRequests
from moorage.service import until_available


class _Conductor:
    """What both conductors have in common: they are opened part by part, and closed in the other order."""

    def __init__(self, conf: cfg.ConfigOpts, name: str, backoff: Backoff | None) -> None:
        self._conf = conf
        self._name = name
        self._backoff = backoff or Backoff()
        self._closing = contextlib.ExitStack()

    def start(self) -> None:
        """Check the records' schema, go on with what was left undone, and take orders.

        :raises SchemaMismatch: `moorage db upgrade` is needed.
        :raises StoreUnavailable: the records cannot be reached.
        :raises BusUnavailable: a bus cannot be reached.
        :raises CellNotFound: a cell conductor's cell does not exist.
        """
        with contextlib.ExitStack() as opened:
            self._open(opened)
            self._closing = opened.pop_all()

    def stop(self) -> None:
        """Take no more orders, do the steps under way to their end, and leave the rest on record."""
        self._closing.close()

    def _open(self, opened: contextlib.ExitStack) -> None:
        raise NotImplementedError

    def _database(self, opened: contextlib.ExitStack, url: str, schema: str) -> Database:
        conf = self._conf.database
        database = Database(
            url,
            schema,
            pool_size=conf.pool_size,
            pool_timeout=conf.pool_timeout,
            lock_wait=conf.lock_wait_timeout,
            tries=conf.max_transaction_tries,
        )
        opened.callback(database.close)
        return database

    def _bus(self, opened: contextlib.ExitStack, transport_url: str | None = None) -> Bus:
        bus = Bus(self._conf, transport_url)
        opened.callback(bus.close)
        return bus


class SuperConductor(_Conductor):
    """The service of topic `conductor` on the main bus.

    :param name: tells the super conductors apart; what one of this name has left undone is gone on with at once.
    :param backoff: how long to wait before a step is repeated.
    """

    def __init__(self, conf: cfg.ConfigOpts, name: str, backoff: Backoff | None = None) -> None:
        super().__init__(conf, name, backoff)

    def _open(self, opened: contextlib.ExitStack) -> None:
        conf = self._conf
        database = self._database(opened, conf.conductor.connection or conf.database.connection, "conductor")
        CONDUCTOR.check(database)
        bus = self._bus(opened)
        cells = Cells(conf, bus)
        opened.callback(cells.close)
        placement = bus.client("placement")

        operations = Operations(database, conductor_operations, self._name, {}, self._backoff)
        builds = SuperBuilds(conf, database, bus.client("scheduler"), placement, cells)
        deletes = SuperDeletes(database, placement, cells)
        steps = builds.steps() | deletes.steps()
        worker = Worker(operations, steps, conf.conductor.workers, logs.service_name(conf))
        orders = SuperOrders(StoredRequests(database, conductor_requests), operations, worker, deletes)
        view = SuperView(conf, database, cells)

        server = bus.server("conductor", self._name, [orders, view], conf.rpc.threads)
        opened.callback(worker.stop)
        worker.start()
        opened.callback(server.stop)
        server.start()


class CellConductor(_Conductor):
    """The service of topic `conductor.<cell uuid>` on a cell's bus.

    :param name: tells the conductors of a cell apart; what one of this name has left undone is gone on with at once.
    :param cell_name: the cell.
    :param backoff: how long to wait before a step is repeated.
    """

    def __init__(self, conf: cfg.ConfigOpts, name: str, cell_name: str, backoff: Backoff | None = None) -> None:
        super().__init__(conf, name, backoff)
        self._cell_name = cell_name

    def _open(self, opened: contextlib.ExitStack) -> None:
        conf = self._conf
        bus = self._bus(opened)
        cell = until_available(lambda: self._cell(bus), f"the placement role, to learn of cell {self._cell_name}")
        database = self._database(
            opened, cell.database_connection or conf.database.connection, f"cell {self._cell_name}"
        )
        CELL.check(database)
        cell_bus = bus if cell.transport_url is None else self._bus(opened, cell.transport_url)
        placement = bus.client("placement")
        service = logs.service_name(conf) or self._name

        records = CellRecords(cell.uuid)
        operations = Operations(database, cell_operations, self._name, {"cell_uuid": cell.uuid}, self._backoff)
        hosts = CellHosts(conf, database, cell.uuid, placement)
        builds = CellBuilds(conf, database, records, hosts, placement, cell_bus)
        deletes = CellDeletes(database, records, placement, cell_bus)
        worker = Worker(operations, builds.steps() | deletes.steps(), conf.conductor.workers, service)
        orders = CellOrders(database, StoredRequests(database, cell_requests), records, operations, worker, deletes)
        gates = CellGates(database, records, operations, worker, builds, placement)
        forwarder = HostForwarder(conf, cell.uuid, hosts, bus.client("scheduler"), service)

        server = cell_bus.server(f"conductor.{cell.uuid}", self._name, [orders, gates, hosts], conf.rpc.threads)
        opened.callback(worker.stop)
        worker.start()
        opened.callback(forwarder.stop)
        forwarder.start()
        opened.callback(server.stop)
        server.start()

    def _cell(self, bus: Bus) -> Cell:
        for cell in bus.client("placement", timeout=min(self._conf.rpc.call_timeout, 5.0)).call(ListCells()):
            if cell.name == self._cell_name:
                return cell
        raise errors.CellNotFound(name=self._cell_name)
