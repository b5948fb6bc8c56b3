"""What is to be done before an instance can be moved that cannot be moved as it is."""

from collections.abc import Mapping

from moorage import errors
from moorage.model import MoveKind

_UNDER_WAY = "wait for {migration} to end, or abort it if it is a live migration"
_WAITING = "confirm or revert {migration} first"
#: By the state of an instance.
_FIRST: Mapping[str, str] = {
    "building": "wait: a host that does not report in time is given up, and the next one tried",
    "moving": _UNDER_WAY,
    "moved": _WAITING,
    "shelved": "unshelve it: it is on no host",
    "unshelving": "wait until it is active, or shelved again",
    "rebuilding": "wait: it becomes active, or error if its host does not answer",
    "shelving": "wait until its host has answered or is forced down; then unshelve it",
    "error": "rebuild it, or evacuate it if its host is dead",
}


def cannot_move(
    instance_uuid: str, state: str, kind: MoveKind, migration_uuid: str | None = None
) -> errors.InvalidState:
    """Return the error that says why an instance in this state cannot be moved, and what is to be done first.

    :param migration_uuid: its migration that has not ended, if any.
    """
    done, needed = ("evacuated", "active or error") if kind == "evacuation" else ("moved", "active")
    migration = "its move" if migration_uuid is None else f"migration {migration_uuid}"
    first = _FIRST.get(state)
    advice = "" if first is None else f". {first[0].upper()}{first[1:].format(migration=migration)}"
    return errors.InvalidState(reason=f"instance {instance_uuid} is {state}; to be {done} it must be {needed}{advice}")
