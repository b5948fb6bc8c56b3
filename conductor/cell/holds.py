"""Compute the allocations of a cell's instances from its records; an audit compares the store with them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from sqlalchemy import Connection

from conductor.cell import attached_groups
from conductor.cell.attached_groups import InventoryKey
from conductor.cell.context import CellPart
from conductor.cell.payloads import CleanStep
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance, InstancePart
from conductor.cell.records.migrations import CellMigration
from conductor.engine.conflict_policy import CLAIM_OWNER
from conductor.engine.operations import PendingOperation
from conductor.engine.steps import CLEAN, CONFIRM, MOVE, REVERT
from moorage.bus.bus import serves
from moorage.messages import HoldsInCell, ListHoldsInCell
from moorage.model import AllocationRequest, InstanceHolds, RecordedHold
from moorage.model.states import InstanceState

#: In these states the allocations are known, as long as no operation is pending.
_AT_REST: tuple[InstanceState, ...] = ("active", "error", "moved", "shelved", "deleted")
#: While one of these steps keeps failing, the allocations of both sides of a move stay as before the step.
_UNENDED = {(CONFIRM, "destroy"), (CONFIRM, "end"), (REVERT, "destroy"), (REVERT, "give_back"), (MOVE, "give_back")}


class CellHolds(CellPart):
    """Serves `list_holds`, and computes allocations from the records. It changes nothing."""

    @serves(ListHoldsInCell)
    def list_holds(self, message: ListHoldsInCell) -> HoldsInCell:
        """Return the recorded allocations of this cell's instances, all or a page of them."""
        return self._cell.database.read_one_moment(lambda connection: self._listed(connection, message))

    def _listed(self, connection: Connection, message: ListHoldsInCell) -> HoldsInCell:
        records = self._cell.records
        if message.uuids:
            part = InstancePart(records.owners(connection, message.uuids), None)
        else:
            part = records.part(connection, message.after, message.limit)
        holds = [each for some in records.read_parts(connection, part.uuids) for each in self.of(connection, some)]
        return HoldsInCell(instances=tuple(holds), more_after=part.more_after)

    def of(
        self, connection: Connection, instances: Sequence[CellInstance], *, besides: Collection[str] = ()
    ) -> list[InstanceHolds]:
        """Return the recorded allocations of these instances.

        :param besides: operations that must not count as pending.
        """
        uuids = [instance.uuid for instance in instances]
        attempts = self._cell.records.attempts_of(connection, uuids)
        migrations = self._cell.migrations.of_instances(connection, uuids)
        subjects = [*uuids, *(each.attempt_id for made in attempts.values() for each in made if each.ended)]
        pending = self._cell.operations.read_pending(connection, subjects)
        cleanups = {subject: each for subject, under_way in pending.items() for each in under_way if each.kind == CLEAN}
        return [
            _holds(
                instance,
                attempts.get(instance.uuid, []),
                migrations.get(instance.uuid, {}),
                [each for each in pending.get(instance.uuid, ()) if each.uuid not in besides],
                cleanups,
            )
            for instance in instances
        ]


def _holds(
    instance: CellInstance,
    attempts: Sequence[AttemptRecord],
    migrations: dict[str, CellMigration],
    pending: Iterable[PendingOperation],
    cleanups: Mapping[str, PendingOperation],
) -> InstanceHolds:
    by_number = {attempt.number: attempt for attempt in attempts}
    current = by_number.get(instance.attempt_number)
    under_way = list(pending)
    # A move that is being placed, or that changes from one host to the next, is not at rest.
    at_rest = instance.state in _AT_REST or (instance.state == "moving" and bool(under_way))
    settled = at_rest and all(_leaves_alone(instance, each) for each in under_way)
    holds = [
        hold
        for attempt in attempts
        if attempt.accepted and attempt.may_have_a_guest and attempt.attempt_id in cleanups
        for hold in _residue(instance, attempt, cleanups[attempt.attempt_id])
    ]
    if settled and instance.state in ("moved", "moving"):
        move = migrations.get(instance.migration_uuid or "")
        source = None if move is None else by_number.get(move.source_number)
        if current is None or move is None or source is None or None in (current.encoded_selection, move.held):
            settled = False
        else:
            holds += _of_a_move(instance, move, source, current)
    elif settled and current is not None and current.state == "active" and instance.claim_id is not None:
        # An earlier version may have lost the attempt's selection.
        settled = current.encoded_selection is not None
        holds += _hold(instance, current, _amounts(current.selection.allocation_request)) if settled else []
    return InstanceHolds(
        instance_uuid=instance.uuid,
        state=instance.state,
        settled=settled,
        holds=tuple(holds),
        attempts=tuple(attempt.attempt_id for attempt in attempts),
        cleaned=tuple(attempt.attempt_id for attempt in attempts if attempt.attempt_id in cleanups),
        migrations=tuple(sorted(migrations)),
    )


