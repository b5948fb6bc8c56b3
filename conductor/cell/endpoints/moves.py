"""The endpoint for orders about moves: prepare, cancel, begin and end one.

An order is answered as soon as it is recorded; the worker carries out its operation.
"""

import logging

from sqlalchemy import Connection

from conductor.cell.context import CellPart
from conductor.cell.hosts.forced_down import must_be_evacuated
from conductor.cell.payloads import Fate, GiveBackStep, StartStep
from conductor.cell.records import order_numbers
from conductor.cell.records.attempts import AttemptRecord
from conductor.cell.records.instances import CellInstance
from conductor.cell.records.migrations import STOPPING, CellMigration
from conductor.cell.steps.end_move import CellMoveEnds
from conductor.engine.order_requests import origin
from conductor.engine.preconditions import cannot_move, not_forced_down, require_settled
from conductor.engine.steps import ABORTED, CONFIRM, MOVE, REVERT, Next, Operation
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import CancelMoveInCell, Done, EndMoveInCell, MoveInCell, PrepareMoveInCell
from moorage.model import Placement
from moorage.model.states import InstanceState

LOG = logging.getLogger(__name__)


class CellMoves(CellPart):
    """Serves `prepare_move`, `cancel_move`, `move_instance` and `end_move`.

    Each raises ``InstanceNotFound`` if the instance is unknown here.
    """

    @serves(PrepareMoveInCell)
    def prepare_move(self, message: PrepareMoveInCell) -> Placement:
        """Reserve an instance for a move, and return its current placement.

        :raises InvalidState: it cannot be moved in its state, its host is forced down and this is no evacuation, its
            host is not forced down and this is an evacuation, or the move was cancelled before this order arrived. A
            deleted host counts as forced down once it is silent.
        :raises StoreUnavailable: this is an evacuation, and it is unknown whether its host is forced down.
        """
        evacuates = message.kind == "evacuation"
        forced_down = self._cell.forced_down.host_of(message.instance_uuid, evacuates=evacuates)
        # Without a record no operator can mark the host. After the store was restored, a host that is newer than the
        # backup is unknown until it describes itself again, and its guests run.
        may_live = evacuates and forced_down is not None and self._cell.hosts.may_live(forced_down)
        is_doubtful = may_live and self._cell.forced_down.surely_deleted(str(forced_down))

        def work(connection: Connection, _begun: list[Operation]) -> Placement:
            instance = self._cell.records.lock_known(connection, message.instance_uuid)
            # If the cancellation came before this order, it is recorded as a revoked claim with the migration's uuid.
            if self._cell.revoked_claims.among(connection, [message.migration_uuid]):
                raise errors.InvalidState(reason=f"migration {message.migration_uuid} has been cancelled")
            order_numbers.take(self._cell.records, connection, instance, message)
            source = self._movable(connection, instance, message)
            if evacuates and source.host != forced_down:
                raise not_forced_down(source.host)
            if is_doubtful:
                raise _may_live(source.host)
            if not evacuates and source.host == forced_down:
                raise must_be_evacuated(instance.uuid, source.host, "its guest cannot be moved")
            self._cell.migrations.add(connection, message, instance, source, origin(message))
            self._cell.records.change(connection, instance.uuid, state="moving", migration_uuid=message.migration_uuid)
            return Placement(
                request_spec=instance.spec,
                selection=source.selection,
                attempt_id=source.attempt_id,
                claim_id=source.claim,
            )

        return self._cell.requests.once(message, work)

    def _movable(self, connection: Connection, instance: CellInstance, message: PrepareMoveInCell) -> AttemptRecord:
        states: tuple[InstanceState, ...] = ("active", "error") if message.kind == "evacuation" else ("active",)
        if instance.state not in states:
            raise cannot_move(instance.uuid, instance.state, message.kind, instance.migration_uuid)
        require_settled(connection, self._cell.operations, instance.uuid)
        return self._cell.records.active_attempt(connection, instance)

    @serves(CancelMoveInCell)
    def cancel_move(self, message: CancelMoveInCell) -> Done:
        """Cancel a move for which nothing is claimed yet, and restore the state of the instance.

        If the order to prepare it has not arrived yet, that order will be refused.
        """

        def work(connection: Connection, _begun: list[Operation]) -> Done:
            instance = self._cell.records.lock_known(connection, message.instance_uuid)
            migration = self._cell.migrations.read(connection, message.migration_uuid)
            if migration is None:
                self._cell.revoked_claims.add(connection, message.migration_uuid, message.instance_uuid)
            elif self._is_placing(instance, migration):
                self._cell.records.change(
                    connection, instance.uuid, state=migration.instance_state, migration_uuid=None
                )
                self._cell.migrations.change(connection, migration.uuid, state="failed", reason=message.reason)
                LOG.info("Migration %s of instance %s is cancelled", migration.uuid, instance.uuid)
            return Done()

        return self._cell.requests.once(message, work)

    @serves(MoveInCell)
    def move_instance(self, message: MoveInCell) -> Done:
        """Begin to move an instance to the host that is claimed for it; ignore a claim that was taken over before.

        :raises InvalidRequest: the first selection is not claimed.
        :raises InvalidState: it is not reserved for this move, for instance because it is being deleted.
        """
        first = message.selections[0]
        claim_id = first.claim_id
        if claim_id is None:
            raise errors.InvalidRequest(path="$.selections[0]", reason="it is not claimed")

        def work(connection: Connection, begun: list[Operation]) -> Done:
            instance = self._cell.records.lock_known(connection, message.instance_uuid)
            # The super conductor repeats this order until it is answered, perhaps for longer than an answer is stored.
            if self._cell.records.has_claim(connection, instance.uuid, claim_id):
                return Done()
            migration = self._cell.migrations.read(connection, message.migration_uuid)
            if migration is None or not self._is_placing(instance, migration):
                raise errors.InvalidState(
                    reason=f"instance {instance.uuid} is {instance.state}, and not reserved for migration "
                    f"{message.migration_uuid}"
                )
            number = self._cell.records.next_number(connection, instance.uuid)
            self._cell.migrations.claim(connection, message, number)
            # In state held, the guest on the source passes the gates during the move, and a failure report of it
            # changes nothing.
            source = self._cell.migrations.source(connection, migration)
            self._cell.records.change_attempt(connection, source.attempt_id, state="held")
            new = self._operation(origin(message), migration, number)
            attempt_id = ids.derived(new.uuid, "attempt", number)
            self._cell.records.add_attempt(
                connection,
                instance.uuid,
                first,
                attempt_id=attempt_id,
                number=number,
                claim_id=claim_id,
                migration_uuid=migration.uuid,
            )
            # The move was aborted before it began: the operation returns the claim at once.
            if migration.is_aborted:
                self._fail(connection, attempt_id, ABORTED, gone=True)
            self._cell.records.change(connection, instance.uuid, attempt_number=number, claim_id=claim_id)
            # Number the order to stop the guest on the source.
            order_numbers.next_guest_order(self._cell.records, connection, instance)
            begun += self._cell.operations.begin(connection, [new])
            return Done()

        return self._cell.requests.once(message, work)

    @staticmethod
    def _operation(request_id: str, migration: CellMigration, number: int) -> Operation:
        uuid, subject = ids.derived(migration.uuid, MOVE), migration.instance_uuid
        if migration.is_aborted:
            payload = GiveBackStep(failed=number, fate="gone", reason=ABORTED)
            return Operation.new(request_id, uuid, MOVE, subject, "give_back", payload)
        step = "stop" if migration.kind in STOPPING else "start"
        return Operation.new(request_id, uuid, MOVE, subject, step, StartStep(number=number))

    @serves(EndMoveInCell)
    def end_move(self, message: EndMoveInCell) -> Done:
        """Confirm or revert a move that has arrived, or abort a live migration that is under way.

        :raises InvalidState: the instance has no such move.
        :raises StaleOrder: the order names another migration than the instance's current one.
        """

        def work(connection: Connection, begun: list[Operation]) -> Done:
            instance = order_numbers.lock(self._cell.records, connection, message)
            _require_its_move(instance, message.migration_uuid)
            if message.outcome == "abort":
                begun += self._abort(connection, instance)
            else:
                kind = CONFIRM if message.outcome == "confirm" else REVERT
                begun += CellMoveEnds(self._cell).order(connection, instance, kind, message.request_id)
            return Done()

        return self._cell.requests.once(message, work)

    def _abort(self, connection: Connection, instance: CellInstance) -> list[Operation]:
        """Abort a live migration: at once if it waits for its host, otherwise when the pending swap is answered."""
        migration = None
        if instance.state == "moving" and instance.migration_uuid is not None:
            migration = self._cell.migrations.read(connection, instance.migration_uuid)
        if migration is None or migration.kind != "live-migration":
            reason = f"instance {instance.uuid} is {instance.state}: no live migration of it is under way"
            raise errors.InvalidState(reason=reason)
        self._cell.migrations.change(connection, migration.uuid, is_aborted=True)
        move = self._cell.operations.lock_one_pending(connection, instance.uuid, MOVE)
        # A swap may have been sent: its step finds the migration aborted when the answer is recorded.
        if move is None or move.step not in ("start", "wait"):
            return []
        attempt = self._cell.records.current(connection, instance)
        self._fail(connection, attempt.attempt_id, ABORTED, gone=attempt.guest_gone)
        fate: Fate = "gone" if attempt.guest_gone else "unknown"
        payload = GiveBackStep(failed=attempt.number, fate=fate, reason=ABORTED)
        redirected = self._cell.operations.redirect(connection, move, Next("give_back", payload))
        return [] if redirected is None else [redirected]

    def _fail(self, connection: Connection, attempt_id: str, reason: str, *, gone: bool) -> None:
        """Record that an attempt has failed: from now on it cannot pass a gate."""
        self._cell.records.change_attempt(connection, attempt_id, state="failed", reason=reason, guest_gone=gone)

    @staticmethod
    def _is_placing(instance: CellInstance, migration: CellMigration) -> bool:
        return (instance.state, instance.migration_uuid) == ("moving", migration.uuid) and (
            migration.state == "placing"
        )


def _may_live(host: str) -> errors.InvalidState:
    reason = f"host {host} has no record and may be alive: an evacuation must wait until it is forced down, or silent"
    return errors.InvalidState(reason=reason)


def _require_its_move(instance: CellInstance, migration_uuid: str | None) -> None:
    """Refuse an order that names another migration than the instance's current one."""
    if migration_uuid is not None and instance.migration_uuid not in (None, migration_uuid):
        reason = f"it is about migration {migration_uuid}, and the migration is {instance.migration_uuid} by now"
        raise errors.StaleOrder(instance_uuid=instance.uuid, reason=reason)
