"""The sub-commands `moorage resource provider create`, `list`, `show`, `set` and `delete`."""

import argparse
from typing import Any

from cliff.command import Command
from cliff.lister import Lister
from cliff.show import ShowOne
from msgspec import UNSET, UnsetType

from moorage import errors, ids
from moorage.cli import group_options, lists
from moorage.cli.command import ShownLines, ShownValue, shown
from moorage.messages import (
    CreateResourceProvider,
    DeleteResourceProvider,
    ListProviderAllocations,
    ListResourceProviders,
    UpdateResourceProvider,
)
from moorage.model import ResourceGroup, ResourceProvider
from placement_store.commands import argument_types
from placement_store.commands.named_providers import ProviderCommand, find, in_named_tree, uuid_of
from placement_store.commands.placement_command import PlacementCommand

COLUMNS = ("uuid", "name", "generation", "root_provider_uuid", "parent_provider_uuid")

Shown = tuple[tuple[str, ...], tuple[Any, ...]]


def row(provider: ResourceProvider) -> tuple[ShownValue, ...]:
    """Return the row of a provider under :data:`COLUMNS`."""
    return shown(
        (
            provider.uuid,
            provider.name,
            provider.generation,
            provider.root_provider_uuid,
            provider.parent_provider_uuid,
        )
    )


class ProviderCreate(PlacementCommand, ShowOne):
    """Create a resource provider without inventory: a root, or with --parent-provider a child."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        add = parser.add_argument
        add("name", help="what it is called; no two have the same name")
        add("--uuid", type=argument_types.uuid, help="its uuid; default: a new one")
        add("--parent-provider", metavar="PROVIDER", help="its parent, by uuid or name")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        """Create the provider and show it.

        :raises AlreadyExists: the name or the uuid is taken.
        :raises ProviderNotFound: there is no such parent.
        """
        parent = parsed_args.parent_provider
        message = CreateResourceProvider(
            request_id=ids.fresh(),
            uuid=parsed_args.uuid or ids.fresh(),
            name=parsed_args.name,
            parent_provider_uuid=None if parent is None else uuid_of(self.placement, parent),
        )
        return COLUMNS, row(self.change(message))


class ProviderList(PlacementCommand, Lister):
    """List resource providers by name: all, or those for which everything that is said is true.

    A provider is judged for itself: whether it has room for all resources at once, all required traits, and so on.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--name", help="the one of this name")
        parser.add_argument("--uuid", type=argument_types.uuid, help="the one of this uuid")
        group_options.add_group_options(parser, trees_by_name=True)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Return one row per provider."""
        asked = in_named_tree(self.placement, group_options.group(parsed_args))
        message = ListResourceProviders(
            name=parsed_args.name, uuid=parsed_args.uuid, matching=None if asked == ResourceGroup() else asked
        )
        return COLUMNS, [row(provider) for provider in lists.providers(self.placement, message)]


class ProviderShow(ProviderCommand, ShowOne):
    """Show a resource provider; with --allocations also who holds what of it."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--allocations", action="store_true", help="who holds what of it")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        """Show the provider.

        :raises ProviderNotFound: there is no such provider.
        """
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
    """Give a resource provider another name or another parent, or make it the root of a tree of its own.

    Its children stay its children. What is allocated of it stays where it is.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--name", help="its new name")
        where = parser.add_mutually_exclusive_group()
        where.add_argument("--parent-provider", metavar="PROVIDER", help="its new parent, by uuid or name")
        where.add_argument("--no-parent-provider", action="store_true", help="it is a root from now on")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Shown:
        """Change the provider and show it.

        :raises ProviderNotFound: there is no such provider, or no such parent.
        :raises AlreadyExists: the name is taken.
        :raises InvalidRequest: nothing is to be changed, or its parent would be below it.
        """
        parent = self._parent(parsed_args)
        if parsed_args.name is None and parent is UNSET:
            raise errors.InvalidRequest(path="command line", reason="nothing was said that is to be changed")
        message = UpdateResourceProvider(
            request_id=ids.fresh(),
            uuid=uuid_of(self.placement, parsed_args.provider),
            name=parsed_args.name,
            parent_provider_uuid=parent,
        )
        return COLUMNS, row(self.change(message))

    def _parent(self, given: argparse.Namespace) -> str | UnsetType | None:
        if given.no_parent_provider:
            return None
        return UNSET if given.parent_provider is None else uuid_of(self.placement, given.parent_provider)


class ProviderDelete(ProviderCommand, Command):
    """Delete a resource provider that has no children and that nobody holds anything of, with its inventories."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete the provider.

        :raises ProviderNotFound: there is no such provider.
        :raises ProviderInUse: a consumer has allocations of it, or it has children.
        """
        uuid = uuid_of(self.placement, parsed_args.provider)
        self.change(DeleteResourceProvider(request_id=ids.fresh(), uuid=uuid))
