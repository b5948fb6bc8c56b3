"""Topic `compute.<cell uuid>` of the cell's bus, one server an agent: what is done on a host."""

from typing import ClassVar

from moorage.messages.basis import Done
from moorage.messages.wire import Mutation
from moorage.model import AllocationRequest, Count, Image, MoveKind, Name, RequestSpec, Resources, Uuid, Value


class MovingGuest(Value, frozen=True, kw_only=True):
    """Where the guest of an attempt comes from, when it is no new one."""

    migration_uuid: Uuid
    kind: MoveKind
    source_host: Name
    #: The attempt under which it is on the source.
    source_attempt_id: Uuid


class BuildOnHost(Mutation[Done], frozen=True, kw_only=True):
    """Start an attempt on a host; answered as soon as the agent has taken it up."""

    topic = "compute"
    method = "build_instance"
    since: ClassVar = {"allocation_request": "1.1", "moving": "1.3", "node": "1.6"}
    #: An agent of a former release builds on whichever node it takes for the host's.
    guards: ClassVar = frozenset({"node"})
    host: Name
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid
    request_spec: RequestSpec
    #: What the claim holds on this host's own providers together.
    resources: Resources
    #: Of which provider it holds what, and which one serves which group; null where all comes from the compute node.
    allocation_request: AllocationRequest | None = None
    #: The guest is moved here: a live migration's arrives running, any other's was stopped on its source.
    moving: MovingGuest | None = None
    #: The claimed one of the host's nodes. Null from a cell conductor of a former release.
    node: Name | None = None


class DestroyOnHost(Mutation[Done], frozen=True, kw_only=True):
    """Destroy what an attempt has started on a host, and refuse to start it later; answered when nothing is left."""

    topic = "compute"
    method = "destroy_instance"
    host: Name
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid


class OrderOnHost(Mutation[Done], frozen=True, kw_only=True):
    """Something that is to be done to a guest that is there."""

    since: ClassVar = {"order_number": "1.6"}
    guards: ClassVar = frozenset({"order_number"})
    host: Name
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid
    #: Grows with each order about a guest of the instance. The driver keeps the greatest that it has begun with the
    #: guest, and an order with a smaller one is refused. Null from a cell conductor of a former release.
    order_number: Count | None = None


class StopOnHost(OrderOnHost, frozen=True, kw_only=True):
    """Stop a guest without removing anything of it; one that is stopped stays so. Answered when it has stopped."""

    topic = "compute"
    method = "stop_instance"
    version = "1.3"


class StartOnHost(OrderOnHost, frozen=True, kw_only=True):
    """Start a guest that was stopped; one that runs is left as it is. Answered when it runs."""

    topic = "compute"
    method = "start_instance"
    version = "1.3"


class RebuildOnHost(OrderOnHost, frozen=True, kw_only=True):
    """Make a guest anew in its place, from another image, under the same attempt and claim; answered when it runs.

    Repeated with the same ``rebuild_id`` it is not made anew again.
    """

    topic = "compute"
    method = "rebuild_instance"
    version = "1.3"
    rebuild_id: Uuid
    image: Image
