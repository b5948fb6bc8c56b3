"""List the parts of a cell's conductor: the steps of its operations, and the endpoints of its topic."""

from conductor.cell.context import CellContext
from conductor.cell.endpoints.builds import CellOrders
from conductor.cell.endpoints.claims import CellClaims
from conductor.cell.endpoints.gates import CellGates
from conductor.cell.endpoints.inspection import CellInspection
from conductor.cell.endpoints.instance_orders import InstanceOrders
from conductor.cell.endpoints.moves import CellMoves
from conductor.cell.endpoints.providers import CellProviders
from conductor.cell.endpoints.resources import ResourceOrders
from conductor.cell.endpoints.returns import CellReturns
from conductor.cell.holds import CellHolds
from conductor.cell.steps.cleanup import CellCleanups
from conductor.cell.steps.delete import CellDeletes
from conductor.cell.steps.end_move import CellMoveEnds
from conductor.cell.steps.fall_back import FallBack
from conductor.cell.steps.heal import CellHeals
from conductor.cell.steps.rebuild import CellRebuilds
from conductor.cell.steps.resources import CellResources
from conductor.cell.steps.return_to_source import ReturnToSource
from conductor.cell.steps.shelve import CellShelves
from conductor.cell.steps.start import CellBuilds
from conductor.engine import steps as engine
from conductor.engine.steps import Steps

#: The names of the steps that may be on record, by kind of operation. None of them is ever renamed.
STORED_STEPS = {
    engine.BUILD: ("start", "wait", "swap", "release"),
    engine.MOVE: ("stop", "start", "wait", "swap", "give_back", "restart"),
    engine.CONFIRM: ("destroy", "end"),
    engine.REVERT: ("destroy", "give_back", "restart"),
    engine.SHELVE: ("destroy", "release", "leave"),
    engine.UNSHELVE: ("start", "wait", "swap", "release"),
    engine.REBUILD: ("rebuild",),
    engine.ATTACH: ("choose", "write", "fence"),
    engine.DETACH: ("read", "write"),
    engine.DELETE: ("destroy", "release"),
    engine.CLEAN: ("destroy", "release"),
    engine.HEAL: ("heal",),
}
_WITH_STEPS = (
    CellBuilds,
    CellCleanups,
    CellDeletes,
    CellHeals,
    CellMoveEnds,
    CellRebuilds,
    CellResources,
    CellShelves,
    FallBack,
    ReturnToSource,
)
_ENDPOINTS = (
    CellClaims,
    CellGates,
    CellHolds,
    CellInspection,
    CellMoves,
    CellOrders,
    CellProviders,
    InstanceOrders,
    ResourceOrders,
)


def steps(cell: CellContext) -> Steps:
    """Return the function of each step, by kind of operation and name."""
    return engine.steps_of([part(cell) for part in _WITH_STEPS], STORED_STEPS)


def endpoints(cell: CellContext) -> list[object]:
    """Return the endpoints of the cell's topic."""
    return [*(part(cell) for part in _ENDPOINTS), *reports(cell)]


def reports(cell: CellContext) -> list[object]:
    """Return the endpoints for heartbeats and for returning hosts, which need only the cell's database."""
    return [cell.hosts, CellReturns(cell)]
