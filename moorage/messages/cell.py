"""Topic `conductor.<cell uuid>` of the cell bus, served by the cell conductor: its half of everything, and reports."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from moorage.inspection import OperationState, StrangerGuest
from moorage.messages.basis import MAX_INSTANCES, Done
from moorage.messages.conductor import OperationBegun, Ownership
from moorage.messages.providers import Children, MoveInstructions, ProviderReports, ProvidersReported
from moorage.model import (
    AllocationRequest,
    EndedAttempt,
    Guest,
    HostReport,
    Image,
    Instance,
    Migration,
    MoveKind,
    Name,
    Placement,
    RequestSpec,
    ReshapePlan,
    ResourceGroup,
    ResourceProvider,
    Selection,
    Suffix,
    Text,
    Uuid,
    Value,
)
from moorage.wire import Message, Mutation


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


class HostsReported(Value, frozen=True, kw_only=True):
    """What a cell makes of a report."""

    #: Hosts that this cell has missed, or that have started anew: they do not count as up before `return_hosts`.
    returning: tuple[Name, ...] = ()


class ReportHostsInCell(Mutation[HostsReported], frozen=True, kw_only=True):
    """What an agent knows of its hosts: descriptions that are new or have changed, and who is alive.

    ``started`` names hosts whose agent has just started: what it left unfinished is not known to it any more.
    """

    topic = "conductor.cell"
    method = "report_hosts"
    since: ClassVar = {"started": "1.1"}
    agent: Name
    hosts: Annotated[tuple[HostReport, ...], Meta(max_length=20_000)] = ()
    alive: Annotated[tuple[Name, ...], Meta(max_length=20_000)] = ()
    started: Annotated[tuple[Name, ...], Meta(max_length=20_000)] = ()


class ReportProviderTree(Mutation[ProvidersReported], frozen=True, kw_only=True):
    """What the providers of an agent's hosts are; answered once the placement role has them."""

    topic = "conductor.cell"
    method = "report_provider_tree"
    since: ClassVar = {"gone": "1.2"}
    agent: Name
    providers: ProviderReports
    gone: Annotated[tuple[Uuid, ...], Meta(max_length=1000)] = ()


class ListProviderTreesInCell(Message[list[ResourceProvider]], frozen=True, kw_only=True):
    """All providers of the trees that these belong to, as the placement role has them now."""

    topic = "conductor.cell"
    method = "list_provider_trees"
    version = "1.2"
    uuids: Annotated[tuple[Uuid, ...], Meta(min_length=1, max_length=1000)]


class ReshapeProviderTree(Mutation[ReshapePlan], frozen=True, kw_only=True):
    """Move inventories within the tree of one of an agent's hosts; answered once the placement role has done it."""

    topic = "conductor.cell"
    method = "reshape_provider_tree"
    version = "1.2"
    agent: Name
    instructions: MoveInstructions
    providers: Children = ()


class ListEndedAttempts(Message[list[EndedAttempt]], frozen=True, kw_only=True):
    """The ended attempts of these hosts whose guests are not known to be gone."""

    topic = "conductor.cell"
    method = "list_ended_attempts"
    version = "1.1"
    agent: Name
    hosts: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=20_000)]


class AttemptsGone(Mutation[Done], frozen=True, kw_only=True):
    """The host has nothing of these attempts, and nothing of them will come."""

    topic = "conductor.cell"
    method = "attempts_gone"
    version = "1.1"
    agent: Name
    attempts: Annotated[tuple[EndedAttempt, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]


class ReturnHosts(Mutation[Done], frozen=True, kw_only=True):
    """Hosts have worked through their ended attempts, and have these guests: from now on they count as up.

    A guest that the cell knows nothing of is recorded as a stranger and left running. An attempt that is current here
    and whose guest is not among them has failed with its host.
    """

    topic = "conductor.cell"
    method = "return_hosts"
    version = "1.1"
    agent: Name
    hosts: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=20_000)]
    guests: Annotated[tuple[Guest, ...], Meta(max_length=20_000)] = ()


class OwnsClaimInCell(Mutation[Ownership], frozen=True, kw_only=True):
    """The cell's half of `owns_claim`: it alone may say "not mine", and then refuses what comes late."""

    topic = "conductor.cell"
    method = "owns_claim"
    version = "1.1"
    consumer_uuid: Uuid
    claim_id: Uuid


