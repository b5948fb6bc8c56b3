"""How a cell confirms and reverts moves: the guest that is not wanted goes first, then the claims are put in order."""

import logging
from functools import partial

import msgspec
from oslo_config import cfg
from sqlalchemy import Connection

from conductor.cell.agents import CellAgents
from conductor.cell.guest_orders import CellGuests
from conductor.cell.hosts.forced_down import ForcedDownHosts, why_waiting
from conductor.cell.payloads import Ending, Fate, Restarting, ReturningToSource
from conductor.cell.records import order_numbers
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance, CellRecords
from conductor.cell.records.migrations import STOPPING, CellMigration, MigrationRecords
from conductor.cell.steps.cleanup import CellCleanups
from conductor.engine.conflict_policy import PolicyWrites, describe_foreign
from conductor.engine.operations import Operations
from conductor.engine.steps import (
    CONFIRM,
    REVERT,
    CommitStep,
    Ended,
    NewOperation,
    Next,
    NoPayload,
    Operation,
    Outcome,
    Retry,
    Step,
    Superseded,
)
from moorage import context, errors, ids
from moorage.db.database import Database
from moorage.messages import EndMove, MoveEnded, StopOnHost
from moorage.model.states import MigrationState

LOG = logging.getLogger(__name__)


class CellMoveEnds:
    """The operations `confirm` and `revert` of a move that has arrived."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        database: Database,
        records: CellRecords,
        migrations: MigrationRecords,
        operations: Operations,
        agents: CellAgents,
        guests: CellGuests,
        forced_down: ForcedDownHosts,
        cleanups: CellCleanups,
        writes: PolicyWrites,
    ) -> None:
        self._guests = guests
        self._patience: float = conf.conductor.delete_patience
        self._database = database
        self._records = records
        self._migrations = migrations
        self._operations = operations
        self._agents = agents
        self._forced_down = forced_down
        self._cleanups = cleanups
        self._writes = writes

    def steps(self) -> dict[tuple[str, str], Step]:
        """Return the function for each step."""
        return {
            (CONFIRM, "destroy"): self.destroy_source,
            (CONFIRM, "end"): self.end,
            (REVERT, "destroy"): self.destroy_destination,
        }

    # --- Records: within the transaction of whoever has locked the instance -------------------------------------------

    def begin_confirming(
        self, connection: Connection, instance_uuid: str, migration_uuid: str, arrived: AttemptRecord
    ) -> Operation:
        """Record that a move is to be confirmed which waits for nobody: its guest has just arrived."""
        LOG.info("Migration %s is confirmed by itself, on host %s", migration_uuid, arrived.host)
        return self._begin(connection, CONFIRM, instance_uuid, migration_uuid)

    def order(self, connection: Connection, instance: CellInstance, kind: str, request_id: str) -> list[Operation]:
        """Record that a move is to be confirmed or reverted; ordered before, it is tried again at once.

        :raises InvalidState: there is no move of this instance that waits for it.
        """
        if (pending := self._operations.pending(connection, instance.uuid, kind)) is not None:
            again = self._operations.redirect(connection, pending, Next(pending.step, _as_it_is(pending)))
            return [] if again is None else [again]
        migration = self._waiting(connection, instance)
        state: MigrationState = "confirming" if kind == CONFIRM else "reverting"
        self._migrations.change(connection, migration.uuid, state=state)
        if kind == REVERT:
            # Its host is asked for the guest on the source first.
            order_numbers.next_guest_order(self._records, connection, instance)
        # A revert that is given up can be ordered again.
        return [self._begin(connection, kind, instance.uuid, migration.uuid, request_id)]

    def _begin(
        self, connection: Connection, kind: str, instance_uuid: str, migration_uuid: str, *further: str
    ) -> Operation:
        uuid = ids.derived(migration_uuid, kind, *further)
        new = NewOperation(uuid=uuid, kind=kind, subject=instance_uuid, step="destroy", payload=NoPayload())
        [begun] = self._operations.begin(connection, [new], context.current().request_id or uuid)
        return begun

    def _waiting(self, connection: Connection, instance: CellInstance) -> CellMigration:
        migration = None
        if instance.state == "moved" and instance.migration_uuid is not None:
            migration = self._migrations.read(connection, instance.migration_uuid)
        if migration is None or migration.state != "moved":
            what = f"instance {instance.uuid} is {instance.state}"
            if migration is not None:
                what = f"migration {migration.uuid} is {migration.state}"
            raise errors.InvalidState(reason=f"{what}: there is no move that waits to be confirmed or reverted")
        return migration

    # --- Steps --------------------------------------------------------------------------------------------------------

    def destroy_source(self, operation: Operation) -> CommitStep:
        """Destroy the guest that was left behind, until its host has answered; of a live migration for a time.

        The host of an evacuation has been declared down: it is not asked, and what it has stays held as a residue. So
        it does where a host that does not answer is declared down by then, or later.
        """
        instance, migration = self._database.read(lambda connection: self._read(connection, operation))
        if migration.kind == "evacuation":
            return partial(self._destroyed, operation, migration.source_number, "unknown")
        patience = None if migration.kind in STOPPING else self._patience
        return self._destroy(operation, instance, migration.source_number, patience)

    def destroy_destination(self, operation: Operation) -> CommitStep:
        """Destroy the guest that has arrived, until its host has answered, for a time; first make sure of the source.

        Where nothing has been destroyed yet and the source has no guest that could be started, the revert is given up:
        the server runs on, and can be confirmed, or reverted later.
        """
        instance, migration = self._database.read(lambda connection: self._read(connection, operation))
        arrived = self._database.read(
            lambda connection: self._records.numbered(connection, instance.uuid, instance.attempt_number)
        )
        # Ended, the guest that has arrived may have been destroyed by an earlier try.
        if not arrived.ended:
            try:
                why = self._why_no_source(operation, instance, migration)
            except errors.MoorageError as fault:
                return partial(self._source_unknown, operation, str(fault))
            if why is not None:
                return partial(self._given_up, operation, why)
            self._database.write(lambda connection: self._leave(connection, operation, arrived))
        return self._destroy(operation, instance, instance.attempt_number, self._patience)

    def _why_no_source(self, operation: Operation, instance: CellInstance, migration: CellMigration) -> str | None:
        """Return why a server cannot go back to its source, if so: its host is asked to keep the guest stopped."""
        source = self._database.read(
            lambda connection: self._records.numbered(connection, instance.uuid, migration.source_number)
        )
        message = StopOnHost(
            request_id=operation.derived("source"),
            host=source.host,
            instance_uuid=instance.uuid,
            attempt_id=source.attempt_id,
            claim_id=source.claim,
            order_number=instance.guest_order,
        )
        why = self._guests.why_silent(source) or self._guests.order(operation, source, message)
        return None if why is None else f"its source is not there to go back to, {source.host}: {why}"

    def _leave(self, connection: Connection, operation: Operation, arrived: AttemptRecord) -> None:
        """Record that the guest that has arrived is not wanted: no gate lets it pass, and its host destroys it."""
        self._read(connection, operation, lock=True)
        self._records.change_attempt(connection, arrived.attempt_id, state="ended", reason="its move was reverted")

    def _source_unknown(self, operation: Operation, why: str, connection: Connection) -> Outcome:
        is_over = self._operations.age(connection, operation) >= self._patience
        return self._given_up(operation, why, connection) if is_over else Retry(why)

    def _given_up(self, operation: Operation, why: str, connection: Connection) -> Outcome:
        _instance, migration = self._read(connection, operation, lock=True)
        self._migrations.change(connection, migration.uuid, state="moved", reason=why)
        LOG.warning("The revert of migration %s is given up: %s", migration.uuid, why)
        return Ended(why)

    def _destroy(self, operation: Operation, instance: CellInstance, number: int, patience: float | None) -> CommitStep:
        attempt = self._database.read(lambda connection: self._records.numbered(connection, instance.uuid, number))
        if not attempt.guest_gone:
            try:
                self._agents.destroy(operation, instance.uuid, attempt)
            except errors.MoorageError as fault:
                LOG.warning("The guest of %s on host %s may be left: %s", instance.uuid, attempt.host, fault)
                if self._forced_down.has(attempt.host):
                    return partial(self._destroyed, operation, number, "unknown")
                why = why_waiting(attempt.host, fault) if patience is None else f"{attempt.host}: {fault}"
                return partial(self._not_destroyed, operation, number, patience, why)
        return partial(self._destroyed, operation, number, "gone")

    def _not_destroyed(
        self, operation: Operation, number: int, patience: float | None, why: str, connection: Connection
    ) -> Outcome:
        is_over = patience is not None and self._operations.age(connection, operation) >= patience
        if is_over or self._is_gone(connection, operation, number):
            return self._destroyed(operation, number, "unknown", connection)
        return Retry(why)

    def _destroyed(self, operation: Operation, number: int, fate: Fate, connection: Connection) -> Outcome:
        self._read(connection, operation, lock=True)
        if self._is_gone(connection, operation, number):
            fate = "gone"  # its host's word has come meanwhile
        if fate == "gone":
            left = self._records.numbered(connection, operation.subject, number)
            self._records.change_attempt(connection, left.attempt_id, guest_gone=True)
        if operation.kind == CONFIRM:
            return Next("end", Ending(fate=fate))
        return Next("give_back", ReturningToSource(failed=number, fate=fate, reason=None))

    def _is_gone(self, connection: Connection, operation: Operation, number: int) -> bool:
        return self._records.numbered(connection, operation.subject, number).guest_gone

    def end(self, operation: Operation) -> CommitStep:
        """Have what the migration holds released; without a word of the source's host it stays, as a residue."""
        ending = operation.read(Ending)

        def work(connection: Connection) -> tuple[CellMigration, AttemptRecord]:
            instance, migration = self._read(connection, operation)
            return migration, self._records.numbered(connection, instance.uuid, instance.attempt_number)

        migration, arrived = self._database.read(work)
        _spec, held = migration.claimed_with

        def message(ending: Ending) -> EndMove:
            return EndMove(
                request_id=self._writes.request_id(operation, "end", ending, ending.fate),
                consumer_uuid=operation.subject,
                migration_uuid=migration.uuid,
                claim_id=arrived.claim,
                outcome="confirm",
                held=held,
                claimed=arrived.selection.allocation_request,
                consumer_generation=ending.generation,
                migration_generation=ending.migration_generation,
                guest_gone=ending.fate == "gone",
                leave_residue=ending.fate == "unknown",
                keep_extras=self._writes.keeps_foreign,
            )

        try:
            ended = self._writes.write(operation, ending, message, migration.uuid)
        except errors.ConsumerNotFound as fault:
            if fault.name != migration.uuid:
                raise
            LOG.warning("Nothing is left to release for migration %s: %s", migration.uuid, fault)
            return partial(self._confirmed, operation, ending.fate, None, None)
        if not isinstance(ended, MoveEnded):
            return ended
        extras = describe_foreign(ended.extras, stay=self._writes.keeps_foreign)
        return partial(self._confirmed, operation, ending.fate, ended.residue_uuid, extras)

    def _confirmed(
        self, operation: Operation, fate: Fate, residue: str | None, extras: str | None, connection: Connection
    ) -> Outcome:
        instance, migration = self._read(connection, operation, lock=True)
        source = self._records.numbered(connection, instance.uuid, migration.source_number)
        self._records.change_attempt(connection, source.attempt_id, state="ended")
        if fate != "gone":
            self._cleanups.begin(connection, instance.uuid, [source], operation.request_id, residue)
        spec, _held = migration.claimed_with
        self._records.change(
            connection,
            instance.uuid,
            state="active",
            request_spec=msgspec.json.encode(spec),
            migration_uuid=None,
            reason=None,
        )
        self._migrations.change(connection, migration.uuid, state="confirmed", reason=extras)
        LOG.info("Migration %s of instance %s is confirmed; %s", migration.uuid, instance.uuid, extras or "it is all")
        return Ended()

    def _read(
        self, connection: Connection, operation: Operation, *, lock: bool = False
    ) -> tuple[CellInstance, CellMigration]:
        read = self._records.lock if lock else self._records.read
        instance = read(connection, operation.subject)
        if instance is None or instance.state != "moved":
            raise Superseded
        return instance, self._migrations.of(connection, instance)


def _as_it_is(operation: Operation) -> Ending | ReturningToSource | Restarting | NoPayload:
    """Return what is on record for the step at hand, so that it is done again as it was."""
    match operation.step:
        case "end":
            return operation.read(Ending)
        case "give_back":
            return operation.read(ReturningToSource)
        case "restart":
            return operation.read(Restarting)
    return NoPayload()
