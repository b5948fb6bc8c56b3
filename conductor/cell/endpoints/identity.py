"""The endpoint that names the cell to an agent which is configured with its uuid."""

from conductor.cell.context import CellPart
from moorage.bus.bus import serves
from moorage.messages import ListCells, LocateCellInCell
from moorage.model import Cell


class CellIdentity(CellPart):
    """Serves the cell's half of `locate_cell`."""

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
