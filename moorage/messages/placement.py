"""Topic `placement` of the main bus: cells, allocations, claims, moves and server groups."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from moorage.messages.basis import MAX_INSTANCES, Done, ListInParts, ToPlacement
from moorage.messages.wire import Message, Mutation
from moorage.model import (
    AllocationRequest,
    Allocations,
    Cell,
    Consumer,
    ConsumerAllocations,
    Generation,
    Name,
    NewName,
    ProviderAmounts,
    RequestId,
    ServerGroup,
    Uuid,
    Value,
)


class ListCells(Message[list[Cell]], ToPlacement, frozen=True, kw_only=True):
    """List the cells of the cloud, by name."""

    since: ClassVar = {"without_databases": "1.6"}
    guards: ClassVar = frozenset({"without_databases"})
    #: Leave out the URLs of the cells' databases, which only the conductors of each cell need. Not set by services of
    #: the former release, nor by `moorage status`, which connects to each database.
    without_databases: bool | None = None


class LocateCell(Message[Cell], ToPlacement, frozen=True, kw_only=True):
    """Return one cell by its name, with the URL of its bus."""

    version = "1.6"
    name: Name
    #: Include the URL of its database, which the cell's conductors need.
    with_database: bool = False


class ListHostsDeclaredDown(Message[list[Name]], ToPlacement, frozen=True, kw_only=True):
    """Return the named hosts whose nodes are all forced down or deleted: nothing must wait for them."""

    since: ClassVar = {"or_disabled": "1.6", "only_deleted": "1.9"}
    guards: ClassVar = frozenset({"or_disabled"})

    version = "1.4"
    cell_uuid: Uuid
    service_hosts: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]
    #: Include hosts that take no new guests: each node is forced down, disabled or deleted.
    or_disabled: bool | None = None
    #: Exclude hosts that are only forced down or disabled.
    only_deleted: bool = False


class GetAllocations(Message[Consumer], ToPlacement, frozen=True, kw_only=True):
    """Return one consumer with its allocations."""

    may_be_batched = True
    consumer_uuid: Uuid


class ConsumerWritten(Value, frozen=True, kw_only=True):
    """The answer of a write: the consumer's new generation."""

    consumer_generation: Generation


class PutAllocations(Mutation[ConsumerWritten], ToPlacement, frozen=True, kw_only=True):
    """Replace all allocations of one consumer."""

    may_be_batched = True
    consumer_uuid: Uuid
    wanted: ConsumerAllocations


class PostAllocations(Mutation[dict[Uuid, ConsumerWritten]], ToPlacement, frozen=True, kw_only=True):
    """Replace all allocations of several consumers in one transaction."""

    may_be_batched = True
    consumers: Annotated[dict[Uuid, ConsumerAllocations], Meta(min_length=1, max_length=MAX_INSTANCES)]


class Released(Value, frozen=True, kw_only=True):
    """The answer of a release."""

    #: The residue that was left, if any.
    residue_uuid: Uuid | None = None
    #: All residues that were left, including those of migrations.
    residue_uuids: tuple[Uuid, ...] = ()
    #: The foreign allocations of the consumers: released too, or kept with ``keep_extras``.
    extras: dict[Uuid, ProviderAmounts] = {}


class DeleteAllocations(Mutation[Released], ToPlacement, frozen=True, kw_only=True):
    """Release all allocations of a consumer.

    With ``claim_id``, only if that claim still stands (``ClaimReleased`` otherwise). ``for_good`` sets the tombstone:
    nothing can be claimed for this consumer any more, whether or not it existed. Its migrations are released in the
    same write, except those that are residues.

    The foreign allocations beside a claim are known only if ``claimed_with`` names the claim; otherwise all is released
    and none of it is reported as extras. All allocations of a consumer without a claim are foreign, except those of the
    requests named there. Without ``for_good``, extras are reported only if ``claimed_with`` is not empty.
    """

    may_be_batched = True
    since: ClassVar = {
        "leave_residue": "1.1",
        "unaccepted": "1.1",
        "migration_uuids": "1.3",
        "guests_gone": "1.3",
        "claimed_with": "1.4",
        "keep_extras": "1.4",
        "consumer_generation": "1.6",
        "migration_generation": "1.6",
    }
    guards = frozenset({"consumer_generation", "migration_generation"})
    consumer_uuid: Uuid
    claim_id: Uuid | None = None
    for_good: bool = False
    #: An accepted claim leaves a residue of its allocations on the host, under the attempt's id.
    leave_residue: bool = False
    #: Only if no host has accepted the claim (``InvalidState`` otherwise); needs ``claim_id``.
    unaccepted: bool = False
    #: Migrations of the consumer that get a tombstone too, also residues and migrations that do not exist yet; only
    #: with ``for_good``. With ``leave_residue`` each leaves a residue of its own, under the attempt accepted by its
    #: host.
    migration_uuids: Annotated[tuple[Uuid, ...], Meta(max_length=16)] = ()
    #: Attempts whose guests are known to be gone: they leave no residue.
    guests_gone: Annotated[tuple[Uuid, ...], Meta(max_length=16)] = ()
    #: The allocation request of each claim of the consumer and its migrations. Their other allocations are foreign.
    claimed_with: Annotated[dict[Uuid, AllocationRequest], Meta(max_length=16)] = {}
    #: Keep foreign allocations on the consumer, also those of its migrations; only with ``for_good``. Nothing can be
    #: claimed for the consumer all the same; a later release removes them.
    keep_extras: bool = False
    #: The generations of the consumer and of its migration that the caller relies on; null is not compared.
    consumer_generation: Generation | None = None
    migration_generation: Generation | None = None


