"""Preconditions of orders about an instance: refuse an order in the wrong state, with advice on what to do first.

Both conductors refuse with the same text: the super conductor checks the state that it has read, the cell its records.
"""

from collections.abc import Mapping

from sqlalchemy import Connection

from conductor.engine.operations import Operations
from conductor.engine.steps import ATTACH, DETACH, HEAL
from moorage import errors
from moorage.model import MoveKind

_UNDER_WAY = "wait for {migration} to end, or abort it if it is a live migration or has failed"
_WAITING = "confirm or revert {migration} first"
#: The advice to the operator, by the state of the instance.
_ADVICE: Mapping[str, str] = {
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
    """Return the error for an order to move an instance in this state, with advice on what to do first.

    :param migration_uuid: the instance's migration that has not ended, if any.
    """
    done, needed = ("evacuated", "active or error") if kind == "evacuation" else ("moved", "active")
    return errors.InvalidState(
        reason=f"instance {instance_uuid} is {state}; to be {done} it must be {needed}{advice(state, migration_uuid)}"
    )


def advice(state: str, migration_uuid: str | None = None) -> str:
    """Return the sentence to append to a refusal: what to do first in this state; empty if nothing helps."""
    if (first := _ADVICE.get(state)) is None:
        return ""
    migration = "its move" if migration_uuid is None else f"migration {migration_uuid}"
    return f". {first[0].upper()}{first[1:].format(migration=migration)}"


def not_forced_down(host: str) -> errors.InvalidState:
    """Return the error for an evacuation from a host that is not forced down."""
    return errors.InvalidState(
        reason=f"host {host} is not forced down: once it is certain that nothing runs there, "
        f"run `moorage host set {host} --forced-down`"
    )


def require_settled(connection: Connection, operations: Operations, uuid: str) -> None:
    """Refuse an order that changes an instance's request or host while another operation changes its allocations.

    :raises InvalidState: a resource group is being attached or detached, or the allocations are being healed.
    """
    require_none_pending(connection, operations, uuid, ATTACH, DETACH, HEAL)


def require_none_pending(connection: Connection, operations: Operations, uuid: str, *kinds: str) -> None:
    """Refuse an order while an operation of one of these kinds on its instance is pending.

    :raises InvalidState: one is pending.
    """
    if (pending := operations.lock_one_pending(connection, uuid, *kinds)) is not None:
        raise errors.InvalidState(reason=f"operation {pending.uuid}, {pending.kind} of instance {uuid}, is under way")
