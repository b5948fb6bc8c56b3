"""The rows of the table of operations about attempts that time out, and about builds."""

from collections.abc import Iterator
from dataclasses import replace

from support.operations.basis import (
    AGAIN,
    ALL,
    ANOTHER,
    ANSWERS,
    ANY,
    AS_IT_WAS,
    MOVES,
    SHELVED,
    WELL,
    Row,
    ServerState,
    ends_well,
    on_alternate,
    with_licence,
)

#: Troubles in which hosts accept a claim, do not report in time, and do not answer to the order to destroy what they
#: have begun: only the destination, or every host that is tried. A resize also tries its own host.
ONE_GIVEN_UP = "the destination times out and does not answer"
ALL_GIVEN_UP = "every destination times out and none answers"
ERROR = ServerState("error")


def rows() -> Iterator[Row]:
    """Yield the rows."""
    for operation in (*MOVES, "unshelve", "build"):
        yield from _given_up(operation)
    yield from _builds()


def _given_up(operation: str) -> Iterator[Row]:
    size = " (new size)" if operation == "resize" else ""
    well = on_alternate(WELL[operation])
    left = replace(well, holds=f"{well.holds}; residue: destination{size}")
    yield Row(operation, ONE_GIVEN_UP, ANY, left, ANSWERS, well)
    back = {"unshelve": SHELVED, "build": ERROR}.get(operation, AS_IT_WAS)
    # A resize also tries its own host.
    which = ("alternate", "destination", "source") if operation == "resize" else ("alternate", "destination")
    held = "; ".join(filter(None, [back.holds, *(f"residue: {role}{size}" for role in which)]))
    following = ANOTHER if operation == "build" else AGAIN
    yield Row(operation, ALL_GIVEN_UP, ANY, replace(back, holds=held), following, WELL[operation])


def _builds() -> Iterator[Row]:
    operation, well = "build", WELL["build"]
    trouble = "it has foreign allocations"
    yield Row(operation, trouble, ("fail", "retry"), with_licence(ERROR), ANOTHER, well)
    yield ends_well(operation, trouble, ("combine",), with_licence(well))
    yield ends_well(
        operation, "the destination fails, and others write before the swap", ALL, with_licence(on_alternate(well))
    )
    yield Row(operation, "no host has room", ANY, ERROR, ANOTHER, well)
    yield ends_well(operation, "the destination fails", end=on_alternate(well))
    yield ends_well(operation, "the destination refuses", end=on_alternate(well))
    yield Row(operation, "every destination fails", ANY, ERROR, ANOTHER, well)
    yield Row(operation, "the destination fails, and the alternates are full by then", ANY, ERROR, ANOTHER, well)
