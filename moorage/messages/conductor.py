"""Topic `conductor` of the main bus, served by the super conductor: what is done with servers."""

from moorage.messages.basis import Done, InstanceUuids
from moorage.model import Instance, Name, RequestSpec, Uuid
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
