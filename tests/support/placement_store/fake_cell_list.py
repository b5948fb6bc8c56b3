"""The answers of a placement role about cells, from a list."""

from moorage import errors
from moorage.bus.bus import serves
from moorage.messages import ListCells, LocateCell
from moorage.model import Cell


class FakeCellList:
    """Serve the list of cells; a test may change it."""

    cells: list[Cell]

    @serves(ListCells)
    def list_cells(self, _message: ListCells) -> list[Cell]:
        return self.cells

    @serves(LocateCell)
    def locate_cell(self, message: LocateCell) -> Cell:
        for cell in self.cells:
            if cell.name == message.name:
                return cell
        raise errors.CellNotFound(name=message.name)
