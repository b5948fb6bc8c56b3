"""The sub-commands `moorage resource class list`, `create`, `set`, `show` and `delete`."""

import argparse

from cliff.lister import Lister
from cliff.show import ShowOne

from moorage import errors, ids
from moorage.cli.arguments import argument
from moorage.cli.command import Record, Table, shown
from moorage.messages import DeleteResourceClass, EnsureResourceClass, ListResourceClasses
from placement_store.commands import argument_types
from placement_store.commands.placement_command import PlacementCommand


class ClassList(PlacementCommand, Lister):
    """List all resource classes, standard and custom, by name."""

    only_reads = True

    def take_action(self, _parsed_args: argparse.Namespace) -> Table:
        """Return one row per class."""
        return ("name",), [(name,) for name in self.placement.call(ListResourceClasses())]


class _ClassCommand(PlacementCommand):
    arguments = (argument("name", type=argument_types.resource_class, help="Resource class (name)"),)


class ClassCreate(_ClassCommand):
    """Create a custom resource class, named CUSTOM_...; it must not exist yet."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Create the class.

        :raises AlreadyExists: there is one of that name.
        """
        if not self.change(EnsureResourceClass(request_id=ids.fresh(), name=parsed_args.name)).created:
            raise errors.AlreadyExists(kind="resource class", name=parsed_args.name)


class ClassSet(_ClassCommand):
    """Create a custom resource class if it does not exist."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Create the class."""
        self.change(EnsureResourceClass(request_id=ids.fresh(), name=parsed_args.name))


class ClassShow(_ClassCommand, ShowOne):
    """Show a resource class if it exists."""

    only_reads = True

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Show the class.

        :raises ResourceClassNotFound: no resource class has that name.
        """
        if parsed_args.name not in self.placement.call(ListResourceClasses()):
            raise errors.ResourceClassNotFound(name=parsed_args.name)
        return ("name",), shown((parsed_args.name,))


class ClassDelete(_ClassCommand):
    """Delete a custom resource class; no provider may have an inventory of it."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete the class."""
        self.change(DeleteResourceClass(request_id=ids.fresh(), name=parsed_args.name))
