"""The sub-command `moorage db import-placement`: copy the database of a Placement service into the store."""

import argparse
import logging
from contextlib import closing

from cliff.lister import Lister

from moorage import errors
from moorage.cli.arguments import argument
from moorage.cli.command import Configured, Table
from moorage.config.options import main_database
from moorage.db.database import Database
from placement_store.importing import source, store
from placement_store.importing.content import PARTS, Content, differences
from placement_store.schema import MAIN

LOG = logging.getLogger(__name__)


class DbImportPlacement(Configured, Lister):
    """Import the database of a Placement service into an empty store, with all uuids, names and generations.

    Stop the Placement service first, so that nothing changes its database any more. The command only reads the source,
    in one snapshot. It compares what it has written with the source in the same transaction, so that it imports either
    everything or nothing. If the store already has the same data, it does nothing; it refuses a store with other data.
    """

    arguments = (
        argument(
            "source",
            metavar="SOURCE",
            help="Database of Placement: its URL, or the path of the `placement.conf` that has its URL and password",
        ),
        argument("--dry-run", action="store_true", help="Only read and compare, and show what would be imported"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Import, and return a row for each part with the numbers in the source and, before it, in the store.

        :raises ConfigurationError: the source cannot be read or not be held by a store, or the store is not empty.
        """
        url = source.url_of(parsed_args.source)
        # No time limits: the transaction may compare millions of rows.
        with closing(
            Database(main_database(self.conf), MAIN.name, pool_size=1, statement_limit=None, idle_transaction=0.0)
        ) as database:
            if database.url == url:
                raise errors.ConfigurationError(reason="the source is the store itself")
            MAIN.check(database)
            LOG.info("Reading the source")
            wanted = source.read(url)
            present = database.read_one_moment(store.read)
            result = _imported(database, wanted, present, dry_run=parsed_args.dry_run)
        return ("what", "in the source", "in the store", "result"), [
            (part.replace("_", " "), len(getattr(wanted, part)), len(getattr(present, part)), result) for part in PARTS
        ]


def _imported(database: Database, wanted: Content, present: Content, *, dry_run: bool) -> str:
    """Import the content unless the store has it already; return the result in a word or two."""
    if not differences(wanted, present):
        return "already there"
    if dry_run:
        database.read_one_moment(lambda connection: store.check_empty(connection, wanted))
        return "to be imported"
    database.write(lambda connection: store.write(connection, wanted))
    return "imported"
