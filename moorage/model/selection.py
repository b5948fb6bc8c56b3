"""Selections: the scheduler's answer."""

from collections import Counter

from moorage.model.allocations import AllocationRequest
from moorage.model.basis import Generation, Name, ResourceClassName, Resources, Uuid, Value
from moorage.model.explanation import Explanation


class Selection(Value, frozen=True, kw_only=True):
    """One host in an answer, with the allocation request that claims it.

    The claimed one alone has a ``claim_id``. In a replayed answer it is marked ``released`` where that claim no longer
    stands, with the consumer generation to name next.
    """

    service_host: Name
    nodename: Name
    compute_node_uuid: Uuid
    cell_uuid: Uuid
    agent: Name
    availability_zone: Name
    allocation_request: AllocationRequest
    #: Those providers of the allocation request that are not the host's own: pools that share with it.
    shared_providers: tuple[Uuid, ...] = ()
    #: How much of each resource class may be allocated on the host in all, pools that share with it included.
    limits: dict[ResourceClassName, float] = {}
    weight: float = 0.0
    #: The server group whose rule the host keeps.
    group: Uuid | None = None
    claim_id: Uuid | None = None
    consumer_generation: Generation | None = None
    released: bool = False
    #: Why this host, if that was asked for: on a claimed one alone.
    explanation: Explanation | None = None

    @property
    def resources(self) -> Resources:
        """The claimed amounts by resource class, summed over the host's own providers."""
        amounts: Counter[str] = Counter()
        for uuid, part in self.allocation_request.allocations.items():
            if uuid not in self.shared_providers:
                amounts.update(part.resources)
        return dict(amounts)
