"""Topic `scheduler` of the main bus: destinations, and the hosts that they are chosen from."""

from typing import Annotated, ClassVar

from msgspec import Meta

from moorage.messages.basis import IN_PARTS, MAX_INSTANCES, Done, InstanceUuids, ListInParts
from moorage.messages.wire import Message, Mutation
from moorage.model import (
    Explanation,
    Generation,
    HostAggregate,
    HostLoad,
    HostMetadata,
    HostReport,
    HostState,
    Move,
    MoveKind,
    Name,
    NewName,
    RequestSpec,
    Selection,
    Text,
    UnmirroredHost,
    Uuid,
    Value,
)
from moorage.model.inspection import PolicyState, ViewDrift


class SelectDestinations(Mutation[list[list[Selection]]], frozen=True, kw_only=True):
    """A claimed host for each instance, in order, each followed by its alternates. All or nothing.

    With ``move``, which is for one instance, its source goes to the migration in the same write. Every instance that
    exists is named with the generation that the caller relies on.
    """

    topic = "scheduler"
    method = "select_destinations"
    since: ClassVar = {
        "consumer_generations": "1.1",
        "move": "1.3",
        "keep_held": "1.3",
        "request_spec.requested_destination.allow_cross_cell_move": "1.4",
        "explain": "1.4",
        "request_spec.apart": "1.4",
        "request_spec.root_member_of": "1.4",
        "request_spec.root_not_member_of": "1.4",
    }
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
    #: Say of each claimed host why it is this one (``Selection.explanation``).
    explain: bool = False


class ExplainRequest(Message[Explanation], frozen=True, kw_only=True):
    """Where a request would go now, and why there, or why nowhere; nothing is claimed and nothing is stored.

    For an instance that exists, as if it were to be placed now: what it holds counts as free for it. With ``moving`` as
    if it were to move: it leaves its host, unless it is resized, and what it holds there stays held.
    """

    topic = "scheduler"
    method = "explain"
    version = "1.4"
    request_spec: RequestSpec
    #: How many instances are to be placed together.
    instances: Annotated[int, Meta(ge=1, le=MAX_INSTANCES)] = 1
    instance_uuid: Uuid | None = None
    moving: MoveKind | None = None
    #: Hosts of which it shall be said why not that one, or how they stand beside the best.
    hosts: Annotated[tuple[Name, ...], Meta(max_length=20)] = ()
    #: Count how many more would fit, in all and by cell; and how many seconds a search for that may take.
    what_if: bool = False
    patience: Annotated[float, Meta(ge=0, le=60)] = 5.0


class NumberedDescription(Value, frozen=True, kw_only=True):
    """The description of a node that the registry has, by its number."""

    service_host: Name
    nodename: Name
    number: int


class HostsRegistered(Value, frozen=True, kw_only=True):
    """The answer of the registry to a cell's report."""

    #: Hosts that are reported alive and have never been described, or were deleted since.
    unknown: tuple[Name, ...] = ()
    #: The newer descriptions that the registry has of nodes whose description in this report was left out.
    newer: tuple[NumberedDescription, ...] = ()


class ReportHosts(Mutation[HostsRegistered], frozen=True, kw_only=True):
    """What a cell knows of its hosts: descriptions that are new or have changed, who is alive, and what goes on there.

    Of a host that is not named in ``loads`` nothing has changed.
    """

    topic = "scheduler"
    method = "report_hosts"
    since: ClassVar = {"loads": "1.4", "loads_at": "1.4", "numbers": "1.6", "alive_at": "1.6"}
    cell_uuid: Uuid
    hosts: Annotated[tuple[HostReport, ...], Meta(max_length=20_000)] = ()
    #: Of each description, how often it has changed in the cell: one that is known by a greater number stays.
    numbers: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(max_length=20_000)] = ()
    alive: Annotated[tuple[Name, ...], Meta(max_length=20_000)] = ()
    #: When the cell saw them alive, by the clock of its database: heartbeats that are older than others do not count.
    alive_at: Annotated[float, Meta(ge=0.0)] = 0.0
    #: By service host. Where it has several nodes, each of them is said to have it.
    loads: Annotated[dict[Name, HostLoad], Meta(max_length=20_000)] = {}
    #: When the cell saw them so, by the clock of its database: one that is known from later stays.
    loads_at: Annotated[float, Meta(ge=0.0)] = 0.0


