"""The terms of the table of operations: the state of a server, the operator's action, and the end of each operation."""

from dataclasses import dataclass, replace

ALL = ("fail", "retry", "combine")
#: Independent of the policy: played under the default.
ANY = ("combine",)
#: In a cloud that keeps foreign allocations when servers are deleted.
KEEPING = ("delete_foreign_amounts = false",)

AS_ORDERED = "nothing"
AGAIN = "order it again"
ELSEWHERE = "order it again, to another host"
DROPPING = "order it again with --drop-extras"
ROOM = "order it again when there is room"
CONFIRM = "confirm it again"
REBUILD = "rebuild it"
TAKEN_AWAY = "order it again after the foreign allocations are deleted"
ANSWERS = "nothing; it ends when the host answers"
ANOTHER = "delete it, and build another"
DELETE = "delete it"

#: A trouble of two operations: the host does not answer to the order, and then it is forced down.
FORCED_DOWN = "the source's host does not answer, and is then forced down"


@dataclass(frozen=True)
class ServerState:
    """The state of a server: its state and host, the state of its migration, and the allocations for it."""

    server: str
    migration: str = ""
    holds: str = ""


@dataclass(frozen=True)
class Row:
    """One trouble in one operation: the state of the server then, the operator's next action, and the end."""

    operation: str
    trouble: str
    policies: tuple[str, ...]
    then: ServerState
    next: str
    end: ServerState
    #: The operation that has not ended.
    pending: str = ""
    #: The failpoint, if there are several: half, kind and step.
    point: tuple[str, str, str] | None = None


#: The end of each operation without any trouble; it begins on the source. For a build, the source is full.
WELL = {
    "build": ServerState("active on the destination", "", "instance: destination"),
    "delete": ServerState("deleted"),
    "migrate": ServerState("moved on the destination", "moved", "instance: destination; migration: source"),
    "resize": ServerState("moved on the destination", "moved", "instance: destination (new size); migration: source"),
    "resize on its host": ServerState("moved on the source", "moved", "instance: source (new size); migration: source"),
    "confirm": ServerState("active on the destination", "confirmed", "instance: destination"),
    "revert": ServerState("active on the source", "reverted", "instance: source"),
    "live-migrate": ServerState("active on the destination", "confirmed", "instance: destination"),
    "abort": ServerState("active on the source", "failed", "instance: source"),
    "evacuate": ServerState("active on the destination", "confirmed", "instance: destination"),
    "shelve": ServerState("shelved"),
    "unshelve": ServerState("active on the destination", "", "instance: destination"),
    "rebuild": ServerState("active on the source", "", "instance: source"),
    "attach": ServerState("active on the source", "", "instance: source + port"),
    "detach": ServerState("active on the source", "", "instance: source"),
}
AS_IT_WAS = ServerState("active on the source", "failed", "instance: source")
SHELVED = ServerState("shelved")

MOVES = ("migrate", "resize", "live-migrate", "evacuate")
STOPPING = ("migrate", "resize")


def with_licence(state: ServerState) -> ServerState:
    """Return a state in which the consumer also has a foreign allocation that is on no host."""
    first, *others = state.holds.split("; ")
    held = f"{first} + licence" if first else "instance: licence"
    return replace(state, holds="; ".join([held, *others]))


def on_alternate(state: ServerState) -> ServerState:
    """Return the state with the alternate in place of the destination."""
    return replace(
        state,
        server=state.server.replace("destination", "alternate"),
        holds=state.holds.replace("destination", "alternate"),
    )


def ends_well(operation: str, trouble: str, policies: tuple[str, ...] = ANY, end: ServerState | None = None) -> Row:
    """Return a row after which no action is needed."""
    end = WELL[operation] if end is None else end
    return Row(operation, trouble, policies, end, AS_ORDERED, end)
