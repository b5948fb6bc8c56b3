"""The orders about an instance that its cell alone carries out: answered once the cell has them on record."""

from typing import Literal, TypeVar

import msgspec
from oslo_config import cfg
from sqlalchemy import Connection

from conductor.engine.operations import Operations
from conductor.engine.steps import MOVE, UNSHELVE
from conductor.super.cell_clients import Cells
from conductor.super.records import instances as super_records
from conductor.super.records import migrations as super_migrations
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.db.database import Database
from moorage.messages import (
    AbortMigration,
    AttachResource,
    AttachResourceInCell,
    ConfirmMigration,
    DetachResource,
    DetachResourceInCell,
    Done,
    EndMoveInCell,
    OperationBegun,
    RebuildInCell,
    RebuildInstance,
    RevertMigration,
    ShelveInCell,
    ShelveInstance,
)
from moorage.messages.basis import NumberedOrder
from moorage.messages.conductor import EndOfMigration
from moorage.messages.wire import Mutation
from moorage.model import Uuid, Value
from moorage.service.stored_requests import StoredRequests

R = TypeVar("R")


class ForwardGuards(Value, frozen=True, kw_only=True):
    """Hold the guards that an order is passed on with. Both are null in the records of a former release."""

    order_number: int | None = None
    #: The migration that the order is about.
    migration_uuid: Uuid | None = None


class ForwardDecision(Mutation[ForwardGuards], frozen=True, kw_only=True):
    """That an order may go to its instance's cell. It is kept here among the stored requests, and never sent."""

    topic = "conductor"
    method = "passed_on"
    #: Of the order.
    content: str


class ForwardedOrders:
    """No operation is begun here: the cell has the order on record once it answers, and says itself what is wrong.

    An order that is not answered is repeated by whoever gave it, with its request id or anew. Whether it may go to the
    cell is decided once: repeated, it goes there however things stand by then, for the cell may have carried it out and
    its answer may be on no record here.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        database: Database,
        requests: StoredRequests,
        operations: Operations,
        cells: Cells,
    ) -> None:
        # Whoever asks here is to hear that its cell is away, and not nothing.
        self._timeout: float = conf.rpc.call_timeout / 3
        self._database = database
        self._requests = requests
        self._operations = operations
        self._cells = cells

    @serves(ConfirmMigration)
    def confirm_migration(self, message: ConfirmMigration) -> Done:
        """Have a moved instance confirmed."""
        return self._end(message, "confirm")

    @serves(RevertMigration)
    def revert_migration(self, message: RevertMigration) -> Done:
        """Have a moved instance taken back."""
        return self._end(message, "revert")

    @serves(AbortMigration)
    def abort_migration(self, message: AbortMigration) -> Done:
        """Have a live migration broken off."""
        return self._end(message, "abort")

    @serves(ShelveInstance)
    def shelve_instance(self, message: ShelveInstance) -> Done:
        """Have an instance taken off its host."""
        uuid = message.instance_uuid
        return self._relay(message, uuid, ShelveInCell(request_id=message.request_id, instance_uuid=uuid))

    @serves(RebuildInstance)
    def rebuild_instance(self, message: RebuildInstance) -> Done:
        """Have an instance made anew where it is."""
        uuid = message.instance_uuid
        in_cell = RebuildInCell(request_id=message.request_id, instance_uuid=uuid, image=message.image)
        return self._relay(message, uuid, in_cell)

    @serves(AttachResource)
    def attach_resource(self, message: AttachResource) -> OperationBegun:
        """Have a further resource group claimed for an instance, in the tree of its host."""
        uuid = message.instance_uuid
        in_cell = AttachResourceInCell(
            request_id=message.request_id, instance_uuid=uuid, suffix=message.suffix, group=message.group
        )
        return self._relay(message, uuid, in_cell)

    @serves(DetachResource)
    def detach_resource(self, message: DetachResource) -> OperationBegun:
        """Have a resource group released that was attached to an instance."""
        uuid = message.instance_uuid
        in_cell = DetachResourceInCell(request_id=message.request_id, instance_uuid=uuid, suffix=message.suffix)
        return self._relay(message, uuid, in_cell)

    def _end(self, message: EndOfMigration, outcome: Literal["confirm", "revert", "abort"]) -> Done:
        uuid = message.instance_uuid
        return self._relay(
            message, uuid, EndMoveInCell(request_id=message.request_id, instance_uuid=uuid, outcome=outcome)
        )

    def _relay(self, message: Mutation[R], uuid: str, in_cell: NumberedOrder[R]) -> R:
        """Give an order to the cell of its instance.

        :raises InstanceNotFound: there is no such instance.
        :raises StaleOrder: another order was given since the caller read the instance, or was carried out before this.
        :raises InvalidState: it is being placed, or the cell says so.
        :raises CellUnreachable: the cell does not answer; whether it has the order is unknown.
        """
        answer = self._database.read(lambda connection: self._requests.find(connection, message))
        if answer is not None:
            return answer.result
        cell_uuid, passed = self._pass_on(message, uuid)
        named = {"migration_uuid": passed.migration_uuid} if isinstance(in_cell, EndMoveInCell) else {}
        passed_on = msgspec.structs.replace(
            in_cell,
            request_id=ids.derived(message.request_id, "in_cell"),
            order_number=passed.order_number,
            **named,
        )
        try:
            done = self._cells.call(cell_uuid, passed_on, timeout=self._timeout)
        except (errors.RequestIdReused, errors.RequestInProgress) as fault:
            raise type(fault)(request_id=message.request_id) from fault
        # Repeated, it is answered from here, whatever is done with the instance by then.
        return self._requests.once(message, lambda _connection: done).result

    def _pass_on(self, message: Mutation[R], uuid: str) -> tuple[str, ForwardGuards]:
        """Return the cell that an order is to go to, and what it goes there with; repeated, it is the same."""
        decision = ForwardDecision(
            request_id=ids.derived(message.request_id, "passed_on"), content=message.digest().hex()
        )

        def work(connection: Connection) -> ForwardGuards:
            is_abort = isinstance(message, AbortMigration)
            self._require_unplaced(connection, uuid, may_be_placed=is_abort)
            migration_uuid = None
            if isinstance(message, EndOfMigration):
                migration_uuid = message.migration_uuid or super_migrations.open_of(connection, uuid)
            if is_abort:
                # Ordered while the order to move is carried out, which it must not overtake.
                return ForwardGuards(migration_uuid=migration_uuid)
            number = super_records.number_order(connection, uuid, getattr(message, "last_order", None))
            return ForwardGuards(order_number=number, migration_uuid=migration_uuid)

        try:
            passed = self._requests.once(decision, work).result
        except (errors.RequestIdReused, errors.RequestInProgress) as fault:
            raise type(fault)(request_id=message.request_id) from fault
        return str(self._database.read(lambda connection: super_records.read(connection, uuid)).cell_uuid), passed

    def _require_unplaced(self, connection: Connection, uuid: str, *, may_be_placed: bool) -> None:
        row = super_records.lock(connection, [uuid]).get(uuid)
        if row is None:
            raise errors.InstanceNotFound(name=uuid)
        if row.cell_uuid is None:
            raise errors.InvalidState(reason=f"instance {uuid} is {row.state} and in no cell")
        for kind in (MOVE, UNSHELVE):
            pending = self._operations.pending(connection, uuid, kind)
            # With the last of its steps the cell has it, and knows better.
            if pending is not None and pending.step != "hand_over" and not may_be_placed:
                raise errors.InvalidState(reason=f"instance {uuid} is being placed (operation {pending.uuid}, {kind})")
