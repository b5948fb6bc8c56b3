"""Every message of every topic, as a value.

A message class says its topic, its method, the version that brought it and, as its type argument, what it is answered
with. Senders and servers share the class, so there is one shape per message and no list of methods to keep in step.
"""

from typing import Annotated

from msgspec import Meta

from moorage.model import (
    AllocationRequest,
    Cell,
    Consumer,
    ConsumerAllocations,
    Generation,
    HostReport,
    HostState,
    Instance,
    Inventories,
    Name,
    ProviderReport,
    RequestSpec,
    ResourceProvider,
    Resources,
    Selection,
    Text,
    Uuid,
    Value,
)
from moorage.wire import Message, Mutation

#: The most instances that one request may name.
MAX_INSTANCES = 1000

InstanceUuids = Annotated[tuple[Uuid, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]


class Done(Value, frozen=True):
    """The answer of a mutation that has nothing to tell."""


# --- Topic `placement` ----------------------------------------------------------------------------------------------


class ListCells(Message[list[Cell]], frozen=True, kw_only=True):
    """The cells of the cloud, by name."""

    topic = "placement"
    method = "list_cells"


class CreateResourceProvider(Mutation[ResourceProvider], frozen=True, kw_only=True):
    """Create a root provider without inventory."""

    topic = "placement"
    method = "create_resource_provider"
    uuid: Uuid
    name: Name


class DeleteResourceProvider(Mutation[Done], frozen=True, kw_only=True):
    """Delete a provider that nobody holds anything of, with its inventories."""

    topic = "placement"
    method = "delete_resource_provider"
    uuid: Uuid


class GetResourceProvider(Message[ResourceProvider], frozen=True, kw_only=True):
    """One provider with its inventories and what is used of them."""

    topic = "placement"
    method = "get_resource_provider"
    uuid: Uuid


class ListResourceProviders(Message[list[ResourceProvider]], frozen=True, kw_only=True):
    """All providers by name, or the one of that name."""

    topic = "placement"
    method = "list_resource_providers"
    name: Name | None = None


class SetInventories(Mutation[ResourceProvider], frozen=True, kw_only=True):
    """Replace all inventories of a provider; ``generation`` is compared and moves."""

    topic = "placement"
    method = "set_inventories"
    uuid: Uuid
    generation: Generation
    inventories: Inventories


ProviderReports = Annotated[tuple[ProviderReport, ...], Meta(max_length=1000)]


class ReportProviders(Mutation[Done], frozen=True, kw_only=True):
    """Make the providers what their hosts say they are: create what is missing, change what differs."""

    topic = "placement"
    method = "report_providers"
    providers: ProviderReports


class GetAllocations(Message[Consumer], frozen=True, kw_only=True):
    """One consumer with all that it holds."""

    topic = "placement"
    method = "get_allocations"
    consumer_uuid: Uuid


class ConsumerWritten(Value, frozen=True, kw_only=True):
    """The generation that a consumer has after a write."""

    consumer_generation: Generation


class PutAllocations(Mutation[ConsumerWritten], frozen=True, kw_only=True):
    """Replace all allocations of one consumer."""

    topic = "placement"
    method = "put_allocations"
    consumer_uuid: Uuid
    wanted: ConsumerAllocations


class PostAllocations(Mutation[dict[Uuid, ConsumerWritten]], frozen=True, kw_only=True):
    """Replace all allocations of several consumers at once, or of none."""

    topic = "placement"
    method = "post_allocations"
    consumers: Annotated[dict[Uuid, ConsumerAllocations], Meta(min_length=1, max_length=MAX_INSTANCES)]


class DeleteAllocations(Mutation[Done], frozen=True, kw_only=True):
    """Release all that a consumer holds.

    With ``claim_id``, only if that claim still stands (``ClaimReleased`` otherwise). ``for_good`` sets the tombstone:
    nothing can be claimed for this consumer any more, whether or not it existed.
    """

    topic = "placement"
    method = "delete_allocations"
    consumer_uuid: Uuid
    claim_id: Uuid | None = None
    for_good: bool = False


class Claimed(Value, frozen=True, kw_only=True):
    """A claim that now stands."""

    claim_id: Uuid
    consumer_generation: Generation


class SwapClaim(Mutation[Claimed], frozen=True, kw_only=True):
    """Release what a claim holds on its host and claim the next host, in one transaction.

    Whatever the consumer holds beyond ``released`` on providers that are not ``released``'s stays. ``guest_gone`` says
    that the host has reported the guest gone; without it a claim that a host has accepted is not released
    (``InvalidState``).
    """

    topic = "placement"
    method = "swap_claim"
    consumer_uuid: Uuid
    claim_id: Uuid
    released: AllocationRequest
    claimed: AllocationRequest
    #: The provider of the next host itself.
    root_provider_uuid: Uuid
    guest_gone: bool = False


class AcceptClaim(Mutation[Done], frozen=True, kw_only=True):
    """The first gate: the attempt's host takes the claim, unless it was released or another attempt has it."""

    topic = "placement"
    method = "accept_claim"
    consumer_uuid: Uuid
    claim_id: Uuid
    attempt_id: Uuid
    host: Name


# --- Topic `scheduler` ----------------------------------------------------------------------------------------------


class SelectDestinations(Mutation[list[list[Selection]]], frozen=True, kw_only=True):
    """A claimed host for each instance, in order, each followed by its alternates. All or nothing."""

    topic = "scheduler"
    method = "select_destinations"
    request_spec: RequestSpec
    instance_uuids: InstanceUuids
    num_alternates: Annotated[int, Meta(ge=0, le=100)]
    owner: Name | None = None


class ReportHosts(Mutation[Done], frozen=True, kw_only=True):
    """What a cell knows of its hosts: descriptions that are new or have changed, and who is alive."""

    topic = "scheduler"
    method = "report_hosts"
    cell_uuid: Uuid
    hosts: Annotated[tuple[HostReport, ...], Meta(max_length=20_000)] = ()
    alive: Annotated[tuple[Name, ...], Meta(max_length=20_000)] = ()


class ListHosts(Message[list[HostState]], frozen=True, kw_only=True):
    """The hosts of the cloud, or of one cell, by name."""

    topic = "scheduler"
    method = "list_hosts"
    cell_uuid: Uuid | None = None


class SetHost(Mutation[HostState], frozen=True, kw_only=True):
    """Disable or enable a host, or declare it down or no longer so; what is null stays as it is."""

    topic = "scheduler"
    method = "set_host"
    service_host: Name
    cell_uuid: Uuid | None = None
    disabled: bool | None = None
    disabled_reason: Text | None = None
    forced_down: bool | None = None


# --- Topic `conductor`, served by the super conductor -----------------------------------------------------------------


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


# --- Topic `conductor.<cell uuid>`, served by the cell conductor ------------------------------------------------------


class InstanceBuild(Value, frozen=True, kw_only=True):
    """An instance handed to a cell, with the claimed selection first and its alternates after it."""

    instance_uuid: Uuid
    request_spec: RequestSpec
    selections: Annotated[tuple[Selection, ...], Meta(min_length=1, max_length=101)]


class BuildInCell(Mutation[Done], frozen=True, kw_only=True):
    """The cell's half of `build_instances`; answered once the cell has the instances on record."""

    topic = "conductor.cell"
    method = "build_instances"
    builds: Annotated[tuple[InstanceBuild, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]


class DeleteInCell(Mutation[Done], frozen=True, kw_only=True):
    """The cell's half of `delete_instance`."""

    topic = "conductor.cell"
    method = "delete_instance"
    instance_uuid: Uuid


class ShowInCell(Message[list[Instance]], frozen=True, kw_only=True):
    """The cell's half of `show_instance` and `list_instances`: those of the named ones that the cell knows."""

    topic = "conductor.cell"
    method = "list_instances"
    instance_uuids: Annotated[tuple[Uuid, ...], Meta(max_length=MAX_INSTANCES)]


class AcceptInCell(Mutation[Done], frozen=True, kw_only=True):
    """The first gate, asked by the host before it starts anything."""

    topic = "conductor.cell"
    method = "accept_claim"
    instance_uuid: Uuid
    claim_id: Uuid
    attempt_id: Uuid
    host: Name


class BuildFinished(Mutation[Done], frozen=True, kw_only=True):
    """The second gate: the guest runs. Refused with ``ClaimReleased``, the host destroys it."""

    topic = "conductor.cell"
    method = "build_finished"
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid


class BuildFailedInCell(Mutation[Done], frozen=True, kw_only=True):
    """The attempt has failed on its host, and nothing of the guest is left there."""

    topic = "conductor.cell"
    method = "build_failed"
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid
    reason: Text


class ReportHostsInCell(Mutation[Done], frozen=True, kw_only=True):
    """What an agent knows of its hosts: descriptions that are new or have changed, and who is alive."""

    topic = "conductor.cell"
    method = "report_hosts"
    agent: Name
    hosts: Annotated[tuple[HostReport, ...], Meta(max_length=20_000)] = ()
    alive: Annotated[tuple[Name, ...], Meta(max_length=20_000)] = ()


class ReportProviderTree(Mutation[Done], frozen=True, kw_only=True):
    """What the providers of an agent's hosts are; answered once the placement role has them."""

    topic = "conductor.cell"
    method = "report_provider_tree"
    agent: Name
    providers: ProviderReports


# --- Topic `compute.<cell uuid>`, served by the compute agents --------------------------------------------------------


class BuildOnHost(Mutation[Done], frozen=True, kw_only=True):
    """Start an attempt on a host; answered as soon as the agent has taken it up."""

    topic = "compute"
    method = "build_instance"
    host: Name
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid
    request_spec: RequestSpec
    #: What the claim holds on this host's own providers.
    resources: Resources


class DestroyOnHost(Mutation[Done], frozen=True, kw_only=True):
    """Destroy what an attempt has started on a host, and refuse to start it later; answered when nothing is left."""

    topic = "compute"
    method = "destroy_instance"
    host: Name
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid
