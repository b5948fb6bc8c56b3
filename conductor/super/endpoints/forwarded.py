"""Forward orders about an instance that only its cell carries out; the answer comes once the cell has recorded them."""

from typing import Any, TypeVar

from sqlalchemy import Connection

from conductor.engine.steps import ABORTED, MOVE, UNSHELVE, Operation
from conductor.super.context import SuperPart
from conductor.super.endpoints.instances import SuperView
from conductor.super.records import instances as super_records
from conductor.super.records import migrations as super_migrations
from conductor.super.steps.move import SuperMoves
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    AbortMigration,
    AttachResource,
    AttachResourceInCell,
    CancelMoveInCell,
    ConfirmMigration,
    DetachResource,
    DetachResourceInCell,
    Done,
    EndMoveInCell,
    ListMigrationsInCell,
    OperationBegun,
    RebuildInCell,
    RebuildInstance,
    RevertMigration,
    ShelveInCell,
    ShelveInstance,
)
from moorage.messages.basis import NumberedOrder, check_spec
from moorage.messages.conductor import EndOfMigration
from moorage.messages.wire import Mutation
from moorage.model import Uuid, Value

R = TypeVar("R")


class ForwardGuards(Value, frozen=True, kw_only=True):
    """The guards that an order is forwarded with. Both are null in the records of an earlier release."""

    order_number: int | None = None
    #: The migration that the order confirms, reverts or aborts.
    migration_uuid: Uuid | None = None
    #: The move has ended here, and its cell still reserves the instance for it: only that is undone.
    is_left: bool = False


class ForwardDecision(Mutation[ForwardGuards], frozen=True, kw_only=True):
    """The decision to forward an order; it is stored, so that a repeated order is forwarded with the same guards."""

    topic = "conductor"
    method = "passed_on"
    #: The digest of the order's content.
    content: str


