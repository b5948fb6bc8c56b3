"""The rows of the table of operations about deleting a server with foreign allocations."""

from collections.abc import Iterator

from support.operations.basis import ANSWERS, ANY, KEEPING, Row, ServerState, ends_well

#: Troubles with names, for the player of the rows.
ON_IT = "it has foreign allocations"
ON_BOTH_SIDES = "its move waits to be confirmed, and both sides have foreign allocations"
SILENT = "the source's host does not answer, and has foreign allocations"
TAKE_AWAY = "delete the foreign allocations"


def rows() -> Iterator[Row]:
    """Yield the rows."""
    gone = ServerState("deleted")
    yield ends_well("delete", ON_IT)
    yield Row("delete", ON_IT, KEEPING, ServerState("deleted", "", "instance: licence"), TAKE_AWAY, gone)
    ended = ServerState("deleted", "ended")
    yield ends_well("delete", ON_BOTH_SIDES, end=ended)
    left = ServerState("deleted", "ended", "instance: source + licence")
    yield Row("delete", ON_BOTH_SIDES, KEEPING, left, TAKE_AWAY, ended)
    more = ServerState("deleted", "", "residue: source (and more)")
    yield Row("delete", SILENT, ANY, more, ANSWERS, gone)
    both = ServerState("deleted", "", "instance: source; residue: source")
    yield Row("delete", SILENT, KEEPING, both, ANSWERS, ServerState("deleted", "", "instance: source"))