class Claimed(Value, frozen=True, kw_only=True):
    """The answer of a claim: it stands now."""

    claim_id: Uuid
    consumer_generation: Generation
    #: The residue that was left, if any.
    residue_uuid: Uuid | None = None
    #: The foreign allocations on the host that was left, released with it.
    extras: Allocations = {}


class SwapClaim(Mutation[Claimed], ToPlacement, frozen=True, kw_only=True):
    """Release a claim on its host and claim the next host, in one transaction.

    ``leave_residue`` releases an accepted claim all the same: its allocations on the host are then kept by a residue,
    a consumer of its own under the attempt's id, until that is deleted for good.

    Allocations on other providers than those of ``released`` stay. ``guest_gone`` states that the host has reported
    the guest gone; without it an accepted claim is not released (``InvalidState``).

    In a move, ``migration_uuid`` and ``held`` (the instance's allocations on the source, as in :class:`Move`) keep the
    use of a pool by both sides counted once: the migration's allocations of pools change in the same write.
    """

    may_be_batched = True
    since: ClassVar = {"leave_residue": "1.1", "migration_uuid": "1.3", "held": "1.3"}
    consumer_uuid: Uuid
    claim_id: Uuid
    released: AllocationRequest
    claimed: AllocationRequest
    #: The root provider of the next host.
    root_provider_uuid: Uuid
    guest_gone: bool = False
    leave_residue: bool = False
    migration_uuid: Uuid | None = None
    held: AllocationRequest | None = None


class MoveEnded(Value, frozen=True, kw_only=True):
    """The answer of the end of a move: the instance's claim."""

    claim_id: Uuid
    consumer_generation: Generation
    #: The residue on the host that the instance has left, if its guest may still be there.
    residue_uuid: Uuid | None = None
    #: The foreign allocations on the providers that were left: released too, or kept with ``keep_extras``.
    extras: Allocations = {}


class EndMove(Mutation[MoveEnded], ToPlacement, frozen=True, kw_only=True):
    """End a move in one write: confirm it (release the migration's allocations), or revert it (return them).

    A revert needs no further resources. Both set the migration's tombstone, unless it remains as a residue.
    """

    may_be_batched = True
    version = "1.3"
    since: ClassVar = {"migration_generation": "1.6", "keep_extras": "1.6"}
    guards = frozenset({"migration_generation"})
    consumer_uuid: Uuid
    migration_uuid: Uuid
    #: The claim on the destination. If the instance has another claim by now, nothing is changed (``ClaimReleased``).
    claim_id: Uuid
    outcome: Literal["confirm", "revert"]
    #: The allocations on the source for the instance's own request, and the allocation request of the destination.
    held: AllocationRequest
    claimed: AllocationRequest
    #: The generations of the instance and of the migration that the caller relies on; null is not compared.
    consumer_generation: Generation | None = None
    migration_generation: Generation | None = None
    #: The host that the instance leaves has reported its guest gone. Without this an accepted claim is released only
    #: with ``leave_residue``.
    guest_gone: bool = False
    #: The guest may still be on the host that the instance leaves, and its allocations there are kept: after a confirm
    #: by the migration itself, which becomes a residue; after a revert by a residue under the destination's attempt.
    leave_residue: bool = False
    #: Foreign allocations on the providers that are left stay with the instance.
    keep_extras: bool = False


class ServerGroupState(Value, frozen=True, kw_only=True):
    """A server group with the root provider of each member's host; null for a member without a host."""

    group: ServerGroup
    name: Name | None = None
    project_id: Name | None = None
    members: dict[Uuid, Uuid | None] = {}


class CreateServerGroup(Mutation[ServerGroupState], ToPlacement, frozen=True, kw_only=True):
    """Create a server group. A claim that names a missing group creates it, without a name."""

    version = "1.3"
    group: ServerGroup
    name: NewName
    project_id: Name


class ListServerGroups(ListInParts[list[ServerGroupState]], ToPlacement, frozen=True, kw_only=True):
    """List the server groups by name and uuid, of all projects or of one; in parts by uuid."""

    version = "1.3"
    project_id: Name | None = None
    after: Uuid | None = None


class GetServerGroup(Message[ServerGroupState], ToPlacement, frozen=True, kw_only=True):
    """Return one server group."""

    version = "1.3"
    uuid: Uuid


class DeleteServerGroup(Mutation[Done], ToPlacement, frozen=True, kw_only=True):
    """Delete a server group; refused while it has members."""

    version = "1.3"
    uuid: Uuid


class AcceptClaim(Mutation[Done], ToPlacement, frozen=True, kw_only=True):
    """The first gate: accept a claim for an attempt, unless it was released or another attempt has it."""

    may_be_batched = True
    consumer_uuid: Uuid
    claim_id: Uuid
    attempt_id: Uuid
    host: Name


class AcknowledgeRequests(Mutation[Done], ToPlacement, frozen=True, kw_only=True):
    """Acknowledge that the owner has recorded the answers of these requests: the stored ones may be pruned."""

    may_be_batched = True
    version = "1.1"
    request_ids: Annotated[tuple[RequestId, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]
