"""Topic `conductor` of the main bus, served by the super conductor: operations on servers."""

from typing import Annotated, ClassVar

from msgspec import Meta

from moorage.messages.basis import IN_PARTS, MAX_INSTANCES, Done, InstanceUuids, ListInParts, OrderAfter, ToConductor
from moorage.messages.wire import Message, Mutation
from moorage.model import (
    Flavor,
    Image,
    Instance,
    Migration,
    Name,
    NewName,
    RequestId,
    RequestSpec,
    ResourceGroup,
    RowNumber,
    Suffix,
    Uuid,
    Value,
)
from moorage.model.inspection import OperationSummary, UnknownGuest


class BuildInstances(Mutation[list[Uuid]], ToConductor, frozen=True, kw_only=True):
    """Build instances, all placed in one decision; answered as soon as the order is recorded."""

    may_be_batched = True
    since: ClassVar = {"names": "1.7"}
    #: At most 512 KiB as JSON, and with its copies for all instances at most 64 MiB.
    request_spec: RequestSpec
    instance_uuids: InstanceUuids
    #: The names of the instances, in the order of their uuids: none, or one for each.
    names: Annotated[tuple[NewName, ...], Meta(max_length=MAX_INSTANCES)] = ()


class DeleteInstance(Mutation[Done], ToConductor, frozen=True, kw_only=True):
    """Delete an instance; answered as soon as the order is recorded."""

    may_be_batched = True
    instance_uuid: Uuid


class ShowInstance(Message[Instance], ToConductor, frozen=True, kw_only=True):
    """Return one instance with all its attempts."""

    may_be_batched = True
    since: ClassVar = {"with_request": "1.4"}
    instance_uuid: Uuid
    #: Include the present request (``Instance.request_spec``).
    with_request: bool = False


class ListInstances(ListInParts[list[Instance]], ToConductor, frozen=True, kw_only=True):
    """List the instances in the order of their requests; deleted ones only on request.

    In parts by ``number``; a part may contain an instance that its cell has just deleted.
    """

    since: ClassVar = {**IN_PARTS, "request_id": "1.4", "name": "1.7"}
    project_id: Name | None = None
    deleted: bool = False
    #: Only the instances of one build request.
    request_id: RequestId | None = None
    #: Only the instances of this name, which need not be unique.
    name: Name | None = None
    after: RowNumber | None = None


class Ownership(Value, frozen=True, kw_only=True):
    """The owner's answer whether it wants a claim. A "no" is recorded: late messages for the claim are refused."""

    owned: bool


class OwnsClaim(Mutation[Ownership], ToConductor, frozen=True, kw_only=True):
    """Ask whether a claim is still wanted. If that is unknown, the answer is an error, and the claim is kept."""

    may_be_batched = True
    version = "1.1"
    consumer_uuid: Uuid
    claim_id: Uuid


class ListOperations(ListInParts[list[OperationSummary]], ToConductor, frozen=True, kw_only=True):
    """List the recorded operations, the oldest first, with those of the cells that answer.

    One message has the newest 5,000 of the super conductor and of each cell; parts by ``uuid`` have all of them.
    """

    version = "1.1"
    #: Include ended operations.
    ended: bool = False
    #: Only the operations about this instance, or begun by its build.
    instance_uuid: Uuid | None = None
    after: Uuid | None = None


class ShowOperation(Message[OperationSummary], ToConductor, frozen=True, kw_only=True):
    """Return one operation, of the super conductor or of a cell."""

    version = "1.1"
    uuid: Uuid


#: The host, the attempt and the cell of an unknown guest.
UnknownGuestKey = tuple[Name, Uuid, Uuid]


class ListStrangers(ListInParts[list[UnknownGuest]], ToConductor, frozen=True, kw_only=True):
    """Guests without a record, of all cells that answer; in parts by their key."""

    version = "1.1"
    after: UnknownGuestKey | None = None


# --- Operations on existing servers ----------------------------------------------------------------------------------