def _leaves_alone(instance: CellInstance, pending: PendingOperation) -> bool:
    """Return True if a pending operation will not change the allocations soon: its step keeps failing."""
    is_unended = (pending.kind, pending.step) in _UNENDED
    return instance.state in ("moved", "moving") and pending.is_stuck and is_unended


# --- The holds of one consumer ----------------------------------------------------------------------------------------


def _of_a_move(
    instance: CellInstance, move: CellMigration, source: AttemptRecord, current: AttemptRecord
) -> list[RecordedHold]:
    """Return the holds of both sides of a move.

    If both sides use the same sharing provider, only the instance holds an amount there: the larger of both amounts.
    """
    _spec, request = move.claimed_with
    held, claimed = _amounts(request), _amounts(current.selection.allocation_request)
    pools = set(source.selection.shared_providers) & {uuid for uuid, _ in claimed}
    shared = Counter({pair: amount for pair, amount in held.items() if pair[0] in pools})
    migration = {
        "consumer_uuid": move.uuid,
        "consumer_type": "MIGRATION",
        "migration_of": instance.uuid,
        # The source's guest runs under an accepted claim, even if an earlier version did not record it.
        "accepted_by": source.attempt_id,
        "accepted_host": source.host,
    }
    return [*_hold(instance, current, claimed | shared), *_hold(instance, source, held - shared, **migration)]


def hold_of_source(instance: CellInstance, move: CellMigration, source: AttemptRecord) -> list[RecordedHold]:
    """Return the hold of an instance that is on the source of its move again."""
    _spec, request = move.claimed_with
    return _hold(instance, source, _amounts(request))


def _residue(instance: CellInstance, attempt: AttemptRecord, cleanup: PendingOperation) -> list[RecordedHold]:
    """Return the hold of the residue that a cleanup releases."""
    if attempt.encoded_selection is None:
        return []
    return hold_of_residue(instance, attempt, msgspec.json.decode(cleanup.payload, type=CleanStep).residue_uuid)


def hold_of_residue(instance: CellInstance, attempt: AttemptRecord, uuid: str | None = None) -> list[RecordedHold]:
    """Return the hold of a residue: the amounts in the host's own tree, without those of sharing providers.

    :param uuid: the consumer that holds the residue, if its uuid is not the attempt's id.
    """
    amounts, pools = _amounts(attempt.selection.allocation_request), attempt.selection.shared_providers
    of_host = Counter({pair: amount for pair, amount in amounts.items() if pair[0] not in pools})
    return _hold(
        instance,
        attempt,
        of_host,
        consumer_uuid=uuid or attempt.attempt_id,
        consumer_type="RESIDUE",
        claim_id=None,
        accepted_by=attempt.attempt_id,
        accepted_host=attempt.host,
        migration_of=None if uuid in (None, attempt.attempt_id) else instance.uuid,
        group=None,
        isolated={},
        owner=None,
    )


def _hold(
    instance: CellInstance, attempt: AttemptRecord, amounts: Counter[InventoryKey], **other: object
) -> list[RecordedHold]:
    """Return the hold of a consumer on the host of an attempt; nothing if there are no amounts."""
    selection, allocations = attempt.selection, attached_groups.allocations_of(amounts)
    if not allocations:
        return []
    # An active or held attempt was accepted, even if an earlier version did not record it.
    accepted = attempt.accepted or attempt.state in ("active", "held")
    hold = RecordedHold(
        consumer_uuid=instance.uuid,
        consumer_type="INSTANCE",
        claim_id=attempt.claim_id,
        root_provider_uuid=selection.compute_node_uuid,
        accepted_by=attempt.attempt_id if accepted else None,
        accepted_host=attempt.host if accepted else None,
        allocations=allocations,
        pools=tuple(uuid for uuid in selection.shared_providers if uuid in allocations),
        project_id=instance.spec.project_id,
        user_id=instance.spec.user_id,
        group=instance.spec.server_group,
        isolated=attached_groups.isolated_groups(instance.spec, selection.allocation_request),
        owner=CLAIM_OWNER,
    )
    return [msgspec.structs.replace(hold, **other)]


def _amounts(request: AllocationRequest) -> Counter[InventoryKey]:
    return attached_groups.amounts_of(request.allocations)
