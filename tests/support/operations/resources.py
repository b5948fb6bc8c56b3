"""The rows of the table about resources attached to a server: a port on one of its host's two NICs."""

from collections.abc import Iterator
from dataclasses import replace

from support.operations.basis import AGAIN, ALL, ANY, ROOM, WELL, Row, ServerState, ends_well, with_licence

#: Troubles with names, for the player of the rows.
ONE_FULL = "the chosen NIC fills up before the write"
ALL_FULL = "every NIC fills up before the write"
NO_ROOM = "no NIC of its host has room"
DELETED = "the server is deleted before the write"
TAKEN = "others have deleted the port"
FENCED = f"{ONE_FULL}, whose first attempt was not answered"
_ONCE, _EVER = "others write before the write", "others write before the write, again and again"


def rows() -> list[Row]:
    """Return the rows."""
    return [*_conflicts(), *_refused(), *_deleted(), *_fenced()]


def _conflicts() -> Iterator[Row]:
    for operation, other in (("attach", "detach"), ("detach", "attach")):
        well, before = with_licence(WELL[operation]), with_licence(WELL[other])
        for trouble, refusing in ((_ONCE, ("fail",)), (_EVER, ("fail", "retry"))):
            yield Row(operation, trouble, refusing, before, AGAIN, well)
            yield ends_well(operation, trouble, tuple(policy for policy in ALL if policy not in refusing), well)
    yield ends_well("detach", TAKEN, ALL)


def _refused() -> Iterator[Row]:
    yield ends_well("attach", ONE_FULL)
    for trouble in (ALL_FULL, NO_ROOM):
        yield Row("attach", trouble, ANY, WELL["detach"], ROOM, WELL["attach"])


def _deleted() -> Iterator[Row]:
    for operation in ("attach", "detach"):
        yield ends_well(operation, DELETED, end=ServerState("deleted"))


def _fenced() -> Iterator[Row]:
    """Yield rows with an unanswered write that was refused: it may still happen, so it is fenced before another NIC."""
    yield ends_well("attach", FENCED)
    for how in ("the reply is lost at", "the conductor is restarted at"):
        row = ends_well("attach", f"{FENCED}, and {how} step `attach.fence` (cell)")
        yield replace(row, point=("cell", "attach", "fence"))
