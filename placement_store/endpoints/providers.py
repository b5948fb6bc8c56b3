"""Serve the methods of topic `placement` about providers: trees, inventories, traits, aggregates and usages."""

from collections.abc import Callable

from sqlalchemy import Connection

from moorage import errors
from moorage.bus.bus import serves
from moorage.db.database import Database
from moorage.messages import (
    CreateResourceProvider,
    DeleteInventories,
    DeleteInventory,
    DeleteResourceProvider,
    Done,
    GetResourceProvider,
    ListProviderAllocations,
    ListProviderTrees,
    ListResourceProviders,
    ListUsages,
    ProvidersReported,
    ReportProviders,
    SetAggregates,
    SetInventories,
    SetInventory,
    SetTraits,
    UpdateResourceProvider,
)
from moorage.messages.wire import Mutation
from moorage.model import ProviderAllocations, ResourceProvider, Usage
from placement_store.db import change_feed
from placement_store.db.names import ResourceClassNames, TraitNames
from placement_store.endpoints import StoreEndpoint
from placement_store.providers import aggregates, inventories, report, traits, usages
from placement_store.providers import create as new_providers
from placement_store.providers import read as provider_list
from placement_store.providers import tree as trees
from placement_store.providers.create import NewProvider


class ProviderEndpoint(StoreEndpoint):
    """Serve resource providers."""

    def __init__(self, database: Database, names: ResourceClassNames) -> None:
        super().__init__(database, names)
        self._traits = TraitNames(database)

    def _provider_after(
        self, message: Mutation[ResourceProvider], uuid: str, work: Callable[[Connection], object]
    ) -> ResourceProvider:
        """Carry out a request about a provider once, and return the provider as it is afterwards."""

        def transaction(connection: Connection) -> ResourceProvider:
            work(connection)
            return provider_list.get(connection, uuid, self._names)

        return self._once(message, transaction)

    # --- Providers ----------------------------------------------------------------------------------------------------

    @serves(CreateResourceProvider)
    def create_resource_provider(self, message: CreateResourceProvider) -> ResourceProvider:
        """Create a provider without inventory: a root, or the child of a parent.

        :raises AlreadyExists: the uuid or the name is taken.
        :raises ProviderNotFound: there is no such parent.
        :raises InvalidRequest: the parent is the provider itself.
        """
        if message.parent_provider_uuid == message.uuid:
            raise errors.InvalidRequest(path="$.parent_provider_uuid", reason="it is the provider itself")
        new = NewProvider(message.uuid, message.name, message.parent_provider_uuid)

        def work(connection: Connection) -> None:
            created = new_providers.create(connection, [new])
            change_feed.record(connection, provider_ids=created.values())

        return self._provider_after(message, message.uuid, work)

    @serves(UpdateResourceProvider)
    def update_resource_provider(self, message: UpdateResourceProvider) -> ResourceProvider:
        """Change the name or the parent of a provider; see :func:`placement_store.providers.tree.update`."""
        return self._provider_after(message, message.uuid, lambda connection: trees.update(connection, message))

    @serves(DeleteResourceProvider)
    def delete_resource_provider(self, message: DeleteResourceProvider) -> Done:
        """Delete a provider; see :func:`placement_store.providers.tree.delete`."""

        def work(connection: Connection) -> Done:
            trees.delete(connection, message.uuid)
            return Done()

        return self._once(message, work)

    @serves(GetResourceProvider)
    def get_resource_provider(self, message: GetResourceProvider) -> ResourceProvider:
        """Return one provider.

        :raises ProviderNotFound: there is none of that uuid.
        """
        return self._database.read(lambda connection: provider_list.get(connection, message.uuid, self._names))

    @serves(ListResourceProviders)
    def list_resource_providers(self, message: ListResourceProviders) -> list[ResourceProvider]:
        """Return providers by name; see :func:`placement_store.providers.read.list_providers`."""
        return self._database.read(lambda connection: provider_list.list_providers(connection, message, self._names))

    @serves(ListProviderTrees)
    def list_provider_trees(self, message: ListProviderTrees) -> list[ResourceProvider]:
        """Return whole trees; see :func:`placement_store.providers.read.list_trees`."""
        return self._database.read(lambda connection: provider_list.list_trees(connection, message.uuids, self._names))

    @serves(ReportProviders)
    def report_providers(self, message: ReportProviders) -> ProvidersReported:
        """Apply a report of an agent's provider trees; see :func:`placement_store.providers.report.report`.

        Custom resource classes and traits are created by being reported: the hosts' drivers define them.
        """

        def work(connection: Connection) -> ProvidersReported:
            return ProvidersReported(generations=report.report(connection, message, self._names))

        self._names.ensure({name for one in message.providers for name in one.inventories})
        self._traits.ensure({name for one in message.providers for name in one.traits or ()})
        return self._once(message, work)

    # --- Inventories, traits and aggregates ---------------------------------------------------------------------------

    @serves(SetInventories)
    def set_inventories(self, message: SetInventories) -> ResourceProvider:
        """Replace all inventories of a provider; see :func:`placement_store.providers.inventories.set_inventories`."""
        return self._provider_after(
            message, message.uuid, lambda connection: inventories.set_inventories(connection, message, self._names)
        )

    @serves(SetInventory)
    def set_inventory(self, message: SetInventory) -> ResourceProvider:
        """Set the inventory of one class; see :func:`placement_store.providers.inventories.set_inventory`."""
        return self._provider_after(
            message, message.uuid, lambda connection: inventories.set_inventory(connection, message, self._names)
        )

    @serves(DeleteInventory)
    def delete_inventory(self, message: DeleteInventory) -> ResourceProvider:
        """Delete the inventory of one class; see :func:`placement_store.providers.inventories.delete_inventory`."""
        return self._provider_after(
            message, message.uuid, lambda connection: inventories.delete_inventory(connection, message, self._names)
        )

    @serves(DeleteInventories)
    def delete_inventories(self, message: DeleteInventories) -> ResourceProvider:
        """Delete all inventories; see :func:`placement_store.providers.inventories.delete_inventories`."""
        return self._provider_after(
            message, message.uuid, lambda connection: inventories.delete_inventories(connection, message, self._names)
        )

    @serves(SetTraits)
    def set_traits(self, message: SetTraits) -> ResourceProvider:
        """Replace all traits of a provider; see :func:`placement_store.providers.traits.set_traits`."""
        return self._provider_after(message, message.uuid, lambda connection: traits.set_traits(connection, message))

    @serves(SetAggregates)
    def set_aggregates(self, message: SetAggregates) -> ResourceProvider:
        """Replace all aggregates of a provider; see :func:`placement_store.providers.aggregates.set_aggregates`."""
        return self._provider_after(
            message, message.uuid, lambda connection: aggregates.set_aggregates(connection, message)
        )

    # --- Usages -------------------------------------------------------------------------------------------------------

    @serves(ListProviderAllocations)
    def list_provider_allocations(self, message: ListProviderAllocations) -> ProviderAllocations:
        """Return the consumers with allocations of one provider, or one page of them.

        :raises ProviderNotFound: there is none of that uuid.
        """
        return self._database.read(lambda connection: usages.of_provider(connection, message, self._names))

    @serves(ListUsages)
    def list_usages(self, message: ListUsages) -> list[Usage]:
        """Return the usages of a project; see :func:`placement_store.providers.usages.of_project`."""
        return self._database.read(lambda connection: usages.of_project(connection, message, self._names))
