"""The orders about an instance that its cell alone carries out: answered once the cell has them on record."""

from typing import Literal, TypeVar

import msgspec
from oslo_config import cfg
from sqlalchemy import Connection

from conductor import super_records
from conductor.cells import Cells
from conductor.operations import Operations
from conductor.steps import MOVE, UNSHELVE
from moorage import errors, ids
from moorage.bus import serves
from moorage.database import Database
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
from moorage.requests import StoredRequests
from moorage.wire import Mutation

R = TypeVar("R")


class PassedOn(Mutation[Done], frozen=True, kw_only=True):
    """That an order may go to its instance's cell. It is kept here among the stored requests, and never sent."""

    topic = "conductor"
    method = "passed_on"
    #: Of the order.
    content: str


class SuperRelays:
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

    def _end(
        self,
        message: ConfirmMigration | RevertMigration | AbortMigration,
        outcome: Literal["confirm", "revert", "abort"],
    ) -> Done:
        uuid = message.instance_uuid
        return self._relay(
            message, uuid, EndMoveInCell(request_id=message.request_id, instance_uuid=uuid, outcome=outcome)
        )

    def _relay(self, message: Mutation[R], uuid: str, in_cell: Mutation[R]) -> R:
        """Give an order to the cell of its instance.

        :raises InstanceNotFound: there is no such instance.
        :raises InvalidState: it is being placed, or the cell says so.
        :raises CellUnreachable: the cell does not answer; whether it has the order is unknown.
        """
        answer = self._database.read(lambda connection: self._requests.find(connection, message))
        if answer is not None:
            return answer.result
        cell_uuid = self._pass_on(message, uuid)
        passed_on = msgspec.structs.replace(in_cell, request_id=ids.derived(message.request_id, "in_cell"))
        try:
            done = self._cells.call(cell_uuid, passed_on, timeout=self._timeout)
        except (errors.RequestIdReused, errors.RequestInProgress) as fault:
            raise type(fault)(request_id=message.request_id) from fault
        # Repeated, it is answered from here, whatever is done with the instance by then.
        return self._requests.once(message, lambda _connection: done).result

    def _pass_on(self, message: Mutation[R], uuid: str) -> str:
        """Return the cell that an order is to go to."""
        may_be_placed = isinstance(message, AbortMigration)
        decision = PassedOn(request_id=ids.derived(message.request_id, "passed_on"), content=message.digest().hex())

        def work(connection: Connection) -> Done:
            self._require_unplaced(connection, uuid, may_be_placed)
            return Done()

        try:
            self._requests.once(decision, work)
        except (errors.RequestIdReused, errors.RequestInProgress) as fault:
            raise type(fault)(request_id=message.request_id) from fault
        return str(self._database.read(lambda connection: super_records.read(connection, uuid)).cell_uuid)

    def _require_unplaced(self, connection: Connection, uuid: str, may_be_placed: bool) -> None:
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
