"""What is to be done before an instance can be moved that cannot be moved as it is."""

from collections.abc import Mapping

from conductor.cell.records import instances as cell_records
from moorage import errors
from moorage.model import MoveKind

_UNDER_WAY = "wait for {migration} to end, or abort it if it is a live migration"
_WAITING = "confirm or revert {migration} first"
#: By the state of an instance.
_FIRST: Mapping[str, str] = {
    cell_records.BUILDING: "wait: a host that does not report in time is given up, and the next one tried",
    cell_records.MOVING: _UNDER_WAY,
    cell_records.MOVED: _WAITING,
    cell_records.SHELVED: "unshelve it: it is on no host",
    cell_records.UNSHELVING: "wait until it is active, or shelved again",
    cell_records.REBUILDING: "wait: it becomes active, or error if its host does not answer",
    cell_records.SHELVING: "wait until its host has answered or is forced down; then unshelve it",
    cell_records.ERROR: "rebuild it, or evacuate it if its host is dead",
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
