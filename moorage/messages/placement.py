"""Topic `placement` of the main bus: what consumers hold, claims, and what an operator asks of the store."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from moorage.messages.basis import MAX_INSTANCES, Done, ListInParts
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


class ListCells(Message[list[Cell]], frozen=True, kw_only=True):
    """The cells of the cloud, by name."""

    topic = "placement"
    method = "list_cells"
    since: ClassVar = {"without_databases": "1.6"}
    guards: ClassVar = frozenset({"without_databases"})
    #: Leave out where the cells' records are, which only the conductors of each cell need. Asked without it by services
    #: of the former release, and by `moorage status`, which looks into each database.
    without_databases: bool | None = None


class LocateCell(Message[Cell], frozen=True, kw_only=True):
    """One cell by its name, with the address of its bus."""

    topic = "placement"
    method = "locate_cell"
    version = "1.6"
    name: Name
    #: With the address of its records, as the cell's conductors need it.
    with_database: bool = False


class ListHostsDeclaredDown(Message[list[Name]], frozen=True, kw_only=True):
    """Those of these hosts of a cell that nobody need wait for: all of their nodes are forced down, or deleted."""

    since: ClassVar = {"or_disabled": "1.6"}
    guards: ClassVar = frozenset({"or_disabled"})

    topic = "placement"
    method = "list_hosts_declared_down"
    version = "1.4"
    cell_uuid: Uuid
    service_hosts: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]
    #: Those too that nothing new is to be started on: each node is forced down, disabled or deleted.
    or_disabled: bool | None = None


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


class Released(Value, frozen=True, kw_only=True):
    """What a release has left."""

    #: The residue that was left, if any.
    residue_uuid: Uuid | None = None
    #: All residues that were left, where migrations went too.
    residue_uuids: tuple[Uuid, ...] = ()
    #: What others had put on the consumers: it has gone with what they held, or stays if it was to.
    extras: dict[Uuid, ProviderAmounts] = {}


class DeleteAllocations(Mutation[Released], frozen=True, kw_only=True):
    """Release all that a consumer holds.

    With ``claim_id``, only if that claim still stands (``ClaimReleased`` otherwise). ``for_good`` sets the tombstone:
    nothing can be claimed for this consumer any more, whether or not it existed. Its migrations go with it, in the same
    write, those apart that are residues.

    Of a claim that ``claimed_with`` does not name nobody can say what others have put beside it: all of it goes, and
    nothing of it is called extras. A consumer that no claim places holds nothing but extras, except what the requests
    named there account for. Where it is not for good, extras are told apart only if ``claimed_with`` names something.
    """

    topic = "placement"
    method = "delete_allocations"
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
    #: An accepted claim leaves a residue, under the attempt's id, of what it holds on its host.
    leave_residue: bool = False
    #: Only if no host has accepted the claim (``InvalidState`` otherwise); needs ``claim_id``.
    unaccepted: bool = False
    #: Migrations of the consumer that are buried with it, also those that are residues or have not come yet; only
    #: ``for_good``. With ``leave_residue`` each leaves one of its own, under the attempt that its host has accepted.
    migration_uuids: Annotated[tuple[Uuid, ...], Meta(max_length=16)] = ()
    #: Attempts whose guests are known to be gone: they leave no residue.
    guests_gone: Annotated[tuple[Uuid, ...], Meta(max_length=16)] = ()
    #: By claim, the consumer's and those of its migrations: what was claimed with it. What they hold beyond that are
    #: extras, put there by others.
    claimed_with: Annotated[dict[Uuid, AllocationRequest], Meta(max_length=16)] = {}
    #: The extras stay on the consumer, also those of its migrations; only ``for_good``. Nobody can claim for it all the
    #: same; whoever wants them gone releases what it holds.
    keep_extras: bool = False
    #: The generations of the consumer and of its migration that the caller relies on; null relies on none.
    consumer_generation: Generation | None = None
    migration_generation: Generation | None = None


class Claimed(Value, frozen=True, kw_only=True):
    """A claim that now stands."""

    claim_id: Uuid
    consumer_generation: Generation
    #: The residue that was left, if any.
    residue_uuid: Uuid | None = None
    #: What others had put on the host that was left, and what has gone with it.
    extras: Allocations = {}


class SwapClaim(Mutation[Claimed], frozen=True, kw_only=True):
    """Release what a claim holds on its host and claim the next host, in one transaction.

    ``leave_residue`` lets an accepted claim go all the same: what it holds on its host is then kept by a residue, a
    consumer of its own under the attempt's id, until that is deleted for good.

    Whatever the consumer holds beyond ``released`` on providers that are not ``released``'s stays. ``guest_gone`` says
    that the host has reported the guest gone; without it a claim that a host has accepted is not released
    (``InvalidState``).

    In a move, ``migration_uuid`` and ``held`` (what the source holds for the instance, as in :class:`Move`) keep what
    both sides use of a pool counted once: what the migration holds of pools changes in the same write.
    """

    topic = "placement"
    method = "swap_claim"
    since: ClassVar = {"leave_residue": "1.1", "migration_uuid": "1.3", "held": "1.3"}
    consumer_uuid: Uuid
    claim_id: Uuid
    released: AllocationRequest
    claimed: AllocationRequest
    #: The provider of the next host itself.
    root_provider_uuid: Uuid
    guest_gone: bool = False
    leave_residue: bool = False
    migration_uuid: Uuid | None = None
    held: AllocationRequest | None = None


class MoveEnded(Value, frozen=True, kw_only=True):
    """How an instance stands when a move of it has ended."""

    claim_id: Uuid
    consumer_generation: Generation
    #: The consumer that goes on holding the host which the instance has left, if its guest may still be there.
    residue_uuid: Uuid | None = None
    #: What others had put on providers that were left: it has gone with them, or stays if it was to.
    extras: Allocations = {}


class EndMove(Mutation[MoveEnded], frozen=True, kw_only=True):
    """End a move: confirmed, the migration's allocations go; reverted, the instance takes them back. One write.

    Reverting needs no room that the two do not hold already. Both bury the migration, unless it remains as a residue.
    """

    topic = "placement"
    method = "end_move"
    version = "1.3"
    since: ClassVar = {"migration_generation": "1.6", "keep_extras": "1.6"}
    guards = frozenset({"migration_generation"})
    consumer_uuid: Uuid
    migration_uuid: Uuid
    #: The claim on the destination: of an instance whose claim is another by now, nothing is changed
    #: (``ClaimReleased``).
    claim_id: Uuid
    outcome: Literal["confirm", "revert"]
    #: What the source held for the instance's own request, and what the destination was claimed with.
    held: AllocationRequest
    claimed: AllocationRequest
    #: The generations of the instance and of the migration that the caller relies on; null relies on none.
    consumer_generation: Generation | None = None
    migration_generation: Generation | None = None
    #: The host that the instance leaves has reported its guest gone. Without this what a host has accepted is given up
    #: only with ``leave_residue``.
    guest_gone: bool = False
    #: The guest may still be on the host that the instance leaves, and what it holds there stays held: confirmed, by
    #: the migration itself, which becomes a residue; reverted, by a residue under the destination's attempt.
    leave_residue: bool = False
    #: What others have put on providers that are left stays, on the instance.
    keep_extras: bool = False


class ServerGroupState(Value, frozen=True, kw_only=True):
    """A server group with its members, and on which host's provider each of them is; null for one that is nowhere."""

    group: ServerGroup
    name: Name | None = None
    project_id: Name | None = None
    members: dict[Uuid, Uuid | None] = {}


