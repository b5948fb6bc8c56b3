"""The sub-commands `moorage cell create`, `moorage cell list` and `moorage placement`."""

import argparse
import uuid
from typing import Any

from cliff.command import Command
from cliff.lister import Lister
from cliff.show import ShowOne
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from moorage import ids, logs, service
from moorage.bus import mask_url
from moorage.commands import Configured, shown
from moorage.database import Database
from moorage.model import Cell
from placement_store import cells
from placement_store.schema import MAIN
from placement_store.service import PlacementService
from placement_store.upgrade import cell_place, upgrade

_COLUMNS = ("name", "uuid", "transport_url", "database_connection")


def _row(cell: Cell) -> tuple[Any, ...]:
    return shown((cell.name, cell.uuid, _masked(cell.transport_url), _masked(cell.database_connection)))


def _masked(url: str | None) -> str | None:
    return None if url is None else mask_url(url)


def _uuid(text: str) -> str:
    return str(uuid.UUID(text))


def _name(text: str) -> str:
    if not 1 <= len(text) <= 255:
        raise argparse.ArgumentTypeError("a name has 1 to 255 characters")
    return text


def _database_url(text: str) -> str:
    try:
        make_url(text)
    except ArgumentError:
        # Without the text itself: it may hold a password.
        raise argparse.ArgumentTypeError("not a URL of a database") from None
    return text


class CellCreate(Configured, ShowOne):
    """Write down a new cell, with its own message bus and records or with those of the main configuration."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = super().get_parser(prog_name)
        parser.add_argument("name", type=_name, help="how the cell is called")
        parser.add_argument("--uuid", type=_uuid, help="its uuid; default: a new one")
        parser.add_argument("--transport-url", help="its message bus; default: that of whoever asks")
        parser.add_argument(
            "--database-connection", type=_database_url, help="its records; default: [database] connection"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        """Create the cell and show it."""
        database = _database(self)
        # First the tables of its records, which may be created again: a cell that is listed can be served.
        upgrade(cell_place(self.conf, parsed_args.name, parsed_args.database_connection))
        cell = cells.create(
            database,
            name=parsed_args.name,
            uuid=parsed_args.uuid or ids.fresh(),
            transport_url=parsed_args.transport_url,
            database_connection=parsed_args.database_connection,
        )
        return _COLUMNS, _row(cell)


class CellList(Configured, Lister):
    """Show all cells."""

    def take_action(self, _parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """List the cells by name."""
        return _COLUMNS, [_row(cell) for cell in cells.list_cells(_database(self))]


class Placement(Configured, Command):
    """Serve the placement role, apart from the schedulers, until a signal ends it."""

    def take_action(self, _parsed_args: argparse.Namespace) -> None:
        """Run the service."""
        logs.setup(self.conf, "placement")
        service.run(PlacementService(self.conf, f"placement.{ids.fresh()}"))


def _database(command: Any) -> Database:
    """Return the main database, whose schema fits, closed when the command ends."""
    database = Database(command.conf.database.connection, MAIN.name, pool_size=1)
    command.app.closing.callback(database.close)
    MAIN.check(database)
    return database
