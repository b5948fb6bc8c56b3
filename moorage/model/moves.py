"""Moves of servers, and server groups."""

from typing import Annotated, Literal

from msgspec import Meta

from moorage.model.allocations import AllocationRequest
from moorage.model.basis import Uuid, Value

MoveKind = Literal["cold-migration", "resize", "live-migration", "evacuation"]


class Move(Value, frozen=True, kw_only=True):
    """A move of an instance to another host, or to another size on the same host.

    One write gives the source's allocations and claim to the migration, and the destination's to the instance. On a
    pool that both sides use, the instance holds the larger of the two amounts until the move ends.
    """

    migration_uuid: Uuid
    kind: MoveKind
    #: The instance's present claim, which a host has accepted.
    claim_id: Uuid
    #: The instance's allocations for its own request, on the source and its pools. Its other allocations are foreign:
    #: those on providers that it keeps stay.
    held: AllocationRequest
    #: Let foreign allocations on the providers that are left go with the migration, and be lost when the move is
    #: confirmed; otherwise such a move is refused (``CannotCarryOver``).
    drop_extras: bool = False


GroupPolicy = Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]


class ServerGroup(Value, frozen=True, kw_only=True):
    """A server group and its rule; a soft rule is a preference."""

    uuid: Uuid
    policy: GroupPolicy
    #: The most members of an anti-affinity group on one host.
    max_server_per_host: Annotated[int, Meta(ge=1, le=1000)] = 1
