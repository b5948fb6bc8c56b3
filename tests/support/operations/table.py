"""The table of operations: the outcome of each operation under each failure, as it is played and as the guide shows it.

Run as a script it writes docs/operations.md.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from support.operations import deletes as operation_deletes
from support.operations import migration_writes as operation_migration_writes
from support.operations import resources as operation_resources
from support.operations import timeouts as operation_timeouts
from support.operations.basis import (
    AGAIN,
    ALL,
    ANOTHER,
    ANSWERS,
    ANY,
    AS_IT_WAS,
    CONFIRM,
    DROPPING,
    ELSEWHERE,
    FORCED_DOWN,
    KEEPING,
    MOVES,
    REBUILD,
    ROOM,
    SHELVED,
    STOPPING,
    TAKEN_AWAY,
    WELL,
    Row,
    ServerState,
    ends_well,
    on_alternate,
    with_licence,
)

GUIDE = Path(__file__).parents[3] / "docs" / "operations.md"

#: What a move or an unshelving does that goes straight: the half of the conductor, the kind of operation, the step.
_ASKING = ("prepare", "read", "select", "hand_over")
POINTS: dict[str, list[tuple[str, str, str]]] = {
    "build": [("super", "build", "select"), ("super", "build", "hand_over"), ("cell", "build", "start")],
    "delete": [("super", "delete", "in_cell"), ("cell", "delete", "destroy"), ("cell", "delete", "release")],
    "confirm": [("cell", "confirm", "destroy"), ("cell", "confirm", "end")],
    "revert": [("cell", "revert", step) for step in ("destroy", "give_back", "restart")],
    "abort": [("cell", "move", "give_back")],
    "shelve": [("cell", "shelve", "destroy"), ("cell", "shelve", "release")],
    "unshelve": [*(("super", "unshelve", step) for step in _ASKING), ("cell", "unshelve", "start")],
    "rebuild": [("cell", "rebuild", "rebuild")],
    "attach": [("cell", "attach", step) for step in ("choose", "write")],
    "detach": [("cell", "detach", step) for step in ("read", "write")],
}
for _move in MOVES:
    POINTS[_move] = [("super", "move", step) for step in _ASKING]
    POINTS[_move] += [("cell", "move", "stop")] if _move in STOPPING else []
    POINTS[_move] += [("cell", "move", "start")]
    POINTS[_move] += [] if _move in STOPPING else [("cell", "confirm", "end")]
#: Steps that are reached only after hosts have failed, and how it ends then.
LATER_POINTS = [("cell", "move", "swap"), ("cell", "move", "give_back"), ("cell", "move", "restart")]


def rows() -> list[Row]:
    """Return the whole table."""
    table = [ends_well(operation, "none") for operation in WELL]
    for operation in MOVES:
        table += _conflicts_of_a_move(operation)
        table += _refused_moves(operation)
        table += _failing_hosts(operation)
    table += [*_ends_of_moves(), *_deletions(), *_shelving(), *_the_rest()]
    table += [*operation_timeouts.rows(), *operation_migration_writes.rows(), *operation_resources.rows()]
    table += operation_deletes.rows()
    for operation, points in POINTS.items():
        table += [_interrupted(operation, how, point) for how, point in itertools.product(_INTERRUPTIONS, points)]
    for operation in MOVES:
        table += _interrupted_fall_back(operation)
    table += [
        *_interrupted_placing("unshelve", SHELVED, AGAIN),
        *_interrupted_placing("build", ServerState("error"), ANOTHER),
    ]
    order = list(WELL)
    return sorted(table, key=lambda row: order.index(row.operation))


def _conflicts_of_a_move(operation: str) -> Iterator[Row]:
    once, ever = "others write before the claim", "others write before the claim, again and again"
    moved = with_licence(WELL[operation])
    back = with_licence(AS_IT_WAS)
    for trouble, refusing in ((once, ("fail",)), (ever, ("fail", "retry"))):
        yield Row(operation, trouble, refusing, back, AGAIN, moved)
        yield ends_well(operation, trouble, tuple(policy for policy in ALL if policy not in refusing), moved)
    more = WELL[operation].holds.replace("migration: source", "migration: source (and more)")
    yield Row(
        operation,
        "others write to the source's allocations before the claim",
        ALL,
        replace(AS_IT_WAS, holds="instance: source (and more)"),
        DROPPING,
        replace(WELL[operation], holds=more),
    )
    yield ends_well(operation, "the destination fails, and others write before the swap", ALL, on_alternate(moved))
    yield Row(
        operation, "every destination fails, and others write before the source is given back", ALL, back, AGAIN, moved
    )
    if operation not in STOPPING:
        trouble = "others write before the source is released"
        waiting = ServerState(
            "moved on the destination", "confirming", "instance: destination + licence; migration: source"
        )
        yield Row(operation, trouble, ("fail",), waiting, CONFIRM, moved, pending="confirm")
        yield ends_well(operation, trouble, ("retry", "combine"), moved)


def _refused_moves(operation: str) -> Iterator[Row]:
    well = WELL[operation]
    full = "the requested destination fills up before the claim"
    yield Row(operation, full, ANY, AS_IT_WAS, ELSEWHERE, on_alternate(well))
    yield Row(operation, "no host has room", ANY, AS_IT_WAS, ROOM, well)


def _failing_hosts(operation: str) -> Iterator[Row]:
    well = WELL[operation]
    yield ends_well(operation, "the destination fails", end=on_alternate(well))
    yield ends_well(operation, "the destination refuses", end=on_alternate(well))
    yield Row(operation, "every destination fails", ANY, AS_IT_WAS, AGAIN, well)
    yield Row(operation, "the destination fails, and the alternates are full by then", ANY, AS_IT_WAS, AGAIN, well)
    if operation in STOPPING:
        stuck = ServerState("error on the source", "failed", "instance: source")
        yield Row(operation, "the source's guest cannot be stopped", ANY, stuck, REBUILD, AS_IT_WAS)
    else:
        silent = replace(well, holds=f"{well.holds}; residue: source")
        yield Row(operation, "the source's host does not answer", ANY, silent, ANSWERS, well)


def _ends_of_moves() -> Iterator[Row]:
    both = "instance: destination; migration: source"
    for operation, state in (("confirm", "confirming"), ("revert", "reverting")):
        waiting = with_licence(ServerState("moved on the destination", state, both))
        trouble, well = "others write before the end of the move", with_licence(WELL[operation])
        yield Row(operation, trouble, ("fail",), waiting, AGAIN, well, pending=operation)
        yield ends_well(operation, trouble, ("retry", "combine"), well)
    waiting = ServerState("moved on the destination", "confirming", both)
    yield Row("confirm", "the source's host does not answer", ANY, waiting, ANSWERS, WELL["confirm"], pending="confirm")
    left = replace(WELL["confirm"], holds="instance: destination; residue: source")
    yield Row("confirm", FORCED_DOWN, ANY, left, ANSWERS, WELL["confirm"])
    left = replace(WELL["revert"], holds="instance: source; residue: destination")
    yield Row("revert", "the destination's host does not answer", ANY, left, ANSWERS, WELL["revert"])
    as_before = ServerState("moved on the destination", "moved", both)
    yield Row("revert", "the source's guest cannot be started", ANY, as_before, AGAIN, WELL["revert"])
    yield ends_well("abort", "others write before the source is given back", ALL, with_licence(WELL["abort"]))
    left = replace(WELL["abort"], holds="instance: source; residue: destination")
    yield Row("abort", "the destination's host does not answer", ANY, left, ANSWERS, WELL["abort"])


def _deletions() -> Iterator[Row]:
    yield ends_well("delete", "others write before the release", ALL)
    left = ServerState("deleted", "", "residue: source")
    yield Row("delete", "the source's host does not answer", ANY, left, ANSWERS, WELL["delete"])
    yield ends_well("delete", "it is being built")
    for trouble in (
        "it is on its way to another host",
        "its move waits to be confirmed",
        "its move is being confirmed",
    ):
        yield ends_well("delete", trouble, end=ServerState("deleted", "ended"))


def _shelving() -> Iterator[Row]:
    yield ends_well("shelve", "others write before the release", ALL)
    waiting = ServerState("shelving on the source", "", "instance: source")
    yield Row("shelve", "the source's host does not answer", ANY, waiting, ANSWERS, SHELVED, pending="shelve")
    yield Row("shelve", FORCED_DOWN, ANY, replace(SHELVED, holds="residue: source"), ANSWERS, SHELVED)
    operation, well = "unshelve", WELL["unshelve"]
    for trouble in ("it has foreign allocations", "others write before the claim"):
        yield Row(operation, trouble, ("fail", "retry"), with_licence(SHELVED), TAKEN_AWAY, well)
        yield ends_well(operation, trouble, ("combine",), with_licence(well))
    full = "the requested destination fills up before the claim"
    yield Row(operation, full, ANY, SHELVED, ELSEWHERE, on_alternate(well))
    yield Row(operation, "no host has room", ANY, SHELVED, ROOM, well)
    yield ends_well(operation, "the destination fails", end=on_alternate(well))
    yield ends_well(operation, "the destination refuses", end=on_alternate(well))
    yield Row(operation, "every destination fails", ANY, SHELVED, AGAIN, well)
    yield Row(operation, "the destination fails, and the alternates are full by then", ANY, SHELVED, AGAIN, well)


def _the_rest() -> Iterator[Row]:
    yield ends_well("rebuild", "others write during it", ALL, with_licence(WELL["rebuild"]))
    failed = replace(WELL["rebuild"], server="error on the source")
    yield Row("rebuild", "the guest cannot be rebuilt", ANY, failed, AGAIN, WELL["rebuild"])
    same = "resize on its host"
    yield Row(same, "its host has no room for both sizes", ANY, AS_IT_WAS, ROOM, WELL[same])
    yield Row(
        same, "others write before the claim", ("fail",), with_licence(AS_IT_WAS), AGAIN, with_licence(WELL[same])
    )
    yield ends_well(same, "others write before the claim", ("retry", "combine"), with_licence(WELL[same]))
    yield Row(same, "its host fails", ANY, AS_IT_WAS, AGAIN, WELL[same])


_INTERRUPTIONS = ("the reply is lost at", "the conductor is restarted at")


def _interrupted(operation: str, how: str, point: tuple[str, str, str]) -> Row:
    half, kind, step = point
    row = ends_well(operation, f"{how} step `{kind}.{step}` ({half})")
    return replace(row, point=point)


def _interrupted_fall_back(operation: str) -> Iterator[Row]:
    well = WELL[operation]
    for how, (half, kind, step) in itertools.product(_INTERRUPTIONS, LATER_POINTS):
        if step == "restart" and operation not in STOPPING:
            continue
        which = "the destination fails" if step == "swap" else "every destination fails"
        trouble = f"{which}, and {how} step `{kind}.{step}` ({half})"
        if step == "swap":
            row = ends_well(operation, trouble, end=on_alternate(well))
        else:
            row = Row(operation, trouble, ANY, AS_IT_WAS, AGAIN, well)
        yield replace(row, point=(half, kind, step))


def _interrupted_placing(operation: str, when_exhausted: ServerState, following: str) -> Iterator[Row]:
    well = WELL[operation]
    for how in _INTERRUPTIONS:
        trouble = f"the destination fails, and {how} step `{operation}.swap` (cell)"
        yield replace(ends_well(operation, trouble, end=on_alternate(well)), point=("cell", operation, "swap"))
        trouble = f"every destination fails, and {how} step `{operation}.release` (cell)"
        yield Row(operation, trouble, ANY, when_exhausted, following, well, point=("cell", operation, "release"))


# --- The guide --------------------------------------------------------------------------------------------------------

_HEAD = """# Outcome of each operation under each failure

