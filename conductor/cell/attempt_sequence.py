"""The sequence of attempts of a build, a move or an unshelving: one host after the other until a guest runs.

All three use the same steps; they differ only in what follows the last host.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection

from conductor.cell.payloads import Fate, GiveBackStep, ReleaseStep, StartStep, SwapStep
from conductor.cell.records import failed_builds
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.gates import AttemptAtGate, InstanceAtGate
from conductor.cell.records.instances import CellInstance, CellRecords
from conductor.cell.records.migrations import SELF_CONFIRMING, CellMigration, MigrationRecords
from conductor.engine.steps import ABORTED, BUILD, MOVE, UNSHELVE, Next, Outcome, Superseded
from moorage.model import LONGEST_TEXT, RequestSpec, Selection, Value
from moorage.model.states import InstanceState, MigrationState

LOG = logging.getLogger(__name__)

#: By the state of an instance, the kind of operation that takes it from one host to the next.
_KINDS: dict[InstanceState, str] = {"building": BUILD, "unshelving": UNSHELVE, "moving": MOVE}


@dataclass(frozen=True, slots=True)
class AttemptSequence:
    """The selected hosts on which an instance is tried, one after the other."""

    #: The kind of the operation.
    kind: str
    spec: RequestSpec
    selections: tuple[Selection, ...]
    #: The number of the attempt on the first selection.
    first_number: int
    #: Null unless it is a move.
    migration: CellMigration | None = None

    @property
    def migration_uuid(self) -> str | None:
        """The migration that the attempts are made for."""
        return None if self.migration is None else self.migration.uuid

    @property
    def is_aborted(self) -> bool:
        """True if the operator has aborted the move: no further host is tried."""
        return self.migration is not None and self.migration.is_aborted

    def selection(self, number: int) -> Selection:
        """Return the selection of an attempt by its number, even if the attempt is not recorded yet."""
        return self.selections[number - self.first_number]


class AttemptSequences:
    """Finds the sequence of an instance, chooses the step after a failed attempt, and records where a guest runs.

    Each method is a part of the caller's transaction; a method that writes expects the instance to be locked.
    """

    def __init__(self, records: CellRecords, migrations: MigrationRecords) -> None:
        self._records = records
        self._migrations = migrations

    def of(self, connection: Connection, instance: CellInstance | None) -> tuple[CellInstance, AttemptSequence]:
        """Return an instance with its current sequence.

        :raises Superseded: it has no sequence: an order to delete it has ended its operation.
        """
        if instance is None or (kind := self.kind(instance)) is None:
            raise Superseded
        if kind != MOVE:
            return instance, AttemptSequence(kind, instance.spec, instance.selections, instance.first_number)
        migration = self._migrations.of(connection, instance)
        # A migration that is still being placed has no selections yet.
        if migration.state != "moving":
            raise Superseded
        spec, _held = migration.claimed_with
        return instance, AttemptSequence(MOVE, spec, migration.selections, migration.first_number, migration)

    @staticmethod
    def kind(instance: CellInstance | InstanceAtGate) -> str | None:
        """Return the kind of the operation that tries an instance on its hosts, or None if it is in no sequence."""
        return _KINDS.get(instance.state)

    def next_step(
        self, connection: Connection, instance: CellInstance, failed: int, reason: str, fate: Fate
    ) -> Outcome:
        """Return the step that follows the failed attempt of this number: swap to the next host, or undo."""
        _instance, sequence = self.of(connection, instance)
        attempt = self._records.numbered(connection, instance.uuid, failed)
        # A failed build makes its host less attractive to the scheduler. A failed move does not count, because the
        # source may be the cause. A failure that would happen on every host does not count either.
        if sequence.kind != MOVE and not attempt.no_other_host:
            failed_builds.add(connection, self._records.cell_uuid, attempt.attempt_id, attempt.host)
        candidate = self._records.next_number(connection, instance.uuid)
        reason = reason[:LONGEST_TEXT]
        is_last = sequence.is_aborted or attempt.no_other_host
        # There is another host: the store swaps the claim in one transaction, so that the instance always has a claim.
        if candidate < sequence.first_number + len(sequence.selections) and not is_last:
            return Next("swap", SwapStep(failed=failed, candidate=candidate, fate=fate, reason=reason))
        # There is no other host. A moving instance returns to its source. Any other instance has only the claim of the
        # failed attempt, which is released.
        if sequence.kind == MOVE:
            if sequence.is_aborted:
                # The attempt keeps its own reason. An abort that comes later does not become the reason of the move.
                self._records.change_attempt(connection, attempt.attempt_id, reason=attempt.reason or reason)
                reason = ABORTED
            return Next("give_back", GiveBackStep(failed=failed, fate=fate, reason=reason))
        return Next("release", ReleaseStep(failed=failed, fate=fate, reason=reason))

    def record_arrival(
        self, connection: Connection, instance: CellInstance, attempt: AttemptRecord
    ) -> CellMigration | None:
        """Record that the guest of the current attempt runs; return the migration that is confirmed now, if any."""
        _instance, sequence = self.of(connection, instance)
        if sequence.migration is None:
            self.record_arrivals(connection, [attempt])
            return None
        self._guests_run(connection, [attempt])
        # The allocations on the source are kept until the move is confirmed, by the operator or automatically.
        LOG.info("Instance %s has arrived on host %s", instance.uuid, attempt.host)
        self._records.change(connection, instance.uuid, state="moved", host=attempt.host, reason=None)
        is_confirmed = sequence.migration.kind in SELF_CONFIRMING
        state: MigrationState = "confirming" if is_confirmed else "moved"
        self._migrations.change(connection, sequence.migration.uuid, state=state, destination_host=attempt.host)
        return sequence.migration if is_confirmed else None

    def record_arrivals(self, connection: Connection, attempts: Collection[AttemptRecord | AttemptAtGate]) -> None:
        """Record that the guests of the current attempts of builds and unshelvings run, which end here."""
        self._guests_run(connection, attempts)
        uuids = sorted({attempt.instance_uuid for attempt in attempts})
        self._records.change_instances(connection, uuids, state="active", reason=None)

    def _guests_run(self, connection: Connection, attempts: Collection[AttemptRecord | AttemptAtGate]) -> None:
        attempt_ids = sorted(attempt.attempt_id for attempt in attempts)
        self._records.change_attempts(connection, attempt_ids, state="active")
        failed_builds.halve(connection, self._records.cell_uuid, [attempt.host for attempt in attempts])


def first_step(number: int, is_revoked: bool, claim_id: str | None = None) -> tuple[str, Value]:
    """Return the first step on a claimed host, with its payload: `start`, or `release` if the claim was revoked."""
    if not is_revoked:
        return "start", StartStep(number=number)
    why = "its claim was revoked before the order arrived"
    return "release", ReleaseStep(failed=None, fate="unknown", reason=why, claim_id=claim_id)
