"""The placement role: topic `placement` of the main bus, served on its own or in a scheduler's process."""

import logging
from collections.abc import Callable
from typing import TypeVar

from oslo_config import cfg
from sqlalchemy import Connection

from moorage.bus import Bus, BusServer, serves
from moorage.database import Database
from moorage.messages import (
    AcceptClaim,
    Claimed,
    ConsumerWritten,
    CreateResourceProvider,
    DeleteAllocations,
    DeleteResourceProvider,
    Done,
    GetAllocations,
    GetResourceProvider,
    ListCells,
    ListResourceProviders,
    PostAllocations,
    PutAllocations,
    Released,
    ReportProviders,
    SetInventories,
    SwapClaim,
)
from moorage.model import Cell, Consumer, ResourceProvider
from moorage.requests import StoredRequests
from moorage.wire import Mutation
from placement_store import cells, claims, consumers, inventories, providers, puts
from placement_store.names import ResourceClassNames
from placement_store.races import until_settled
from placement_store.schema import MAIN, requests

LOG = logging.getLogger(__name__)

R = TypeVar("R")


class PlacementEndpoint:
    """The methods of topic `placement`."""

    def __init__(self, conf: cfg.ConfigOpts, database: Database, names: ResourceClassNames) -> None:
        self._conf = conf
        self._database = database
        self._names = names
        self._requests = StoredRequests(database, requests)

    def _once(self, message: Mutation[R], work: Callable[[Connection], R]) -> R:
        """Do what a request asks for and store its answer with it, or return the answer stored before."""
        return until_settled(lambda: self._requests.once(message, work).result)

    # --- Cells and providers ----------------------------------------------------------------------------------------

    @serves(ListCells)
    def list_cells(self, _message: ListCells) -> list[Cell]:
        """Return all cells by name."""
        return cells.list_cells(self._database)

    @serves(CreateResourceProvider)
    def create_resource_provider(self, message: CreateResourceProvider) -> ResourceProvider:
        """Create a root provider without inventory.

        :raises AlreadyExists: the uuid or the name is taken.
        """

        def work(connection: Connection) -> ResourceProvider:
            providers.create(connection, {message.uuid: message.name})
            return providers.get(connection, message.uuid, self._names)

        return self._once(message, work)

    @serves(DeleteResourceProvider)
    def delete_resource_provider(self, message: DeleteResourceProvider) -> Done:
        """Delete a provider that nobody holds anything of.

        :raises ProviderNotFound: there is none of that uuid.
        :raises ProviderInUse: somebody holds something of it.
        """

        def work(connection: Connection) -> Done:
            providers.delete(connection, message.uuid)
            return Done()

        return self._once(message, work)

    @serves(GetResourceProvider)
    def get_resource_provider(self, message: GetResourceProvider) -> ResourceProvider:
        """Return one provider.

        :raises ProviderNotFound: there is none of that uuid.
        """
        return self._database.read(lambda connection: providers.get(connection, message.uuid, self._names))

    @serves(ListResourceProviders)
    def list_resource_providers(self, message: ListResourceProviders) -> list[ResourceProvider]:
        """Return all providers by name, or the one of that name."""
        return self._database.read(lambda connection: providers.list_providers(connection, message.name, self._names))

    @serves(SetInventories)
    def set_inventories(self, message: SetInventories) -> ResourceProvider:
        """Replace all inventories of a provider; see :func:`placement_store.inventories.set_inventories`."""

        def work(connection: Connection) -> ResourceProvider:
            inventories.set_inventories(connection, message, self._names)
            return providers.get(connection, message.uuid, self._names)

        self._names.ensure(message.inventories)
        return self._once(message, work)

    @serves(ReportProviders)
    def report_providers(self, message: ReportProviders) -> Done:
        """Make providers what their hosts say they are; see :func:`placement_store.inventories.report`."""

        def work(connection: Connection) -> Done:
            inventories.report(connection, message.providers, self._names)
            return Done()

        self._names.ensure({name for provider in message.providers for name in provider.inventories})
        return self._once(message, work)

    # --- Allocations and claims -------------------------------------------------------------------------------------

    @serves(GetAllocations)
    def get_allocations(self, message: GetAllocations) -> Consumer:
        """Return one consumer with all that it holds.

        :raises ConsumerNotFound: there is none of that uuid.
        """
        return self._database.read(lambda connection: consumers.get(connection, message.consumer_uuid, self._names))

    @serves(PutAllocations)
    def put_allocations(self, message: PutAllocations) -> ConsumerWritten:
        """Replace all allocations of one consumer; see :func:`placement_store.puts.put`."""
        uuid = message.consumer_uuid
        return self._once(message, lambda connection: puts.put(connection, {uuid: message.wanted}, self._names)[uuid])

    @serves(PostAllocations)
    def post_allocations(self, message: PostAllocations) -> dict[str, ConsumerWritten]:
        """Replace all allocations of several consumers at once; see :func:`placement_store.puts.put`."""
        return self._once(message, lambda connection: puts.put(connection, message.consumers, self._names))

    @serves(DeleteAllocations)
    def delete_allocations(self, message: DeleteAllocations) -> Released:
        """Release all that a consumer holds; see :func:`placement_store.claims.delete`."""
        return self._once(message, lambda connection: claims.delete(connection, message, self._names))

    @serves(SwapClaim)
    def swap_claim(self, message: SwapClaim) -> Claimed:
        """Move a claim to the next host; see :func:`placement_store.claims.swap`."""
        claimed = self._once(message, lambda connection: claims.swap(connection, message, self._names))
        LOG.info("The claim of consumer %s is now on %s", message.consumer_uuid, message.root_provider_uuid)
        return claimed

    @serves(AcceptClaim)
    def accept_claim(self, message: AcceptClaim) -> Done:
        """Take a claim for an attempt's host; see :func:`placement_store.consumers.accept`.

        It can be repeated as it is, and its answer is not stored: a stored yes would outlive the claim.
        """

        def work(connection: Connection) -> Done:
            consumers.accept(connection, message)
            return Done()

        done = self._database.write(work)
        LOG.info("Host %s has accepted the claim of consumer %s", message.host, message.consumer_uuid)
        return done


class PlacementService:
    """The placement role as a service of its own."""

    def __init__(self, conf: cfg.ConfigOpts, name: str) -> None:
        self._conf = conf
        self._name = name
        self._database = Database(
            conf.database.connection,
            MAIN.name,
            pool_size=conf.database.pool_size,
            pool_timeout=conf.database.pool_timeout,
            lock_wait=conf.database.lock_wait_timeout,
            tries=conf.database.max_transaction_tries,
        )
        self._bus = Bus(conf)
        self._server: BusServer | None = None

    def start(self) -> None:
        """Begin to serve.

        :raises SchemaMismatch: the tables are older or newer than this version.
        :raises StoreUnavailable: the database cannot be reached.
        :raises BusUnavailable: the broker cannot be reached.
        """
        MAIN.check(self._database)
        names = ResourceClassNames(self._database)
        names.sync()
        endpoint = PlacementEndpoint(self._conf, self._database, names)
        self._server = self._bus.server("placement", self._name, [endpoint], threads=self._conf.rpc.threads)
        self._server.start()

    def stop(self) -> None:
        """Answer what has been taken, and close all connections."""
        if self._server is not None:
            self._server.stop()
        self._bus.close()
        self._database.close()
