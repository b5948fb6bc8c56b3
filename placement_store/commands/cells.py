"""The sub-commands `moorage cell create`, `list`, `set` and `delete`."""

import argparse
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

from cliff.lister import Lister
from cliff.show import ShowOne

from moorage import errors, ids
from moorage.addresses import mask_url
from moorage.cli.arguments import argument, canonical_uuid
from moorage.cli.clients import Clients
from moorage.cli.command import Configured, Record, Table, shown
from moorage.cli.serving import require_broker
from moorage.config.options import main_database
from moorage.db.database import Database
from moorage.messages import ShowInCell
from moorage.model import Cell
from moorage.model.basis import fault_of_name
from placement_store import cells
from placement_store.commands import argument_types
from placement_store.commands.db_upgrade import DDL_CONNECTION, cell_place, upgrade
from placement_store.schema import MAIN

LOG = logging.getLogger(__name__)

#: Seconds to wait for a cell's conductor, which only reads; for its bus, see :mod:`moorage.bus.bus`.
_PATIENCE = 3.0
#: The most cells called at the same time.
_AT_ONCE = 16

_COLUMNS = ("name", "uuid", "transport_url", "database_connection")


def _row(cell: Cell) -> tuple[Any, ...]:
    urls = (url and mask_url(url) for url in (cell.transport_url, cell.database_connection))
    return shown((cell.name, cell.uuid, *urls))


def _name(text: str) -> str:
    if not 1 <= len(text) <= 255:
        raise argparse.ArgumentTypeError("a name has 1 to 255 characters")
    if fault := fault_of_name(text):
        raise argparse.ArgumentTypeError(f"{text!r} {fault}")
    return text


class CellCreate(Configured, ShowOne):
    """Create a cell, with its own message bus and database or with those of the main configuration."""

    arguments = (
        argument("name", type=_name, help="Name of the cell"),
        argument("--uuid", type=canonical_uuid, help="Uuid of the cell (default: a new one)"),
        argument(
            "--transport-url",
            type=lambda text: text or None,
            help="URL of the cell's message bus; an empty value, as the default, means the main bus of each client",
        ),
        argument(
            "--database-connection",
            type=argument_types.database_url,
            help="URL of the database for the cell's records (default: [database] connection)",
        ),
        DDL_CONNECTION,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Create the cell and show it."""
        _require_database_connection(parsed_args)
        database = _database(self)
        _require_bus(self, parsed_args.transport_url)
        # Create the tables first (they may exist already): a listed cell must be able to serve.
        upgrade(cell_place(self.conf, parsed_args.name, parsed_args.database_connection, parsed_args.ddl_connection))
        cell = cells.create(
            database,
            name=parsed_args.name,
            uuid=parsed_args.uuid or ids.fresh(),
            transport_url=parsed_args.transport_url,
            database_connection=parsed_args.database_connection,
        )
        return _COLUMNS, _row(cell)


class CellList(Configured, Lister):
    """List the cells, and check whether the message bus and a conductor of each can be reached."""

    only_reads = True

    def take_action(self, _parsed_args: argparse.Namespace) -> Table:
        """List the cells by name."""
        known = cells.list_cells(_database(self))
        with closing(Clients(self.conf, _PATIENCE)) as clients, ThreadPoolExecutor(max_workers=_AT_ONCE) as threads:
            answers = list(threads.map(partial(_answers, clients), known))
        columns = (*_COLUMNS, "bus_reachable", "conductor_answers")
        return columns, [(*_row(cell), *reached) for cell, reached in zip(known, answers, strict=True)]


def _answers(clients: Clients, cell: Cell) -> tuple[bool, bool]:
    """Return whether a cell's bus can be reached, and whether a conductor of it answers."""
    try:
        clients.cell(cell).call(ShowInCell(instance_uuids=()))
    except (errors.BusUnavailable, errors.ConfigurationError) as fault:
        LOG.warning("The bus of cell %s: %s", cell.name, fault)
        return False, False
    except (errors.NoReply, errors.NotServed):
        return True, False
    except errors.MoorageError as fault:
        LOG.warning("The conductor of cell %s: %s", cell.name, fault)
    return True, True


class CellSet(Configured, ShowOne):
    """Change the name, the message bus or the database of a cell.

    The command does not move records: copy them to a new database before. It creates missing tables there. Restart the
    services of the cell afterwards: they read its addresses only when they start. A super conductor reads the address
    again when the cell does not answer.
    """

    arguments = (
        argument("cell", metavar="NAME", help="Name of the cell"),
        argument("--name", type=_name, help="New name of the cell"),
        argument(
            "--transport-url", help="New URL of the message bus; an empty value means the main bus of each client"
        ),
        argument(
            "--database-connection",
            type=lambda text: text and argument_types.database_url(text),
            help="New URL of the database; an empty value means [database] connection",
        ),
        DDL_CONNECTION,
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Change the cell and show it.

        :raises InvalidRequest: nothing is to be changed.
        """
        given = {name: getattr(parsed_args, name) for name in ("name", "transport_url", "database_connection")}
        changed = {name: value or None for name, value in given.items() if value is not None}
        if not changed:
            raise errors.InvalidRequest(path="command line", reason="give at least one change")
        _require_database_connection(parsed_args)
        database = _database(self)
        cell = database.read(lambda connection: cells.by_name(connection, parsed_args.cell))
        _require_bus(self, parsed_args.transport_url)
        if "database_connection" in changed:
            upgrade(cell_place(self.conf, cell.name, parsed_args.database_connection, parsed_args.ddl_connection))
        return _COLUMNS, _row(cells.change(database, cell.uuid, **changed))


class CellDelete(Configured, ShowOne):
    """Delete a cell from the list. It is refused while hosts of the cell are registered.

    The message bus and the database of the cell remain unchanged.
    """

    arguments = (
        argument("cell", metavar="NAME", help="Name of the cell"),
        argument("--dry-run", action="store_true", help="Only check whether the cell can be deleted"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Record:
        """Delete the cell and show its last state."""
        cell = cells.delete(_database(self), parsed_args.cell, dry_run=parsed_args.dry_run)
        return (*_COLUMNS, "deleted"), (*_row(cell), not parsed_args.dry_run)


def _require_bus(command: Any, transport_url: str | None) -> None:
    """Check that services can use the URL of a cell's bus, as far as this machine sees; the bus need not run.

    :raises ConfigurationError: the URL is not valid, or names a bus within one process.
    :raises BusRefused: the broker refuses the account: no conductor of the cell would start.
    """
    from moorage.bus.bus import Bus  # here, because the list of cells does not need the bus library

    require_broker(transport_url)
    if transport_url:
        with closing(Bus(command.conf, transport_url)) as bus:
            try:
                bus.probe()
            except errors.BusRefused:
                raise
            except errors.BusUnavailable as fault:
                LOG.warning("The bus of the cell was not checked: %s", fault)


def _require_database_connection(given: argparse.Namespace) -> None:
    if given.ddl_connection and not given.database_connection:
        raise errors.InvalidRequest(
            path="command line", reason="--ddl-connection needs --database-connection: it is of the same database"
        )


def _database(command: Any) -> Database:
    """Open the main database, check its schema, and close it when the command ends."""
    database = Database(main_database(command.conf), MAIN.name, pool_size=1)
    command.app.closing.callback(database.close)
    MAIN.check(database)
    return database