Written by `python tests/support/operations/table.py`. `tests/functional/operations/test_operation_table.py` plays
every row on a whole cloud. A server with two VCPU is on the *source*. The scheduler prefers the *destination*, then
the *alternate*. After every row the server was deleted, and no allocations were left.

- *allocations*: the allocations of the server and of its migration.
- *licence*: a foreign allocation, from a provider outside every host.
- *port*: bandwidth of one of the two NICs of the server's host.
- *residue*: amounts held on a host until it confirms that the guest is gone.
- *times out*: the host accepted the guest and did not report within `[conductor] build_timeout`.
- *policy*: `[conductor] consumer_conflict_policy`, where it matters, or another option.
"""


def guide() -> str:
    """Return the document."""
    parts = [_HEAD]
    table = rows()
    for operation in WELL:
        parts.append(f"## {operation}\n")
        parts.append("| failure | policy | server | migration | allocations | what to do | how it ends |")
        parts.append("|---|---|---|---|---|---|---|")
        parts += [_line(row) for row in table if row.operation == operation]
        parts.append("")
    return "\n".join(parts)


def _line(row: Row) -> str:
    policy = "" if row.policies == ANY and not _matters(row) else ", ".join(row.policies)
    end = "as before" if row.end == row.then else f"{row.end.server}; {row.end.holds or 'no allocations'}"
    then = row.then
    cells = (row.trouble, policy, then.server, then.migration, then.holds or "none", row.next, end)
    return f"| {' | '.join(cells)} |"


def _matters(row: Row) -> bool:
    same = [one for one in rows() if (one.operation, one.trouble) == (row.operation, row.trouble)]
    return any(one.policies not in (ANY, KEEPING) for one in same)


if __name__ == "__main__":
    GUIDE.write_text(guide())
