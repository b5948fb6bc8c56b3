"""The super conductor: takes orders for instances, asks the scheduler, and hands over to the cells."""

import contextlib

from oslo_config import cfg
from sqlalchemy import Connection

from conductor import super_records
from conductor.cells import Cells
from conductor.operations import BUILD, Backoff, NewOperation, Operation, Operations
from conductor.schema import CONDUCTOR, conductor_operations, conductor_requests
from conductor.super_builds import Asking, SuperBuilds
from conductor.super_deletes import SuperDeletes
from conductor.super_view import SuperView
from conductor.worker import Worker
from moorage import context, errors, ids, logs
from moorage.bus import Bus, serves
from moorage.database import Database
from moorage.messages import BuildInstances, DeleteInstance, Done
from moorage.requests import StoredRequests


class Orders:
    """The orders of topic `conductor`: answered as soon as they are on record, done by the worker."""

    def __init__(self, requests: StoredRequests, operations: Operations, worker: Worker, deletes: SuperDeletes) -> None:
        self._requests = requests
        self._operations = operations
        self._worker = worker
        self._deletes = deletes

    @serves(BuildInstances)
    def build_instances(self, message: BuildInstances) -> list[str]:
        """Record instances and the operation that builds them."""
        uuids = message.instance_uuids
        if len(set(uuids)) != len(uuids):
            raise errors.InvalidRequest(path="$.instance_uuids", reason="an instance is named twice")
        request_id = context.current().request_id or message.request_id
        new = NewOperation(
            uuid=ids.derived(message.request_id, "build"),
            kind=BUILD,
            subject=message.request_id,
            step="select",
            payload=Asking(number=1, instance_uuids=uuids),
        )
        begun: list[Operation] = []

        def work(connection: Connection) -> list[str]:
            super_records.add(connection, uuids, message.request_spec, new.uuid, message.request_id)
            begun[:] = self._operations.begin(connection, [new], request_id)
            return list(uuids)

        answer = self._requests.once(message, work)
        if not answer.replayed:
            self._worker.take_up(*begun)
        return answer.result

    @serves(DeleteInstance)
    def delete_instance(self, message: DeleteInstance) -> Done:
        """Record the operation that deletes an instance."""
        begun: list[Operation] = []

        def work(connection: Connection) -> Done:
            begun[:] = self._deletes.order(connection, self._operations, message)
            return Done()

        answer = self._requests.once(message, work)
        if not answer.replayed:
            self._worker.take_up(*begun)
        return answer.result


class SuperConductor:
    """The service of topic `conductor` on the main bus.

    :param name: tells the super conductors apart; what one of this name has left undone is gone on with at once.
    :param backoff: how long to wait before a step is repeated.
    """

    def __init__(self, conf: cfg.ConfigOpts, name: str, backoff: Backoff | None = None) -> None:
        self._conf = conf
        self._name = name
        self._backoff = backoff or Backoff()
        self._closing = contextlib.ExitStack()

    def start(self) -> None:
        """Check the records' schema, go on with what was left, and take orders.

        :raises SchemaMismatch: `moorage db upgrade` is needed.
        :raises StoreUnavailable: the records cannot be reached.
        :raises BusUnavailable: the main bus cannot be reached.
        """
        with contextlib.ExitStack() as opened:
            self._open(opened)
            self._closing = opened.pop_all()

    def stop(self) -> None:
        """Take no more orders, do the steps under way to their end, and leave the rest on record."""
        self._closing.close()

    def _open(self, opened: contextlib.ExitStack) -> None:
        conf = self._conf
        database = Database(
            conf.conductor.connection or conf.database.connection,
            "conductor",
            pool_size=conf.database.pool_size,
            pool_timeout=conf.database.pool_timeout,
            lock_wait=conf.database.lock_wait_timeout,
            tries=conf.database.max_transaction_tries,
        )
        opened.callback(database.close)
        CONDUCTOR.check(database)
        bus = Bus(conf)
        opened.callback(bus.close)
        cells = Cells(conf, bus)
        opened.callback(cells.close)
        placement = bus.client("placement")
        operations = Operations(database, conductor_operations, self._name, {}, self._backoff)
        builds = SuperBuilds(conf, database, bus.client("scheduler"), placement, cells)
        deletes = SuperDeletes(database, placement, cells)
        steps = builds.steps() | deletes.steps()
        worker = Worker(operations, steps, conf.conductor.workers, logs.service_name(conf))
        orders = Orders(StoredRequests(database, conductor_requests), operations, worker, deletes)
        server = bus.server("conductor", self._name, [orders, SuperView(conf, database, cells)], conf.rpc.threads)
        opened.callback(worker.stop)
        worker.start()
        opened.callback(server.stop)
        server.start()
