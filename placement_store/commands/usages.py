"""The sub-commands `moorage resource provider usage show` and `moorage resource usage show`."""

import argparse

from cliff.lister import Lister

from moorage.cli.arguments import argument
from moorage.cli.command import Table, shown
from moorage.messages import ListUsages
from placement_store.commands.placement_command import PlacementCommand, ProviderCommand, find


class ProviderUsageShow(ProviderCommand, Lister):
    """Show the usage of each inventory of a resource provider."""

    only_reads = True

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return one row per class."""
        used = find(self.placement, parsed_args.provider).used
        return ("resource_class", "usage"), sorted(used.items())


class UsageShow(PlacementCommand, Lister):
    """Show the resources used by a project, by type of consumer."""

    only_reads = True
    arguments = (
        argument("project_id", metavar="project", help="Project (id)"),
        argument("--user-id", metavar="USER", help="Count only consumers of this user"),
        argument("--consumer-type", metavar="TYPE", help="Count only consumers of this type, such as INSTANCE"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return one row per consumer type and class."""
        message = ListUsages(
            project_id=parsed_args.project_id, user_id=parsed_args.user_id, consumer_type=parsed_args.consumer_type
        )
        columns = ("consumer_type", "consumer_count", "resource_class", "usage")
        return columns, [
            shown((usage.consumer_type, usage.consumer_count, name, amount))
            for usage in self.placement.call(message)
            for name, amount in sorted(usage.resources.items())
        ]
