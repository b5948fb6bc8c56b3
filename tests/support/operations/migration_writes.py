"""The rows of the table of operations about foreign writes to the consumer of a migration."""

from collections.abc import Iterator
from dataclasses import replace

from support.operations.basis import (
    AGAIN,
    ALL,
    ANSWERS,
    ANY,
    AS_IT_WAS,
    CONFIRM,
    MOVES,
    STOPPING,
    WELL,
    Row,
    ServerState,
    ends_well,
    on_alternate,
    with_licence,
)


def rows() -> Iterator[Row]:
    """Yield the rows."""
    for operation in MOVES:
        yield from _under_way(operation)
        if operation not in STOPPING:
            yield from _arrived(operation)
    yield from _released_under_way()
    yield from _ends()


def _under_way(operation: str) -> Iterator[Row]:
    alternate = on_alternate(WELL[operation])
    # When a move confirms itself, foreign allocations on its migration are released with it.
    swapped = replace(alternate, holds=alternate.holds.replace("migration: source", "migration: source + licence"))
    yield ends_well(operation, "the destination fails, and others write to the migration before the swap", end=swapped)
    yield Row(
        operation,
        "every destination fails, and others write to the migration before the source is given back",
        ALL,
        with_licence(AS_IT_WAS),
        AGAIN,
        with_licence(WELL[operation]),
    )


def _released_under_way() -> Iterator[Row]:
    for whose in ("migration", "server"):
        trouble = (
            f"every destination fails, and others delete the {whose}'s allocations before the source is given back"
        )
        yield Row("migrate", trouble, ANY, AS_IT_WAS, AGAIN, WELL["migrate"])


def _arrived(operation: str) -> Iterator[Row]:
    well = WELL[operation]
    trouble = "others write to the migration before the source is released"
    yield Row(operation, trouble, ("fail",), _waiting("confirming"), CONFIRM, well, pending="confirm")
    yield ends_well(operation, trouble, ("retry", "combine"))
    yield ends_well(operation, "others delete the migration's allocations before the source is released")
    left = replace(well, holds=f"{well.holds}; residue: source + licence")
    yield Row(operation, "the source's host does not answer, and others write to the residue", ANY, left, ANSWERS, well)


def _waiting(state: str) -> ServerState:
    """Return the state of a server whose move cannot end, because others have written to its migration."""
    return ServerState("moved on the destination", state, "instance: destination; migration: source + licence")


def _ends() -> Iterator[Row]:
    trouble = "others write to the migration before the end of the move"
    for operation, state, well in (
        ("confirm", "confirming", WELL["confirm"]),
        ("revert", "reverting", with_licence(WELL["revert"])),
    ):
        yield Row(operation, trouble, ("fail",), _waiting(state), AGAIN, well, pending=operation)
        yield ends_well(operation, trouble, ("retry", "combine"), well)
    before = "others write to the migration before the source is given back"
    yield ends_well("abort", before, ALL, with_licence(WELL["abort"]))
    taken = "others delete the migration's allocations before the end of the move"
    yield ends_well("confirm", taken)
    # The source is claimed again, as long as it has room.
    yield ends_well("revert", taken)
    yield ends_well("revert", "others delete the server's allocations before the end of the move")