class ListOperationsInCell(Message[list[OperationState]], frozen=True, kw_only=True):
    """The cell's half of `list_operations` and `show_operation`."""

    topic = "conductor.cell"
    method = "list_operations"
    version = "1.1"
    ended: bool = False
    instance_uuid: Uuid | None = None
    uuid: Uuid | None = None


class ListStrangersInCell(Message[list[StrangerGuest]], frozen=True, kw_only=True):
    """The cell's half of `list_strangers`."""

    topic = "conductor.cell"
    method = "list_strangers"
    version = "1.1"


# --- What is done with a server that has been built ------------------------------------------------------------------

Selections = Annotated[tuple[Selection, ...], Meta(min_length=1, max_length=101)]


class PrepareMoveInCell(Mutation[Placement], frozen=True, kw_only=True):
    """Take an instance for a move: from now on it is `moving`, and no other operation but its deletion begins.

    Refused with ``InvalidState`` where it is not in a state to be moved.
    """

    topic = "conductor.cell"
    method = "prepare_move"
    version = "1.3"
    instance_uuid: Uuid
    migration_uuid: Uuid
    kind: MoveKind


class CancelMoveInCell(Mutation[Done], frozen=True, kw_only=True):
    """Nothing has been claimed for a move that was prepared: the instance is as it was before."""

    topic = "conductor.cell"
    method = "cancel_move"
    version = "1.3"
    instance_uuid: Uuid
    migration_uuid: Uuid
    reason: Text


class MoveInCell(Mutation[Done], frozen=True, kw_only=True):
    """Move an instance to the first of these selections, which is claimed, or to one of its alternates."""

    topic = "conductor.cell"
    method = "move_instance"
    version = "1.3"
    instance_uuid: Uuid
    migration_uuid: Uuid
    #: What is asked for from now on; confirmed, it is the instance's.
    request_spec: RequestSpec
    #: What the migration holds of the source, as the move was claimed with.
    held: AllocationRequest
    selections: Selections


class EndMoveInCell(Mutation[Done], frozen=True, kw_only=True):
    """Confirm or revert a move that is done, or break one off that is under way."""

    topic = "conductor.cell"
    method = "end_move"
    version = "1.3"
    instance_uuid: Uuid
    outcome: Literal["confirm", "revert", "abort"]


class ShelveInCell(Mutation[Done], frozen=True, kw_only=True):
    """The cell's half of `shelve_instance`."""

    topic = "conductor.cell"
    method = "shelve_instance"
    version = "1.3"
    instance_uuid: Uuid


class PrepareUnshelveInCell(Mutation[RequestSpec], frozen=True, kw_only=True):
    """Take a shelved instance to be placed again; answered with what is to be asked for."""

    topic = "conductor.cell"
    method = "prepare_unshelve"
    version = "1.3"
    instance_uuid: Uuid


class CancelUnshelveInCell(Mutation[Done], frozen=True, kw_only=True):
    """Nothing has been claimed for it: the instance stays shelved."""

    topic = "conductor.cell"
    method = "cancel_unshelve"
    version = "1.3"
    instance_uuid: Uuid
    reason: Text


class UnshelveInCell(Mutation[Done], frozen=True, kw_only=True):
    """Start a shelved instance on the first of these selections, which is claimed, or on one of its alternates."""

    topic = "conductor.cell"
    method = "unshelve_instance"
    version = "1.3"
    instance_uuid: Uuid
    selections: Selections


class RebuildInCell(Mutation[Done], frozen=True, kw_only=True):
    """The cell's half of `rebuild_instance`."""

    topic = "conductor.cell"
    method = "rebuild_instance"
    version = "1.3"
    instance_uuid: Uuid
    image: Image


class AttachResourceInCell(Mutation[OperationBegun], frozen=True, kw_only=True):
    """The cell's half of `attach_resource`."""

    topic = "conductor.cell"
    method = "attach_resource"
    version = "1.4"
    instance_uuid: Uuid
    suffix: Suffix
    group: ResourceGroup


class DetachResourceInCell(Mutation[OperationBegun], frozen=True, kw_only=True):
    """The cell's half of `detach_resource`."""

    topic = "conductor.cell"
    method = "detach_resource"
    version = "1.4"
    instance_uuid: Uuid
    suffix: Suffix


class ListMigrationsInCell(Message[list[Migration]], frozen=True, kw_only=True):
    """Those of the named migrations that the cell knows."""

    topic = "conductor.cell"
    method = "list_migrations"
    version = "1.3"
    uuids: Annotated[tuple[Uuid, ...], Meta(max_length=MAX_INSTANCES)]
