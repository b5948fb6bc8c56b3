"""Topic `conductor.<cell uuid>`: the cell's half of operations on servers that have been built."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from moorage.messages.basis import MAX_INSTANCES, Done, NumberedOrder, ToCell
from moorage.messages.conductor import OperationBegun
from moorage.messages.wire import Message, Mutation
from moorage.model import (
    AllocationRequest,
    Image,
    Migration,
    MoveKind,
    Placement,
    RequestSpec,
    ResourceGroup,
    Selection,
    Suffix,
    Text,
    Uuid,
)

Selections = Annotated[tuple[Selection, ...], Meta(min_length=1, max_length=101)]


class PrepareMoveInCell(NumberedOrder[Placement], frozen=True, kw_only=True):
    """Prepare the move of an instance: it becomes `moving`, and no other operation than its deletion can begin.

    Refused with ``InvalidState`` if its state does not allow a move.
    """

    method = "prepare_move"
    version = "1.3"
    migration_uuid: Uuid
    kind: MoveKind


class CancelMoveInCell(Mutation[Done], ToCell, frozen=True, kw_only=True):
    """Cancel a prepared move without a claim: the instance returns to its former state."""

    method = "cancel_move"
    version = "1.3"
    instance_uuid: Uuid
    migration_uuid: Uuid
    reason: Text


class MoveInCell(Mutation[Done], ToCell, frozen=True, kw_only=True):
    """Move an instance to the first of these selections, which is claimed, or to one of its alternates."""

    method = "move_instance"
    version = "1.3"
    instance_uuid: Uuid
    migration_uuid: Uuid
    #: The request of the move, which becomes the instance's when the move is confirmed.
    request_spec: RequestSpec
    #: The migration's allocations on the source, as in the claim of the move.
    held: AllocationRequest
    selections: Selections


class EndMoveInCell(NumberedOrder[Done], frozen=True, kw_only=True):
    """Confirm or revert a completed move, or abort one in progress.

    An abort has no order number: it is ordered while the order to move is carried out.
    """

    method = "end_move"
    version = "1.3"
    since: ClassVar = {"order_number": "1.6", "migration_uuid": "1.6"}
    guards: ClassVar = frozenset({"order_number", "migration_uuid"})
    #: Refused with ``StaleOrder`` if the instance has another one by now; null is not compared.
    migration_uuid: Uuid | None = None
    outcome: Literal["confirm", "revert", "abort"]


class ShelveInCell(NumberedOrder[Done], frozen=True, kw_only=True):
    """The cell's half of `shelve_instance`."""

    method = "shelve_instance"
    version = "1.3"


class PrepareUnshelveInCell(NumberedOrder[RequestSpec], frozen=True, kw_only=True):
    """Prepare a shelved instance to be placed again; answered with its request."""

    method = "prepare_unshelve"
    version = "1.3"


class CancelUnshelveInCell(NumberedOrder[Done], frozen=True, kw_only=True):
    """Cancel a prepared unshelving without a claim: the instance stays shelved."""

    method = "cancel_unshelve"
    version = "1.3"
    reason: Text


class UnshelveInCell(NumberedOrder[Done], frozen=True, kw_only=True):
    """Start a shelved instance on the first of these selections, which is claimed, or on one of its alternates."""

    method = "unshelve_instance"
    version = "1.3"
    selections: Selections


class RebuildInCell(NumberedOrder[Done], frozen=True, kw_only=True):
    """The cell's half of `rebuild_instance`."""

    method = "rebuild_instance"
    version = "1.3"
    image: Image


class AttachResourceInCell(NumberedOrder[OperationBegun], frozen=True, kw_only=True):
    """The cell's half of `attach_resource`."""

    method = "attach_resource"
    version = "1.4"
    suffix: Suffix
    group: ResourceGroup


class DetachResourceInCell(NumberedOrder[OperationBegun], frozen=True, kw_only=True):
    """The cell's half of `detach_resource`."""

    method = "detach_resource"
    version = "1.4"
    suffix: Suffix


class ListMigrationsInCell(Message[list[Migration]], ToCell, frozen=True, kw_only=True):
    """List the named migrations that the cell has."""

    method = "list_migrations"
    version = "1.3"
    uuids: Annotated[tuple[Uuid, ...], Meta(max_length=MAX_INSTANCES)]
