"""How the super conductor moves: its cell takes the instance for it, the scheduler chooses, the cell does the rest."""

import logging

import msgspec
from sqlalchemy import Connection

from conductor.engine.acknowledgements import AcknowledgingClient
from conductor.engine.operations import Operations
from conductor.engine.steps import MOVE, Again, CommitStep, Ended, NewOperation, Next, Operation, Outcome, Step
from conductor.super.cell_clients import Cells
from conductor.super.records import instances as super_records
from conductor.super.records import migrations as super_migrations
from conductor.super.scheduling import Asker, Chosen, Refused
from moorage import errors
from moorage.db.database import Database
from moorage.messages import (
    CancelMoveInCell,
    DeleteAllocations,
    MoveInCell,
    PrepareMoveInCell,
    PutAllocations,
)
from moorage.model import (
    ConsumerAllocations,
    Destination,
    Flavor,
    Move,
    MoveKind,
    Name,
    Placement,
    RequestSpec,
    Uuid,
    Value,
)

LOG = logging.getLogger(__name__)

#: The steps at which an order to delete the instance ends the move at once. At the others what the move may yet bring
#: about is being undone, and that must be done to its end.
ENDED_BY_DELETION = ("prepare", "read", "select", "hand_over")


class Preparing(Value, frozen=True, kw_only=True):
    """Step `prepare`: what was ordered."""

    kind: MoveKind
    cell_uuid: Uuid
    host: Name | None = None
    flavor: Flavor | None = None
    drop_extras: bool = False
    #: Null in the records of earlier versions.
    order_number: int | None = None


class SuperMoves:
    """The steps of a move; its operation and its migration have one uuid."""

    def __init__(self, database: Database, asker: Asker, placement: AcknowledgingClient, cells: Cells) -> None:
        self._database = database
        self._asker = asker
        self._placement = placement
        self._cells = cells

    def steps(self) -> dict[tuple[str, str], Step]:
        """Return the function for each step."""
        return self._asker.steps(MOVE) | {
            (MOVE, "prepare"): self.prepare,
            (MOVE, "fence"): self.fence,
            (MOVE, "cancel"): self.cancel,
            (MOVE, "hand_over"): self.hand_over,
        }

    @staticmethod
    def begin(
        connection: Connection,
        operations: Operations,
        preparing: Preparing,
        *,
        uuid: str,
        instance_uuid: str,
        request_id: str,
        origin: str,
    ) -> list[Operation]:
        """Record a migration and the operation that carries it out.

        :param origin: the request that it all began with.
        """
        super_migrations.add(
            connection,
            uuid,
            instance_uuid=instance_uuid,
            cell_uuid=preparing.cell_uuid,
            kind=preparing.kind,
            request_id=request_id,
        )
        new = NewOperation(uuid=uuid, kind=MOVE, subject=instance_uuid, step="prepare", payload=preparing)
        return operations.begin(connection, [new], origin)

    # --- prepare ------------------------------------------------------------------------------------------------------

    def prepare(self, operation: Operation) -> CommitStep:
        """Have the cell take the instance for the move, and say where it is."""
        preparing = operation.read(Preparing)
        message = PrepareMoveInCell(
            request_id=operation.derived("prepare"),
            instance_uuid=operation.subject,
            migration_uuid=operation.uuid,
            kind=preparing.kind,
            order_number=preparing.order_number,
        )
        try:
            placement = self._cells.call(preparing.cell_uuid, message)
        except errors.MoorageError as fault:
            return self._not_prepared(operation, fault)
        asking = self._asker.asking(_wanted(placement, preparing), _move(placement, preparing, operation.uuid))

        def record(connection: Connection) -> Outcome:
            super_migrations.change(connection, operation.uuid, source_host=placement.selection.service_host)
            return Next("read", asking)

        return record

    def _not_prepared(self, operation: Operation, fault: errors.MoorageError) -> CommitStep:
        if not was_refused(fault):
            raise fault
        refused = Refused(reason=str(fault))
        if operation.tries or operation.resumed:
            # An earlier sending of it may be slower than this refusal: cancelled, it is refused as well.
            return lambda _connection: Next("cancel", refused)
        # The only sending there was: its cell refuses whatever else comes under the number of the order.
        return lambda connection: _failed(connection, operation, refused)

    # --- hand_over ----------------------------------------------------------------------------------------------------

    def hand_over(self, operation: Operation) -> CommitStep:
        """Give the cell the instance with its claimed destination, until it is answered: it may have moved it already.

        A cell that has taken the instance for this move has no reason to refuse, unless it is being deleted.
        """
        chosen = operation.read(Chosen)
        move, selections = chosen.move, chosen.selections
        if move is None:
            raise ValueError(f"operation {operation.uuid} is no move")
        try:
            self._cells.call(
                selections[0].cell_uuid,
                MoveInCell(
                    request_id=operation.derived("hand_over"),
                    instance_uuid=operation.subject,
                    migration_uuid=operation.uuid,
                    request_spec=lasting(chosen.request_spec),
                    held=move.held,
                    selections=selections,
                ),
            )
        except errors.MoorageError as fault:
            if not was_refused(fault):
                raise
            reason = str(fault)
            return lambda connection: _not_taken(connection, operation, reason)

        def record(connection: Connection) -> Outcome:
            super_migrations.change(
                connection,
                operation.uuid,
                state="moving",
                destination_host=selections[0].service_host,
            )
            return Ended()

        return record

    # --- fence and cancel ---------------------------------------------------------------------------------------------

    def fence(self, operation: Operation) -> CommitStep:
        """See to it that no earlier request is carried out any more, or find that one has been.

        Each of them would create the migration's consumer. So it is created here, holding nothing, and buried.
        """
        refused, uuid = operation.read(Refused), operation.uuid
        if (asking := refused.asking) is None:
            raise ValueError(f"operation {uuid} has nothing to fence")
        spec = asking.request_spec
        empty = ConsumerAllocations(
            allocations={},
            project_id=spec.project_id,
            user_id=spec.user_id,
            consumer_type="MIGRATION",
            consumer_generation=None,
        )
        try:
            self._placement.call(
                PutAllocations(request_id=operation.derived("fence"), consumer_uuid=uuid, wanted=empty)
            )
        except errors.ConsumerGenerationConflict:
            return lambda _connection: Next("recover", asking)
        except errors.ConsumerDeleted:
            LOG.info("Migration %s has gone with its instance", uuid)
        self._placement.call(DeleteAllocations(request_id=operation.derived("bury"), consumer_uuid=uuid, for_good=True))
        return lambda _connection: Next("cancel", msgspec.structs.replace(refused, asking=None))

    def cancel(self, operation: Operation) -> CommitStep:
        """Have the cell give the instance free, until it is answered; it knows if the instance is gone meanwhile."""
        refused = operation.read(Refused)
        cell_uuid = self._database.read(lambda connection: super_migrations.read(connection, operation.uuid)).cell_uuid
        try:
            self._cells.call(
                cell_uuid,
                CancelMoveInCell(
                    request_id=operation.derived("cancel"),
                    instance_uuid=operation.subject,
                    migration_uuid=operation.uuid,
                    reason=refused.reason,
                ),
            )
        except errors.MoorageError as fault:
            if not was_refused(fault):
                raise
            LOG.info("Cell %s has nothing to cancel for migration %s: %s", cell_uuid, operation.uuid, fault)
        return lambda connection: _failed(connection, operation, refused)