class CreateServerGroup(Mutation[ServerGroupState], frozen=True, kw_only=True):
    """Create a server group. One that a claim names is created by it, without a name."""

    topic = "placement"
    method = "create_server_group"
    version = "1.3"
    group: ServerGroup
    name: NewName
    project_id: Name


class ListServerGroups(ListInParts[list[ServerGroupState]], frozen=True, kw_only=True):
    """The server groups by name and uuid, of all projects or of one; in parts by uuid."""

    topic = "placement"
    method = "list_server_groups"
    version = "1.3"
    project_id: Name | None = None
    after: Uuid | None = None


class GetServerGroup(Message[ServerGroupState], frozen=True, kw_only=True):
    """One server group."""

    topic = "placement"
    method = "get_server_group"
    version = "1.3"
    uuid: Uuid


class DeleteServerGroup(Mutation[Done], frozen=True, kw_only=True):
    """Delete a server group; refused while it has members."""

    topic = "placement"
    method = "delete_server_group"
    version = "1.3"
    uuid: Uuid


class AcceptClaim(Mutation[Done], frozen=True, kw_only=True):
    """The first gate: the attempt's host takes the claim, unless it was released or another attempt has it."""

    topic = "placement"
    method = "accept_claim"
    consumer_uuid: Uuid
    claim_id: Uuid
    attempt_id: Uuid
    host: Name


class AcknowledgeRequests(Mutation[Done], frozen=True, kw_only=True):
    """The owner has what it asked for on record: the stored answers of these requests may go in due time."""

    topic = "placement"
    method = "acknowledge_requests"
    version = "1.1"
    request_ids: Annotated[tuple[RequestId, ...], Meta(min_length=1, max_length=MAX_INSTANCES)]
