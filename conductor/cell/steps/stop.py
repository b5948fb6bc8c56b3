"""Step `stop`: stop the guest on the source of a cold migration or a resize, before the destination starts it."""

import logging
from functools import partial

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.cell.payloads import GiveBackStep, StartStep
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance
from conductor.engine.steps import MOVE, CommitStep, Next, Operation, Outcome, Retry, step
from moorage import errors
from moorage.messages import StopOnHost

LOG = logging.getLogger(__name__)


class CellStops(CellPart):
    """The step `stop` of a cold migration or a resize: the guest on the source is stopped before the move begins."""

    @step(MOVE, "stop")
    def stop(self, operation: Operation) -> CommitStep:
        """Stop the guest on the source; repeat until the host answers. After the build timeout the move fails."""
        payload = operation.read(StartStep)

        def work(connection: Connection) -> tuple[CellInstance, AttemptRecord]:
            instance, migration = self._cell.migrations.expect(connection, operation.subject, "moving")
            return instance, self._cell.records.numbered(connection, instance.uuid, migration.source_number)

        instance, source = self._cell.database.read(work)
        # A silent host is not called, because nobody knows when it would answer.
        why = self._cell.hosts.why_silent(source.host)
        if why is not None:
            # If no order to stop was sent, the guest runs and need not be started again.
            stopped = operation.is_repeated
            return partial(self._not_stopped, operation, payload.number, f"{source.host}: {why}", stopped)
        message = source.order(StopOnHost, operation.derived("stop"), instance.guest_order)
        try:
            why = self._cell.agents.order(operation, source, message)
        except errors.MoorageError as fault:
            return partial(self._try_again, operation, payload.number, f"{source.host}: {fault}")
        if why is not None:
            return partial(self._not_stopped, operation, payload.number, f"{source.host}: {why}", True)
        LOG.info("The guest of instance %s on host %s is stopped", operation.subject, source.host)
        return lambda _connection: Next("start", payload)

    def _try_again(self, operation: Operation, number: int, why: str, connection: Connection) -> Outcome:
        if self._cell.operations.age(connection, operation) < self._cell.options.build_timeout:
            return Retry(why)
        return self._not_stopped(operation, number, why, True, connection)

    def _not_stopped(
        self, operation: Operation, number: int, why: str, stopped: bool, connection: Connection
    ) -> Outcome:
        self._cell.migrations.expect(connection, operation.subject, "moving", lock=True)
        # Nothing was sent to the destination yet, so its attempt can fail with fate "gone", and its claim is released.
        reason = f"the guest on its source could not be stopped, {why}"
        attempt = self._cell.records.numbered(connection, operation.subject, number)
        self._cell.records.change_attempt(
            connection, attempt.attempt_id, state="failed", reason=reason, guest_gone=True
        )
        return Next("give_back", GiveBackStep(failed=number, fate="gone", reason=reason, stopped=stopped))