class Ordered(Value, frozen=True, kw_only=True):
    """The answer to an order to move: the recorded migration."""

    migration_uuid: Uuid


class OrderToMove(OrderAfter[Ordered], frozen=True, kw_only=True):
    """An order to move an instance."""

    version = "1.3"
    #: The host to move to; null leaves the choice to the scheduler.
    host: Name | None = None
    drop_extras: bool = False


class MigrateInstance(OrderToMove, frozen=True, kw_only=True):
    """Move a server to another host, stopped meanwhile; then the move waits to be confirmed or reverted."""


class ResizeInstance(OrderToMove, frozen=True, kw_only=True):
    """Resize a server, on its own or another host; then the resize waits to be confirmed or reverted."""

    #: At most 512 KiB as JSON.
    flavor: Flavor


class LiveMigrateInstance(OrderToMove, frozen=True, kw_only=True):
    """Move a server to another host while it runs."""


class EvacuateInstance(OrderToMove, frozen=True, kw_only=True):
    """Rebuild a server on another host after its host was forced down."""


class EndOfMigration(Mutation[Done], ToConductor, frozen=True, kw_only=True):
    """An order about the move of an instance."""

    version = "1.3"
    since: ClassVar = {"migration_uuid": "1.6"}
    guards: ClassVar = frozenset({"migration_uuid"})
    instance_uuid: Uuid
    #: Refused with ``StaleOrder`` if the instance has another one by now. Null for the one that it has when the super
    #: conductor takes the order.
    migration_uuid: Uuid | None = None


class ConfirmMigration(EndOfMigration, frozen=True, kw_only=True):
    """Confirm a move: the guest on the source is destroyed, and its allocations are released."""


class RevertMigration(EndOfMigration, frozen=True, kw_only=True):
    """Revert a move: the server returns to its source."""


class AbortMigration(EndOfMigration, frozen=True, kw_only=True):
    """Abort a live migration in progress, or free a server that its cell still reserves for a move which has ended."""


class ShelveInstance(OrderAfter[Done], frozen=True, kw_only=True):
    """Shelve a server: its guest is destroyed and its allocations are released; its record stays."""

    version = "1.3"


class UnshelveInstance(OrderAfter[Done], frozen=True, kw_only=True):
    """Place a shelved server again, in its cell."""

    version = "1.3"
    host: Name | None = None


class RebuildInstance(OrderAfter[Done], frozen=True, kw_only=True):
    """Rebuild a server in place from another image; its allocations stay."""

    version = "1.3"
    #: At most 512 KiB as JSON.
    image: Image


class OperationBegun(Value, frozen=True, kw_only=True):
    """The operation that carries an order out, for `show_operation`."""

    operation_uuid: Uuid


class AttachResource(OrderAfter[OperationBegun], frozen=True, kw_only=True):
    """Claim a further resource group for a running server, in the tree of its host.

    From then on the group is part of the server's request, also for moves. Answered as soon as the order is recorded.
    """

    version = "1.4"
    #: The suffix of the group, by which it is detached.
    suffix: Suffix
    #: With it, the server's request has at most 512 KiB as JSON.
    group: ResourceGroup


class DetachResource(OrderAfter[OperationBegun], frozen=True, kw_only=True):
    """Release an attached resource group; answered as soon as the order is recorded."""

    version = "1.4"
    suffix: Suffix


class ShowMigration(Message[Migration], ToConductor, frozen=True, kw_only=True):
    """Return one migration."""

    version = "1.3"
    uuid: Uuid


class ListMigrations(ListInParts[list[Migration]], ToConductor, frozen=True, kw_only=True):
    """List the migrations, the oldest first; ended ones only on request.

    In parts by ``number``; a part may contain a migration that has just ended.
    """

    version = "1.3"
    since: ClassVar = {**IN_PARTS, "request_id": "1.4"}
    instance_uuid: Uuid | None = None
    ended: bool = False
    #: Only the migration of this request.
    request_id: RequestId | None = None
    after: RowNumber | None = None
