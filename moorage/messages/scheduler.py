"""Topic `scheduler` of the main bus: destinations, and the hosts that they are chosen from."""

from typing import Annotated, ClassVar

from msgspec import Meta

from moorage.inspection import ViewDrift
from moorage.messages.basis import MAX_INSTANCES, Done, InstanceUuids
from moorage.model import Generation, HostReport, HostState, Move, Name, RequestSpec, Selection, Text, Uuid
from moorage.wire import Message, Mutation


class SelectDestinations(Mutation[list[list[Selection]]], frozen=True, kw_only=True):
    """A claimed host for each instance, in order, each followed by its alternates. All or nothing.

    With ``move``, which is for one instance, its source goes to the migration in the same write. Every instance that
    exists is named with the generation that the caller relies on.
    """

    topic = "scheduler"
    method = "select_destinations"
    since: ClassVar = {"consumer_generations": "1.1", "move": "1.3", "keep_held": "1.3"}
    request_spec: RequestSpec
    instance_uuids: InstanceUuids
    num_alternates: Annotated[int, Meta(ge=0, le=100)]
    owner: Name | None = None
    #: The generation of each instance that exists already, for instance because its claim was released; the others
    #: must be new.
    consumer_generations: Annotated[dict[Uuid, Generation], Meta(max_length=MAX_INSTANCES)] = {}
    move: Move | None = None
    #: What an instance that exists holds already stays, and the claim is added to it. Refused with
    #: ``ConsumerGenerationConflict`` where it has a placement: a claim, or anything in a host's tree that is not the
    #: chosen one's. Without this it is replaced.
    keep_held: bool = False


class ReportHosts(Mutation[Done], frozen=True, kw_only=True):
    """What a cell knows of its hosts: descriptions that are new or have changed, and who is alive."""

    topic = "scheduler"
    method = "report_hosts"
    cell_uuid: Uuid
    hosts: Annotated[tuple[HostReport, ...], Meta(max_length=20_000)] = ()
    alive: Annotated[tuple[Name, ...], Meta(max_length=20_000)] = ()


class ListHosts(Message[list[HostState]], frozen=True, kw_only=True):
    """The hosts of the cloud, or of one cell or of one name, by name."""

    topic = "scheduler"
    method = "list_hosts"
    since: ClassVar = {"service_host": "1.3"}
    cell_uuid: Uuid | None = None
    service_host: Name | None = None


class SetHost(Mutation[HostState], frozen=True, kw_only=True):
    """Disable or enable a host, or declare it down or no longer so; what is null stays as it is."""

    topic = "scheduler"
    method = "set_host"
    service_host: Name
    cell_uuid: Uuid | None = None
    disabled: bool | None = None
    disabled_reason: Text | None = None
    forced_down: bool | None = None


class DeleteHost(Mutation[Done], frozen=True, kw_only=True):
    """Forget a host that will not come back, with its providers and what residues hold there.

    Refused while it may be up (it must be forced down, or have been missed) and while anything but residues holds
    something of it. ``dry_run`` only says what would be refused.
    """

    topic = "scheduler"
    method = "delete_host"
    version = "1.3"
    service_host: Name
    cell_uuid: Uuid | None = None
    dry_run: bool = False


class CompareView(Message[ViewDrift], frozen=True, kw_only=True):
    """Compare the host view with the store, as it stands, without mending it."""

    topic = "scheduler"
    method = "compare_view"
    version = "1.1"
