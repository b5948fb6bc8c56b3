"""Topic `conductor` of the main bus, served by the super conductor: what is done with servers."""

from typing import Annotated, ClassVar

from msgspec import Meta

from moorage.messages.basis import IN_PARTS, Done, InstanceUuids, ListInParts, OrderAfter
from moorage.messages.wire import Message, Mutation
from moorage.model import (
    Flavor,
    Image,
    Instance,
    Migration,
    Name,
    RequestId,
    RequestSpec,
    ResourceGroup,
    Suffix,
    Uuid,
    Value,
)
from moorage.model.inspection import OperationSummary, UnknownGuest


class BuildInstances(Mutation[list[Uuid]], frozen=True, kw_only=True):
    """Build instances, all placed in one decision; answered as soon as the order is on record."""

    topic = "conductor"
    method = "build_instances"
    request_spec: RequestSpec
    instance_uuids: InstanceUuids


class DeleteInstance(Mutation[Done], frozen=True, kw_only=True):
    """Delete an instance; answered as soon as the order is on record."""

    topic = "conductor"
    method = "delete_instance"
    instance_uuid: Uuid


class ShowInstance(Message[Instance], frozen=True, kw_only=True):
    """One instance with all its attempts."""

    topic = "conductor"
    method = "show_instance"
    since: ClassVar = {"with_request": "1.4"}
    instance_uuid: Uuid
    #: With what was asked for, as it stands by now (``Instance.request_spec``).
    with_request: bool = False


class ListInstances(ListInParts[list[Instance]], frozen=True, kw_only=True):
    """The instances in the order they were asked for; deleted ones only on request.

    In parts by ``number``; in a part an instance is shown whose cell has just deleted it.
    """

    topic = "conductor"
    method = "list_instances"
    since: ClassVar = {**IN_PARTS, "request_id": "1.4"}
    project_id: Name | None = None
    deleted: bool = False
    #: Those that one request has ordered to be built.
    request_id: RequestId | None = None
    after: Annotated[int, Meta(ge=0)] | None = None


class Ownership(Value, frozen=True, kw_only=True):
    """Whether the owner still wants a claim. A "no" is on its record: it will refuse what may yet arrive for it."""

    owned: bool


class OwnsClaim(Mutation[Ownership], frozen=True, kw_only=True):
    """Does anybody here want this claim? Where that cannot be told, an error says why, and the claim is kept."""

    topic = "conductor"
    method = "owns_claim"
    version = "1.1"
    consumer_uuid: Uuid
    claim_id: Uuid


class ListOperations(ListInParts[list[OperationSummary]], frozen=True, kw_only=True):
    """The operations on record, the oldest first, the cells' too where they answer.

    In one message the newest 5,000 of the super conductor and of each cell; in parts by ``uuid``, all of them.
    """

    topic = "conductor"
    method = "list_operations"
    version = "1.1"
    #: All of them, not only the pending ones.
    ended: bool = False
    #: Those about this instance, or begun by the build of it.
    instance_uuid: Uuid | None = None
    after: Uuid | None = None


class ShowOperation(Message[OperationSummary], frozen=True, kw_only=True):
    """One operation, the super conductor's or a cell's."""

    topic = "conductor"
    method = "show_operation"
    version = "1.1"
    uuid: Uuid


#: Its host, its attempt and its cell.
UnknownGuestKey = tuple[Name, Uuid, Uuid]


class ListStrangers(ListInParts[list[UnknownGuest]], frozen=True, kw_only=True):
    """Guests without a record, of all cells that answer; in parts by their key."""

    topic = "conductor"
    method = "list_strangers"
    version = "1.1"
    after: UnknownGuestKey | None = None


# --- What is done with a server that has been built ------------------------------------------------------------------


class Ordered(Value, frozen=True, kw_only=True):
    """A move that is on record."""

    migration_uuid: Uuid


class MigrateInstance(OrderAfter[Ordered], frozen=True, kw_only=True):
    """Move a server to another host, stopped meanwhile; then it waits to be confirmed or reverted."""

    topic = "conductor"
    method = "migrate_instance"
    version = "1.3"
    #: The host to move to; null leaves the choice to the scheduler.
    host: Name | None = None
    drop_extras: bool = False


