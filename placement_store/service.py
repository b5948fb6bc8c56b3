"""Run the placement role: topic `placement`, reconciler and pruning, in a process of its own or in a scheduler's."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from oslo_config import cfg

from moorage.batches import BatchItem
from moorage.bus.bus import Bus, serves_many
from moorage.db.database import Database
from moorage.db.schemas import SchemaProbe
from moorage.messages import AcceptClaim, Done
from moorage.service.heartbeat import Heartbeat
from moorage.service.process import ComposedService, Periodic
from moorage.service.stored_requests import Retention
from placement_store.db.names import ResourceClassNames, sync
from placement_store.dispatcher import Dispatcher
from placement_store.schema import MAIN
from placement_store.upkeep.pruning import Pruning
from placement_store.upkeep.reconciler import Reconciler


class PlacementRole:
    """Serve topic `placement`, reconcile claims and prune the store; any number of processes may do so.

    :param name: the unique name of this server of the topic.
    :param bus: the main bus; the caller closes it and ``database``.
    """

    def __init__(
        self, conf: cfg.ConfigOpts, name: str, bus: Bus, database: Database, names: ResourceClassNames
    ) -> None:
        self._database = database
        self._dispatcher = Dispatcher(database, names)
        services = [self._dispatcher.handlers(), self]
        self._server = bus.server("placement", name, services, threads=conf.rpc.threads)
        self._reconciler = Reconciler(conf, bus, self._dispatcher)
        pruning = Pruning(database, Retention.of(conf))
        self._periodics = [
            Periodic("reconciler", self._reconciler.round, conf.placement.reconcile_interval),
            Periodic("pruning of the store", pruning.round, conf.service.prune_interval),
        ]

    @serves_many(AcceptClaim)
    def accept_many(self, calls: Sequence[BatchItem[AcceptClaim, Done]]) -> list[Callable[[], Done] | None]:
        """Accept claims that arrive in one message in one transaction: hosts send dozens of them together."""
        return self._dispatcher.accept_many(calls)

    def start(self) -> None:
        """Write the standard names, and start the server and the periodic tasks.

        :raises StoreUnavailable: the database cannot be reached.
        :raises BusUnavailable: the broker cannot be reached.
        """
        sync(self._database)
        self._server.start()
        for periodic in self._periodics:
            periodic.start()

    def check(self) -> None:
        """Check that its server gets messages and answers them; see :meth:`moorage.bus.bus.BusServer.check`."""
        self._server.check()

    def stop(self) -> None:
        """Finish the requests that were received and the rounds that are running, and stop."""
        self._reconciler.end()
        self._server.stop()
        for periodic in self._periodics:
            periodic.stop()


class PlacementService(ComposedService):
    """Run the placement role as a service of its own."""

    def __init__(self, conf: cfg.ConfigOpts, name: str) -> None:
        super().__init__()
        self._conf = conf
        self._name = name

    def _open(self, opened: ExitStack) -> None:
        """Check the schema, open the connections and start the role.

        :raises SchemaMismatch: the tables are older or newer than this version.
        :raises StoreUnavailable: the database cannot be reached.
        :raises BusUnavailable: the broker cannot be reached.
        """
        database = Database.configured(self._conf)
        opened.callback(database.close)
        MAIN.check(database)
        bus = Bus(self._conf)
        opened.callback(bus.close)
        role = PlacementRole(self._conf, self._name, bus, database, ResourceClassNames(database))
        opened.callback(role.stop)
        role.start()
        heartbeat = Heartbeat(self._conf, bus, "placement", self._name)
        opened.callback(heartbeat.stop)
        heartbeat.start()
        probe = SchemaProbe(self._conf, MAIN)
        opened.callback(probe.close)
        self._checks = {"database": probe.check, "broker": role.check}