class ListHosts(ListInParts[list[HostState]], frozen=True, kw_only=True):
    """The hosts of the cloud, or of one cell or of one name, by name; in parts by ``compute_node_uuid``."""

    topic = "scheduler"
    method = "list_hosts"
    since: ClassVar = {**IN_PARTS, "service_host": "1.3"}
    cell_uuid: Uuid | None = None
    service_host: Name | None = None
    after: Uuid | None = None


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


class ViewCaughtUp(Value, frozen=True, kw_only=True):
    """A scheduler's word that it decides by what the store had when it was asked."""

    #: How many of its decisions began before, and are still under way.
    undecided: int = 0


class CatchUpView(Message[ViewCaughtUp], frozen=True, kw_only=True):
    """Have the host view catch up with the store, and wait for the decisions that began before it had.

    What is answered with none of them left decides by nothing older any more.
    """

    topic = "scheduler"
    method = "catch_up_view"
    version = "1.4"
    #: Seconds to wait for the decisions that are under way.
    patience: Annotated[float, Meta(ge=0, le=60)] = 5.0


class ShowPolicy(Message[PolicyState], frozen=True, kw_only=True):
    """By what the scheduler that answers decides: its plug-ins with their options, since when, what was refused."""

    topic = "scheduler"
    method = "show_policy"
    version = "1.4"


# --- Host aggregates ------------------------------------------------------------------------------------------------

# Each of these names an aggregate by its uuid or its name.


class CreateHostAggregate(Mutation[HostAggregate], frozen=True, kw_only=True):
    """Give an aggregate of providers a name and metadata, so that it can have hosts; without a uuid it is a new one."""

    topic = "scheduler"
    method = "create_host_aggregate"
    version = "1.4"
    name: NewName
    metadata: HostMetadata = {}
    uuid: Uuid | None = None


class SetHostAggregate(Mutation[Done], frozen=True, kw_only=True):
    """Change the name of a host aggregate, or some of its metadata; what is not named stays."""

    topic = "scheduler"
    method = "set_host_aggregate"
    version = "1.4"
    aggregate: Name
    name: NewName | None = None
    #: Null takes a key out.
    metadata: Annotated[dict[Name, Text | None], Meta(max_length=256)] = {}


class AddAggregateHost(Mutation[Done], frozen=True, kw_only=True):
    """Put a host into a host aggregate; one that is in it already stays, and nothing changes."""

    topic = "scheduler"
    method = "add_aggregate_host"
    version = "1.4"
    aggregate: Name
    service_host: Name
    cell_uuid: Uuid | None = None


class RemoveAggregateHost(Mutation[Done], frozen=True, kw_only=True):
    """Take a host out of a host aggregate."""

    topic = "scheduler"
    method = "remove_aggregate_host"
    version = "1.4"
    aggregate: Name
    service_host: Name
    cell_uuid: Uuid | None = None


class DeleteHostAggregate(Mutation[HostAggregate], frozen=True, kw_only=True):
    """Delete a host aggregate, and answer with what it was; with hosts only if ``force`` takes them out of it first.

    ``dry_run`` only says what would be refused.
    """

    topic = "scheduler"
    method = "delete_host_aggregate"
    version = "1.4"
    aggregate: Name
    force: bool = False
    dry_run: bool = False


class GetHostAggregate(Message[HostAggregate], frozen=True, kw_only=True):
    """One host aggregate."""

    topic = "scheduler"
    method = "get_host_aggregate"
    version = "1.4"
    aggregate: Name


class ListHostAggregates(ListInParts[list[HostAggregate]], frozen=True, kw_only=True):
    """The host aggregates by name, all or those that a host is in; in parts by ``uuid``."""

    topic = "scheduler"
    method = "list_host_aggregates"
    version = "1.4"
    service_host: Name | None = None
    after: Uuid | None = None


class SyncHostAggregates(Mutation[list[UnmirroredHost]], frozen=True, kw_only=True):
    """Put the nodes of hosts into their aggregates where they are missing there, or only name them (``dry_run``)."""

    topic = "scheduler"
    method = "sync_host_aggregates"
    version = "1.4"
    dry_run: bool = False
