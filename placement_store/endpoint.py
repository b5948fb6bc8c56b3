"""The methods of topic `placement` of the main bus that read and write placement itself."""

import logging
from collections.abc import Callable
from typing import TypeVar

from oslo_config import cfg
from sqlalchemy import Connection

from moorage.bus import serves
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
from placement_store.schema import requests

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
        released = self._once(message, lambda connection: claims.delete(connection, message, self._names))
        LOG.info("Consumer %s has released all it held%s", message.consumer_uuid, _but(released.residue_uuid))
        return released

    @serves(SwapClaim)
    def swap_claim(self, message: SwapClaim) -> Claimed:
        """Move a claim to the next host; see :func:`placement_store.claims.swap`."""
        claimed = self._once(message, lambda connection: claims.swap(connection, message, self._names))
        LOG.info(
            "The claim of consumer %s is now on %s%s",
            message.consumer_uuid,
            message.root_provider_uuid,
            _but(claimed.residue_uuid),
        )
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


def _but(residue_uuid: str | None) -> str:
    return "" if residue_uuid is None else f"; residue {residue_uuid} is left on its former host"
