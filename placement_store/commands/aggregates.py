"""The sub-commands `moorage resource provider aggregate list` and `set`."""

import argparse
from typing import Any

from cliff.lister import Lister

from moorage import ids
from moorage.messages import SetAggregates
from placement_store.commands import argument_types
from placement_store.commands.named_providers import ProviderCommand, find, uuid_of

Rows = list[tuple[Any, ...]]


class ProviderAggregateList(ProviderCommand, Lister):
    """List the aggregates that a resource provider belongs to."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Rows]:
        """Return one row per aggregate.

        :raises ProviderNotFound: there is no such provider.
        """
        return ("uuid",), [(uuid,) for uuid in find(self.placement, parsed_args.provider).aggregates]


class ProviderAggregateSet(ProviderCommand, Lister):
    """Replace all aggregates of a resource provider by those that are named; without any, it belongs to none.

    An aggregate comes to be by being named.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        add = parser.add_argument
        add("aggregate", nargs="*", type=argument_types.uuid, help="the uuid of an aggregate")
        add("--generation", type=int, metavar="N", help="only if the provider is still at this generation")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Rows]:
        """Set the aggregates and show them.

        :raises ProviderNotFound: there is no such provider.
        :raises ProviderGenerationConflict: the provider is at another generation than the one named.
        """
        message = SetAggregates(
            request_id=ids.fresh(),
            uuid=uuid_of(self.placement, parsed_args.provider),
            aggregates=tuple(sorted(set(parsed_args.aggregate))),
            generation=parsed_args.generation,
        )
        return ("uuid",), [(uuid,) for uuid in self.change(message).aggregates]
