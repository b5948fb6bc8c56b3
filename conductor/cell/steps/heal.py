"""Heal an instance: make the store's allocations agree with the records of the cell.

A heal is an operation, so that no other operation begins on the instance while it is pending. The allocations to write
are computed when the step is done. The store compares the current allocations with those that the audit has seen.
"""

import logging

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.cell.holds import CellHolds
from conductor.cell.payloads import HealStep
from conductor.engine.steps import HEAL, REPEAT_UNCHANGED, CommitStep, Ended, Operation, Superseded, ended, step
from moorage import errors
from moorage.messages import HealConsumers
from moorage.model import InstanceHolds, SeenConsumer

LOG = logging.getLogger(__name__)


class CellHeals(CellPart):
    """The step `heal`, the only one of its operation."""

    @step(HEAL, "heal")
    def heal(self, operation: Operation) -> CommitStep:
        """Write the recorded allocations to the store and release all others; if the store refuses, the heal fails."""
        recorded = self._cell.database.read_one_moment(lambda connection: self._recorded(connection, operation))
        seen = operation.read(HealStep).seen
        # Check again: an order to delete may have arrived since the heal was begun.
        if not recorded.settled:
            return ended(f"instance {operation.subject} is {recorded.state}, and an operation on it may be under way")
        message = _message(operation, recorded, seen)
        try:
            self._cell.placement.call(message)
        except REPEAT_UNCHANGED:
            raise
        except (errors.CapacityExceeded, errors.GroupRuleRefused) as fault:
            return self._without_room(operation, message, fault)
        except errors.MoorageError as fault:
            return ended(str(fault))
        LOG.warning("The allocations of instance %s agree with its records again", operation.subject)
        return lambda _connection: Ended()

    def _recorded(self, connection: Connection, operation: Operation) -> InstanceHolds:
        instance = self._cell.records.read(connection, operation.subject)
        if instance is None:
            raise Superseded
        return CellHolds(self._cell).of(connection, [instance], besides=[operation.uuid])[0]

    def _without_room(self, operation: Operation, message: HealConsumers, fault: errors.MoorageError) -> CommitStep:
        """Release the allocations of claims without a record, because other instances may need the room, and end."""
        known = {hold.consumer_uuid: hold.claim_id for hold in message.holds}
        stale = {
            uuid: seen
            for uuid, seen in message.seen.items()
            if seen.claim_id is not None and seen.claim_id != known.get(uuid)
        }
        if not stale:
            return ended(str(fault))
        for_good = tuple(uuid for uuid in message.for_good if uuid in stale)
        release = HealConsumers(request_id=operation.derived("release"), seen=stale, for_good=for_good)
        try:
            self._cell.placement.call(release)
        except REPEAT_UNCHANGED:
            raise
        except errors.MoorageError as second:
            return ended(f"{fault} {second}")
        return ended(f"{fault} What it held by a claim that is on no record is released.")


def _message(operation: Operation, recorded: InstanceHolds, seen: dict[str, SeenConsumer]) -> HealConsumers:
    holds = tuple(hold for hold in recorded.holds if hold.consumer_uuid in seen)
    others = seen.keys() - {hold.consumer_uuid for hold in holds}
    lives = recorded.state != "deleted"
    return HealConsumers(
        request_id=operation.derived("heal"),
        seen=seen,
        holds=holds,
        # An ended migration or residue never has allocations again: delete it for good, to refuse late writes.
        for_good=tuple(sorted(uuid for uuid in others if uuid != recorded.instance_uuid or not lives)),
    )
