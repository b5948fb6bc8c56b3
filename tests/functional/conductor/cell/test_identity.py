"""Test that a cell's conductor tells agents which cell it is of."""

import pytest
from support.conductor.builders import CELL_1, World

from moorage.messages import LocateCellInCell
from moorage.model import Cell

RENAMED = Cell(uuid=CELL_1.uuid, name="west")


@pytest.mark.parametrize("name", ["cell1", "west", "cell2"])
def test_a_conductor_answers_with_the_present_name_of_its_cell(world: World, name: str) -> None:
    other = Cell(uuid="0b9c7f52-8f0e-4d0b-9a63-1c5e2b7d4f10", name="cell2", transport_url="rabbit://u:secret@h/")
    assert world.cell_call(LocateCellInCell(name=name)) == Cell(uuid=CELL_1.uuid, name="cell1")
    # Renamed while this conductor runs: an agent may still have the former name.
    world.placement.cells = [other, RENAMED]
    known = CELL_1 if name == "cell1" else RENAMED
    assert world.cell_call(LocateCellInCell(name=name)) == known


def test_a_conductor_knows_the_name_of_its_start_without_the_placement_role(world: World) -> None:
    world.servers.pop("placement").stop()
    assert world.cell_call(LocateCellInCell(name="cell1")) == Cell(uuid=CELL_1.uuid, name="cell1")
