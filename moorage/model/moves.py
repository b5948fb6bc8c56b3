"""Servers that move, and rules that bind where several of them go."""

from typing import Annotated, Literal

from msgspec import Meta

from moorage.model.allocations import AllocationRequest
from moorage.model.basis import Uuid, Value

MoveKind = Literal["cold-migration", "resize", "live-migration", "evacuation"]


class Move(Value, frozen=True, kw_only=True):
    """An instance that goes to another host, or takes another size on the same one.

    In one write its source goes to the migration, together with the claim that stands there, and its destination to
    the instance. On a pool that both sides use, the instance holds the larger of the two amounts until the move ends.
    """

    migration_uuid: Uuid
    kind: MoveKind
    #: The claim that places the instance until now; a host has accepted it.
    claim_id: Uuid
    #: What the instance holds for its own request, on the source and its pools. What it holds beyond that, others have
    #: put there: on providers that stay it stays.
    held: AllocationRequest
    #: Let what others have put on providers that are left go with the migration, and be lost when the move is
    #: confirmed; without it such a move is refused (``CannotCarryOver``).
    drop_extras: bool = False


GroupPolicy = Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]


class ServerGroup(Value, frozen=True, kw_only=True):
    """A group of servers and the rule that binds them; a soft one is a wish."""

    uuid: Uuid
    policy: GroupPolicy
    #: How many members of an anti-affinity group one host may have.
    max_server_per_host: Annotated[int, Meta(ge=1, le=1000)] = 1
