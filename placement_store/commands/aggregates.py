"""The sub-commands `moorage resource provider aggregate list` and `set`."""

import argparse

from cliff.lister import Lister

from moorage import ids
from moorage.cli.arguments import argument, canonical_uuid
from moorage.cli.command import Table
from moorage.messages import SetAggregates
from placement_store.commands.placement_command import GENERATION, ProviderCommand, find


class ProviderAggregateList(ProviderCommand, Lister):
    """List the aggregates that a resource provider belongs to."""

    only_reads = True

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Return one row per aggregate."""
        return ("uuid",), [(uuid,) for uuid in find(self.placement, parsed_args.provider).aggregates]


class ProviderAggregateSet(ProviderCommand, Lister):
    """Replace all aggregates of a resource provider by the given ones; without any, remove it from all.

    An aggregate that does not exist yet is created.
    """

    arguments = (argument("aggregate", nargs="*", type=canonical_uuid, help="Aggregate (uuid)"), GENERATION)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Set the aggregates and show them."""
        message = SetAggregates(
            request_id=ids.fresh(),
            uuid=self.uuid_of(parsed_args.provider),
            aggregates=tuple(sorted(set(parsed_args.aggregate))),
            generation=parsed_args.generation,
        )
        return ("uuid",), [(uuid,) for uuid in self.change(message).aggregates]
