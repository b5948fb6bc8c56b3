"""Topic `compute.<cell uuid>` of the cell's bus, one server an agent: what is done on a host."""

from typing import ClassVar

from moorage.messages.basis import Done
from moorage.model import AllocationRequest, Name, RequestSpec, Resources, Uuid
from moorage.wire import Mutation


class BuildOnHost(Mutation[Done], frozen=True, kw_only=True):
    """Start an attempt on a host; answered as soon as the agent has taken it up."""

    topic = "compute"
    method = "build_instance"
    since: ClassVar = {"allocation_request": "1.1"}
    host: Name
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid
    request_spec: RequestSpec
    #: What the claim holds on this host's own providers together.
    resources: Resources
    #: Of which provider it holds what, and which one serves which group; null where all comes from the compute node.
    allocation_request: AllocationRequest | None = None


class DestroyOnHost(Mutation[Done], frozen=True, kw_only=True):
    """Destroy what an attempt has started on a host, and refuse to start it later; answered when nothing is left."""

    topic = "compute"
    method = "destroy_instance"
    host: Name
    instance_uuid: Uuid
    attempt_id: Uuid
    claim_id: Uuid