def was_refused(fault: errors.MoorageError) -> bool:
    """Tell whether a cell has said no, and did nothing."""
    refused = isinstance(fault, errors.CallerError | errors.StaleOrder)
    return refused and not isinstance(fault, errors.CellNotFound)


def lasting(spec: RequestSpec) -> RequestSpec:
    """Return a request without what was meant for one operation: hosts that it named or left out."""
    return msgspec.structs.replace(spec, requested_destination=None, ignore_hosts=(), force_hosts=(), force_nodes=())


def within_cell(spec: RequestSpec, cell_uuid: str, host: str | None) -> RequestSpec:
    """Return a request with what one operation means: to stay in the cell, and perhaps to go to a host."""
    return msgspec.structs.replace(lasting(spec), requested_destination=Destination(cell=cell_uuid, host=host))


def _wanted(placement: Placement, preparing: Preparing) -> RequestSpec:
    spec = within_cell(placement.request_spec, preparing.cell_uuid, preparing.host)
    return spec if preparing.flavor is None else msgspec.structs.replace(spec, flavor=preparing.flavor)


def _move(placement: Placement, preparing: Preparing, migration_uuid: str) -> Move:
    return Move(
        migration_uuid=migration_uuid,
        kind=preparing.kind,
        claim_id=placement.claim_id,
        held=placement.selection.allocation_request,
        drop_extras=preparing.drop_extras,
    )


def _failed(connection: Connection, operation: Operation, refused: Refused) -> Outcome:
    deleted = refused.deleted or super_records.is_deleted(connection, operation.subject)
    super_migrations.change(
        connection,
        operation.uuid,
        state="ended" if deleted else "failed",
        reason=refused.reason,
        explanation=refused.explanation,
    )
    return Ended(refused.reason)


def _not_taken(connection: Connection, operation: Operation, reason: str) -> Outcome:
    if not super_records.is_deleted(connection, operation.subject):
        return Again(reason)
    super_migrations.change(connection, operation.uuid, state="ended", reason=reason)
    return Ended(reason)
