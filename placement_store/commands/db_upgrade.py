"""The sub-command `moorage db upgrade`: upgrade the tables of every schema in every database."""

import argparse
import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from cliff.lister import Lister
from oslo_config import cfg

from moorage import errors
from moorage.addresses import mask_url
from moorage.cli.arguments import argument, positive
from moorage.cli.command import Configured, Table
from moorage.config.options import main_database
from moorage.db import hosts
from moorage.db.database import Database
from moorage.db.schemas import known_schemas
from placement_store import cells
from placement_store.commands import argument_types
from placement_store.db import change_feed
from placement_store.schema import MAIN

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """A schema in a database; ``cell`` is the name of the cell, for the records of one.

    ``ddl_url`` is the same database with an account that may change tables; None if that of ``url`` may.
    """

    schema: str
    url: str
    cell: str | None = None
    ddl_url: str | None = None


def cell_place(conf: cfg.ConfigOpts, name: str, database_connection: str | None, ddl_connection: str | None) -> Place:
    """Return the place of a cell's records; a URL of null means the main database."""
    return Place("cell", database_connection or main_database(conf), name, ddl_connection)


def upgrade(place: Place, *, dry_run: bool = False, patience: float = 600.0) -> tuple[str | None, str | None]:
    """Upgrade one schema to the newest revision; return the revisions before and after.

    :param patience: seconds to wait for a table that is in use, for each change.
    :raises SchemaInUse: it stayed in use.
    :raises SchemaTooNew: a newer release has upgraded it, and this one cannot work on it.
    :raises StoreUnavailable: the database cannot be reached.
    :raises ConfigurationError: the URL that may change tables names another database; nothing was changed.
    :raises SchemaMismatch: the tables are not in the database of ``place.url`` afterwards.
    """
    if place.ddl_url and hosts.parse(place.ddl_url).database != hosts.parse(place.url).database:
        raise errors.ConfigurationError(reason="--ddl-connection names another database than the cell's connection")
    schema = known_schemas()[place.schema]
    name = f"cell {place.cell}" if place.cell else place.schema
    # Altering a large table may take hours, so there is no statement limit. But while an ALTER waits for its lock,
    # other statements queue behind it: so it waits for a second only, and is retried.
    url = place.ddl_url or place.url
    with closing(Database(url, name, pool_size=1, statement_limit=None, lock_wait=1.0)) as database:
        revisions = schema.planned(database) if dry_run else schema.upgrade(database, patience)
    if place.ddl_url and not dry_run:
        with closing(Database(place.url, name, pool_size=1)) as database:
            schema.check(database)
    return revisions


DDL_CONNECTION = argument(
    "--ddl-connection",
    type=argument_types.database_url,
    metavar="URL",
    help="URL of the cell's database with an account that may change tables, for this command only (default: the "
    "account that the cell's conductors use)",
)


class DbUpgrade(Configured, Lister):
    """Create or upgrade the database tables of the main schema, the conductor schema and every cell.

    You can run the command again at any time, also after it was interrupted. Services refuse to start with older
    tables. They start with newer ones if the newer release has recorded that they can.
    """

    at = "upgrading"
    arguments = (
        # Looked up when the parser is built: importing this module must not load every schema.
        lambda parser: parser.add_argument(
            "--schema", choices=sorted(known_schemas()), help="Upgrade only this schema"
        ),
        argument("--cell", metavar="NAME", help="Upgrade only the tables of this cell"),
        DDL_CONNECTION,
        argument(
            "--patience",
            type=positive,
            default=600.0,
            metavar="SECONDS",
            help="Time to wait for each change of a table while services use it (default: %(default)g); services "
            "continue meanwhile",
        ),
        argument("--dry-run", action="store_true", help="Only show what would be done"),
        argument(
            "--restored",
            action="store_true",
            help="Use this option after the main schema was restored from a backup. It begins a new history, in which "
            "no generation of the lost one is used again; running schedulers detect it. See the chapter on restoring",
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        """Upgrade, and return one row per place."""
        if parsed_args.cell and parsed_args.schema not in (None, "cell"):
            raise _not_together(f"a cell has no schema {parsed_args.schema}")
        if parsed_args.restored and (parsed_args.cell or parsed_args.schema not in (None, "main")):
            raise _not_together("--restored is about the main schema")
        if parsed_args.ddl_connection and not parsed_args.cell:
            raise _not_together("--ddl-connection needs --cell, because it is of one cell")
        rows: list[tuple[Any, ...]] = []
        for place in self._places(parsed_args):
            self.elapsed.says(f"upgrading {f'the records of {place.cell}' if place.cell else f'schema {place.schema}'}")
            before, after = upgrade(place, dry_run=parsed_args.dry_run, patience=parsed_args.patience)
            if place.schema == "main" and parsed_args.restored and not parsed_args.dry_run:
                _begin_history(place)
            rows.append((place.schema, place.cell or "", mask_url(place.url), before or "none", after or "none"))
        return ("schema", "cell", "database", "before", "after"), rows

    def _places(self, parsed_args: argparse.Namespace) -> Iterator[Place]:
        """Yield the places to upgrade: the main schema first, since it has the list of cells."""
        wanted = {"cell"} if parsed_args.cell else {parsed_args.schema} if parsed_args.schema else set(known_schemas())
        main = main_database(self.conf)
        if "main" in wanted:
            yield Place("main", main)
        if "conductor" in wanted:
            yield Place("conductor", self.conf.conductor.connection or main)
        if "cell" in wanted:
            shown_without = parsed_args.dry_run and "main" in wanted
            yield from self._cells(parsed_args.cell, parsed_args.ddl_connection, shown_without=shown_without)

    def _cells(self, name: str | None, ddl_connection: str | None, *, shown_without: bool) -> Iterator[Place]:
        """Yield the places of cells.

        :param shown_without: whether to yield none if this version cannot read the main schema yet, which a dry run
            has not upgraded.
        """
        with closing(Database(main_database(self.conf), MAIN.name, pool_size=1)) as database:
            try:
                MAIN.check(database)
                known = cells.list_cells(database)
            except errors.SchemaMismatch as fault:
                if not shown_without:
                    raise
                if fault.found != "none":
                    LOG.warning(
                        "The records of cells are not shown: the main schema, which lists them, must be upgraded first"
                    )
                known = []
        if name is not None and name not in {cell.name for cell in known}:
            raise errors.CellNotFound(name=name)
        for cell in known:
            if name in (None, cell.name):
                yield cell_place(self.conf, cell.name, cell.database_connection, ddl_connection)


def _not_together(reason: str) -> errors.InvalidRequest:
    return errors.InvalidRequest(path="command line", reason=reason)


def _begin_history(place: Place) -> None:
    with closing(Database(place.url, MAIN.name, pool_size=1, statement_limit=None)) as database:
        database.write(change_feed.begin_history)
    LOG.warning("The main schema begins a new history: heal it with `moorage audit --heal`")
