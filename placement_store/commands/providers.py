"""The sub-commands `moorage resource provider create`, `list`, `show`, `set` and `delete`."""

import argparse
from functools import partial
from operator import attrgetter

from cliff.lister import Lister
from cliff.show import ShowOne
from msgspec import UNSET, UnsetType

from moorage import errors, ids
from moorage.cli import group_options, lists
from moorage.cli.arguments import argument, canonical_uuid, one_of
from moorage.cli.command import Record, ShownLines, ShownValue, Table, shown
from moorage.messages import (
    CreateResourceProvider,
    DeleteResourceProvider,
    ListProviderAllocations,
    ListResourceProviders,
    UpdateResourceProvider,
)
from moorage.model import ResourceGroup, ResourceProvider
from placement_store.commands.placement_command import PlacementCommand, ProviderCommand, find

COLUMNS = ("uuid", "name", "generation", "root_provider_uuid", "parent_provider_uuid")


def row(provider: ResourceProvider) -> tuple[ShownValue, ...]:
    """Return the row of a provider under :data:`COLUMNS`."""
    return shown(attrgetter(*COLUMNS)(provider))


class ProviderCreate(PlacementCommand, ShowOne):
    """Create a resource provider without inventories: a root, or with --parent-provider a child."""

    arguments = (
        argument("name", help="Name of the provider; it must be unique"),
        argument("--uuid", type=canonical_uuid, help="Uuid of the provider (default: a new one)"),
        argument("--parent-provider", metavar="PROVIDER", help="Parent provider (name or uuid)"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Create the provider and show it."""
        parent = parsed_args.parent_provider
        message = CreateResourceProvider(
            request_id=ids.fresh(),
            uuid=parsed_args.uuid or ids.fresh(),
            name=parsed_args.name,
            parent_provider_uuid=None if parent is None else self.uuid_of(parent),
        )
        return COLUMNS, row(self.change(message))


class ProviderList(PlacementCommand, Lister):
    """List resource providers by name: all, or those that meet all conditions.

    Each provider must meet the conditions alone: free capacity for all resources, all required traits, and so on.
    """

    only_reads = True
    arguments = (
        argument("--name", help="List only the provider with this name"),
        argument("--uuid", type=canonical_uuid, help="List only the provider with this uuid"),
        partial(group_options.add_group_options, trees_by_name=True),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return one row per provider."""
        asked = self.in_named_tree(group_options.group(parsed_args))
        message = ListResourceProviders(
            name=parsed_args.name, uuid=parsed_args.uuid, matching=None if asked == ResourceGroup() else asked
        )
        return COLUMNS, [row(provider) for provider in lists.providers(self.placement, message)]


class ProviderShow(ProviderCommand, ShowOne):
    """Show a resource provider, and with --allocations its consumers."""

    only_reads = True
    arguments = (
        argument("--allocations", action="store_true", help="Show the allocations from this provider by consumer"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Show the provider."""
        provider = find(self.placement, parsed_args.provider)
        if not parsed_args.allocations:
            return COLUMNS, row(provider)
        held = lists.provider_allocations(self.placement, ListProviderAllocations(uuid=provider.uuid))
        lines = [
            f"{consumer} {name}={amount}" for consumer, part in held.items() for name, amount in part.resources.items()
        ]
        allocations = {consumer: {"resources": part.resources} for consumer, part in held.items()}
        return (*COLUMNS, "allocations"), (*row(provider), ShownLines(allocations, lines))


class ProviderSet(ProviderCommand, ShowOne):
    """Rename a resource provider, change its parent, or make it a root.

    The provider keeps its children and its allocations.
    """

    arguments = (
        argument("--name", help="New name of the provider"),
        one_of(
            argument("--parent-provider", metavar="PROVIDER", help="New parent provider (name or uuid)"),
            argument("--no-parent-provider", action="store_true", help="Make the provider a root"),
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Change the provider and show it.

        :raises InvalidRequest: nothing is to be changed.
        """
        named = parsed_args.parent_provider
        parent: str | UnsetType | None = UNSET if named is None else self.uuid_of(named)
        if parsed_args.no_parent_provider:
            parent = None
        if parsed_args.name is None and parent is UNSET:
            raise errors.InvalidRequest(path="command line", reason="give at least one change")
        message = UpdateResourceProvider(
            request_id=ids.fresh(),
            uuid=self.uuid_of(parsed_args.provider),
            name=parsed_args.name,
            parent_provider_uuid=parent,
        )
        return COLUMNS, row(self.change(message))


class ProviderDelete(ProviderCommand):
    """Delete a resource provider and its inventories; it must have no children and no allocations."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete the provider."""
        self.change(DeleteResourceProvider(request_id=ids.fresh(), uuid=self.uuid_of(parsed_args.provider)))