class ForwardedOrders(SuperPart):
    """Forwards orders to cells. No operation begins here: the cell records the order before it answers, or refuses it.

    The caller repeats an unanswered order, with the same request id or with a new one. The decision to forward an order
    is made once: a repeated order is forwarded in any state of the instance, because the cell may have carried it out
    without an answer that is recorded here.
    """

    @serves(ConfirmMigration)
    def confirm_migration(self, message: ConfirmMigration) -> Done:
        """Confirm a moved instance."""
        return self._relay(message, message.instance_uuid, EndMoveInCell, outcome="confirm")

    @serves(RevertMigration)
    def revert_migration(self, message: RevertMigration) -> Done:
        """Revert a moved instance."""
        return self._relay(message, message.instance_uuid, EndMoveInCell, outcome="revert")

    @serves(AbortMigration)
    def abort_migration(self, message: AbortMigration) -> Done:
        """Abort a live migration, or free an instance that is still reserved for a move which has ended."""
        return self._relay(message, message.instance_uuid, EndMoveInCell, outcome="abort")

    @serves(ShelveInstance)
    def shelve_instance(self, message: ShelveInstance) -> Done:
        """Shelve an instance."""
        return self._relay(message, message.instance_uuid, ShelveInCell)

    @serves(RebuildInstance)
    def rebuild_instance(self, message: RebuildInstance) -> Done:
        """Rebuild an instance on its host.

        :raises InvalidRequest: the image is too large to be stored.
        """
        check_spec(message.image, "$.image")
        return self._relay(message, message.instance_uuid, RebuildInCell, image=message.image)

    @serves(AttachResource)
    def attach_resource(self, message: AttachResource) -> OperationBegun:
        """Claim a further resource group for an instance, in the provider tree of its host."""
        wanted = {"suffix": message.suffix, "group": message.group}
        return self._relay(message, message.instance_uuid, AttachResourceInCell, **wanted)

    @serves(DetachResource)
    def detach_resource(self, message: DetachResource) -> OperationBegun:
        """Release a resource group that was attached to an instance."""
        return self._relay(message, message.instance_uuid, DetachResourceInCell, suffix=message.suffix)

    def _relay(self, message: Mutation[R], uuid: str, kind: type[NumberedOrder[R]], **content: Any) -> R:
        """Forward an order to the cell of its instance.

        :param kind: the type of the order to the cell, which has the further fields ``content``.
        :raises InstanceNotFound: there is no such instance.
        :raises StaleOrder: another order was given since the caller read the instance, or was carried out first.
        :raises InvalidState: the instance is being placed, or the cell refuses the order in its state.
        :raises CellUnreachable: the cell does not answer; it is unknown whether it has the order.
        """
        answer = self._super.database.read(lambda connection: self._super.stored.find(connection, message))
        if answer is not None:
            return answer.result
        cell_uuid, passed = self._pass_on(message, uuid)
        if kind is EndMoveInCell:
            content["migration_uuid"] = passed.migration_uuid
        named = {"request_id": ids.derived(message.request_id, "in_cell"), "instance_uuid": uuid}
        in_cell: Mutation[Any] = kind(order_number=passed.order_number, **named, **content)
        if passed.is_left:
            in_cell = CancelMoveInCell(migration_uuid=str(passed.migration_uuid), reason=ABORTED, **named)
        try:
            done: R = self._super.cells.call(cell_uuid, in_cell, timeout=self._super.cells.order_patience)
        except (errors.RequestIdReused, errors.RequestInProgress) as fault:
            raise type(fault)(request_id=message.request_id) from fault
        except errors.InstanceNotFound as fault:
            # The instance exists, but may not have been handed over to the cell yet.
            if self._super.database.read(lambda connection: super_records.read(connection, uuid)).state != "building":
                raise
            reason = f"instance {uuid} is being built, and its cell does not have it yet"
            raise errors.InvalidState(reason=reason) from fault

        def answered(connection: Connection, begun: list[Operation]) -> R:
            if isinstance(message, AbortMigration):
                begun += SuperMoves(self._super).abort(connection, uuid, passed.migration_uuid)
            return done

        # Store the answer: a repeated order is answered from it, in any later state of the instance.
        return self._super.requests.once(message, answered)

    def _pass_on(self, message: Mutation[R], uuid: str) -> tuple[str, ForwardGuards]:
        """Decide to forward an order; return its cell and its guards, which are the same for a repeated order."""
        decision = ForwardDecision(
            request_id=ids.derived(message.request_id, "passed_on"), content=message.digest().hex()
        )
        left = self._left_reserved(message) if isinstance(message, AbortMigration) else None

        def work(connection: Connection) -> ForwardGuards:
            is_abort = isinstance(message, AbortMigration)
            self._require_unplaced(connection, uuid, may_be_placed=is_abort)
            # A move may have been ordered since: what the cell has reserved then is not left, and the order decides.
            if left is not None and super_migrations.open_of(connection, uuid) is None:
                return ForwardGuards(migration_uuid=left, is_left=True)
            migration_uuid = None
            if isinstance(message, EndOfMigration):
                migration_uuid = message.migration_uuid or super_migrations.open_of(connection, uuid)
            if is_abort:
                # An abort has no number: it arrives while the numbered order to move is carried out, and must not make
                # that order stale. Its only guard is the migration: a late abort could end a later one otherwise.
                if migration_uuid is None:
                    raise errors.InvalidState(reason=f"no live migration of instance {uuid} is under way")
                return ForwardGuards(migration_uuid=migration_uuid)
            number = super_records.number_order(connection, uuid, getattr(message, "last_order", None))
            return ForwardGuards(order_number=number, migration_uuid=migration_uuid)

        try:
            passed = self._super.stored.once_or_refused(decision, work).result
        except (errors.RequestIdReused, errors.RequestInProgress) as fault:
            raise type(fault)(request_id=message.request_id) from fault
        # If this order is repeated, the cell may have refused to take the instance since the decision.
        known = self._super.database.read(lambda connection: super_records.read(connection, uuid))
        return _cell_of(uuid, known.cell_uuid, known.state), passed

    def _left_reserved(self, message: AbortMigration) -> str | None:
        """Return the migration for which the cell still reserves an instance, although it has ended here, or None.

        A former release has left it so if the cell could not send its answer to the preparation, or did not understand
        the cancellation. Nothing would continue the move, and the cell would refuse every order but a deletion.
        """
        uuid = message.instance_uuid
        if self._super.database.read(lambda connection: super_migrations.open_of(connection, uuid)) is not None:
            return None
        try:
            instance = SuperView(self._super).read_current(uuid)
        except errors.InstanceNotFound:
            return None  # the decision refuses it, and late copies of this order too
        named, cell_uuid = instance.migration_uuid, instance.cell_uuid
        if (
            instance.state != "moving"
            or cell_uuid is None
            or named is None
            or message.migration_uuid not in (None, named)
        ):
            return None
        asked = ListMigrationsInCell(uuids=(named,))
        found = self._super.cells.call(cell_uuid, asked, timeout=self._super.cells.patience)
        return named if [migration.state for migration in found] == ["placing"] else None

    def _require_unplaced(self, connection: Connection, uuid: str, *, may_be_placed: bool) -> None:
        row = super_records.lock_known(connection, uuid)
        _cell_of(uuid, row.cell_uuid, row.state)
        pending = self._super.operations.lock_one_pending(connection, uuid, MOVE, UNSHELVE)
        # At step `hand_over` the cell may have the instance already: then the cell decides.
        if pending is not None and pending.step != "hand_over" and not may_be_placed:
            operation = f"operation {pending.uuid}, {pending.kind}"
            raise errors.InvalidState(reason=f"instance {uuid} is being placed ({operation})")


def _cell_of(uuid: str, cell_uuid: str | None, state: str) -> str:
    """Return the cell of an instance, and refuse the order if it has none."""
    if cell_uuid is None:
        raise errors.InvalidState(reason=f"instance {uuid} is {state} and in no cell")
    return cell_uuid
