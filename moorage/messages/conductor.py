"""Topic `conductor` of the main bus, served by the super conductor: what is done with servers."""

from moorage.inspection import OperationState, StrangerGuest
from moorage.messages.basis import Done, InstanceUuids
from moorage.model import Instance, Name, RequestSpec, Uuid, Value
from moorage.wire import Message, Mutation


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
    instance_uuid: Uuid


class ListInstances(Message[list[Instance]], frozen=True, kw_only=True):
    """The instances in the order they were asked for; deleted ones only on request."""

    topic = "conductor"
    method = "list_instances"
    project_id: Name | None = None
    deleted: bool = False


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


class ListOperations(Message[list[OperationState]], frozen=True, kw_only=True):
    """The operations on record, the oldest first, the cells' too where they answer."""

    topic = "conductor"
    method = "list_operations"
    version = "1.1"
    #: All of them, not only the pending ones.
    ended: bool = False
    #: Those about this instance, or begun by the build of it.
    instance_uuid: Uuid | None = None


class ShowOperation(Message[OperationState], frozen=True, kw_only=True):
    """One operation, the super conductor's or a cell's."""

    topic = "conductor"
    method = "show_operation"
    version = "1.1"
    uuid: Uuid


class ListStrangers(Message[list[StrangerGuest]], frozen=True, kw_only=True):
    """Guests without a record, of all cells that answer."""

    topic = "conductor"
    method = "list_strangers"
    version = "1.1"