class ResizeInstance(OrderAfter[Ordered], frozen=True, kw_only=True):
    """Give a server another size, on its own or another host; then it waits to be confirmed or reverted."""

    topic = "conductor"
    method = "resize_instance"
    version = "1.3"
    flavor: Flavor
    host: Name | None = None
    drop_extras: bool = False


class LiveMigrateInstance(OrderAfter[Ordered], frozen=True, kw_only=True):
    """Move a server to another host while it runs."""

    topic = "conductor"
    method = "live_migrate_instance"
    version = "1.3"
    host: Name | None = None
    drop_extras: bool = False


class EvacuateInstance(OrderAfter[Ordered], frozen=True, kw_only=True):
    """Start a server anew elsewhere, whose host has been declared down."""

    topic = "conductor"
    method = "evacuate_instance"
    version = "1.3"
    host: Name | None = None
    drop_extras: bool = False


class EndOfMigration(Mutation[Done], frozen=True, kw_only=True):
    """An order about the move of an instance."""

    since: ClassVar = {"migration_uuid": "1.6"}
    guards: ClassVar = frozenset({"migration_uuid"})
    instance_uuid: Uuid
    #: Refused with ``StaleOrder`` where the instance has another one by now. Null for the one that it has when the
    #: super conductor takes the order.
    migration_uuid: Uuid | None = None


class ConfirmMigration(EndOfMigration, frozen=True, kw_only=True):
    """Let a moved server be where it is: what it left is destroyed and released."""

    topic = "conductor"
    method = "confirm_migration"
    version = "1.3"


class RevertMigration(EndOfMigration, frozen=True, kw_only=True):
    """Take a moved server back to where it came from."""

    topic = "conductor"
    method = "revert_migration"
    version = "1.3"


class AbortMigration(EndOfMigration, frozen=True, kw_only=True):
    """Break a live migration off that is under way."""

    topic = "conductor"
    method = "abort_migration"
    version = "1.3"


class ShelveInstance(OrderAfter[Done], frozen=True, kw_only=True):
    """Take a server off its host; it keeps its record and holds nothing."""

    topic = "conductor"
    method = "shelve_instance"
    version = "1.3"


class UnshelveInstance(OrderAfter[Done], frozen=True, kw_only=True):
    """Place a shelved server again, in its cell."""

    topic = "conductor"
    method = "unshelve_instance"
    version = "1.3"
    host: Name | None = None


class RebuildInstance(OrderAfter[Done], frozen=True, kw_only=True):
    """Make a server anew where it is, from another image; what it holds stays as it is."""

    topic = "conductor"
    method = "rebuild_instance"
    version = "1.3"
    image: Image


class OperationBegun(Value, frozen=True, kw_only=True):
    """The operation that carries an order out: `show_operation` says how it fares."""

    operation_uuid: Uuid


class AttachResource(OrderAfter[OperationBegun], frozen=True, kw_only=True):
    """Claim a further resource group for a server that runs, in the tree of its host.

    From then on the group is part of the server's request: wherever the server goes, it is asked for. Answered as soon
    as the order is on record.
    """

    topic = "conductor"
    method = "attach_resource"
    version = "1.4"
    #: What the group is called: by this name it is detached.
    suffix: Suffix
    group: ResourceGroup


class DetachResource(OrderAfter[OperationBegun], frozen=True, kw_only=True):
    """Release a resource group that was attached; answered as soon as the order is on record."""

    topic = "conductor"
    method = "detach_resource"
    version = "1.4"
    suffix: Suffix


class ShowMigration(Message[Migration], frozen=True, kw_only=True):
    """One migration."""

    topic = "conductor"
    method = "show_migration"
    version = "1.3"
    uuid: Uuid


class ListMigrations(ListInParts[list[Migration]], frozen=True, kw_only=True):
    """The migrations, the oldest first; ended ones only on request.

    In parts by ``number``; in a part a migration is shown that has just ended.
    """

    topic = "conductor"
    method = "list_migrations"
    version = "1.3"
    since: ClassVar = {**IN_PARTS, "request_id": "1.4"}
    instance_uuid: Uuid | None = None
    ended: bool = False
    #: The one that a request has ordered.
    request_id: RequestId | None = None
    after: Annotated[int, Meta(ge=0)] | None = None
