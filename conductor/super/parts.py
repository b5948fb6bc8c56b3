"""List the parts of the super conductor: the steps of its operations, and the endpoints of its topic."""

from conductor.engine import steps as engine
from conductor.engine.steps import Steps
from conductor.super.context import SuperContext
from conductor.super.endpoints.builds import SuperOrders
from conductor.super.endpoints.claims import SuperClaims
from conductor.super.endpoints.forwarded import ForwardedOrders
from conductor.super.endpoints.inspection import SuperInspection
from conductor.super.endpoints.instances import SuperView
from conductor.super.endpoints.migrations import SuperMigrationView
from conductor.super.endpoints.moves import SuperMoveOrders
from conductor.super.steps.build import SuperBuilds
from conductor.super.steps.delete import SuperDeletes
from conductor.super.steps.hand_over import BuildHandOver
from conductor.super.steps.move import SuperMoves
from conductor.super.steps.unshelve import SuperUnshelves

#: The names of the steps that may be on record, by kind of operation. None of them is ever renamed.
STORED_STEPS = {
    engine.BUILD: ("select", "hand_over", "release"),
    engine.MOVE: ("prepare", "read", "select", "recover", "hand_over", "fence", "cancel"),
    engine.UNSHELVE: ("prepare", "read", "select", "recover", "hand_over", "fence", "cancel"),
    engine.DELETE: ("in_cell", "release"),
}
_WITH_STEPS = (BuildHandOver, SuperBuilds, SuperDeletes, SuperMoves, SuperUnshelves)
_ENDPOINTS = (
    ForwardedOrders,
    SuperClaims,
    SuperInspection,
    SuperMigrationView,
    SuperMoveOrders,
    SuperOrders,
    SuperView,
)


def steps(context: SuperContext) -> Steps:
    """Return the function of each step, by kind of operation and name."""
    return engine.steps_of([part(context) for part in _WITH_STEPS], STORED_STEPS)


def endpoints(context: SuperContext) -> list[object]:
    """Return the endpoints of the conductor's topic."""
    return [part(context) for part in _ENDPOINTS]
