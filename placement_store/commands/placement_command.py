"""The base of commands that call topic `placement`, and the retry of a command whose read was stale."""

import argparse
import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from moorage import errors
from moorage.cli.command import Configured
from moorage.config.options import main_database
from moorage.messages.wire import Mutation, R

if TYPE_CHECKING:
    from moorage.cli.shell import Shell
    from placement_store.in_process import PlacementClient

LOG = logging.getLogger(__name__)

T = TypeVar("T")

#: Stands for the URL of the configuration file, so that no password need be on the command line.
CONFIGURED = "configured"
#: The attempts of a command to read and write before it gives up on conflicts. Arbitrary: a person's command rarely
#: meets one conflict, and more of them mean that somebody else keeps writing.
_TRIES = 3


class PlacementCommand(Configured):
    """A command that calls topic `placement`, by the bus or in this process; mixed in before a cliff command class."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--database-url",
            type=_database_url,
            metavar="URL",
            help="open the store directly, without any service or bus; "
            f"`{CONFIGURED}` stands for [database] connection of the configuration file",
        )
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command."""
        self._database_url = parsed_args.database_url
        return super().run(parsed_args)

    @functools.cached_property
    def placement(self) -> "PlacementClient":
        """The client of the service, or the store in this process where a URL was given.

        :raises SchemaMismatch: the tables are older or newer than this version.
        :raises StoreUnavailable: the database cannot be reached.
        """
        if self._database_url is None:
            return self.client("placement")
        # Imported here: a client of the service does not need the whole store.
        from placement_store.in_process import InProcessPlacement

        url = main_database(self.conf) if self._database_url == CONFIGURED else self._database_url
        direct = InProcessPlacement(self.conf, url)
        cast("Shell", self.app).closing.callback(direct.close)
        return direct

    def change(self, message: Mutation[R]) -> R:
        """Call a method that writes; where no reply comes, repeat it once with the same request id.

        :raises MoorageError: the error of the service.
        """
        try:
            return self.placement.call(message)
        except (errors.NoReply, errors.StoreUnavailable) as fault:
            LOG.warning("%s Asking once more.", fault)
            return self.placement.call(message)


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
        LOG.error("Somebody else keeps changing this: nothing was done. Repeat the command when that has ended")
        raise


def _database_url(text: str) -> str:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    if text == CONFIGURED:
        return text
    try:
        make_url(text).get_dialect().import_dbapi()
    except (ArgumentError, ImportError):
        # Without the text itself: it may contain a password.
        raise argparse.ArgumentTypeError("not a URL of a database that can be opened here") from None
    return text
