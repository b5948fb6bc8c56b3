"""The rows of the table of operations about deleting a server with foreign allocations."""

from collections.abc import Iterator

from support.operations.basis import ANSWERS, ANY, KEEPING, Row, Stand, ends_well

#: Troubles with names, for the player of the rows.
ON_IT = "it has foreign allocations"
ON_BOTH_SIDES = "its move waits to be confirmed, and both sides have foreign allocations"
SILENT = "the source's host does not answer, and has foreign allocations"
TAKE_AWAY = "delete the foreign allocations"


def rows() -> Iterator[Row]:
    """Yield the rows."""
    gone = Stand("deleted")
    yield ends_well("delete", ON_IT)
    yield Row("delete", ON_IT, KEEPING, Stand("deleted", "", "instance: licence"), TAKE_AWAY, gone)
    ended = Stand("deleted", "ended")
    yield ends_well("delete", ON_BOTH_SIDES, end=ended)
    left = Stand("deleted", "ended", "instance: source + licence")
    yield Row("delete", ON_BOTH_SIDES, KEEPING, left, TAKE_AWAY, ended)
    more = Stand("deleted", "", "residue: source (and more)")
    yield Row("delete", SILENT, ANY, more, ANSWERS, gone)
    both = Stand("deleted", "", "instance: source; residue: source")
    yield Row("delete", SILENT, KEEPING, both, ANSWERS, Stand("deleted", "", "instance: source"))
