"""Topic `compute.<cell uuid>` of the cell's bus, with one server for each agent: actions on a host."""

from typing import ClassVar

from moorage.messages.basis import Done, ToAgent
from moorage.messages.wire import Mutation
from moorage.model import AllocationRequest, Count, Image, MoveKind, Name, RequestSpec, Resources, Uuid, Value


class MovingGuest(Value, frozen=True, kw_only=True):
    """The source of a guest that is moved."""

    migration_uuid: Uuid
    kind: MoveKind
    source_host: Name
    #: Its attempt on the source.
    source_attempt_id: Uuid


class BuildOnHost(Mutation[Done], ToAgent, frozen=True, kw_only=True):
    """Start an attempt on a host; answered as soon as the agent has queued it."""

    method = "build_instance"
    may_be_batched = True
    since: ClassVar = {"allocation_request": "1.1", "moving": "1.3", "node": "1.6"}
    #: An agent of a former release chooses the node itself.
    guards: ClassVar = frozenset({"node"})
    host: Name
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid
    request_spec: RequestSpec
    #: The claimed amounts, summed over this host's own providers.
    resources: Resources
    #: The claimed amounts by provider, and the providers of each group; null if the compute node provides everything.
    allocation_request: AllocationRequest | None = None
    #: The source of a moved guest. In a live migration the guest arrives running; in any other move its source has
    #: stopped it.
    moving: MovingGuest | None = None
    #: The claimed node of the host. Null from a cell conductor of a former release.
    node: Name | None = None


class DestroyOnHost(Mutation[Done], ToAgent, frozen=True, kw_only=True):
    """Destroy the guest of an attempt on a host, and never start it later; answered when nothing is left."""

    method = "destroy_instance"
    host: Name
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid


class OrderOnHost(Mutation[Done], ToAgent, frozen=True, kw_only=True):
    """An order to an existing guest."""

    version = "1.3"
    since: ClassVar = {"order_number": "1.6"}
    guards: ClassVar = frozenset({"order_number"})
    host: Name
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid
    #: Grows with each order to a guest of the instance. The driver keeps the greatest begun one with the guest, and
    #: refuses an order with a smaller one. Null from a cell conductor of a former release.
    order_number: Count | None = None


class StopOnHost(OrderOnHost, frozen=True, kw_only=True):
    """Stop a guest, and keep all of it; a stopped one is left as it is. Answered when it has stopped."""

    method = "stop_instance"


class StartOnHost(OrderOnHost, frozen=True, kw_only=True):
    """Start a stopped guest; one that runs is left as it is. Answered when it runs."""

    method = "start_instance"


class RebuildOnHost(OrderOnHost, frozen=True, kw_only=True):
    """Rebuild a guest in place from another image, under the same attempt and claim; answered when it runs.

    A repeated message with the same ``rebuild_id`` does not rebuild it again.
    """

    method = "rebuild_instance"
    rebuild_id: Uuid
    image: Image
