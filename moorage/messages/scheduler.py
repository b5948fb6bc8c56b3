"""Topic `scheduler` of the main bus: destinations, hosts, host aggregates and the policy."""

from typing import Annotated, ClassVar

from msgspec import Meta

from moorage.messages.basis import IN_PARTS, MAX_INSTANCES, Done, InstanceUuids, ListInParts, ToScheduler
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

#: The most hosts that one explanation describes by name.
MOST_EXPLAINED_HOSTS = 20


class SelectDestinations(Mutation[list[list[Selection]]], ToScheduler, frozen=True, kw_only=True):
    """Select and claim a host for each instance, in order, each with its alternates, in one transaction.

    With ``move``, which is for one instance, its source goes to the migration in the same write. Each existing instance
    is given with the generation that the caller relies on.
    """

    may_be_batched = True
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
    #: The generation of each existing instance, for instance after a released claim; the others must be new.
    consumer_generations: Annotated[dict[Uuid, Generation], Meta(max_length=MAX_INSTANCES)] = {}
    move: Move | None = None
    #: Keep an existing instance's allocations, and add the claim to them; otherwise they are replaced. Refused with
    #: ``ConsumerGenerationConflict`` if it has a placement: a claim, or allocations in the tree of another host than
    #: the chosen one.
    keep_held: bool = False
    #: Include an explanation of each claimed host (``Selection.explanation``).
    explain: bool = False


class ExplainRequest(Message[Explanation], ToScheduler, frozen=True, kw_only=True):
    """Explain the decision on a request as it would be now; nothing is claimed or stored.

    An existing instance is decided as if it were placed now: its allocations count as free for it. With ``moving`` as
    if it were to move: it leaves its host, unless it is resized, and its allocations there stay.
    """

    method = "explain"
    version = "1.4"
    since: ClassVar = {"under_way": "1.7"}
    guards: ClassVar = frozenset({"under_way"})
    request_spec: RequestSpec
    #: The number of instances to be placed together.
    instances: Annotated[int, Meta(ge=1, le=MAX_INSTANCES)] = 1
    instance_uuid: Uuid | None = None
    #: Whether the instance is being built, moved, rebuilt or unshelved, so that its host's load has it. Only its cell
    #: knows.
    under_way: bool | None = None
    moving: MoveKind | None = None
    #: Hosts to be explained: why they were refused, or their rank.
    hosts: Annotated[tuple[Name, ...], Meta(max_length=MOST_EXPLAINED_HOSTS)] = ()
    #: Count the further instances that would fit, in all and by cell; and the most seconds of a search for that.
    what_if: bool = False
    patience: Annotated[float, Meta(ge=0, le=60)] = 5.0


class NumberedDescription(Value, frozen=True, kw_only=True):
    """The registry's description of a node, with its number."""

    service_host: Name
    nodename: Name
    number: int


class HostsRegistered(Value, frozen=True, kw_only=True):
    """The answer of the registry to a cell's report."""

    #: Hosts that were reported alive but never described, or were deleted since, or whose store was restored; and hosts
    #: of which a provider was deleted, or whose provider was missing when they were described. Also those of which this
    #: report has the first description since then.
    unknown: tuple[Name, ...] = ()
    #: The registry's newer descriptions of nodes whose reported description was ignored.
    newer: tuple[NumberedDescription, ...] = ()


#: The greatest number of a description: its column has room for further changes, which are all sent with this number.
MAX_DESCRIPTION_NUMBER = 2_000_000_000
#: The number of changes of a description.
DescriptionNumber = Annotated[int, Meta(ge=1, le=MAX_DESCRIPTION_NUMBER)]


class ReportHosts(Mutation[HostsRegistered], ToScheduler, frozen=True, kw_only=True):
    """Report hosts of a cell: new or changed descriptions, heartbeats and loads.

    The load of a host that is not in ``loads`` has not changed.
    """

    may_be_batched = True
    since: ClassVar = {"loads": "1.4", "loads_at": "1.4", "numbers": "1.6", "alive_at": "1.6"}
    cell_uuid: Uuid
    hosts: Annotated[tuple[HostReport, ...], Meta(max_length=20_000)] = ()
    #: For each description, the number of its changes in the cell: a stored one with a greater number stays.
    numbers: Annotated[tuple[DescriptionNumber, ...], Meta(max_length=20_000)] = ()
    alive: Annotated[tuple[Name, ...], Meta(max_length=20_000)] = ()
    #: The time of the heartbeats by the clock of the cell's database: older ones than stored are ignored.
    alive_at: Annotated[float, Meta(ge=0.0)] = 0.0
    #: By service host; the load of a host with several nodes counts for each node.
    loads: Annotated[dict[Name, HostLoad], Meta(max_length=20_000)] = {}
    #: The time of the loads by the clock of the cell's database: a later stored one stays.
    loads_at: Annotated[float, Meta(ge=0.0)] = 0.0


