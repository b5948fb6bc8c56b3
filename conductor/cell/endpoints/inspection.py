"""The endpoint that shows a cell's operations and migrations to an operator, and names the cell to its agents."""

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.engine.operation_list import list_operations
from conductor.schema import cell_operations
from moorage.bus.bus import serves
from moorage.messages import ListCells, ListMigrationsInCell, ListOperationsInCell, LocateCellInCell
from moorage.model import Cell, Migration
from moorage.model.inspection import OperationSummary


class CellInspection(CellPart):
    """Serves reads. No decision depends on the lists, which are for operators only."""

    @serves(ListOperationsInCell)
    def list_operations(self, message: ListOperationsInCell) -> list[OperationSummary]:
        """Return the operations of this cell, or those of one instance with the cleanups of its attempts."""

        def work(connection: Connection) -> list[OperationSummary]:
            subjects: list[str] | None = None
            if message.instance_uuid is not None:
                attempts = self._cell.records.attempts(connection, message.instance_uuid)
                subjects = [message.instance_uuid, *(attempt.attempt_id for attempt in attempts)]
            uuids = None if message.uuid is None else [message.uuid]
            return list_operations(
                connection,
                cell_operations,
                {"cell_uuid": self._cell.cell_uuid},
                ended=message.ended,
                subjects=subjects,
                uuids=uuids,
                limit=message.limit,
                after=message.after,
            )

        return self._cell.database.read_one_moment(work)

    @serves(ListMigrationsInCell)
    def list_migrations(self, message: ListMigrationsInCell) -> list[Migration]:
        """Return the named migrations, without those that are unknown here."""
        return self._cell.database.read_one_moment(
            lambda connection: self._cell.migrations.show(connection, message.uuids)
        )

    @serves(LocateCellInCell)
    def locate_cell(self, message: LocateCellInCell) -> Cell:
        """Return this cell.

        :raises StoreUnavailable: the cell may have been renamed, and the placement role does not answer.
        :raises Overloaded: the placement role has not answered for a while.
        """
        name = self._cell.cell_name
        if message.name != name:
            listed = self._cell.call_placement(ListCells(without_databases=True))
            name = next((cell.name for cell in listed if cell.uuid == self._cell.cell_uuid), name)
        return Cell(uuid=self._cell.cell_uuid, name=name)
