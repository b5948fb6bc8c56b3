"""The words of the table of operations: how a server stands, what is done about it, and how each operation ends."""

from dataclasses import dataclass, replace

ALL = ("fail", "retry", "combine")
#: Of no policy's making: played under the default.
ANY = ("combine",)
#: Of a cloud that keeps what others have put on servers which are deleted.
KEEPING = ("delete_foreign_amounts = false",)

AS_ORDERED = "nothing"
AGAIN = "order it again"
ELSEWHERE = "order it again, to another host"
DROPPING = "order it again with --drop-extras"
ROOM = "order it again when there is room"
CONFIRM = "confirm it once more"
REBUILD = "rebuild it"
TAKEN_AWAY = "order it again when that is taken away"
ANSWERS = "nothing; it ends when the host answers"
ANOTHER = "delete it, and build another"
DELETE = "delete it"

#: A trouble that two operations have: it does not answer to the order, and is forced down after that.
FORCED_DOWN = "the source's host does not answer, and is forced down then"


@dataclass(frozen=True)
class Stand:
    """How a server stands: its state and where it is, the state of its migration, and who holds what for it."""

    server: str
    migration: str = ""
    holds: str = ""


@dataclass(frozen=True)
class Row:
    """One trouble that strikes one operation: how the server stands then, what is to be done, and how it ends."""

    operation: str
    trouble: str
    policies: tuple[str, ...]
    then: Stand
    next: str
    end: Stand
    #: The operation has not ended.
    pending: str = ""
    #: Which failpoint is meant, where there are many: half, kind and step.
    point: tuple[str, str, str] | None = None


#: Each operation, begun on the source, when nothing is wrong. A build finds the source full.
WELL = {
    "build": Stand("active on the destination", "", "instance: destination"),
    "delete": Stand("deleted"),
    "migrate": Stand("moved on the destination", "moved", "instance: destination; migration: source"),
    "resize": Stand("moved on the destination", "moved", "instance: destination (new size); migration: source"),
    "resize on its host": Stand("moved on the source", "moved", "instance: source (new size); migration: source"),
    "confirm": Stand("active on the destination", "confirmed", "instance: destination"),
    "revert": Stand("active on the source", "reverted", "instance: source"),
    "live-migrate": Stand("active on the destination", "confirmed", "instance: destination"),
    "abort": Stand("active on the source", "failed", "instance: source"),
    "evacuate": Stand("active on the destination", "confirmed", "instance: destination"),
    "shelve": Stand("shelved"),
    "unshelve": Stand("active on the destination", "", "instance: destination"),
    "rebuild": Stand("active on the source", "", "instance: source"),
    "attach": Stand("active on the source", "", "instance: source + port"),
    "detach": Stand("active on the source", "", "instance: source"),
}
AS_IT_WAS = Stand("active on the source", "failed", "instance: source")
SHELVED = Stand("shelved")

MOVES = ("migrate", "resize", "live-migrate", "evacuate")
STOPPING = ("migrate", "resize")


def with_licence(stand: Stand) -> Stand:
    """Return how a server stands on whose consumer others have put something that is on no host."""
    first, *others = stand.holds.split("; ")
    held = f"{first} + licence" if first else "instance: licence"
    return replace(stand, holds="; ".join([held, *others]))


def on_alternate(stand: Stand) -> Stand:
    """Return the same with the alternate in place of the destination."""
    return replace(
        stand,
        server=stand.server.replace("destination", "alternate"),
        holds=stand.holds.replace("destination", "alternate"),
    )


def ends_well(operation: str, trouble: str, policies: tuple[str, ...] = ANY, end: Stand | None = None) -> Row:
    """Return a row after which nothing is left to do."""
    end = WELL[operation] if end is None else end
    return Row(operation, trouble, policies, end, AS_ORDERED, end)