class ListHosts(ListInParts[list[HostState]], ToScheduler, frozen=True, kw_only=True):
    """List the hosts of the cloud, of one cell or of one name, by name; in parts by ``compute_node_uuid``."""

    since: ClassVar = {**IN_PARTS, "service_host": "1.3"}
    cell_uuid: Uuid | None = None
    service_host: Name | None = None
    after: Uuid | None = None


class SetHost(Mutation[HostState], ToScheduler, frozen=True, kw_only=True):
    """Disable or enable a host, or force it down or no longer; null fields stay as they are."""

    service_host: Name
    cell_uuid: Uuid | None = None
    disabled: bool | None = None
    disabled_reason: Text | None = None
    forced_down: bool | None = None


class DeleteHost(Mutation[Done], ToScheduler, frozen=True, kw_only=True):
    """Delete a host that will not return, with its providers and the allocations of residues there.

    Refused while it may be up (it must be forced down, or have been missed) and while other consumers than residues
    have allocations there. ``dry_run`` only checks for a refusal.
    """

    version = "1.3"
    service_host: Name
    cell_uuid: Uuid | None = None
    dry_run: bool = False


class CompareView(Message[ViewDrift], ToScheduler, frozen=True, kw_only=True):
    """Compare the host view with the store, without repairing it."""

    version = "1.1"


class ViewCaughtUp(Value, frozen=True, kw_only=True):
    """The answer of a scheduler that has caught up with the store."""

    #: The number of decisions in progress that began before.
    undecided: int = 0


class CatchUpView(Message[ViewCaughtUp], ToScheduler, frozen=True, kw_only=True):
    """Make the host view catch up with the store, and wait for the decisions that began before.

    If none of them is left in the answer, the scheduler uses no older state any more.
    """

    version = "1.4"
    #: Seconds to wait for the decisions in progress.
    patience: Annotated[float, Meta(ge=0, le=60)] = 5.0


class ShowPolicy(Message[PolicyState], ToScheduler, frozen=True, kw_only=True):
    """Return the policy of the answering scheduler: its plug-ins with their options, its age, and a refused reload."""

    version = "1.4"


# --- Host aggregates ------------------------------------------------------------------------------------------------

# Each of these names an aggregate by its uuid or its name.


class CreateHostAggregate(Mutation[HostAggregate], ToScheduler, frozen=True, kw_only=True):
    """Create a host aggregate with a name and metadata, for a provider aggregate or, without a uuid, a new one."""

    version = "1.4"
    name: NewName
    metadata: HostMetadata = {}
    uuid: Uuid | None = None


class SetHostAggregate(Mutation[Done], ToScheduler, frozen=True, kw_only=True):
    """Change the name of a host aggregate, or some of its metadata; fields and keys not given stay."""

    version = "1.4"
    aggregate: Name
    name: NewName | None = None
    #: Null removes a key.
    metadata: Annotated[dict[Name, Text | None], Meta(max_length=256)] = {}


class AddAggregateHost(Mutation[Done], ToScheduler, frozen=True, kw_only=True):
    """Add a host to a host aggregate. Idempotent."""

    version = "1.4"
    aggregate: Name
    service_host: Name
    cell_uuid: Uuid | None = None


class RemoveAggregateHost(Mutation[Done], ToScheduler, frozen=True, kw_only=True):
    """Remove a host from a host aggregate."""

    version = "1.4"
    aggregate: Name
    service_host: Name
    cell_uuid: Uuid | None = None


class DeleteHostAggregate(Mutation[HostAggregate], ToScheduler, frozen=True, kw_only=True):
    """Delete a host aggregate, and return its last state; one with hosts only with ``force``.

    ``dry_run`` only checks for a refusal.
    """

    version = "1.4"
    aggregate: Name
    force: bool = False
    dry_run: bool = False


class GetHostAggregate(Message[HostAggregate], ToScheduler, frozen=True, kw_only=True):
    """Return one host aggregate."""

    version = "1.4"
    aggregate: Name


class ListHostAggregates(ListInParts[list[HostAggregate]], ToScheduler, frozen=True, kw_only=True):
    """List the host aggregates by name, all or those of a host; in parts by ``uuid``."""

    version = "1.4"
    service_host: Name | None = None
    after: Uuid | None = None


class SyncHostAggregates(Mutation[list[UnmirroredHost]], ToScheduler, frozen=True, kw_only=True):
    """Add missing nodes of hosts to their aggregates, or only list them (``dry_run``)."""

    version = "1.4"
    dry_run: bool = False
