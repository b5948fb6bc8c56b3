"""The bases of commands that call topic `placement`: the client, providers by uuid or by name, retries."""

import argparse
import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec.structs import replace

from moorage import errors, ids
from moorage.cli.arguments import Argument, argument
from moorage.cli.command import Configured
from moorage.cli.lists import MessageClient
from moorage.config.options import main_database
from moorage.messages import GetResourceProvider, ListResourceProviders
from moorage.messages.wire import Mutation, R
from moorage.model import ResourceGroup, ResourceProvider
from placement_store.commands import argument_types

LOG = logging.getLogger(__name__)

T = TypeVar("T")

#: Stands for the URL of the configuration file, so that no password need be on the command line.
CONFIGURED = "configured"
#: How many times a command reads and writes before it gives up on conflicts. Arbitrary: a person's command rarely
#: meets one conflict, and more of them mean that another client keeps writing.
_TRIES = 3

GENERATION = argument("--generation", type=int, metavar="N", help="Change the provider only if it has this generation")


class PlacementCommand(Configured):
    """A command that calls topic `placement`, by the bus or in this process."""

    arguments: Sequence[Argument] = (
        argument(
            "--database-url",
            type=lambda text: text if text == CONFIGURED else argument_types.database_url(text),
            metavar="URL",
            help="Open the store's database directly, without services or bus; "
            f"`{CONFIGURED}` stands for [database] connection of the configuration file",
        ),
    )

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command."""
        self._database_url = parsed_args.database_url
        return super().run(parsed_args)

    @functools.cached_property
    def placement(self) -> MessageClient:
        """The client of the service, or the store in this process if a URL was given.

        :raises SchemaMismatch: the tables are older or newer than this version.
        :raises StoreUnavailable: the database cannot be reached.
        """
        if self._database_url is None:
            return self.client("placement")
        # Imported here: a client of the service does not need the whole store.
        from placement_store.in_process import InProcessPlacement

        url = main_database(self.conf) if self._database_url == CONFIGURED else self._database_url
        direct = InProcessPlacement(self.conf, url)
        self.app.closing.callback(direct.close)
        return direct

    def change(self, message: Mutation[R]) -> R:
        """Call a method that writes; if no reply comes, repeat it once with the same request id.

        :raises MoorageError: the error of the service.
        """
        try:
            return self.placement.call(message)
        except (errors.NoReply, errors.StoreUnavailable) as fault:
            LOG.warning("%s Asking once more.", fault)
            return self.placement.call(message)

    def uuid_of(self, named: str) -> str:
        """Return the uuid of a provider, given by its uuid or its name.

        :raises ProviderNotFound: there is none.
        """
        return find(self.placement, named).uuid

    def in_named_tree(self, group: ResourceGroup) -> ResourceGroup:
        """Resolve the ``in_tree`` of a group, a uuid or a name, to the uuid.

        :raises ProviderNotFound: there is no provider of that name.
        """
        return group if group.in_tree is None else replace(group, in_tree=self.uuid_of(group.in_tree))


class ProviderCommand(PlacementCommand):
    """A command about one provider, which is its first argument."""

    arguments: Sequence[Argument] = (argument("provider", help="Provider (name or uuid)"),)


def find(placement: MessageClient, named: str) -> ResourceProvider:
    """Find a provider by its uuid or its name, which may have the form of a uuid, too.

    :raises ProviderNotFound: there is none.
    """
    if (uuid := ids.canonical(named)) is not None:
        with suppress(errors.ProviderNotFound):
            return placement.call(GetResourceProvider(uuid=uuid))
    for provider in placement.call(ListResourceProviders(name=named)) if named else []:
        return provider
    raise errors.ProviderNotFound(name=named)


def retry_on_stale_view(read_and_write: Callable[[], T]) -> T:
    """Run a read and a conditional write, and run both again if the generation has changed in between.

    :raises StaleView: it has changed at each attempt.
    """
    for _ in range(_TRIES - 1):
        try:
            return read_and_write()
        except errors.StaleView as conflict:
            LOG.info("%s Reading it again.", conflict)
    try:
        return read_and_write()
    except errors.StaleView:
        LOG.error("Another client keeps changing this: nothing was done. Repeat the command later")
        raise
