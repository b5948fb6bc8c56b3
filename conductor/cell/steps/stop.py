"""Step `stop` of a cold migration or a resize: the guest on the source is stopped before the move begins."""

import logging
from functools import partial

from oslo_config import cfg
from sqlalchemy import Connection

from conductor.cell.guest_orders import CellGuests
from conductor.cell.payloads import GiveBackStep, StartStep
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance, CellRecords
from conductor.cell.records.migrations import CellMigration, MigrationRecords
from conductor.engine.operations import Operations
from conductor.engine.steps import MOVE, CommitStep, Next, Operation, Outcome, Retry, Step, Superseded
from moorage import errors
from moorage.db.database import Database
from moorage.messages import StopOnHost

LOG = logging.getLogger(__name__)


class CellStops:
    """The step `stop` of a move."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        database: Database,
        records: CellRecords,
        migrations: MigrationRecords,
        operations: Operations,
        guests: CellGuests,
    ) -> None:
        self._timeout: float = conf.conductor.build_timeout
        self._database = database
        self._records = records
        self._migrations = migrations
        self._operations = operations
        self._guests = guests

    def steps(self) -> dict[tuple[str, str], Step]:
        """Map the kind of operation and step to its function."""
        return {(MOVE, "stop"): self.stop}

    def stop(self, operation: Operation) -> CommitStep:
        """Stop the guest on the source; repeat until it is answered. After the build timeout the move fails."""
        payload = operation.read(StartStep)

        def work(connection: Connection) -> tuple[int | None, AttemptRecord]:
            instance = self._records.read(connection, operation.subject)
            migration = self._under_way(connection, instance)
            number = None if instance is None else instance.guest_order
            return number, self._records.numbered(connection, operation.subject, migration.source_number)

        number, source = self._database.read(work)
        message = StopOnHost(
            request_id=operation.derived("stop"),
            host=source.host,
            instance_uuid=operation.subject,
            attempt_id=source.attempt_id,
            claim_id=source.claim,
            order_number=number,
        )
        # A host that is silent is not called: nobody can say when it would answer.
        why = self._guests.why_silent(source)
        if why is not None:
            # If no order to stop was ever sent, the guest runs and need not be started again.
            stopped = operation.tries > 0 or operation.resumed
            return partial(self._not_stopped, operation, payload.number, f"{source.host}: {why}", stopped)
        try:
            why = self._guests.order(operation, source, message)
        except errors.MoorageError as fault:
            return partial(self._try_again, operation, payload.number, f"{source.host}: {fault}")
        if why is not None:
            return partial(self._not_stopped, operation, payload.number, f"{source.host}: {why}", True)
        LOG.info("The guest of instance %s on host %s is stopped", operation.subject, source.host)
        return lambda _connection: Next("start", payload)

    def _try_again(self, operation: Operation, number: int, why: str, connection: Connection) -> Outcome:
        if self._operations.age(connection, operation) < self._timeout:
            return Retry(why)
        return self._not_stopped(operation, number, why, True, connection)

    def _not_stopped(
        self, operation: Operation, number: int, why: str, stopped: bool, connection: Connection
    ) -> Outcome:
        self._under_way(connection, self._records.lock(connection, operation.subject))
        # Nothing was sent to the destination yet, so its attempt can fail as "gone" and its claim be released.
        reason = f"the guest on its source could not be stopped, {why}"
        attempt = self._records.numbered(connection, operation.subject, number)
        self._records.change_attempt(connection, attempt.attempt_id, state="failed", reason=reason, guest_gone=True)
        return Next("give_back", GiveBackStep(failed=number, fate="gone", reason=reason, stopped=stopped))

    def _under_way(self, connection: Connection, instance: CellInstance | None) -> CellMigration:
        if instance is None or instance.state != "moving":
            raise Superseded
        return self._migrations.of(connection, instance)
